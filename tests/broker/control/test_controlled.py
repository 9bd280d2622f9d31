"""Brokers that change their roles while they run."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.broker.control.control import ADDRESSES_SECONDS
from firearrow.broker.control.controlled import UNCONFIRMED
from firearrow.broker.core import SECOND_PORT
from firearrow.broker.registering.registration import Registration
from firearrow.broker.topics.table import TopicTable
from firearrow.controller.processor import ControllerProcessor as Decider
from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.net.server import Answer, Peer
from firearrow.replication.epochs import Epoch, Epochs
from firearrow.replication.switching import MASTER_HANDSHAKE, Greeting, report
from firearrow.replication.switchslave import SwitchFollowing
from firearrow.store import MessageStore
from firearrow.testing.loop import VirtualLoop
from firearrow.testing.storecheck import damage_in
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.command import Response
from firearrow.wire.controller_bodies import EpochsOfBroker
from firearrow.wire.frame import AnyCommand
from tests.broker.controlled import Field, Member, fielded
from tests.broker.replicated import caught_up, ha_status
from tests.broker.serving import seconds, send_fields, until
from tests.controller.serving import CLUSTER, NAME
from tests.store.stores import append, opened

KINDS = ["default", "defaultRocksDB"]
ALL_ACK = {"all_ack_in_sync_state_set": True}
TAKEOVER_SECONDS_MAX = 3.0


def test_the_first_leads_and_the_others_follow(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        first, second = field.members
        assert first.is_master
        assert not second.is_master
        async with first.serving.caller() as caller:
            for number in range(10):
                await caller.sent(b"%d" % number)
        await caught_up(second.serving, first.serving)
        assert second.bodies() == first.bodies() == [b"%d" % number for number in range(10)]
        assert await field.route() == {0: first.address, 2: second.address}
        assert (second.root / "brokerIdentity").read_bytes() == b"C#broker-a#2"
        assert (second.root / "epochFileCheckpoint").read_bytes() == b"1\n1725254278\n1-0\n"
        for member in (first, second):
            assert "controllers" not in member.broker.troubles
            async with member.serving.caller() as caller:
                answer = await caller.call(Code.GET_BROKER_EPOCH_CACHE, {})
            epochs = fastjson.decode(answer.body, EpochsOfBroker)
            assert [(it.epoch, it.start_offset) for it in epochs.epoch_list] == [(1, 0)]
            assert epochs.max_offset == first.broker.store.log_end_offset

    fielded(tmp_path, 2, main)


def test_each_master_serves_slaves_where_those_of_the_original_ask(tmp_path: Path) -> None:
    """At ``listenPort`` - 2, once a slave is connected."""

    async def main(field: Field) -> None:
        first, second = field.members
        asked: dict[str, Any] = {"topicSeq": 0, "maxTopicNum": 1, "dataVersion": ""}

        async def serves(master: Member) -> bool:
            address = f"127.0.0.1:{master.port - SECOND_PORT}"
            try:
                await field.client.call(address, Code.GET_ALL_TOPIC_CONFIG, asked)
            except OSError:
                return False
            return True

        assert await serves(first)
        assert not await serves(second)
        await first.kill()
        assert await field.master(but=first) is second
        await first.start()
        await field.in_sync(2)
        assert await serves(second)

    fielded(tmp_path, 2, main)


def test_brokers_that_start_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        field.members += [Member(field, number) for number in range(3)]
        await asyncio.gather(*(member.start() for member in field.members))
        await field.in_sync(3)
        numbers = [member.broker.place.number for member in field.members]
        assert sorted(numbers) == [1, 2, 3]
        for member in field.members:
            await member.stop()
        await asyncio.gather(*(member.start() for member in field.members))
        await field.in_sync(3)
        assert [member.broker.place.number for member in field.members] == numbers

    fielded(tmp_path, 0, main)


async def elect(field: Field, member: Member) -> int:
    """Elect a broker as master; return the code of the answer."""
    answer = await field.group.ask_leader(
        Code.CONTROLLER_ELECT_MASTER,
        clusterName=CLUSTER,
        brokerName=NAME,
        brokerId=member.broker.place.number,
        designateElect=True,
    )
    return answer.code


class Producer:
    """Sends messages, one after the other, to the present master; records the accepted ones."""

    def __init__(self, field: Field, pause_seconds: float = 0.005) -> None:
        self.field = field
        self.pause_seconds = pause_seconds
        self.acked: list[bytes] = []
        self.count = 0
        self._goes_on = True

    async def run(self) -> None:
        while self._goes_on:
            for member in self.field.members:
                if member.is_master:
                    await self._send(member)
            await asyncio.sleep(0.01)

    async def _send(self, member: Member) -> None:
        try:
            async with asyncio.timeout(5), member.serving.caller() as caller:
                while self._goes_on and member.is_master:
                    self.count += 1
                    body = b"%d" % self.count
                    answer = await caller.send(body)
                    if answer.code != 0:
                        return
                    self.acked.append(body)
                    await asyncio.sleep(self.pause_seconds)
        except (OSError, TimeoutError, EOFError):
            return

    def stop(self) -> None:
        self._goes_on = False


@pytest.mark.parametrize("kind", KINDS)
def test_a_master_is_killed_and_nothing_that_was_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    async def main(field: Field) -> None:
        producer = Producer(field)
        sending = asyncio.create_task(producer.run())
        old = await field.master()
        await until(lambda: len(producer.acked) > 50)
        await old.kill()
        began, count = seconds(), len(producer.acked)
        new = await field.master(but=old)
        await until(lambda: len(producer.acked) > count)
        assert seconds() - began < TAKEOVER_SECONDS_MAX
        assert (await field.route())[0] == new.address
        await until(lambda: len(producer.acked) > count + 50)
        await old.start()
        state = await field.in_sync(3)
        assert (state["masterAddress"], state["masterEpoch"]) == (new.address, 2)
        producer.stop()
        await sending
        for member in field.members:
            if member is not new:
                await same(member, new)
            assert set(producer.acked) <= set(member.bodies())
            kept = [body for body in member.bodies() if body in set(producer.acked)]
            assert kept == producer.acked
            assert [it.epoch for it in member.broker.place.epochs.entries] == [1, 2]

    fielded(tmp_path, 3, main, store={**ALL_ACK, "store_type": kind})


def test_a_master_that_stops_leaves_its_last_messages_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag(monkeypatch, Random(1))

    async def main(field: Field) -> None:
        old, new = field.members
        async with old.serving.caller() as caller:
            for number in range(50):
                await caller.sent(b"%d" % number)
        assert new.broker.max_offset < old.broker.max_offset
        await old.stop()
        assert await field.master(but=old) is new
        assert new.bodies() == [b"%d" % number for number in range(50)]

    fielded(tmp_path, 2, main)


def own_end(member: Member, *words: bytes) -> None:
    """Write messages to the end of the log of a stopped broker, which no other broker has."""
    with opened(member.root, background=False, **member.field.store) as store:
        for word in words:
            put(store, word)


def put(store: MessageStore, body: bytes) -> None:
    append(store, body, properties={"KEYS": body.decode()})


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_the_killed_master_had_is_cut(tmp_path: Path, kind: str) -> None:
    async def main(field: Field) -> None:
        old, new = field.members
        async with old.serving.caller() as caller:
            await caller.sent(b"common")
        await caught_up(new.serving, old.serving)
        await old.kill()
        assert await field.master(but=old) is new
        own_end(old, b"alone", b"alone too")
        async with new.serving.caller() as caller:
            await caller.sent(b"later")
        await old.start()
        await field.in_sync(2)
        await caught_up(old.serving, new.serving)
        assert old.bodies() == new.bodies() == [b"common", b"later"]
        assert old.broker.store.query("T", "alone", "K", 0, 1 << 60, 9) == []
        assert old.broker.place.epochs.entries == new.broker.place.epochs.entries
        await old.kill()  # and it does not come back
        await old.start()
        assert old.bodies() == [b"common", b"later"]

    fielded(tmp_path, 2, main, store={"store_type": kind})


def test_a_learner_is_never_in_sync_and_never_master(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        [master] = field.members
        learner = Member(field, 1, async_learner=True)
        field.members.append(learner)
        await learner.start()
        async with master.serving.caller() as caller:
            for number in range(20):
                await caller.sent(b"%d" % number)
                await asyncio.sleep(1)
        await same(learner, master)
        number = learner.broker.place.number
        state = await field.group.state()
        assert [it["brokerId"] for it in state["inSyncReplicas"]] == [1]
        assert [it["brokerId"] for it in state["notInSyncReplicas"]] == [number] == [2]
        await master.kill()
        await field.state(lambda it: not any(broker["alive"] for broker in it["inSyncReplicas"]))
        answer = await field.group.ask_leader(
            Code.CONTROLLER_ELECT_MASTER, clusterName=CLUSTER, brokerName=NAME, brokerId=number, designateElect=True
        )
        assert answer.code == 2012
        await asyncio.sleep(30)
        assert not learner.is_master
        async with learner.serving.caller() as caller:
            assert (await caller.send(b"x")).code != 0
        await master.start()
        assert await field.master() is master
        async with master.serving.caller() as caller:
            await caller.sent(b"again")
        await same(learner, master)

    fielded(tmp_path, 1, main, store=ALL_ACK)


def test_another_broker_is_wanted_as_master_and_then_the_first_again(tmp_path: Path) -> None:
    """Connections and the registrations of consumers stay."""

    async def main(field: Field) -> None:
        first, second = field.members
        async with first.serving.caller() as to_first, second.serving.caller() as to_second:
            for turn, member in enumerate([second, first, second]):
                other = first if member is second else second
                caller, elsewhere = (to_second, to_first) if member is second else (to_first, to_second)
                assert await elect(field, member) == 0
                assert await field.master(but=other) is member
                await until(lambda: all(it.broker.is_open for it in field.members))
                assert not other.is_master
                await caller.sent(b"%d" % turn)
                refused = await elsewhere.send(b"x")
                assert refused.code == 2
                await field.in_sync(2)
                await caught_up(other.serving, member.serving)
        expected = [b"0", b"1", b"2"]
        assert first.bodies() == second.bodies() == expected
        assert await field.route() == {0: second.address, 1: first.address}

    fielded(tmp_path, 2, main)


def test_consumers_see_what_all_have_that_are_in_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(field: Field) -> None:
        master, slave = field.members
        held: list[tuple[SwitchFollowing, bytes]] = []
        hear = SwitchFollowing.data_received
        async with master.serving.caller() as caller:
            await caller.sent(b"before")
            await until(lambda: slave.bodies() == [b"before"])
            monkeypatch.setattr(SwitchFollowing, "data_received", lambda *it: held.append(it))
            sending = asyncio.create_task(caller.send(b"a"))
            await asyncio.sleep(0.5)
            assert not sending.done()
            assert master.bodies() == slave.bodies() == [b"before"]
            monkeypatch.undo()
            for following, data in held:
                hear(following, data)
            assert (await sending).code == 0
            began = seconds()
            await until(lambda: master.bodies() == slave.bodies() == [b"before", b"a"])
            assert seconds() - began < 0.1

    fielded(tmp_path, 2, main, store=ALL_ACK)


def test_the_leading_controller_is_lost_and_then_the_master(tmp_path: Path) -> None:
    """Brokers find the next leader, which elects a master."""

    async def main(field: Field) -> None:
        old = await field.master()
        producer = Producer(field)
        sending = asyncio.create_task(producer.run())
        await until(lambda: len(producer.acked) > 10)
        first = await field.group.leader()
        await field.group.stop(first)
        await old.kill()
        new = await field.master(but=old)
        taken = len(producer.acked)
        await until(lambda: len(producer.acked) > taken + 10)
        await old.start()
        await field.in_sync(3)
        await field.group.start(first)
        producer.stop()
        await sending
        await same(old, new)
        assert [body for body in new.bodies() if body in set(producer.acked)] == producer.acked

    fielded(tmp_path, 3, main, store=ALL_ACK, controllers=3)


def test_what_may_be_cut_yet_is_read_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former master comes back with a message that no other broker has."""

    async def main(field: Field) -> None:
        old, new = field.members
        async with old.serving.caller() as caller:
            await caller.sent(b"a")
            await until(lambda: new.bodies() == [b"a"])
            monkeypatch.setattr(SwitchFollowing, "data_received", lambda *_: None)
            caller.tell(310, send_fields(), b"cut")
            await until(lambda: old.broker.max_offset > new.broker.max_offset)
            await old.kill()
        await field.master(but=old)
        await old.start()
        async with old.serving.caller() as caller:
            refused = await caller.pull()
            assert (refused.code, refused.remark) == (2, UNCONFIRMED)
            monkeypatch.undo()
            await field.in_sync(2)
            async with new.serving.caller() as other:
                await other.sent(b"b")
            await until(lambda: old.bodies() == new.bodies() == [b"a", b"b"])
            found = await caller.pull()
            assert [view.body for view in iter_records(found.body)] == [b"a", b"b"]

    fielded(tmp_path, 2, main, store=ALL_ACK, slave_read_enable=True)


