"""The two sides of every comparison: RocketMQ as its authors ship it, and Firearrow.

Both listen on loopback, on free ports, with an empty store (or one that a case has laid there) in
a directory of their own that is deleted when they stop. RocketMQ gets 2 GiB of heap, G1 and its
default asynchronous flush; Firearrow gets its defaults. A case may set keys of the broker's
configuration, on both sides.
"""

import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import process, remoting
from benchmarks.errors import BenchmarkError
from benchmarks.process import Memory, ServerProcess
from benchmarks.toolchain import Tools

FIREARROW = "firearrow"
ROCKETMQ = "rocketmq"
READY_TIMEOUT_S = 90  # the original registers within 5 s, on a busy machine within 30
OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
BROKER_MEMORY = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g")
NAMESRV_MEMORY = ("-Xms256m", "-Xmx256m")


@dataclass(frozen=True)
class Broker:
    """A broker's name and HOST:PORT."""

    name: str
    address: str


@dataclass
class Deployment:
    """One side, running: its processes, addresses and directory. A context that stops it."""

    side: str
    processes: list[ServerProcess]
    namesrv: str
    brokers: tuple[Broker, ...]
    directory: Path

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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

Launch = Callable[[Path, int, Keys], Deployment]
"""Starts a side in a directory with so many brokers and some keys; does not wait for it."""


def launchers(tools: Tools, *, firearrow: bool = True) -> dict[str, Launch]:
    """Give the launchers of the sides that take part, by name."""
    sides: dict[str, Launch] = {}
    if firearrow:
        sides[FIREARROW] = launch_firearrow
    if tools.java and tools.jars:
        java, jars = tools.java, tools.jars
        # However many brokers Firearrow runs, it is compared with one of the original.
        sides[ROCKETMQ] = lambda directory, _brokers, keys: launch_rocketmq(
            java, jars, directory, keys
        )
    return sides


def launch_rocketmq(java: Path, jars: Path, directory: Path, keys: Keys) -> Deployment:
    """Start the original's name server and broker."""
    directory.mkdir(parents=True, exist_ok=True)
    namesrv_port, broker_port = free_port(), free_port()
    deployment = Deployment(
        ROCKETMQ,
        [],
        f"127.0.0.1:{namesrv_port}",
        (Broker("broker-a", f"127.0.0.1:{broker_port}"),),
        directory,
    )
    namesrv = {"bindAddress": "127.0.0.1", "listenPort": namesrv_port}
    broker = {
        "bindAddress": "127.0.0.1",
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": broker_port,
        "haListenPort": broker_port + 1,
        "namesrvAddr": deployment.namesrv,
        "autoCreateTopicEnable": "true",
        "flushDiskType": "ASYNC_FLUSH",
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        **keys,
    }
    for name, main, settings, memory in (
        ("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", namesrv, NAMESRV_MEMORY),
        ("broker", "org.apache.rocketmq.broker.BrokerStartup", broker, BROKER_MEMORY),
    ):
        conf = directory / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = java_command(java, jars, directory, memory, main, "-c", conf)
        environment = {"ROCKETMQ_HOME": str(directory)}
        log = directory / f"{name}.log"
        deployment.processes.append(ServerProcess.start(command, log, environment))
    return deployment


def java_command(
    java: Path, jars: Path, home: Path, memory: tuple[str, ...], main: str, *arguments: str | Path
) -> list[str | Path]:
    """Give the command for one of RocketMQ's main classes; its logs go below `home`."""
    return [java, *memory, *OPENS, f"-Duser.home={home}", "-cp", f"{jars}/*", main, *arguments]


def launch_firearrow(directory: Path, brokers: int, keys: Keys) -> Deployment:
    """Start Firearrow: one `serve` process, or a name server and several brokers."""
    directory.mkdir(parents=True, exist_ok=True)
    namesrv_port = free_port()
    ports = [free_port() for _ in range(brokers)]
    names = [f"broker-{letter}" for letter in "abcdefgh"[:brokers]]
    addresses = tuple(
        Broker(name, f"127.0.0.1:{port}") for name, port in zip(names, ports, strict=True)
    )
    namesrv = f"127.0.0.1:{namesrv_port}"
    deployment = Deployment(FIREARROW, [], namesrv, addresses, directory)
    for name, arguments in firearrow_commands(directory, namesrv_port, ports, names, keys):
        command: list[str | Path] = [sys.executable, "-m", "firearrow", *arguments]
        deployment.processes.append(ServerProcess.start(command, directory / f"{name}.log"))
    return deployment


def firearrow_commands(
    directory: Path, namesrv_port: int, ports: list[int], names: list[str], keys: Keys
) -> list[tuple[str, list[str]]]:
    """Give each process of Firearrow as a name and its command line: all that knows our CLI."""
    host = ["--host", "127.0.0.1"]
    if len(ports) == 1:
        store = ["--store", str(directory / "store")]
        where = ["--namesrv-port", str(namesrv_port), "--broker-port", str(ports[0])]
        return [("serve", ["serve", *host, *store, *where, *_settings(names[0], ports[0], keys)])]
    commands = [("namesrv", ["namesrv", *host, "--port", str(namesrv_port)])]
    for port, name in zip(ports, names, strict=True):
        store = ["--store", str(directory / name)]
        where = ["-n", f"127.0.0.1:{namesrv_port}", "--broker-port", str(port)]
        commands.append((name, ["broker", *host, *store, *where, *_settings(name, port, keys)]))
    return commands


def _settings(name: str, port: int, keys: Keys) -> list[str]:
    given = [f"brokerName={name}", "brokerIP1=127.0.0.1", f"haListenPort={port + 1}"]
    given += [f"{key}={value}" for key, value in keys.items()]
    return [word for setting in given for word in ("--set", setting)]


def free_port() -> int:
    """Find a port whose neighbours are free too: a broker takes port, port + 1 and port - 2."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if _free(port - 2) and _free(port + 1):
            return port
    raise BenchmarkError("no three free ports on 127.0.0.1")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
