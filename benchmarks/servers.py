"""The two sides of every comparison: RocketMQ as its authors ship it, and Firearrow.

Both listen on loopback, on free ports, with an empty store (or one that a case has laid there) in
a directory of their own that is deleted when they stop. RocketMQ gets 2 GiB of heap, G1 and its
default asynchronous flush; Firearrow gets its defaults. A case may set keys of the broker's
configuration, on both sides, have each broker followed by a slave of its own kind, and give both a
certificate.
"""

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Self

from benchmarks import process, remoting
from benchmarks.certificate import Certificate
from benchmarks.errors import BenchmarkError
from benchmarks.process import Memory, ServerProcess
from benchmarks.toolchain import Tools

FIREARROW = "firearrow"
ROCKETMQ = "rocketmq"
READY_TIMEOUT_S = 90  # the original registers within 5 s, on a busy machine within 30
COPIED_PAUSE_S = 0.05
NEIGHBOURS = 3  # from port - 2 to port + 1
# The system gives none of these to an outgoing connection, which could take it before the server.
SERVER_PORTS = range(12_002, 32_000, NEIGHBOURS + 1)
OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
BROKER_MEMORY = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g")
NAMESRV_MEMORY = ("-Xms256m", "-Xmx256m")
SLAVE_KEYS = {"brokerRole": "SLAVE", "brokerId": "1"}


@dataclass(frozen=True)
class Broker:
    """A broker's name and HOST:PORT."""

    name: str
    address: str


@dataclass(frozen=True)
class Shape:
    """Parts of a side: the number of brokers, a slave for each if they are followed, the certificate
    for clients that encrypt, and whether a proxy in the broker's process serves gRPC."""

    brokers: int = 1
    followed: bool = False
    certificate: Certificate | None = None
    grpc: bool = False

    @property
    def processes(self) -> int:
        """How many brokers there are, slaves included."""
        return self.brokers * (2 if self.followed else 1)

    @property
    def tls_keys(self) -> Mapping[str, str]:
        """What its processes are told of the certificate."""
        return {} if self.certificate is None else self.certificate.keys


ALONE = Shape()
"""One broker."""


@dataclass
class Deployment:
    """One side, running: its processes, addresses and directory. A context that stops it.

    ``brokers`` take messages, ``slaves`` follow them. With a certificate clients encrypt. ``grpc`` is
    HOST:PORT for clients by gRPC.
    """

    side: str
    processes: list[ServerProcess]
    namesrv: str
    brokers: tuple[Broker, ...]
    directory: Path
    slaves: tuple[Broker, ...] = ()
    certificate: Certificate | None = None
    grpc: str | None = None

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all processes, brokers before name servers, and delete the stores."""
        try:
            self.resume()  # all of them: a broker that stops says so to its name server
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self) -> None:
        """Stop all processes, brokers before name servers."""
        for server in reversed(self.processes):
            server.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids of the side, name server included."""
        return [server.pid for server in self.processes]

    def check(self) -> None:
        """Raise BenchmarkError if one of its processes has ended."""
        for server in self.processes:
            server.check()

    def wait_ready(self) -> None:
        """Wait until the name server gives the brokers to clients."""
        names = tuple(broker.name for broker in self.brokers)
        remoting.until(
            f"{self.side}: a route to {', '.join(names)}",
            lambda: remoting.routes(self.namesrv, names),
            timeout_s=READY_TIMEOUT_S,
            check=self.check,
        )
        if self.grpc is not None:  # RocketMQ's proxy opens its port after that of its broker
            at = self.grpc
            remoting.until(
                f"{self.side}: a port for gRPC",
                lambda: remoting.accepts(at),
                timeout_s=READY_TIMEOUT_S,
                check=self.check,
            )
        self.wait_copied()

    def wait_copied(self) -> None:
        """Wait until slaves, if there are any, have all that their masters have."""
        if self.slaves:
            remoting.until(
                f"{self.side}: slaves that have the whole log",
                lambda: all(remoting.lags(broker.address) == [0] for broker in self.brokers),
                timeout_s=READY_TIMEOUT_S,
                pause_s=COPIED_PAUSE_S,
                check=self.check,
            )

    def wait_acknowledged(self, pause_s: float) -> None:
        """Wait until the first broker acknowledges a message."""
        broker = self.brokers[0]
        remoting.until(
            f"{self.side}: an acknowledged message",
            lambda: remoting.send_one(broker.address, broker.name, "first"),
            timeout_s=READY_TIMEOUT_S,
            pause_s=pause_s,
            check=self.check,
        )

    def pause(self) -> None:
        """Stop it from using any CPU until `resume`."""
        for server in self.processes:
            server.pause()

    def resume(self) -> None:
        """Let it run again."""
        for server in self.processes:
            server.resume()

    def idle_cores(self, seconds: float) -> float:
        """Measure how many cores it uses while nobody asks it for anything."""
        before, start = process.cpu_seconds(self.pids), time.monotonic()
        time.sleep(seconds)
        return (process.cpu_seconds(self.pids) - before) / (time.monotonic() - start)

    def memory(self) -> Memory:
        """Add up the memory of its processes."""
        self.check()
        return process.memory(self.pids)

    def stored_bytes(self) -> int:
        """Give the disk space that its directory takes (blocks, not file lengths)."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sum(path.stat().st_blocks * 512 for path in files)


Keys = Mapping[str, str]
"""Broker configuration under RocketMQ's names."""

