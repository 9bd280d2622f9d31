"""Options of the commands that run servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from firearrow.cli import EMBEDDED_STORE
from firearrow.cli.parameters import Options, Pairs, Parameter, WrongValue, pair, switch, valued
from firearrow.cli.parameters import port as as_port

BROKERS_MAX = 26  # each name ends with a letter
WORKERS_MAX = 64
Host = Annotated[str | None, Parameter("address to listen on (default: bindAddress, 0.0.0.0)")]


def _port(name: str, text: str) -> Parameter:
    return valued("N", text, as_port, name=name)


def _brokers(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= BROKERS_MAX:
        raise WrongValue(f"{text!r} is no number of brokers: allowed is 1 to {BROKERS_MAX}")
    return number


def _workers(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= WORKERS_MAX:
        raise WrongValue(f"{text!r} is no number of workers: allowed is 1 to {WORKERS_MAX}")
    return number


class ServerOptions(Options):
    """Options of every server."""

    file: Annotated[Path | None, valued("FILE", "RocketMQ's properties file", name="-c")] = None
    pairs: Annotated[
        Pairs,
        valued(
            "KEY=VALUE",
            "sets one configuration key; may be repeated; overrides the file",
            pair,
            name="--set",
            names_of="keys",
        ),
    ] = ()
    print_only: Annotated[bool, switch("print the configuration and exit", name="-p")] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Parameter("lowest level of log records to write (default: info)")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Parameter("key=value lines, or one JSON object per line (default: text)")
    ] = "text"

    def given(self) -> Mapping[str, str | int | None]:
        """Give the keys of the configuration that options set."""
        return {}


class NamesrvOptions(ServerOptions):
    """Options of `namesrv`."""

    port: Annotated[int | None, _port("--port", "port to listen on, 0 for a free one (default: listenPort, 9876)")] = (
        None
    )
    host: Host = None

    def given(self) -> Mapping[str, str | int | None]:
        """Give the keys of the configuration that options set."""
        return {"listenPort": self.port, "bindAddress": self.host}


class ControllerOptions(ServerOptions):
    """Options of `controller`."""

    store: Annotated[
        str | None,
        valued(
            "DIR",
            "directory of the replicated state of controllers (default: controllerStorePath, ~/DLedgerController)",
        ),
    ] = None
    host: Host = None

    def given(self) -> Mapping[str, str | int | None]:
        """Give the keys of the configuration that options set."""
        return {"controllerStorePath": self.store, "bindAddress": self.host}


class BrokerOptions(ServerOptions):
    """Options of `broker`."""

    namesrv_addr: Annotated[str | None, valued("HOST:PORT;...", "name servers to register with", name="-n")] = None
    store: Annotated[str | None, valued("DIR", "store directory (default: storePathRootDir, ~/store)")] = None
    broker_port: Annotated[
        int | None, _port("--broker-port", "port of the broker, 0 for a free one (default: listenPort, 10911)")
    ] = None
    grpc_port: Annotated[
        int | None, _port("--grpc-port", "port for gRPC clients, 0 for a free one (default: grpcServerPort, 8081)")
    ] = None
    host: Host = None

    def given(self) -> Mapping[str, str | int | None]:
        """Give the keys of the configuration that options set."""
        return {
            "storePathRootDir": self.store,
            "grpcServerPort": self.grpc_port,
            "listenPort": self.broker_port,
            "bindAddress": self.host,
            "namesrvAddr": self.namesrv_addr,
        }


class ServeOptions(BrokerOptions):
    """Options of `serve`."""

    store: Annotated[
        str | None, valued("DIR", f"store directory (default: storePathRootDir, or ./{EMBEDDED_STORE})")
    ] = None
    host: Annotated[str | None, Parameter("address to listen on (default: bindAddress, or 127.0.0.1)")] = None
    ephemeral: Annotated[
        bool, switch("for tests: free ports, and a small store in a temporary directory that is removed at the end")
    ] = False
    until_stdin_closes: Annotated[
        bool, switch("also stop at the end of standard input, as soon as the parent process is gone")
    ] = False
    namesrv_port: Annotated[
        int | None, _port("--namesrv-port", "port of the name server, 0 for a free one (default: 9876)")
    ] = None
    brokers: Annotated[
        int,
        valued(
            "N",
            "number of brokers, each in a separate process, with ports 10 apart and a "
            f"separate directory below that of --store (default: 1, at most {BROKERS_MAX})",
            _brokers,
        ),
    ] = 1
    console_port: Annotated[
        int | None,
        _port("--console-port", "port of the console, 0 for a free one (default: 8088; none with --ephemeral)"),
    ] = None
    no_console: Annotated[bool, switch("do not serve the console")] = False

    @property
    def wants_console(self) -> bool:
        """Tell whether the console is served."""
        return not self.no_console and (self.console_port is not None or not self.ephemeral)


class ProxyOptions(ServerOptions):
    """Options of `proxy`."""

    file: Annotated[
        Path | None,
        valued(
            "FILE",
            "RocketMQ's rmq-proxy.json (default: conf/rmq-proxy.json below RMQ_PROXY_HOME, if it exists)",
            name=("-c", "-pc"),
        ),
    ] = None
    namesrv_addr: Annotated[
        str | None,
        valued("HOST:PORT;...", "name servers of the cluster (default: namesrvAddr, NAMESRV_ADDR)", name="-n"),
    ] = None
    grpc_port: Annotated[
        int | None, _port("--grpc-port", "port for gRPC clients, 0 for a free one (default: grpcServerPort, 8081)")
    ] = None
    remoting_port: Annotated[
        int | None,
        _port("--remoting-port", "port for remoting clients, 0 for a free one (default: remotingListenPort, 8080)"),
    ] = None
    host: Host = None
    workers: Annotated[
        int,
        valued(
            "N",
            f"number of processes that share the port and its clients (default: 1, at most {WORKERS_MAX})",
            _workers,
        ),
    ] = 1

    def given(self) -> Mapping[str, str | int | None]:
        """Give the keys of the configuration that options set."""
        return {
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": self.remoting_port,
            "bindAddress": self.host,
            "namesrvAddr": self.namesrv_addr,
        }
