"""Start Firearrow, or the original name server and broker, on free ports and a given store.

Both come as a `Server`, so that a scenario does not know which one it talks to. A server that is
left in order is stopped as an operator would, and must then have left a clean store; one that is
left by a failure is only killed, so that the failure is what one sees.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from random import SystemRandom
from typing import Literal, TypeAlias

from firearrow.wire.signature import Credentials
from tests.interop.toolchain import ORIGINAL, java_command
from tests.interop.waiting import wait_until

Kind: TypeAlias = Literal["firearrow", "real"]

# Which broker hands a store to which, by the kind of the store's queues. Each of both has one turn;
# FIREARROW_ALL_HANDOVERS=1 (``make handovers``) adds the others.
_THERE: tuple[Kind, Kind] = ("firearrow", "real")
_BACK: tuple[Kind, Kind] = ("real", "firearrow")
HANDOVERS: list[tuple[str, tuple[Kind, Kind]]] = [("default", _THERE), ("defaultRocksDB", _BACK)]
ALL_HANDOVERS = bool(os.environ.get("FIREARROW_ALL_HANDOVERS"))
if ALL_HANDOVERS:
    HANDOVERS += [("default", _BACK), ("defaultRocksDB", _THERE)]

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60

CLUSTER_NAME = "DefaultCluster"
BROKER_NAME = "broker-a"
IDENTITY: Mapping[str, str] = {"brokerClusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}

NAMESRV_KEYS = {"supportActingMaster", "notifyMinBrokerIdChanged"}

# Both refuse what has waited for 200 ms, by default; a machine that runs tests may take that long.
PATIENT: Mapping[str, str] = {"brokerFastFailureEnable": "false"}

# Small enough for every kind of file to roll within a test, large enough for one 4 MiB message.
SMALL_FILES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": str(300 * 20),
    "maxHashSlotNum": "200",
    "maxIndexNum": "800",
    "enablePropertyFilter": "true",
}


_PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
# Where users and their permissions are kept, without a look at who asks.
WITH_USERS: Mapping[str, str] = {
    **SMALL_FILES,
    "authenticationMetadataProvider": _PROVIDER.format("authentication", "Authentication"),
    "authorizationMetadataProvider": _PROVIDER.format("authorization", "Authorization"),
}


ROOT = Credentials("tester", "a secret of twelve")
# Requests must be signed; there is one user, who may do everything.
AUTHENTICATED: Mapping[str, str] = {
    **WITH_USERS,
    "authenticationEnabled": "true",
    "initAuthenticationUser": '{"username":"tester","password":"a secret of twelve"}',
    "innerClientAuthenticationCredentials": ('{"accessKey":"tester","secretKey":"a secret of twelve"}'),
}
# And allowed.
AUTHORIZED: Mapping[str, str] = {**AUTHENTICATED, "authorizationEnabled": "true"}


@dataclass(frozen=True)
class Server:
    """A running name server and broker: addresses (``HOST:PORT``), store, directory of logs.

    ``grpc`` is the address for clients of RocketMQ 5; RocketMQ's own broker has none. ``remoting`` is the address of a
    proxy for remoting clients.
    """

    kind: Kind
    namesrv: str
    broker: str
    store: Path
    logs: Path
    grpc: str = ""
    remoting: str = ""

    @property
    def broker_port(self) -> int:
        """The port that the broker listens on."""
        return int(self.broker.rpartition(":")[2])


def target_kind() -> Kind:
    """Return which server the scenarios are for: ``FIREARROW_INTEROP_TARGET``, or Firearrow."""
    kind = os.environ.get("FIREARROW_INTEROP_TARGET", "firearrow")
    if kind == "firearrow":
        return "firearrow"
    if kind == "real":
        return "real"
    raise ValueError(f"FIREARROW_INTEROP_TARGET is {kind!r}: firearrow or real")


def serve(
    kind: Kind,
    store: Path,
    logs: Path,
    *,
    broker_port: int = 0,
    settings: Mapping[str, str] = SMALL_FILES,
    killed: bool = False,
) -> AbstractContextManager[Server]:
    """Run a server of this kind on ``store`` for a ``with`` block.

    The broker port 0 is a free one; ``settings`` are keys of the broker's configuration. With
    ``namesrvAddr`` among them the broker goes by that name server. A server that is to be
    ``killed`` gets no chance to stop in order when the block ends.
    """
    logs.mkdir(parents=True, exist_ok=True)
    start = _firearrow if kind == "firearrow" else _real
    return start(store, logs, broker_port, {**IDENTITY, **PATIENT, **settings}, killed)


@contextmanager
def _firearrow(
    store: Path, logs: Path, broker_port: int, settings: Mapping[str, str], killed: bool
) -> Iterator[Server]:
    # The original, which may open the store next at this address, needs the ports beside it too.
    broker_port = broker_port or free_port(-2, 0, 1)
    ports = ["--broker-port", str(broker_port)]
    keys = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    servers = ["broker"] if "namesrvAddr" in settings else ["serve", "--namesrv-port", "0", "--no-console"]
    command = [sys.executable, "-m", "firearrow", *servers, "--store", str(store), *ports, *keys]
    with running(command, logs / "firearrow.log") as process:
        words = process.wait_for_line("ready ").split()
        addresses = dict(word.split("=", 1) for word in words if "=" in word)
        namesrv = settings.get("namesrvAddr") or addresses["namesrv"]
        yield Server("firearrow", namesrv, addresses["broker"], store, logs, addresses.get("grpc", ""))
        if not killed:
            status = process.stop()
            assert status == 0, f"firearrow ended with {status}; see {process.log}"
            assert_clean(store)


@contextmanager
def _real(store: Path, logs: Path, broker_port: int, settings: Mapping[str, str], killed: bool) -> Iterator[Server]:
    namesrv_port, broker_port = free_port(0), broker_port or free_port(-2, 0, 1)
    namesrv = settings.get("namesrvAddr") or f"127.0.0.1:{namesrv_port}"
    server = Server("real", namesrv, f"127.0.0.1:{broker_port}", store, logs)
    names = {key: value for key, value in settings.items() if key in NAMESRV_KEYS}
    tls = [f"-D{key}={value}" for key, value in settings.items() if key.startswith("tls.")]
    others = {key: value for key, value in settings.items() if key not in names}
    confs = (
        write_properties(logs / "namesrv.conf", {"listenPort": str(namesrv_port), **names}),
        write_properties(logs / "broker.conf", _broker_keys(server, killed=killed) | others),
    )
    # Libraries of a broker that is killed are left behind: not in the system's directory.
    jvm = ("-Xms1g", "-Xmx1g", f"-Duser.home={logs}", f"-Djava.io.tmpdir={logs}", *tls)
    command = java_command(ORIGINAL, *map(str, confs), jvm=jvm, killed=killed)
    with running(command, logs / "original.log", ROCKETMQ_HOME=str(logs)) as process:
        wait_until(lambda: process.is_alive() and _is_there(server), START_TIMEOUT_S, f"route; see {logs}")
        yield server
        if not killed:
            process.stop()
            assert_clean(store)


def assert_clean(store: Path) -> None:
    """Check that a stopped broker left its store as a clean stop does: without ``abort``."""
    assert (store / "checkpoint").is_file()
    assert not (store / "abort").exists()


class Process:
    """A process whose output goes to a log file."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen = popen
        self.log = log

    def wait_for_line(self, start: str) -> str:
        return wait_until(lambda: self._line(start), START_TIMEOUT_S, f"a line {start!r} in {self.log}")

    def wait_for_text(self, text: str) -> None:
        wait_until(
            lambda: self.is_alive() and text in self.log.read_text(errors="replace"),
            START_TIMEOUT_S,
            f"{text!r} in {self.log}",
        )

    def is_alive(self) -> bool:
        status = self.popen.poll()
        text = self.log.read_text(errors="replace")[-3000:]
        assert status is None, f"the server ended with {status}:\n{text}"
        return True

    def _line(self, start: str) -> str | None:
        self.is_alive()
        text = self.log.read_text(errors="replace")
        complete = text[: text.rfind("\n") + 1].splitlines()
        return next((line for line in complete if line.startswith(start)), None)

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(STOP_TIMEOUT_S)


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[Process]:
    """Run a command for a ``with`` block, and kill what then is left of it."""
    with log.open("wb") as out:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **environment}
        )
        try:
            yield Process(popen, log)
        finally:
            popen.kill()
            popen.wait()