Launch = Callable[[Path, Shape, Keys], Deployment]
"""Starts a side in a directory, in a shape and with some keys; does not wait for it."""


@dataclass(frozen=True)
class Member:
    """A broker that is to be started: the name of its process, its store and its keys."""

    name: str
    broker: Broker
    store: Path
    keys: Keys


def members(directory: Path, shape: Shape, keys: Keys, ports: list[int]) -> list[Member]:
    """Give the brokers of a side, and behind them the slaves, in the same order."""
    found: list[Member] = []
    left = iter(ports)
    for broker_id in range(2 if shape.followed else 1):
        for letter in "abcdefgh"[: shape.brokers]:
            broker_name, port = f"broker-{letter}", next(left)
            name = f"{broker_name}-slave" if broker_id else broker_name
            own = {
                "brokerName": broker_name,
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "haListenPort": str(port + 1),
                **keys,
                **(SLAVE_KEYS if broker_id else {}),
            }
            store = directory / ("store" if shape.brokers == 1 and not broker_id else name)
            found.append(Member(name, Broker(broker_name, f"127.0.0.1:{port}"), store, own))
    return found


def deployed(side: str, directory: Path, shape: Shape, keys: Keys) -> tuple[Deployment, list[Member]]:
    """Give a side on free ports of which nothing runs yet, and what it consists of."""
    directory.mkdir(parents=True, exist_ok=True)
    namesrv_port, grpc_port, *ports = free_ports(2 + shape.processes)
    started = members(directory, shape, keys, ports)
    namesrv, all_of_them = f"127.0.0.1:{namesrv_port}", tuple(it.broker for it in started)
    brokers, slaves = all_of_them[: shape.brokers], all_of_them[shape.brokers :]
    side_to_be = Deployment(side, [], namesrv, brokers, directory, slaves, shape.certificate)
    if shape.grpc:
        side_to_be.grpc = f"127.0.0.1:{grpc_port}"
    return side_to_be, started


def launchers(tools: Tools, *, firearrow: bool = True) -> dict[str, Launch]:
    """Give the launchers of the sides that take part, by name."""
    sides: dict[str, Launch] = {}
    if firearrow:
        sides[FIREARROW] = launch_firearrow
    if tools.java and tools.jars:
        java, jars = tools.java, tools.jars
        # However many brokers Firearrow runs, it is compared with one of the original.
        sides[ROCKETMQ] = lambda directory, shape, keys: launch_rocketmq(
            java, jars, directory, replace(shape, brokers=1), keys
        )
    return sides


def launch_rocketmq(java: Path, jars: Path, directory: Path, shape: Shape, keys: Keys) -> Deployment:
    """Start the original's name server and brokers."""
    deployment, started = deployed(ROCKETMQ, directory, shape, keys)
    properties = tuple(f"-D{key}={value}" for key, value in shape.tls_keys.items())

    def start(name: str, main: str, settings: Keys, memory: tuple[str, ...]) -> None:
        conf = directory / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        options, home = (*memory, *properties), directory / name
        command = java_command(java, jars, home, options, main, "-c", conf)
        environment = {"ROCKETMQ_HOME": str(directory)}
        log = directory / f"{name}.log"
        deployment.processes.append(ServerProcess.start(command, log, environment))

    own = {"bindAddress": "127.0.0.1", "listenPort": deployment.namesrv.rpartition(":")[2]}
    start("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", own, NAMESRV_MEMORY)
    if deployment.grpc is not None:
        [member] = started
        deployment.processes.append(_proxy_with_broker(java, jars, directory, member, deployment))
        return deployment
    for member in started:
        settings = _rocketmq_keys(member, deployment.namesrv)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        start(member.name, main, settings, BROKER_MEMORY)
    return deployment


