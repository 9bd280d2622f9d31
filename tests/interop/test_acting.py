"""Slaves that act for their master, of both kinds, beside the original name server.

The name ``broker-b`` is a second master of the original's, to which slaves send what is due. Each
test has a name of its own, of which one broker is Firearrow's and one the original's: the master is
killed, its slave goes on, and the master comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from firearrow.clock import SystemClock
from firearrow.message.record import iter_records
from firearrow.namesrv.app import NameServer
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.bodies import MemberGroupBody
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.registerbody import body_crc32
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Received
from tests.interop.popper import Popped, Popper, messages_of
from tests.interop.servers import SMALL_FILES, Kind, Server, free_port, serve
from tests.interop.waiting import wait_until, wait_until_healthy
from tests.namesrv.strategies import body, header, topic

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
SERVICE_NOT_AVAILABLE = 14
LEVELS = "1s 6s 25s"
SOON_S, LATE_S = 6, 25  # the second and the third level
ORDERED, DELAYED = "ordered", "delayed"
MESSAGES = 120  # in each of two queues: ten a second are consumed of both

PAIRS: list[tuple[Kind, Kind]] = [("firearrow", "real"), ("real", "firearrow")]


@pytest.fixture(scope="module")
def other(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The original's name server, and broker-b."""
    directory = tmp_path_factory.mktemp("other")
    keys = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
    settings = {**SMALL_FILES, **keys, "brokerName": "broker-b"}
    with serve("real", directory / "store", directory / "logs", settings=settings) as server:
        yield server


def call(address: str, code: int, fields: Mapping[str, FieldValue], content: bytes = b"") -> dict[str, Any]:
    """Ask a server; gives its fields, or what its body says."""

    answer = asked(address, code, fields, content)
    return fastjson.loads(answer.body) if answer.body else dict(answer.ext or {})


def asked(address: str, code: int, fields: Mapping[str, FieldValue], content: bytes = b"") -> AnyCommand:
    """The answer of a server."""

    async def answer() -> AnyCommand:
        client = Client()
        try:
            return await client.answer(address, code, fields, content)
        finally:
            await client.close()

    return asyncio.run(answer())


def members(namesrv: str, name: str) -> set[int]:
    """The numbers of a name's brokers, as the name server says."""
    found = call(namesrv, 901, {"clusterName": "DefaultCluster", "brokerName": name})
    group = fastjson.decode(fastjson.dumps(found), MemberGroupBody).broker_member_group
    return set() if group is None else set(group.broker_addrs)


def sent(server: Server, name: str, queue: int, content: bytes, properties: str = "") -> None:
    """Send a message to this broker and no other."""
    fields: dict[str, FieldValue] = {
        "a": "senders", "b": name, "c": "TBW102", "d": 2, "e": queue, "f": 0,
        "g": 1_795_000_000_000, "h": 0, "j": 0, "k": False, "m": False,
        "i": f"UNIQ_KEY\x01{content.decode()}\x02{properties}",
    }  # fmt: skip
    assert asked(server.broker, 310, fields, content).code == 0


class Pair:
    """The brokers of a name, each at its place. No other pair has it: the original's broker-b may
    look for a broker where it was half a minute ago."""

    def __init__(self, directory: Path, namesrv: str, master: Kind, slave: Kind) -> None:
        self._directory = directory
        self.name = directory.name
        self.namesrv = namesrv
        self._kinds = {"master": master, "slave": slave}
        self._ports = {"master": free_port(-2, 0, 1), "slave": free_port(-2, 0, 1)}
        self._turns = 0

    def start(self, stack: ExitStack, role: str, *, killed: bool = False) -> Server:
        """Start the master or the slave, and wait until the name server knows it."""
        number = 0 if role == "master" else 1
        keys = {"brokerRole": "ASYNC_MASTER" if role == "master" else "SLAVE"}
        settings = {
            **SMALL_FILES, "namesrvAddr": self.namesrv, "brokerName": self.name,
            "brokerId": str(number), "enableSlaveActingMaster": "true", "totalReplicas": "2",
            "enableRemoteEscape": "true", "slaveReadEnable": "true", "messageDelayLevel": LEVELS,
            # The original's master knows a slave by the address that it comes from.
            "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "timerFlushIntervalMs": "1000",
            **keys,
        }  # fmt: skip
        self._turns += 1
        logs = self._directory / f"{self._turns}-{role}"
        server = stack.enter_context(
            serve(
                self._kinds[role], self._directory / role, logs,
                broker_port=self._ports[role], settings=settings, killed=killed,
            )
        )  # fmt: skip
        known = (self.namesrv, self.name)
        wait_until(lambda: number in members(*known), TIMEOUT_S, f"{role} in {logs}")
        return server


def end_of(server: Server) -> int:
    """Where the log of a broker ends."""
    return int(call(server.broker, 28, {})["table"]["commitLogMaxOffset"])


