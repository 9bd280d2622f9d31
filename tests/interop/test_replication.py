"""Masters and slaves of both kinds: the original's broker follows Firearrow's, and the reverse.

All brokers register with one name server. What the official client sends to the master must be in
the log of the slave byte for byte, and both must say so by ``mqadmin haStatus``; then either is
killed, and they go on. What a SYNC_MASTER has acknowledged is on its slave at any moment.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from firearrow.store.offline import Layout, diff
from firearrow.store.timerfiles import CHECK
from tests.crash.replicas import Replicas, Running
from tests.crash.victim import SIZES
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import SMALL_FILES, Kind, Server, serve
from tests.interop.waiting import wait_until, wait_until_healthy

pytestmark = pytest.mark.slow

KILL_ROUNDS: Final = int(os.environ.get("FIREARROW_REPLICA_KILL_ROUNDS", "0"))
TIMEOUT_S: Final = 60
QUEUES: Final = 2
TOPIC: Final = "replicated"

PAIRS: Final[list[tuple[Kind, Kind, str]]] = [("firearrow", "real", "default"), ("real", "firearrow", "defaultRocksDB")]


@dataclass
class Pair:
    """A master and its slave, each of which can be ended and started again at its place."""

    driver: Driver
    namesrv: str
    directory: Path
    master_kind: Kind
    slave_kind: Kind
    store_type: str
    broker_port: int = 0
    turns: int = 0

    @property
    def name(self) -> str:
        """Name of the broker that both are."""
        return f"{self.master_kind}-master"

    @contextmanager
    def master(self, *, sync: bool, killed: bool = False) -> Iterator[Server]:
        keys = {"brokerRole": "SYNC_MASTER" if sync else "ASYNC_MASTER"}
        keys |= {"inSyncReplicas": "2"} if sync else {}
        keys |= {"slaveTimeout": "30000"}
        with self._served(self.master_kind, "master", keys, self.broker_port, killed) as server:
            self.broker_port = server.broker_port
            yield server

    @contextmanager
    def slave(self, *, killed: bool = False) -> Iterator[Server]:
        keys = {"brokerRole": "SLAVE", "brokerId": "1"}
        with self._served(self.slave_kind, "slave", keys, 0, killed) as server:
            yield server

    @contextmanager
    def _served(self, kind: Kind, name: str, keys: Mapping[str, str], port: int, killed: bool) -> Iterator[Server]:
        self.turns += 1
        settings = {
            **SMALL_FILES, "storeType": self.store_type, "namesrvAddr": self.namesrv,
            "brokerName": self.name, **keys,
            "timerFlushIntervalMs": "3000",  # a slave's timer is looked for in its files
        }  # fmt: skip
        store, logs = self.directory / name, self.directory / f"{self.turns}-{name}-{kind}"
        with serve(kind, store, logs, broker_port=port, settings=settings, killed=killed) as server:
            yield server


@pytest.fixture(scope="module")
def namesrv(server: Server) -> str:
    """The name server that all register with."""
    return server.namesrv


@pytest.fixture(scope="module", params=PAIRS, ids=["java-follows", "java-leads"])
def pair(
    request: pytest.FixtureRequest, driver: Driver, namesrv: str, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    """Two brokers to be: nothing runs yet."""
    leads, follows, store_type = request.param
    directory = tmp_path_factory.mktemp(f"{leads}-leads")
    return Pair(driver, namesrv, directory, leads, follows, store_type)


class KilledPair(Replicas):
    """A pair that is killed under load, see there."""

    def __init__(self, pair: Pair, *, is_sync: bool) -> None:
        self._pair = pair
        self._turns = 0
        root = pair.directory / f"killed-{is_sync}"
        super().__init__(KILL_ROUNDS, root, pair.store_type, is_sync=is_sync)

    def _enter(self, store: Path, *settings: str) -> Running:
        pair, leads = self._pair, store == self._store
        self._turns += 1
        logs = store.parent / f"log-{self._turns}"
        keys = dict(setting.split("=", 1) for setting in (*SIZES, *settings))
        kind = pair.master_kind if leads else pair.slave_kind
        name = f"{pair.master_kind}-{store.parent.parent.name}"
        keys |= {"namesrvAddr": pair.namesrv, "brokerName": name}
        if kind == "real":  # its slave never connects to an address that is given
            keys.pop("haMasterAddress", None)
        life = ExitStack()
        server = life.enter_context(serve(kind, store, logs, settings=keys, killed=True))
        self._stack.push(life)
        return Running(server.broker_port, life.close, life.close)

    async def _compare_new(self, port: int) -> None:
        """Not with RocketMQ as the master: after a kill its queues in RocksDB may begin later."""
        if self._pair.master_kind == "firearrow":
            await super()._compare_new(port)


def sent(java: JavaClient, count: int, first: int) -> list[bytes]:
    """Send messages of very different sizes; all must be acknowledged as SEND_OK."""
    bodies = [b"%d " % number * (number % 7 * 900 + 1) for number in range(first, first + count)]
    messages = [Outgoing(body=body, queue=at % QUEUES) for at, body in enumerate(bodies)]
    reports = java.producer().send(TOPIC, messages)
    assert {report.status for report in reports} == {"SEND_OK"}
    return bodies


@contextmanager
def following(pair: Pair, java: JavaClient, *, killed: bool = False) -> Iterator[Server]:
    """A slave that the master knows; at the end it has all that the master has."""
    master = java.server
    with pair.slave(killed=killed) as slave:
        wait_until(lambda: ha_status(java, master)["SlaveNum"] == "1", TIMEOUT_S, "slave")
        yield slave
        wait_until(lambda: ha_status(java, slave)["CommitLogMaxOffset"] == end_of(java), TIMEOUT_S, "copied log")
        wait_until(lambda: acked(java, master) == [(end_of(java), "0", "OK")], TIMEOUT_S, "report")


def end_of(java: JavaClient) -> str:
    """The end of a master's log, which still grows when a timed message is delivered."""
    return ha_status(java, java.server)["MasterCommitLogMaxOffset"]