def _proxy_with_broker(
    java: Path, jars: Path, directory: Path, member: Member, deployment: Deployment
) -> ServerProcess:
    """Start RocketMQ's proxy in local mode, which has the broker in its process."""
    assert deployment.grpc is not None, "a shape with gRPC"
    (directory / "conf").mkdir()
    broker = directory / "conf" / "broker.conf"
    settings = _rocketmq_keys(member, deployment.namesrv)
    broker.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    port = int(deployment.grpc.rpartition(":")[2])
    keys = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
        "namesrvAddr": deployment.namesrv,
        "localServeAddr": "127.0.0.1",
    }
    (directory / "conf" / "rmq-proxy.json").write_text(json.dumps(keys))
    main = "org.apache.rocketmq.proxy.ProxyStartup"
    arguments = ("-pm", "local", "-bc", broker, "-n", deployment.namesrv)
    command = java_command(java, jars, directory / "proxy", BROKER_MEMORY, main, *arguments)
    environment = {"ROCKETMQ_HOME": str(directory), "RMQ_PROXY_HOME": str(directory)}
    return ServerProcess.start(command, directory / "proxy.log", environment)


def _rocketmq_keys(member: Member, namesrv: str) -> Keys:
    return {
        "bindAddress": "127.0.0.1",
        "brokerClusterName": "DefaultCluster",
        "brokerId": "0",
        "listenPort": member.broker.address.rpartition(":")[2],
        "namesrvAddr": namesrv,
        "autoCreateTopicEnable": "true",
        "flushDiskType": "ASYNC_FLUSH",
        "storePathRootDir": str(member.store),
        "storePathCommitLog": str(member.store / "commitlog"),
        **member.keys,
    }


def java_command(
    java: Path, jars: Path, home: Path, memory: tuple[str, ...], main: str, *arguments: str | Path
) -> list[str | Path]:
    """Give the command for one of RocketMQ's main classes; its logs go below `home`."""
    return [java, *memory, *OPENS, f"-Duser.home={home}", "-cp", f"{jars}/*", main, *arguments]


def launch_firearrow(directory: Path, shape: Shape, keys: Keys) -> Deployment:
    """Start Firearrow: one `serve` process and its slave, or a name server and brokers."""
    deployment, started = deployed(FIREARROW, directory, shape, {**shape.tls_keys, **keys})
    if deployment.grpc is not None:
        port = {"grpcServerPort": deployment.grpc.rpartition(":")[2]}
        started = [replace(member, keys={**member.keys, **port}) for member in started]
    for name, arguments in firearrow_commands(deployment.namesrv, shape, started):
        command: list[str | Path] = [sys.executable, "-m", "firearrow", *arguments]
        deployment.processes.append(ServerProcess.start(command, directory / f"{name}.log"))
    return deployment


def firearrow_commands(namesrv: str, shape: Shape, started: list[Member]) -> list[tuple[str, list[str]]]:
    """Give each process of Firearrow as a name and its command line: all that knows our CLI."""
    host, namesrv_port = ["--host", "127.0.0.1"], namesrv.rpartition(":")[2]
    commands: list[tuple[str, list[str]]] = []
    if shape.brokers == 1:
        first, *started = started
        where = ["--namesrv-port", namesrv_port, *_settings(first)]
        commands.append(("serve", ["serve", *host, *where]))
    else:
        commands.append(("namesrv", ["namesrv", *host, "--port", namesrv_port]))
    for member in started:
        where = ["-n", namesrv, *_settings(member)]
        commands.append((member.name, ["broker", *host, *where]))
    return commands


def _settings(member: Member) -> list[str]:
    words = ["--store", str(member.store)]
    words += ["--broker-port", member.broker.address.rpartition(":")[2]]
    for key, value in member.keys.items():
        words += ["--set", f"{key}={value}"]
    return words


def free_ports(count: int) -> list[int]:
    """Find that number of ports for brokers, none a neighbour of another one or of an earlier one."""
    turn = islice(_ports(), len(SERVER_PORTS))
    found = list(islice((port for port in turn if _has_room(port)), count))
    if len(found) < count:
        raise BenchmarkError(f"{len(found)} of {count} ports with free neighbours on 127.0.0.1")
    return found


def free_port() -> int:
    """Find a port whose neighbours are free too."""
    return free_ports(1)[0]


@cache
def _ports() -> Iterator[int]:
    """Go round the ports for servers for ever, from anywhere: other programs look for some, too."""
    begin = SystemRandom().randrange(len(SERVER_PORTS))
    return cycle([*SERVER_PORTS[begin:], *SERVER_PORTS[:begin]])


def _has_room(port: int) -> bool:
    """Tell whether a broker can listen there: it takes port - 2, port and port + 1."""
    return all(map(_free, (port - 2, port, port + 1)))


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
