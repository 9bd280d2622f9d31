"""Start controllers of either kind, and original brokers that follow them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.controller_bodies import EpochsOfBroker
from tests.controllerscript import DATA, NAMES, WITHIN_S
from tests.interop.servers import BROKER_NAME, CLUSTER_NAME, ROOT, Kind, Process, free_port, running, write_properties
from tests.interop.toolchain import java_command
from tests.interop.waiting import wait_until

GROUP = "controllers"
HERE = ("--host", "127.0.0.1")
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
def controllers(
    kind: Kind, directory: Path, size: int, *, host: str = "127.0.0.1", **more: str
) -> Iterator[Controllers]:
    """Run a group of controllers for a ``with`` block. ``host`` is where others find them."""
    addresses = {f"n{number}": f"{host}:{free_port(0)}" for number in range(size)}
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
        return [sys.executable, "-m", "firearrow", "controller", "-c", str(conf), *HERE]
    jvm = (*JVM, f"-Duser.home={directory}")
    main = "org.apache.rocketmq.controller.ControllerStartup"
    return java_command(main, "-c", str(conf), jvm=jvm)


@contextmanager
def name_server(directory: Path) -> Iterator[str]:
    """Run a name server of ours for a ``with`` block; give its address."""
    with name_server_process(directory) as (address, _):
        yield address


@contextmanager
def name_server_process(directory: Path, **keys: str) -> Iterator[tuple[str, int]]:
    """The same with some keys; give also its process's id."""
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "firearrow", "namesrv", "--port", "0", *HERE, *words]
    with running(command, directory / "namesrv.log") as process:
        ready = process.wait_for_line("ready ")
        yield ready.removeprefix("ready namesrv=").strip(), process.popen.pid


class OriginalBroker:
    """A broker of RocketMQ's in controller mode; started, killed and started again."""

    kind: Kind = "real"

    def __init__(self, directory: Path, namesrv: str, controller_addresses: str, **keys: str) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port(-2, 0, 1)}"
        port = int(self.address.rpartition(":")[2])
        self.ha_address = f"127.0.0.1:{port + 1}"
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
        return [sys.executable, "-m", "firearrow", "broker", "-c", str(self._conf), *HERE]


def ask(address: str, code: int, fields: dict[str, Any], body: bytes = b"") -> Any:
    """Ask a server, as who may do everything if it has users; give its answer."""

    async def asked() -> Any:
        client = Client(access=Access(credentials=ROOT))
        try:
            return await client.answer(address, code, fields, body, timeout_seconds=10)
        finally:
            await client.close()

    return asyncio.run(asked())


def epochs_of(broker: OriginalBroker) -> EpochsOfBroker:
    """What a broker says of its epochs."""
    answer = ask(broker.address, Code.GET_BROKER_EPOCH_CACHE, {})
    assert answer.code == 0, answer.remark
    return fastjson.decode(answer.body, EpochsOfBroker)


def log_of(broker: OriginalBroker, end: int | None = None) -> bytes:
    """The bytes of a broker's log, to its end; a broker with epochs says where that is."""
    end = epochs_of(broker).max_offset if end is None else end
    files = sorted((broker.directory / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


def wait_for_same_log(brokers: Sequence[OriginalBroker]) -> bytes:
    """Wait until all brokers have one log with the same epochs; give it."""
    first, *others = brokers

    def same() -> bytes | None:
        log, epochs = log_of(first), epochs_of(first)
        starts = [(it.epoch, it.start_offset) for it in epochs.epoch_list]
        for other in others:
            theirs = [(it.epoch, it.start_offset) for it in epochs_of(other).epoch_list]
            if theirs != starts or log_of(other) != log:
                return None
        return log

    found: bytes = wait_until(same, WITHIN_S, "brokers with one log")
    return found


async def known_by(client: Client, address: str) -> dict[str, Any] | None:
    """What a controller that leads knows of the brokers; None from another one."""
    try:
        answer = await client.answer(address, DATA, {}, NAMES)
    except OSError:  # it does not listen yet
        return None
    if answer.code != ResponseCode.SUCCESS:
        return None
    state: dict[str, Any] | None = fastjson.loads(answer.body)["replicasInfoTable"].get(BROKER_NAME)
    return state


def wait_for_state(group: Controllers, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until what the leader knows of the brokers is as wanted; give it."""

    async def asked() -> dict[str, Any] | None:
        client = Client()
        try:
            for name in group.processes:
                state = await known_by(client, group.addresses[name])
                if state is not None:
                    return state if is_wanted(state) else None
            return None
        finally:
            await client.close()

    return wait_until(lambda: asyncio.run(asked()), WITHIN_S, "brokers that follow")
