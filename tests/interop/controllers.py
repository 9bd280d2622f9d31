"""Start controllers of either kind, and original brokers that follow them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from firearrow.net.client import Client
from firearrow.wire.codes import ResponseCode
from tests.controllerscript import DATA, NAMES, WITHIN_S
from tests.interop.servers import (
    BROKER_NAME,
    CLUSTER_NAME,
    Kind,
    Process,
    free_port,
    running,
    write_properties,
)
from tests.interop.toolchain import java_command
from tests.interop.waiting import wait_until

GROUP = "controllers"
JVM = ("-Xms256m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")


@dataclass
class Controllers:
    """A group: the address of each by name, and the processes of those that run."""

    addresses: Mapping[str, str]
    processes: dict[str, Process]
    metrics_ports: Mapping[str, int]

    @property
    def all_addresses(self) -> str:
        """The addresses as brokers are told them."""
        return ";".join(self.addresses.values())

    def kill(self, name: str) -> None:
        """Kill one of them."""
        self.processes.pop(name).popen.kill()


@contextmanager
def controllers(kind: Kind, directory: Path, size: int, **more: str) -> Iterator[Controllers]:
    """Run a group of controllers for a ``with`` block."""
    addresses = {f"n{number}": f"127.0.0.1:{free_port(0)}" for number in range(size)}
    peers = ";".join(f"{name}-{address}" for name, address in addresses.items())
    group = Controllers(addresses, {}, {name: free_port(0) for name in addresses})
    with ExitStack() as stack:
        for name in addresses:
            keys = {
                "controllerDLegerGroup": GROUP,
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": name,
                "controllerStorePath": str(directory / name),
                "mappedFileSize": str(1 << 20),
                "metricsExporterType": "PROM",
                "metricsPromExporterHost": "127.0.0.1",
                "metricsPromExporterPort": str(group.metrics_ports[name]),
                **more,
            }
            conf = write_properties(directory / f"{name}.conf", keys)
            log = directory / f"{name}.log"
            started = running(_command(kind, conf, directory), log, ROCKETMQ_HOME=str(directory))
            group.processes[name] = stack.enter_context(started)
        yield group


async def _leads(address: str) -> bool:
    """Whether a controller answers as the leader. The original says ``isLeader`` before it does."""
    client = Client()
    try:
        return (await client.answer(address, DATA, {}, NAMES)).code == ResponseCode.SUCCESS
    except OSError:
        return False
    finally:
        await client.close()


def wait_for_leader(group: Controllers) -> str:
    """Wait until a controller leads; give its name."""

    def leading() -> str | None:
        names = [name for name in group.processes if asyncio.run(_leads(group.addresses[name]))]
        return names[0] if names else None

    return wait_until(leading, WITHIN_S, "a controller that leads")


def _command(kind: Kind, conf: Path, directory: Path) -> list[str]:
    if kind == "firearrow":
        return [sys.executable, "-m", "firearrow", "controller", "-c", str(conf)]
    jvm = (*JVM, f"-Duser.home={directory}")
    main = "org.apache.rocketmq.controller.ControllerStartup"
    return java_command(main, "-c", str(conf), jvm=jvm)


@contextmanager
def name_server(directory: Path) -> Iterator[str]:
    """Run a name server of ours for a ``with`` block; give its address."""
    command = [sys.executable, "-m", "firearrow", "namesrv", "--port", "0", "--host", "127.0.0.1"]
    with running(command, directory / "namesrv.log") as process:
        yield process.wait_for_line("ready ").removeprefix("ready namesrv=").strip()


class OriginalBroker:
    """A broker of RocketMQ's in controller mode; started, killed and started again."""

    kind: Kind = "real"

    def __init__(
        self, directory: Path, namesrv: str, controller_addresses: str, **keys: str
    ) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port(-2, 0, 1)}"
        port = int(self.address.rpartition(":")[2])
        directory.mkdir()
        self._conf = write_properties(
            directory / "broker.conf",
            {
                "brokerClusterName": CLUSTER_NAME,
                "brokerName": BROKER_NAME,
                "brokerIP1": "127.0.0.1",
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "namesrvAddr": namesrv,
                "storePathRootDir": str(directory / "store"),
                "storePathCommitLog": str(directory / "store" / "commitlog"),
                "mappedFileSizeCommitLog": str(4 << 20),
                "enableControllerMode": "true",
                "controllerAddr": controller_addresses,
                "timerWheelEnable": "false",
                "transactionMetricFlushInterval": "200",
                **keys,
            },
        )
        self._stack = ExitStack()
        self._starts = 0

    def start(self) -> None:
        """Start it, or start it again."""
        self._starts += 1
        log = self.directory / f"broker-{self._starts}.log"
        started = running(self._command(), log, ROCKETMQ_HOME=str(self.directory))
        self.process = self._stack.enter_context(started)

    def _command(self) -> list[str]:
        jvm = (*JVM, f"-Duser.home={self.directory}", f"-Djava.io.tmpdir={self.directory}")
        main = "org.apache.rocketmq.broker.BrokerStartup"
        return java_command(main, "-c", str(self._conf), jvm=jvm)

    def kill(self) -> None:
        """Kill it, as power would."""
        self.process.popen.send_signal(signal.SIGKILL)
        self.process.popen.wait()

    def close(self) -> None:
        """Kill what runs."""
        self._stack.close()


class OurBroker(OriginalBroker):
    """A broker of ours in controller mode."""

    kind: Kind = "firearrow"

    def _command(self) -> list[str]:
        host = ["--host", "127.0.0.1"]
        return [sys.executable, "-m", "firearrow", "broker", "-c", str(self._conf), *host]
