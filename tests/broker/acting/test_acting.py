"""Slaves that act for a master that is away, and masters that come back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from firearrow.broker.acting.feature import ActingFeature
from firearrow.clock import Clock
from firearrow.namesrv.app import NameServer
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.client import Client
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire import fastjson
from firearrow.wire.bodies import MemberGroupBody, Route
from firearrow.wire.command import FieldValue, Response
from tests.broker.kvpops import KV
from tests.broker.popping import ack, ack_fields, pop, popped
from tests.broker.replicated import caught_up, ha_status, replica
from tests.broker.serving import Caller, Serving, bodies, seconds, until


class Cluster:
    """A name server, a name with a master and a slave, and if wanted a second master.

    The brokers keep their places: each can be stopped and started again.
    """

    def __init__(self, root: Path, clock: Clock, namesrv: str, client: Client) -> None:
        self.root = root
        self.clock = clock
        self.namesrv = namesrv
        self.client = client
        self.port = 10_911
        self.keys: dict[str, Any] = {"total_replicas": 2}

    @asynccontextmanager
    async def master(self, **config: Any) -> AsyncIterator[Serving]:
        """The master of broker-a; it is online."""
        keys = {"enable_slave_acting_master": True, "namesrv_addr": self.namesrv, **config}
        port = self.port
        async with replica(self.root / "m", self.clock, port=port, store=self.keys, **keys) as it:
            await online(it)
            yield it

    @asynccontextmanager
    async def slave(self, **config: Any) -> AsyncIterator[Serving]:
        """Its slave; it is online."""
        keys = {"enable_slave_acting_master": True, "namesrv_addr": self.namesrv, **config}
        keys = {"slave_read_enable": True, "enable_remote_escape": True, **keys}
        root = self.root / "s"
        async with replica(root, self.clock, role="SLAVE", store=self.keys, **keys) as it:
            await online(it)
            yield it

    @asynccontextmanager
    async def other(self) -> AsyncIterator[Serving]:
        """The master of broker-b."""
        keys: dict[str, Any] = {"namesrv_addr": self.namesrv, "broker_name": "broker-b"}
        async with replica(self.root / "o", self.clock, **keys) as it:
            yield it

    async def members(self) -> dict[int, str]:
        """What 901 is answered."""
        fields = {"clusterName": "C", "brokerName": "broker-a"}
        answer = await self.client.call(self.namesrv, 901, fields)
        group = fastjson.decode(answer.body, MemberGroupBody).broker_member_group
        assert group is not None
        return group.broker_addrs

    async def route(self, topic: str = "T") -> tuple[dict[int, str], int]:
        """The addresses of broker-a that clients see, and what they may do with a topic there."""
        answer = await self.client.call(self.namesrv, 105, {"topic": topic})
        route = fastjson.decode(answer.body, Route)
        [broker] = [it for it in route.broker_datas if it.broker_name == "broker-a"]
        [queues] = [it for it in route.queue_datas if it.broker_name == "broker-a"]
        return broker.broker_addrs, queues.perm


@asynccontextmanager
async def cluster(root: Path, clock: Clock) -> AsyncIterator[Cluster]:
    """A cluster of which only the name server runs."""
    config = NamesrvConfig(support_acting_master=True, notify_min_broker_id_changed=True)
    server = NameServer(config, clock)
    port = await server.start("127.0.0.1", 0)
    client = Client()
    try:
        yield Cluster(root, clock, f"127.0.0.1:{port}", client)
    finally:
        await client.close()
        await server.stop()


class Group(NamedTuple):
    """broker-a's master, which ``lose`` stops when its slave has had five seconds to copy it and
    to ask, and the slave, which acts then; and the master of broker-b. Both masters have T."""

    cluster: Cluster
    other: Serving
    master: Serving
    caller: Caller
    slave: Serving
    lose: Callable[[], Awaitable[None]]


@asynccontextmanager
async def group(
    root: Path, clock: Clock, *, store: Mapping[str, Any] | None = None, **of_slave: Any
) -> AsyncIterator[Group]:
    """A cluster that has lost nobody yet."""
    async with cluster(root, clock) as c, c.other() as other, AsyncExitStack() as masters:
        c.keys |= store or {}
        master = await masters.enter_async_context(c.master())
        caller = await masters.enter_async_context(master.caller())
        for served in (master, other):
            served.broker.topics.create("T", 4)
        async with c.slave(**of_slave) as slave:

            async def lose() -> None:
                await caught_up(slave, master)
                await asyncio.sleep(5)
                await masters.aclose()
                await acting(slave)

            yield Group(c, other, master, caller, slave, lose)


def part_of(served: Serving) -> ActingFeature:
    """The part of a broker in its group."""
    assert served.broker.acting is not None
    return served.broker.acting


async def online(served: Serving) -> None:
    await until(lambda: part_of(served).part.is_online)


async def acting(served: Serving, *, on: bool = True) -> None:
    await until(lambda: part_of(served).special.runs is on)


async def synced(slave: Serving) -> None:
    """Wait until a slave has asked its master for everything."""
    before = slave.broker.replication.sync.rounds
    await asyncio.sleep(61)
    assert slave.broker.replication.sync.rounds > before


async def commit(caller: Caller, queue_offset: int) -> None:
    fields: dict[str, FieldValue] = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": queue_offset
    }  # fmt: skip
    assert (await caller.call(15, fields)).code == 0


async def committed(caller: Caller) -> int:
    answer = await caller.call(14, {"consumerGroup": "g", "topic": "T", "queueId": 0})
    assert answer.code == 0
    return int(answer.ext["offset"])


def test_a_slave_is_read_from_while_its_master_is_away_and_hands_back_where_consumers_are(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c, AsyncExitStack() as masters:
            master = await masters.enter_async_context(c.master())
            to_master = await masters.enter_async_context(master.caller())
            async with c.slave() as slave, slave.caller() as to_slave:
                assert part_of(master).special.runs
                assert not part_of(slave).special.runs
                for number in range(3):
                    await to_master.sent(b"%d" % number)
                await to_master.pull(0)
                await commit(to_master, 1)
                await caught_up(slave, master)
                await synced(slave)
                ours, theirs = slave.broker.address, master.broker.address
                assert await c.members() == {0: theirs, 1: ours}
                assert await c.route() == ({0: theirs, 1: ours}, 6)
                await masters.aclose()
                began = seconds()
                await acting(slave)
                assert seconds() - began < 3
                assert (await c.members(), await c.route()) == ({1: ours}, ({0: ours}, 4))
                assert (await to_slave.pull(0)).code == 0
                assert (await to_slave.send()).code == 14
                assert await committed(to_slave) == 1
                await commit(to_slave, 3)
                async with c.master() as master, master.caller() as to_master:
                    assert await committed(to_master) == 3
                    assert await c.members() == {0: theirs, 1: ours}
                    assert await c.route() == ({0: theirs, 1: ours}, 6)
                    await acting(slave, on=False)
                    await to_master.sent(b"after")
                    await caught_up(slave, master)
                    assert bodies(slave) == [b"0", b"1", b"2", b"after"]
                    await until(lambda: slave.broker.replicas.has_master)
                    assert "group" not in slave.broker.troubles

    loop.run(main)


def test_what_is_due_goes_to_another_master_once_and_the_rest_is_left_to_the_own(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g, g.other.caller() as to_other:
            await g.caller.sent(b"level, before", i="DELAY\x013\x02UNIQ_KEY\x01A\x02")
            await g.caller.sent(b"time, before", i="TIMER_DELAY_SEC\x0110\x02UNIQ_KEY\x01B\x02")
            await asyncio.sleep(13)
            assert sorted(bodies(g.master)) == [b"level, before", b"time, before"]
            for number in range(20):
                soon, late = f"UNIQ_KEY\x01S{number}\x02", f"UNIQ_KEY\x01L{number}\x02"
                await g.caller.sent(b"l%d" % number, i="DELAY\x014\x02" + soon)
                await g.caller.sent(b"t%d" % number, i="TIMER_DELAY_SEC\x0130\x02" + soon)
                await g.caller.sent(b"late l%d" % number, i="DELAY\x017\x02" + late)
                await g.caller.sent(b"late t%d" % number, i="TIMER_DELAY_SEC\x01180\x02" + late)
            await g.lose()
            await asyncio.sleep(40)
            found = await to_other.stored()
            assert sorted(view.body for view in found) == sorted(
                b"%b%d" % (kind, number) for kind in (b"l", b"t") for number in range(20)
            )
            levels = [view.body for view in found if view.body.startswith(b"l")]
            assert levels == [b"l%d" % number for number in range(20)]
            assert not {"DELAY", "TIMER_DELAY_SEC"} & {name for view in found for name in view.properties}
            before = len(bodies(g.slave))
            async with g.cluster.master() as master:
                await asyncio.sleep(240)
                new = bodies(master)[before:]
                assert sorted(new) == sorted(
                    b"late %b%d" % (kind, number) for kind in (b"l", b"t") for number in range(20)
                )
                assert len(bodies(g.other)) == 40
                await caught_up(g.slave, master)
                assert "special services" not in g.slave.broker.troubles

    loop.run(main)


def test_without_escape_what_is_due_waits_for_its_master(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock, enable_remote_escape=False) as g:
            await g.caller.sent(b"l", i="DELAY\x013\x02")
            await g.caller.sent(b"t", i="TIMER_DELAY_SEC\x0110\x02")
            await g.lose()
            await asyncio.sleep(30)
            assert "enableRemoteEscape" in g.slave.broker.troubles["special services"]
            async with g.cluster.master() as master:
                await until(lambda: sorted(bodies(master)) == [b"l", b"t"])
                await asyncio.sleep(30)
                assert sorted(bodies(master)) == [b"l", b"t"]
                assert bodies(g.other) == []

    loop.run(main)


def test_what_rolled_at_the_master_is_delivered_once_by_its_slave(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock, store={"timer_roll_window_slot": 10}) as g:
            for number in range(3):
                unique = f"UNIQ_KEY\x01R{number}\x02"
                await g.caller.sent(b"%d" % number, i="TIMER_DELAY_SEC\x0145\x02" + unique)
            await asyncio.sleep(15)
            assert g.master.broker.store.max_queue_offset("rmq_sys_wheel_timer", 0) == 6
            await g.lose()
            await asyncio.sleep(20)
            assert bodies(g.other) == []
            await asyncio.sleep(40)
            assert sorted(bodies(g.other)) == [b"0", b"1", b"2"]
            async with g.cluster.master() as master:
                await asyncio.sleep(60)
                assert bodies(master) == []

    loop.run(main)


def test_a_message_has_not_rolled_because_another_sender_says_so(tmp_path: Path) -> None:
    """One of another topic, with the id of the message."""

    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock, store={"timer_roll_window_slot": 10}) as g:
            timed = "TIMER_DELAY_SEC\x0145\x02UNIQ_KEY\x01R\x02"
            await g.caller.sent(b"first", "U")  # by its place, no message names the first of a log
            await g.caller.sent(b"worth", i=timed)
            await g.caller.sent(b"", topic="A", i=timed + "TIMER_ROLL_TIMES\x011\x02")
            await asyncio.sleep(5)
            await g.lose()
            await asyncio.sleep(75)
            assert bodies(g.other) == [b"worth"]

    loop.run(main)


NO_POP_NOW = "the broker is a slave: it notes pops only while it acts for its master, with enableRemoteEscape=true"


async def send_some(g: Group, count: int) -> None:
    """Have messages 0, 1 ... in queue 0 of T, at the master and its slave."""
    for number in range(count):
        await g.caller.sent(b"%d" % number, i=f"UNIQ_KEY\x01P{number}\x02")
    await g.master.dispatched()


def test_what_was_popped_comes_again_at_another_master(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g:
            await send_some(g, 3)
            found = await popped(g.caller, invisibleTime=40_000)
            assert len(found) == 3
            assert (await ack(g.caller, found[1][1])).code == 0
            await g.lose()

            await asyncio.sleep(60)
            assert bodies(g.other, "%RETRY%g_T") == [b"0", b"2"]
            async with g.cluster.master() as master:
                await asyncio.sleep(60)
                assert bodies(master, "%RETRY%g_T") == []

    loop.run(main)


async def unacknowledged(g: Group) -> list[bytes]:
    """What has come again at broker-b after a while."""
    await asyncio.sleep(90)
    return sorted(bodies(g.other, "%RETRY%g_T"))


def test_an_acting_slave_serves_pops_and_another_master_has_the_rest_come_again(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g, g.slave.caller() as to_slave:
            await send_some(g, 9)
            refused = await pop(to_slave)
            assert (refused.code, refused.remark) == (14, NO_POP_NOW)
            before = await popped(g.caller, maxMsgNums=3, invisibleTime=120_000)
            assert (await ack(g.caller, before[0][1])).code == 0
            await synced(g.slave)
            await g.lose()
            at_once = await popped(to_slave, maxMsgNums=3)
            later = await popped(to_slave, maxMsgNums=3)
            assert [view.body for view, _ in at_once + later] == [b"%d" % it for it in range(3, 9)]
            for _, handle in at_once:
                assert (await ack(to_slave, handle)).code == 0
            await asyncio.sleep(15)  # by now the other master knows of it
            for _, handle in later[1:]:
                assert (await ack(to_slave, handle)).code == 0
            assert await popped(to_slave) == []
            assert await unacknowledged(g) == [b"1", b"2", b"6"]
            async with g.cluster.master() as master, master.caller() as caller:
                assert await popped(caller) == []
                await asyncio.sleep(90)
                assert bodies(master, "%RETRY%g_T") == []
                assert len(bodies(g.other, "%RETRY%g_T")) == 3

    loop.run(main)


def test_what_was_popped_since_the_slave_asked_is_not_given_twice(tmp_path: Path) -> None:
    """The log has the pops, also those that the offsets of the slave lack."""

    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g, g.slave.caller() as to_slave:
            await send_some(g, 9)
            await synced(g.slave)
            for _ in range(2):
                [(_, handle), *_] = await popped(g.caller, maxMsgNums=3, invisibleTime=120_000)
                assert (await ack(g.caller, handle)).code == 0
            await g.lose()
            found = await popped(to_slave)
            assert [view.body for view, _ in found] == [b"6", b"7", b"8"]

    loop.run(main)


def test_what_is_in_hand_when_the_master_comes_back_is_noted_before_it_leads(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g, g.slave.caller() as to_slave:
            await send_some(g, 4)
            await popped(g.caller, maxMsgNums=1, invisibleTime=120_000)
            await synced(g.slave)
            await g.lose()
            found = await popped(to_slave)
            assert (await ack(to_slave, found[1][1])).code == 0
            fields = ack_fields(found[2][1], invisibleTime=20_000)
            assert (await to_slave.call(200053, fields)).code == 0
            async with g.cluster.master() as master, master.caller() as caller:
                assert await popped(caller) == []
                assert await unacknowledged(g) == [b"1", b"3"]
                assert bodies(master, "%RETRY%g_T") == [b"0"]

    loop.run(main)


def test_a_slave_that_notes_pops_in_a_database_says_why_it_takes_none(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock, **KV) as g, g.slave.caller() as to_slave:
            await send_some(g, 1)
            await g.lose()
            refused = await pop(to_slave)
            assert refused.code == 14
            assert "notes pops in RocksDB (popConsumerKVServiceInit)" in str(refused.remark)
            assert (await to_slave.pull()).code == 0

    loop.run(main)


def test_a_slave_that_can_note_pops_nowhere_loses_none(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g:
            await send_some(g, 2)
            await popped(g.caller, maxMsgNums=1, invisibleTime=300_000)
            await synced(g.slave)
            async with g.other.caller() as to_other:
                assert (await to_other.call(25, {}, b"brokerPermission=4")).code == 0
            await g.lose()
            async with g.slave.caller() as to_slave:
                assert [view.body for view, _ in await popped(to_slave)] == [b"1"]
                await asyncio.sleep(40)
                assert g.slave.broker.offsets.query("g", "T", 0) == 1
                assert "no other master has the topic" in str(g.slave.broker.troubles)
            async with g.cluster.master() as master, master.caller() as caller:
                assert [view.body for view, _ in await popped(caller)] == [b"1"]

    loop.run(main)


def test_halves_are_moved_to_another_master_who_asks_their_producer(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        half = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01H{}\x02"
        async with group(tmp_path, clock) as g:
            for number in range(3):
                sent = await g.caller.sent(b"h%d" % number, i=half.format(number), f=4)
            end: dict[str, FieldValue] = {
                "producerGroup": "producers", "tranStateTableOffset": sent["queueOffset"],
                "commitLogOffset": int(sent["msgId"][-16:], 16), "commitOrRollback": 8,
                "fromTransactionCheck": False, "transactionId": "H2", "msgId": "H2",
            }  # fmt: skip
            assert (await g.caller.call(37, end)).code == 0
            await asyncio.sleep(5)
            await g.lose()
            halves = "RMQ_SYS_TRANS_HALF_TOPIC"
            await asyncio.sleep(40)
            assert bodies(g.other, halves) == [b"h0", b"h1"]
            async with g.cluster.master() as master:
                await asyncio.sleep(120)
                assert bodies(master) == [b"h2"]
                assert len(bodies(master, halves)) == 3

    loop.run(main)


def test_a_slave_gives_way_to_a_master_that_comes_and_acts_again_if_it_does_not(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c:
            async with c.master() as master, c.slave() as slave:
                await until(lambda: slave.broker.replicas.has_master)
                assert part_of(master).special.runs
            async with c.slave() as slave, slave.caller() as caller:
                await acting(slave)
                assert "group" not in slave.broker.troubles
                told: dict[str, FieldValue] = {
                    "masterHaAddress": "127.0.0.1:9", "masterFlushOffset": 0,
                    "masterAddress": "127.0.0.1:8",
                }  # fmt: skip
                assert (await caller.call(906, told)).code == 0
                assert not part_of(slave).special.runs
                await asyncio.sleep(9)
                assert not part_of(slave).special.runs
                await acting(slave)

    loop.run(main)


def test_a_master_that_finds_no_slave_where_name_servers_say_so_waits_until_they_know(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c:
            fields: dict[str, FieldValue] = {
                "brokerName": "broker-a", "brokerAddr": "127.0.0.1:7", "clusterName": "C",
                "brokerId": 1, "enableActingMaster": True, "heartbeatTimeoutMillis": 1000,
            }  # fmt: skip
            body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}},"filterServerList":[]}'
            await c.client.call(c.namesrv, 103, fields, body)
            began = seconds()
            async with c.master() as master:
                assert 4 < seconds() - began < 9
                assert part_of(master).special.runs
                assert await c.members() == {0: master.broker.address}

    loop.run(main)


def test_a_broker_that_skips_it_is_online_at_once(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c, c.slave(skip_pre_online=True) as slave:
            began = seconds()
            assert not part_of(slave).special.runs
            await acting(slave)
            assert 2 < seconds() - began < 6
            assert (await c.members()) == {1: slave.broker.address}

    loop.run(main)


def test_a_slave_with_another_log_keeps_no_master_waiting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c:
            async with c.master() as master, master.caller() as caller, c.slave() as slave:
                for number in range(3):
                    await caller.sent(b"%d" % number)
                await caught_up(slave, master)
            shutil.rmtree(tmp_path / "m")
            async with c.slave() as slave:
                slave.broker.offsets.commit("g", "T", 0, 2)
                async with c.master() as master:
                    assert part_of(master).special.runs
                    assert bodies(slave) == [b"0", b"1", b"2"]
                    assert "nothing is taken back from a slave with another log" in caplog.text
                    assert master.broker.offsets.query("g", "T", 0) == -1

    loop.run(main)


@pytest.mark.parametrize("strict", [True, False])
def test_a_queue_is_locked_by_most_of_a_name_if_that_is_wanted(tmp_path: Path, strict: bool) -> None:
    def wants(client: str, *queues: int, only: bool = False) -> bytes:
        found = [{"topic": "T", "brokerName": "broker-a", "queueId": it} for it in queues]
        asked = {"consumerGroup": "g", "clientId": client, "mqSet": found, "onlyThisBroker": only}
        return fastjson.dumps(asked)

    async def locked(caller: Caller, asked: bytes) -> list[int]:
        answer = await caller.call(41, {}, asked)
        assert answer.code == 0
        return sorted(it["queueId"] for it in fastjson.loads(answer.body)["lockOKMQSet"])

    async def main(clock: VirtualClock) -> None:
        async with (
            cluster(tmp_path, clock) as c,
            c.master(lock_in_strict_mode=strict) as master,
            c.slave(lock_in_strict_mode=strict) as slave,
            master.caller() as to_master,
            slave.caller() as to_slave,
        ):
            await until(lambda: len(master.broker.replicas.members) == 2)
            assert await locked(to_slave, wants("other", 1, only=True)) == [1]
            assert await locked(to_master, wants("me", 0, 1)) == ([0] if strict else [0, 1])
            if strict:  # to name it twice does not make two brokers of one
                assert await locked(to_master, wants("me", 1, 1)) == []
            assert await locked(to_slave, wants("late", 0, only=True)) == ([] if strict else [0])
            assert (await to_master.call(42, {}, wants("me", 0, 1))).code == 0
            await asyncio.sleep(1)
            assert await locked(to_slave, wants("late", 0, only=True)) == [0]
            assert await locked(to_master, wants("late", 0, only=True)) == [0]

    loop.run(main)


def test_an_answer_that_can_not_be_read_gives_no_locks(tmp_path: Path) -> None:
    """Who asked for the locks is answered all the same."""
    wanted = fastjson.dumps(
        {
            "consumerGroup": "g", "clientId": "me", "onlyThisBroker": False,
            "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 0}],
        }
    )  # fmt: skip

    async def main(clock: VirtualClock) -> None:
        async with (
            cluster(tmp_path, clock) as c,
            c.master(lock_in_strict_mode=True) as master,
            c.slave() as slave,
            master.caller() as caller,
        ):
            await until(lambda: len(master.broker.replicas.members) == 2)
            slave.broker._handlers[41] = lambda *_: Response(body=b"{")
            answer = await caller.call(41, {}, wanted)
            assert (answer.code, fastjson.loads(answer.body)) == (0, {"lockOKMQSet": []})

    loop.run(main)


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ({}, "in-sync replicas not enough: 1, inSyncReplicas is 2"),
        ({"enable_auto_in_sync_replicas": True}, None),
        (
            {"enable_auto_in_sync_replicas": True, "min_in_sync_replicas": 2},
            "in-sync replicas not enough: 1, minInSyncReplicas is 2",
        ),
    ],
)
def test_a_master_whose_slave_is_gone_refuses_messages_or_goes_by_fewer(
    tmp_path: Path, keys: dict[str, Any], refusal: str | None
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c:
            c.keys |= {"in_sync_replicas": 2, **keys}
            async with c.master(role="SYNC_MASTER") as master, master.caller() as caller:
                replicas = master.broker.replicas
                async with c.slave() as slave:
                    await until(lambda: replicas.in_sync_count == 2)
                    assert replicas.needed() == 2
                    await caller.sent(b"both")
                    assert bodies(slave) == [b"both"]
                await until(lambda: replicas.in_sync_count == 1)
                began, answer = seconds(), await caller.send(b"one")
                assert (answer.code, answer.remark) == ((1, refusal) if refusal else (0, None))
                assert seconds() - began < 1
                await caller.sent(b"waits for nobody", i="UNIQ_KEY\x01W\x02WAIT\x01false\x02")
                taken = [] if refusal else [b"one"]
                assert bodies(master) == [b"both", *taken, b"waits for nobody"]

    loop.run(main)


def test_a_slave_notes_how_far_its_master_had_flushed(tmp_path: Path) -> None:
    async def flushed(caller: Caller) -> int:
        return (await ha_status(caller)).ha_client_runtime_info.master_flush_offset

    async def main(clock: VirtualClock) -> None:
        async with cluster(tmp_path, clock) as c:
            c.keys["sync_master_flush_offset_when_startup"] = True
            async with c.master() as master, master.caller() as caller:
                await caller.sent(b"a")
            end = master.broker.store.log_end_offset
            async with c.master() as master, master.caller() as to_master:
                await to_master.sent(b"b")
                async with c.slave() as slave, slave.caller() as caller:
                    assert await flushed(caller) == end
                    for asked in (caller, to_master):
                        assert (await asked.call(908, {"masterFlushOffset": 77})).code == 0
                    assert await flushed(caller) == 77
                    assert await flushed(to_master) == 0
                async with c.slave() as slave, slave.caller() as caller:
                    assert await flushed(caller) == 77

    loop.run(main)