def ha_status(java: JavaClient, server: Server) -> dict[str, str]:
    """What ``mqadmin haStatus`` prints of a broker, but for the table of slaves."""
    printed = java.mqadmin("haStatus", "-b", server.broker)
    return dict(re.findall(r"^#(\w+)\t(\S+)$", printed, re.MULTILINE))


def acked(java: JavaClient, master: Server) -> list[tuple[str, str, str]]:
    """Of each slave of a master: up to where it has the log, how far it is behind, its state."""
    printed = java.mqadmin("haStatus", "-b", master.broker)
    rows = [line.split() for line in printed.splitlines() if re.match(r"[\d.]+:\d+ ", line)]
    return [(row[1], row[2], row[4]) for row in rows]


def end_of_queue(java: JavaClient, pair: Pair) -> int:
    """The end of the first queue at the master."""
    return java.call("admin.maxOffset", int, topic=TOPIC, broker=pair.name, queue=0)


def knows_topic(slave: Server) -> bool:
    """Whether a slave has learned from its master which topics there are."""
    files = (path for path in (slave.store / "config").rglob("*") if path.is_file())
    for path in files:
        with suppress(FileNotFoundError):  # RocketMQ renames the files that it has written
            if TOPIC.encode() in path.read_bytes():
                return True
    return False


def timer_offset(broker: Server) -> int:
    """Up to which message of its queue a slave knows its master's timer to be; 0 before."""
    try:
        return int(CHECK.unpack_from((broker.store / "config" / "timercheck").read_bytes())[3])
    except (FileNotFoundError, struct.error):
        return 0


def test_a_slave_has_what_its_master_has_whoever_is_killed(pair: Pair) -> None:
    with pair.master(sync=False, killed=True) as master:
        java = JavaClient(pair.driver, master)
        java.create_topic(TOPIC, QUEUES)
        with following(pair, java, killed=True):
            bodies = sent(java, 100, 0)
        java.close()
    with pair.master(sync=True) as master:
        java = JavaClient(pair.driver, master)
        with following(pair, java) as slave:
            bodies += sent(java, 50, len(bodies))
            java.producer().send(TOPIC, [Outgoing(body=b"timed", queue=0, delay=1000)])
            wait_until(lambda: knows_topic(slave), TIMEOUT_S, "topics of the slave")
            wait_until(lambda: timer_offset(slave) == 1, TIMEOUT_S, "timer of the slave")
            wait_until_healthy(pair.namesrv)
            # The master writes the message when its time comes: a slave that has ended by then would lack it.
            wait_until(lambda: end_of_queue(java, pair) == len(bodies) // QUEUES + 1, TIMEOUT_S, "timed message")
        java.close()
    found = diff(Layout(pair.directory / "master"), Layout(pair.directory / "slave"))
    parts = {"log", "queues"} & {it.part for it in found.differences}
    assert (parts, found.queues) == (set(), [])
    assert found.log_compared[1] > 100_000
    for is_sync in (True, False) if KILL_ROUNDS else ():
        killed = KilledPair(pair, is_sync=is_sync)
        for _ in range(KILL_ROUNDS):
            killed.round()