def timed(server: Server) -> int:
    """How many messages of a broker its timer has, as its file says."""
    file = server.store / "config" / "timercheck"
    return int.from_bytes(file.read_bytes()[24:32]) if file.exists() else 0


def bodies(server: Server, name: str) -> list[bytes]:
    """What a broker has of a topic."""
    found = []
    for queue in range(2):
        fields: dict[str, FieldValue] = {
            "consumerGroup": "readers", "topic": name, "queueId": queue, "queueOffset": 0,
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        answer = asked(server.broker, 11, fields)
        found += [view.body for view in iter_records(answer.body)]
    return found


def once(found: list[Received], queue: int) -> list[int]:
    """The numbers of the messages of a queue, as they came."""
    return [int(it.body) for it in found if it.queue_id == queue]


def waiting(level: int) -> list[bytes]:
    """The messages that wait as long as a level."""
    return [b"%b %d.%d" % (it, level, at) for it in (b"level", b"time") for at in range(5)]


@pytest.mark.parametrize(("leads", "acts"), PAIRS, ids=["java-acts", "java-leads"])
def test_consumers_go_on_and_the_master_comes_back(
    driver: Driver, other: Server, tmp_path: Path, leads: Kind, acts: Kind
) -> None:
    ordered, delayed = f"{ORDERED}-{acts}", f"{DELAYED}-{acts}"
    pair = Pair(tmp_path, other.namesrv, leads, acts)
    java = JavaClient(driver, other)
    with ExitStack() as masters, ExitStack() as slaves:
        master = pair.start(masters, "master", killed=True)
        java.mqadmin("updateTopic", "-b", master.broker, "-t", ordered, "-r", "2", "-w", "2")
        java.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", delayed, "-r", "2", "-w", "2")
        slave = pair.start(slaves, "slave")
        if acts == "real":  # it asks its master for topics after a minute, and takes them before
            for name in (ordered, delayed):
                java.mqadmin("updateTopic", "-b", slave.broker, "-t", name, "-r", "2", "-w", "2")
        sent(master, delayed, 0, b"first")
        wait_until(lambda: bodies(slave, delayed), TIMEOUT_S, "topics of the slave")
        for number in range(MESSAGES):
            for queue in range(2):
                sent(master, ordered, queue, b"%d" % number)
        consumer = java.push_consumer("g", ordered, orderly=True, routesMs=1000, pauseMs=100)
        assert len(consumer.wait_for(20)) >= 20
        for number in range(5):
            for seconds, level in ((SOON_S, 2), (LATE_S, 3)):
                sent(master, delayed, 0, b"level %d.%d" % (level, number), f"DELAY\x01{level}\x02")
                after = f"TIMER_DELAY_SEC\x01{seconds}\x02"
                sent(master, delayed, 1, b"time %d.%d" % (level, number), after)
        wait_until(lambda: end_of(slave) == end_of(master), TIMEOUT_S, "copied log")
        # The original's timer delivers twice what its file does not have yet when it is killed.
        wait_until(lambda: timed(master) == 10, TIMEOUT_S, "timer of the master")
        masters.close()
        before = len(consumer.received())
        assert before < 2 * MESSAGES - 10
        assert len(consumer.wait_for(before + 10, within_s=10)) >= before + 10
        wait_until_healthy(other.namesrv)  # a slave acts, and messages wait for their time
        wait_until(lambda: set(waiting(2)) <= set(bodies(other, delayed)), 20, "what is due")
        master = pair.start(masters, "master")
        for queue in range(2):
            sent(master, ordered, queue, b"%d" % MESSAGES)
        assert len(consumer.wait_for(2 * MESSAGES + 2)) == 2 * MESSAGES + 2
        for queue in range(2):
            assert once(consumer.received(), queue) == [*range(MESSAGES + 1)]

        def everywhere() -> list[bytes]:
            return sorted(bodies(other, delayed) + bodies(master, delayed))

        every = sorted([b"first", *waiting(2), *waiting(3)])
        wait_until(lambda: set(everywhere()) == set(every), LATE_S + 15, "what was late")
        assert everywhere() == every
        java.close()


@pytest.mark.parametrize(("leads", "acts"), PAIRS, ids=["java-acts", "java-leads"])
def test_a_consumer_that_pops_goes_on_and_what_it_acknowledges_stays_so(
    driver: Driver, other: Server, tmp_path: Path, leads: Kind, acts: Kind
) -> None:
    name, group = f"popped-{acts}", f"poppers-{acts}"
    retries = f"%RETRY%{group}_{name}"
    pair = Pair(tmp_path, other.namesrv, leads, acts)
    java = JavaClient(driver, other)
    popper = Popper(name, group)
    with ExitStack() as masters, ExitStack() as slaves:
        master = pair.start(masters, "master", killed=True)
        java.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", "2", "-w", "2")
        java.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", group)
        slave = pair.start(slaves, "slave")
        if acts == "real":  # as above
            java.mqadmin("updateTopic", "-b", slave.broker, "-t", name, "-r", "2", "-w", "2")
            java.mqadmin("updateSubGroup", "-b", slave.broker, "-g", group)
        for number in range(6):
            sent(master, name, 0, b"%d" % number)
        wait_until(lambda: len(bodies(slave, name)) == 6, TIMEOUT_S, "copied messages")
        masters.close()
        found: list[Popped] = []

        def popped() -> bool:
            answer = popper.begin_pop(invisible_ms=15_000).answer()
            if answer.code != SERVICE_NOT_AVAILABLE:
                found.extend(messages_of(answer, pair.name))
            return len(found) >= 6

        with popper.opened(slave.broker):
            wait_until(popped, 10, "messages of the slave")
            assert [popper.ack(message) for message in found[::2]] == [0, 0, 0]
        left = {message.body for message in found[1::2]}
        wait_until(lambda: left <= set(bodies(other, retries)), 2 * TIMEOUT_S, "what is left")
        assert sorted(bodies(other, retries)) == sorted(left)
        master = pair.start(masters, "master")
        with popper.opened(master.broker):
            assert popper.pop() == []
    java.close()


TOPICS = topic("acting-T", 4), topic("acting-U", 4, perm=4)
Step = tuple[int, dict[str, FieldValue], bytes]


def place_of(broker_id: int) -> str:
    """Where a broker of the name ``twin`` would be."""
    return f"127.0.0.1:{7001 + broker_id}"


def comes(broker_id: int, *, acting: bool = True, counter: int = 1) -> Step:
    """Its registration."""
    who = header(place_of(broker_id), broker_id, name="twin", cluster="Twins")
    data = body(*TOPICS, counter=counter).encode()
    fields = {name: value for name, value in to_builtins(who).items() if value}
    fields |= {"brokerId": broker_id, "compressed": False, "bodyCrc32": body_crc32(data)}
    fields |= {"enableActingMaster": acting, "heartbeatTimeoutMillis": 60_000}
    return 103, fields, data


def leaves(broker_id: int) -> Step:
    """Its leave."""
    who: dict[str, FieldValue] = {"brokerName": "twin", "clusterName": "Twins"}
    return 104, who | {"brokerAddr": place_of(broker_id), "brokerId": broker_id}, b""


STEPS = [
    comes(1), comes(2), comes(0), leaves(0), comes(1, counter=2), comes(0), leaves(1), leaves(0),
    comes(2, acting=False), leaves(2),
]  # fmt: skip


async def told(client: Client, address: str) -> list[tuple[int, Any]]:
    """What a name server says of them: members (901), all brokers (106) and routes (105)."""
    group: dict[str, FieldValue] = {"clusterName": "Twins", "brokerName": "twin"}
    routes: list[dict[str, FieldValue]] = [
        {"topic": it.topic_name or "", "acceptStandardJsonOnly": True} for it in TOPICS
    ]
    asking: list[tuple[int, dict[str, FieldValue]]] = [(901, group), (106, {})]
    asking += [(105, fields) for fields in routes]
    found = []
    for code, fields in asking:
        answer = await client.answer(address, code, fields)
        said = fastjson.loads(answer.body) if answer.body else {}
        for table in ("brokerAddrTable", "clusterAddrTable"):
            said.get(table, {}).pop("broker-b", None)
            said.get(table, {}).pop("DefaultCluster", None)
        found.append((answer.code, said))
    return found


def test_name_servers_say_the_same_of_those_who_act(other: Server, tmp_path: Path) -> None:
    """Brokers come and go, and both are asked."""

    async def both(client: Client, ours: str, step: Step) -> list[tuple[int, Any]]:
        for address in (ours, other.namesrv):
            assert (await client.answer(address, *step)).code == 0
        mine, theirs = await told(client, ours), await told(client, other.namesrv)
        for _ in range(100):  # the original forgets a moment later
            if theirs == mine:
                break
            await asyncio.sleep(0.05)
            theirs = await told(client, other.namesrv)
        assert theirs == mine
        return mine

    async def main() -> None:
        config = NamesrvConfig(
            kv_config_path=str(tmp_path / "kv.json"), support_acting_master=True,
            notify_min_broker_id_changed=True,
        )  # fmt: skip
        server = NameServer(config, SystemClock())
        ours = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        client = Client()
        try:
            seen = [await both(client, ours, step) for step in STEPS]
        finally:
            await client.close()
            await server.stop()
        shown = [sorted(said[2][1]["brokerDatas"][0]["brokerAddrs"]) for said in seen[:4]]
        assert shown == [["0"], ["0", "2"], ["0", "1", "2"], ["0", "2"]]
        assert seen[-1][2][0] == 17

    asyncio.run(main())