def _broker_keys(server: Server, *, killed: bool) -> dict[str, str]:
    return {
        "brokerIP1": "127.0.0.1",
        "listenPort": str(server.broker_port),
        "haListenPort": str(server.broker_port + 1),
        "namesrvAddr": server.namesrv,
        "storePathRootDir": str(server.store),
        "storePathCommitLog": str(server.store / "commitlog"),
        # A thread of the original spins for this long after each start (default: ten seconds).
        "transactionMetricFlushInterval": "200",
        # Each of these compares the whole timer wheel for half a second; a stop does it as well.
        "timerFlushIntervalMs": "10000" if killed else "60000",
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


# None that the system gives to outgoing connections, which might take it before the server.
SERVER_PORTS = range(12_000, 32_000)
_PORTS_OF_A_SERVER = 4  # RocketMQ listens beside its own port: two below, and one above it


def free_port(*needed: int) -> int:
    """Return a port that is free together with those at the given distances from it, -2 to 1.

    No other test gets one of them, so a server that a test starts again finds its own still free.
    """
    while True:
        port = next(_ports())
        if all(_is_free(port + distance) for distance in needed):
            return port


@cache
def _ports() -> Iterator[int]:
    """Go round this worker's share of the ports for ever, from anywhere in it."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = SERVER_PORTS[2::_PORTS_OF_A_SERVER][worker::workers]
    begin = SystemRandom().randrange(len(share))
    return cycle([*share[begin:], *share[:begin]])


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _is_there(server: Server) -> bool:
    """Whether a broker serves, and its name server knows of it, or of the master of a slave."""
    return _has_route(server.namesrv) and not _is_free(server.broker_port)


def _has_route(namesrv: str) -> bool:
    """Ask the name server for TBW102 (GET_ROUTEINFO_BY_TOPIC), which every broker registers."""
    header = {"code": 105, "language": "OTHER", "version": 497, "opaque": 1, "flag": 0}
    text = json.dumps({**header, "extFields": {"topic": "TBW102"}}).encode()
    host, _, port = namesrv.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(struct.pack(">II", 4 + len(text), len(text)) + text)
            with connection.makefile("rb") as answer:
                _, header_size = struct.unpack(">II", answer.read(8))
                reply = json.loads(answer.read(header_size & 0xFFFFFF))
    except (OSError, struct.error):  # not listening yet, or not ready to answer
        return False
    return bool(reply["code"] == 0)