def test_timed_messages_wait_at_the_slave_and_those_that_were_cut_do_not_come(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        old, new = field.members

        async def timed(member: Member, body: bytes, seconds_from_now: int) -> None:
            due = field.clock.now_ms() + 1000 * seconds_from_now
            async with member.serving.caller() as caller:
                await caller.sent(body, i=f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01{due}\x02")

        await timed(old, b"first", 60)
        await caught_up(new.serving, old.serving)
        await old.kill()
        with opened(old.root, background=False, **field.store) as store:
            due = field.clock.now_ms() + 40_000
            properties = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(due), "TIMER_DELIVER_MS": str(due)}
            append(store, b"cut", "rmq_sys_wheel_timer", properties=properties)
        assert await field.master(but=old) is new
        await timed(new, b"second", 50)
        await old.start()
        await field.in_sync(2)
        await asyncio.sleep(80)
        await caught_up(old.serving, new.serving)
        assert new.bodies() == old.bodies() == [b"second", b"first"]
        assert await elect(field, old) == 0
        assert await field.master(but=new) is old
        await timed(old, b"third", 5)
        await asyncio.sleep(20)
        assert [body for body in old.bodies() if body == b"cut"] == []
        assert old.bodies()[-1] == b"third"

    fielded(tmp_path, 2, main, store=ALL_ACK)


@pytest.mark.parametrize("least", [2, 3])
def test_a_master_with_too_few_others_refuses_messages(tmp_path: Path, least: int) -> None:
    async def main(field: Field) -> None:
        master, slave = field.members
        async with master.serving.caller() as caller:
            answer = await caller.send(b"a")
            if least == 3:
                assert answer.code == 1
                assert "in-sync replicas not enough: 2" in str(answer.remark)
                return
            assert answer.code == 0
            await slave.kill()
            await field.in_sync(1)
            answer = await caller.send(b"b")
            assert (answer.code, answer.remark) == (1, "in-sync replicas not enough: 1, minInSyncReplicas is 2")

    fielded(tmp_path, 2, main, store={"min_in_sync_replicas": least})


async def same(slave: Member, master: Member) -> None:
    """Wait until a slave has all messages of its master, and consumers see them."""
    await caught_up(slave.serving, master.serving)
    await until(lambda: slave.bodies() == master.bodies())


def written(member: Member) -> list[Epoch]:
    """Return the epochs in which messages were written."""
    end = member.broker.max_offset
    return [it for it, until in member.broker.place.epochs.with_ends() if it.start < min(until, end)]


def lag(monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
    """Delay the notices of the master to slaves, without a change of their order."""
    hear = SwitchFollowing.data_received

    def later(following: SwitchFollowing, data: bytes) -> None:
        running = asyncio.get_running_loop()
        after = getattr(following, "at", 0.0) + 1e-6  # what is planned for one time has no order
        at = max(after, running.time() + random.choice([0, 0.01, 0.4]))
        following.at = at  # type: ignore[attr-defined]
        running.call_at(at, hear, following, data)

    monkeypatch.setattr(SwitchFollowing, "data_received", later)


@pytest.mark.parametrize("seed", range(3))
def test_any_history_keeps_what_was_acknowledged(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are killed, stopped, elected and come back while messages are sent."""
    random = Random(seed)
    lag(monkeypatch, random)

    async def main(field: Field) -> None:
        producer = Producer(field, 0.15)
        sending = asyncio.create_task(producer.run())
        for _ in range(8):
            await asyncio.sleep(random.choice([0.1, 1.0, 4.0]))
            running = [it for it in field.members if it.runs]
            away = [it for it in field.members if not it.runs]
            member = random.choice(field.members)
            if away and random.random() < 0.6:
                await random.choice(away).start()
            elif not member.runs or len(running) == 1:
                continue
            elif random.random() < 0.3:
                await elect(field, member)
            else:
                await (member.kill() if random.random() < 0.7 else member.stop())
        for member in field.members:
            if not member.runs:
                await member.start()
        await field.in_sync(3)
        producer.stop()
        await sending
        master = await field.master()
        assert len(producer.acked) > 10
        for member in field.members:
            if member is not master:
                await same(member, master)
            found = member.bodies()
            assert len(found) == len(set(found))
            assert [body for body in found if body in set(producer.acked)] == producer.acked
            assert written(member) == written(master)
        for member in field.members:
            store = member.broker.settings.store
            await member.stop()
            assert damage_in(store, store.message_delay_level) == []

    fielded(tmp_path, 3, main, store=ALL_ACK)


def test_a_slave_counts_once_by_its_newest_connection(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        master, slave = field.members

        async def counted() -> tuple[int, int]:
            async with master.serving.caller() as caller:
                status = await ha_status(caller)
            return status.in_sync_slave_nums, len(status.ha_connection_info)

        async with master.serving.caller() as caller:
            await caller.sent(b"a")
        await caught_up(slave.serving, master.serving)
        port = master.broker.settings.store.ha_listen_port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(Greeting(slave.broker.place.number).encode())
        writer.write(report(master.broker.max_offset))
        await reader.readexactly(MASTER_HANDSHAKE.size)
        assert await counted() == (1, 1)
        while await reader.read(1 << 16):  # until the slave itself has come again
            pass
        assert await counted() == (1, 1)
        writer.close()

    fielded(tmp_path, 2, main)


# --- failures while a role changes, or while brokers agree on one ---


def full_once(monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> list[str]:
    """Let a method fail the next time, as on a full disk; return the refused calls."""
    does = getattr(where, name)
    refused: list[str] = []

    def call(*words: Any) -> Any:
        if refused:
            return does(*words)
        refused.append(name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(where, name, call)
    return refused


@pytest.mark.parametrize(
    ("where", "name"),
    [(TopicTable, "save"), (Epochs, "save"), (Registration, "start"), (Registration, "stop")],
    ids=["at the end of a role", "at the begin", "when services start", "when they stop"],
)
def test_a_disk_that_is_full_for_a_moment_keeps_no_broker_from_its_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    async def main(field: Field) -> None:
        old, new = field.members
        async with old.serving.caller() as caller:
            await caller.sent(b"before")
        await caught_up(new.serving, old.serving)
        refused = full_once(monkeypatch, where, name)
        began = seconds()
        assert await elect(field, new) == 0
        await until(lambda: new.is_master and old.broker.is_open and not old.is_master)
        assert refused == [name]
        assert seconds() - began < 2.5  # retried after a second
        await field.in_sync(2)
        async with new.serving.caller() as caller:
            await caller.sent(b"behind")
        await same(old, new)
        assert new.bodies() == [b"before", b"behind"]
        assert await field.route() == {0: new.address, 1: old.address}

    fielded(tmp_path, 2, main)


def test_a_broker_that_has_no_role_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(field: Field) -> None:
        _, new = field.members
        monkeypatch.setattr(Epochs, "save", broken)
        assert await elect(field, new) == 0
        await until(lambda: not new.broker.is_open)
        monkeypatch.undo()
        await new.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", new.port)

    def broken(_: Epochs) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fielded(tmp_path, 2, main)


def test_a_slave_that_can_not_note_an_epoch_says_so_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(field: Field) -> None:
        master, slave = field.members
        unheard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: unheard.append(about))
        assert master.broker.control is not None
        mastery = master.broker.place.mastery
        later = mastery._replace(epoch=mastery.epoch + 1)
        master.broker.control.told(later)
        await until(lambda: master.broker.place.mastery == later)
        refused = full_once(monkeypatch, Epochs, "save")
        async with master.serving.caller() as caller:
            await caller.sent(b"a")
        await until(lambda: "No space left" in slave.broker.troubles.get("replication", ""))
        await same(slave, master)
        assert (refused, unheard) == (["save"], [])
        kept = Epochs.load(slave.root / "epochFileCheckpoint")
        assert kept.entries == master.broker.place.epochs.entries

    fielded(tmp_path, 2, main)


def test_a_master_notes_a_later_epoch_as_soon_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(field: Field) -> None:
        [master] = field.members
        control, mastery = master.broker.control, master.broker.place.mastery
        assert control is not None
        full_once(monkeypatch, Epochs, "save")
        later = mastery._replace(epoch=mastery.epoch + 1)
        control.told(later)
        await until(lambda: control.trouble is not None)
        control.told(later)
        await until(lambda: master.broker.place.mastery == later)
        kept = Epochs.load(master.root / "epochFileCheckpoint")
        assert kept.last_epoch == later.epoch

    fielded(tmp_path, 1, main)


def test_an_answer_that_can_not_be_read_is_no_end_of_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give = Decider.get_next_broker_id
    asked: list[int] = []

    def nothing_at_first(decider: Decider, peer: Peer, request: AnyCommand) -> Answer:
        asked.append(1)
        return Response() if len(asked) == 1 else give(decider, peer, request)

    async def main(field: Field) -> None:
        field.members.append(Member(field, 0))
        await field.members[0].start()
        await field.in_sync(1)

    monkeypatch.setattr(Decider, "get_next_broker_id", nothing_at_first)
    fielded(tmp_path, 0, main)


def test_controllers_are_found_again_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker asks the known controllers while the name has no address, and uses a new one."""
    told: list[str] = []
    found: list[str] = ["127.0.0.1"]

    async def getaddrinfo(_: object, host: str, port: int, **__: int) -> list[Any]:
        if host != "controllers":
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]
        if not found:
            raise socket.gaierror(socket.EAI_AGAIN, "it is away")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (it, port)) for it in found]

    async def send(client: Client, address: str, code: int, *words: Any, **options: Any) -> None:
        if code == Code.BROKER_HEARTBEAT:
            told.append(address)
        await sends(client, address, code, *words, **options)

    sends = Client.send

    async def main(field: Field) -> None:
        [address] = field.group.addresses.values()
        port = address.rpartition(":")[2]
        member = Member(field, 0)
        field.members.append(member)
        monkeypatch.setattr(VirtualLoop, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(Client, "send", send)
        field.config = {"controller_addr": f"controllers:{port}", "fetch_controller_addr_by_dns_lookup": True}
        await member.start()
        await field.in_sync(1)
        found.clear()
        await asyncio.sleep(ADDRESSES_SECONDS + 5)
        assert "controllers" not in member.broker.troubles
        found.append("127.0.0.2")
        await asyncio.sleep(ADDRESSES_SECONDS)
        assert f"127.0.0.2:{port}" in told

    fielded(tmp_path, 0, main)


def test_controllers_that_have_lost_all_begin_anew_with_one_log(tmp_path: Path) -> None:
    """As the documentation says."""

    async def main(field: Field) -> None:
        first = await field.master()
        await first.stop()
        second = await field.master(but=first)
        await first.start()
        await field.in_sync(2)
        async with second.serving.caller() as caller:
            await caller.sent(b"kept")
        for member in field.members:
            await member.stop()
        await field.group.stop()
        shutil.rmtree(tmp_path / "n0")
        for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak", "brokerIdentity"):
            (second.root / name).unlink(missing_ok=True)
        shutil.rmtree(first.root)
        await field.group.start()
        await second.start()
        assert await field.master() is second
        await first.start()
        await field.in_sync(2)
        await until(lambda: first.bodies() == second.bodies() == [b"kept"])

    fielded(tmp_path, 2, main)
