"""What a master has answered beside messages is where the next master will be."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from firearrow.auth.model import User
from firearrow.broker.access.processor import AuthProcessor
from firearrow.broker.replication import slavesync, statefeed
from firearrow.broker.replication.slavesync import SlaveSync
from firearrow.broker.replication.statefeed import StateChange, StateNews
from firearrow.net.client import Client
from firearrow.replication.switching import Greeting
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import RequestMode, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.command import Response
from tests.broker.controlled import Field, Member, fielded
from tests.broker.replicated import replica, slave_of
from tests.broker.serving import Caller, Serving, seconds, send_fields, until
from tests.broker.signing import AUTHORIZED, ROOT, Signer, signing

ALL_ACK = {"all_ack_in_sync_state_set": True}
ONE_MORE = {"in_sync_replicas": 2}
RIGHTS: Mapping[str, Any] = {
    **AUTHORIZED,
    "inner_client_authentication_credentials": json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}),
}
AT_ONCE_SECONDS = 0.2
TIMED_OUT = 12
SEEDS = int(os.environ.get("FIREARROW_STATE_SEEDS", "6"))


def topic_fields(topic: str, **changed: Any) -> dict[str, Any]:
    """The fields of 17."""
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, **changed,
    }  # fmt: skip


async def done(caller: Caller, code: int, fields: Mapping[str, Any], body: bytes = b"") -> None:
    """Ask for what must be done."""
    answer = await caller.call(code, fields, body)
    assert (answer.code, answer.remark) == (0, None), code


def knows(served: Serving, topic: str) -> Callable[[], bool]:
    """Whether a broker has a topic."""
    return lambda: topic in served.broker.topics.table


@asynccontextmanager
async def told_slave(root: Path, clock: VirtualClock) -> AsyncIterator[tuple[Serving, Serving, Caller]]:
    """A master, a slave that it tells of changes, and who asks the master."""
    async with (
        replica(root / "m", clock) as master,
        slave_of(master, root / "s", clock) as slave,
        master.caller() as caller,
    ):
        slave.broker.replication.sync.follow(master.broker.address)
        await until(lambda: slave.broker.replication.sync.watches)
        yield master, slave, caller


async def killed(field: Field, old: Member) -> Member:
    """Kill the master; give the next."""
    await old.kill()
    return await field.master(but=old)


@pytest.mark.parametrize("keys", [ALL_ACK, ONE_MORE], ids=["all in sync", "one more"])
def test_what_was_answered_is_at_the_next_master(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Each change right before the master is killed, and the old one has it when it is back."""

    async def main(field: Field) -> None:
        for make, holds in CHANGES:
            old = await field.master()
            async with old.serving.caller() as caller:
                await make(caller)
            new = await killed(field, old)
            assert holds(new.serving), make.__name__
            await old.start()
            await field.in_sync(2)
            assert holds(old.serving), make.__name__

    fielded(tmp_path, 2, main, store=keys)


async def make_topic(caller: Caller) -> None:
    attributes = "+message.type=FIFO"
    await done(caller, 17, topic_fields("ordered", perm=4, order=True, readQueueNums=7, attributes=attributes))


def has_topic(served: Serving) -> bool:
    config = served.broker.topics.get("ordered")
    return config == TopicConfig("ordered", 7, 4, 4, order=True, attributes={"message.type": "FIFO"})


async def make_topics(caller: Caller) -> None:
    configs = [TopicConfig(f"L{number}", 1, 1, 6) for number in range(300)]
    await done(caller, 18, {}, fastjson.dumps({"topicConfigList": configs}))


def has_topics(served: Serving) -> bool:
    return all(f"L{number}" in served.broker.topics.table for number in range(300))


async def make_group(caller: Caller) -> None:
    config = SubscriptionGroupConfig("g", retry_max_times=3, consume_broadcast_enable=False)
    await done(caller, 200, {}, fastjson.dumps(config))


def has_group(served: Serving) -> bool:
    config = served.broker.groups.get("g")
    return config is not None and config.retry_max_times == 3


async def forbid(caller: Caller) -> None:
    await done(caller, 353, {"group": "g", "topic": "ordered", "readable": False})


def forbids(served: Serving) -> bool:
    return served.broker.groups.is_read_forbidden("g", "ordered")


async def set_mode(caller: Caller) -> None:
    mode = RequestMode(topic="ordered", consumer_group="g", mode="POP", pop_share_queue_num=2)
    await done(caller, 401, {}, fastjson.dumps(mode))


def has_mode(served: Serving) -> bool:
    mode = served.broker.modes.get("ordered", "g")
    return mode is not None and mode.mode == "POP"


async def reset_offset(caller: Caller) -> None:
    await done(caller, 17, topic_fields("T"))
    for number in range(3):
        await caller.sent(b"%d" % number)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3}
    await done(caller, 15, fields)
    reset = {"topic": "T", "group": "g", "timestamp": 0, "isForce": True, "queueId": 0, "offset": 1}
    await done(caller, 222, reset)


def has_offset(served: Serving) -> bool:
    return served.broker.offsets.query("g", "T", 0) == 1


async def clone_offset(caller: Caller) -> None:
    await done(caller, 200, {}, fastjson.dumps(SubscriptionGroupConfig("h")))
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": False}
    await done(caller, 314, fields)


def has_clone(served: Serving) -> bool:
    return served.broker.offsets.query("h", "T", 0) == 1


async def delete_group(caller: Caller) -> None:
    await done(caller, 207, {"groupName": "h", "cleanOffset": True})


def lacks_group(served: Serving) -> bool:
    broker = served.broker
    return "h" not in broker.groups.table and broker.offsets.query("h", "T", 0) == -1


async def delete_topic(caller: Caller) -> None:
    await done(caller, 215, {"topic": "T"})


def lacks_topic(served: Serving) -> bool:
    """It has messages, of which a start would make it again."""
    broker = served.broker
    return "T" not in broker.topics.table and broker.offsets.query("g", "T", 0) == -1


CHANGES = [
    (make_topic, has_topic),
    (make_topics, has_topics),
    (make_group, has_group),
    (forbid, forbids),
    (set_mode, has_mode),
    (reset_offset, has_offset),
    (clone_offset, has_clone),
    (delete_group, lacks_group),
    (delete_topic, lacks_topic),
]


def test_users_and_their_rights_are_at_the_next_master(tmp_path: Path) -> None:
    """One that was deleted is nowhere, with the last policy and the last user."""

    async def main(field: Field) -> None:
        old = await field.master()
        async with signing(old.serving, ROOT) as root:
            user = await root.user("u")
            await root.user("gone")
            await root.allow("u", ("Topic:T", ["Pub"]))
            await root.call(3003, {"username": "gone"})
        new = await killed(field, old)
        async with signing(new.serving, user) as signer:
            assert (await send(signer, "T")).code == 0
            assert (await send(signer, "U")).code == 16
        async with signing(new.serving, ROOT) as root:
            assert (await root.call(3004, {"username": "gone"})).body == b""
            await old.start()
            await field.in_sync(2)
            await root.call(3008, {"subject": "User:u"})
            await root.call(3003, {"username": "u"})
        last = await killed(field, new)
        assert last is old
        async with signing(last.serving, user) as signer:
            assert (await send(signer, "T")).code == 16
        async with signing(last.serving, ROOT) as root:
            assert (await root.call(3004, {"username": "u"})).body == b""

    fielded(tmp_path, 2, main, store=ALL_ACK, **RIGHTS)


async def send(signer: Signer, topic: str) -> Any:
    return await signer.call(310, send_fields(topic), b"x")


def test_users_may_be_changed_at_the_master_and_then_at_its_slave(tmp_path: Path) -> None:
    """As ``mqadmin`` does; the slave has it by then."""

    async def main(field: Field) -> None:
        master, slave = field.members
        async with signing(master.serving, ROOT) as first, signing(slave.serving, ROOT) as second:
            for root in (first, second):
                await root.user("u")
            for root in (first, second):
                await root.allow("u", ("Topic:T", ["Pub"]))
            again = await second.call(3001, {"username": "u"}, b'{"password":"another"}')
            assert (again.code, again.remark) == (16, "The user is existed")
            for code, fields in ((3008, {"subject": "User:u"}), (3003, {"username": "u"})):
                for root in (first, second):
                    await done(root, code, fields)

    fielded(tmp_path, 2, main, store=ALL_ACK, **RIGHTS)


def test_a_slave_without_the_credentials_of_a_super_user_is_not_in_sync(tmp_path: Path) -> None:
    """It would be elected without topics, and serve nothing; it says why."""

    async def main(field: Field) -> None:
        field.members += [Member(field, number) for number in range(2)]
        for member in field.members:
            await member.start()
        await asyncio.sleep(60)
        await field.in_sync(1)
        slave = next(it for it in field.members if not it.is_master)
        assert "changes: " in slave.broker.troubles["what the master knows"]

    fielded(tmp_path, 0, main, store=ALL_ACK, **AUTHORIZED)


def test_a_slave_that_is_told_no_passwords_takes_no_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = User.info
    monkeypatch.setattr(User, "info", lambda user: replace(info(user), password=None))

    async def main(field: Field) -> None:
        field.members += [Member(field, number) for number in range(2)]
        for member in field.members:
            await member.start()
        await asyncio.sleep(30)
        slave = next(it for it in field.members if not it.is_master)
        why = slave.broker.troubles["what the master knows"]
        assert "rights: the master tells no passwords" in why
        users = slave.broker.users
        assert users is not None
        assert users.users[ROOT.access_key].password == ROOT.secret_key

    fielded(tmp_path, 0, main, store=ALL_ACK, **RIGHTS)


def test_a_master_that_keeps_no_users_takes_none_from_its_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuthProcessor, "users", lambda *_: Response())

    async def main(field: Field) -> None:
        slave = next(it for it in field.members if not it.is_master)
        users = slave.broker.users
        assert users is not None
        assert ROOT.access_key in users.users

    fielded(tmp_path, 2, main, store=ALL_ACK, **RIGHTS)


@asynccontextmanager
async def deaf(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Slaves make no change until the event is set."""
    hears = asyncio.Event()
    take = SlaveSync._take

    async def later(sync: SlaveSync, changes: list[StateChange]) -> None:
        await hears.wait()
        await take(sync, changes)

    with monkeypatch.context() as patch:
        patch.setattr(SlaveSync, "_take", later)
        try:
            yield hears
        finally:
            hears.set()


def test_an_answer_waits_for_the_slave_and_no_longer_than_that_of_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(field: Field) -> None:
        master, slave = field.members
        async with deaf(monkeypatch) as hears, master.serving.caller() as caller, master.serving.caller() as other:
            began = seconds()
            making = asyncio.create_task(caller.call(17, topic_fields("A")))
            await asyncio.sleep(1)
            assert not making.done()
            assert (await other.call(21, {})).code == 0, "who changes nothing waits for nobody"
            assert (await other.send(topic="U")).code == 0
            answer = await making
            assert answer.code == TIMED_OUT
            assert "not all slaves in sync have confirmed it within 3.0 s" in str(answer.remark)
            assert seconds() - began == pytest.approx(3, abs=0.1)
            making = asyncio.create_task(caller.call(17, topic_fields("B")))
            await asyncio.sleep(1)
            hears.set()
            assert (await making).code == 0
            assert {"A", "B"} <= slave.broker.topics.table.keys(), "the change stays"
        await slave.kill()
        await field.in_sync(1)
        async with master.serving.caller() as caller:
            began = seconds()
            await done(caller, 17, topic_fields("D"))
            assert seconds() - began < AT_ONCE_SECONDS, "nobody is in sync"

    fielded(tmp_path, 2, main, store=ALL_ACK)


def test_a_slave_is_in_sync_when_it_has_what_was_answered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(field: Field) -> None:
        [master] = field.members
        second = Member(field, 1)
        field.members.append(second)
        async with deaf(monkeypatch) as hears, master.serving.caller() as caller:
            await second.start()
            await caller.sent(b"a")
            await until(lambda: second.bodies() == [b"a"])
            await done(caller, 17, topic_fields("A"))
            await asyncio.sleep(30)
            await field.in_sync(1)
            hears.set()
            await field.in_sync(2)
        assert "A" in (await killed(field, master)).broker.topics.table

    fielded(tmp_path, 1, main, store=ALL_ACK)


def test_a_slave_that_can_not_confirm_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's: it says nothing of itself, asks for no changes, and may be in sync."""
    encode = Greeting.encode
    monkeypatch.setattr(Greeting, "encode", lambda it: encode(it._replace(has_state=False)))

    async def none(_: SlaveSync) -> None:
        return None

    monkeypatch.setattr(SlaveSync, "_first_news", none)

    async def main(field: Field) -> None:
        master, _ = field.members
        async with master.serving.caller() as caller:
            began = seconds()
            await done(caller, 17, topic_fields("A"))
            assert seconds() - began < AT_ONCE_SECONDS

    fielded(tmp_path, 2, main, store=ALL_ACK)


def test_a_master_that_stops_leaves_offsets_to_the_next(tmp_path: Path) -> None:
    async def main(field: Field) -> None:
        old, _ = field.members
        async with old.serving.caller() as caller:
            await done(caller, 200, {}, fastjson.dumps(SubscriptionGroupConfig("g")))
            for number in range(5):
                await caller.sent(b"%d" % number)
            fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 4}
            await done(caller, 15, fields)
        await old.stop()
        new = await field.master(but=old)
        assert new.broker.offsets.query("g", "T", 0) == 4

    fielded(tmp_path, 2, main)


def test_an_asynchronous_master_waits_for_nobody_and_tells_at_once(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with told_slave(tmp_path, clock) as (master, slave, caller):
            for number in range(3):
                began = seconds()
                await done(caller, 17, topic_fields(f"A{number}"))
                await until(knows(slave, f"A{number}"))
                assert seconds() - began < AT_ONCE_SECONDS
            assert slave.broker.topics.data_version == master.broker.topics.data_version

    loop.run(main)


def test_a_synchronous_master_waits_for_slaves_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(clock: VirtualClock) -> None:
        keys = {"in_sync_replicas": 2, "slave_timeout": 500}
        async with replica(tmp_path / "m", clock, role="SYNC_MASTER", store=keys) as master, master.caller() as caller:
            await done(caller, 17, topic_fields("alone"))
            async with slave_of(master, tmp_path / "s", clock) as slave:
                slave.broker.replication.sync.follow(master.broker.address)
                await until(lambda: slave.broker.replication.sync.watches)
                await done(caller, 17, topic_fields("A"))
                assert {"alone", "A"} <= slave.broker.topics.table.keys()
                async with deaf(monkeypatch):
                    answer = await caller.call(17, topic_fields("B"))
                    assert answer.code == TIMED_OUT
            await done(caller, 17, topic_fields("alone_again"))

    loop.run(main)


def test_a_slave_that_lags_too_far_behind_asks_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statefeed, "RECENT_MAX", 3)

    async def main(clock: VirtualClock) -> None:
        async with told_slave(tmp_path, clock) as (master, slave, caller):
            sync = slave.broker.replication.sync
            rounds = sync.rounds
            async with deaf(monkeypatch):
                for number in range(9):
                    await done(caller, 17, topic_fields(f"A{number}"))
            await until(lambda: "A8" in slave.broker.topics.table and sync.watches)
            assert sync.rounds == rounds + 1
            assert slave.broker.topics.table == master.broker.topics.table

    loop.run(main)


def test_a_change_that_does_not_follow_on_what_is_here_has_the_table_asked_for(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with told_slave(tmp_path, clock) as (master, slave, caller):
            slave.broker.topics.put(TopicConfig("own", 1, 1, 6))
            await asyncio.sleep(0.01)  # data versions are told apart by their time
            await done(caller, 17, topic_fields("A"))
            await until(lambda: "A" in slave.broker.topics.table)
            assert slave.broker.topics.table == master.broker.topics.table

    loop.run(main)


def test_an_old_answer_undoes_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master tells of a reset while the slave gets all offsets as they were before it."""
    asks = Client.call

    async def slowly(client: Client, address: str, code: int, *words: Any, **rest: Any) -> Any:
        answer = await asks(client, address, code, *words, **rest)
        if code == Code.GET_ALL_CONSUMER_OFFSET:
            await asyncio.sleep(1)
        return answer

    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            slave_of(master, tmp_path / "s", clock) as slave,
            master.caller() as caller,
        ):
            await make_group(caller)
            sync = slave.broker.replication.sync
            sync.follow(master.broker.address)
            await until(lambda: sync.watches)
            await reset_offset(caller)
            await until(lambda: has_offset(slave))
            monkeypatch.setattr(Client, "call", slowly)
            round_ = asyncio.create_task(sync.ask_all())
            await asyncio.sleep(0.5)
            await delete_topic(caller)
            await round_
            await asyncio.sleep(1)
            assert lacks_topic(slave)

    loop.run(main)


def test_a_slave_of_a_master_that_tells_nothing_asks_when_there_are_messages_of_a_new_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's master knows no such request."""

    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            slave_of(master, tmp_path / "s", clock) as slave,
            master.caller() as caller,
        ):
            del master.broker._handlers[int(Code.FOLLOW_STATE)]
            sync = slave.broker.replication.sync
            sync.follow(master.broker.address)
            await until(lambda: sync.rounds > 0)
            assert not sync.watches
            assert sync.trouble is None
            for number in range(3):
                await asyncio.sleep(slavesync.HINT_SECONDS)
                began = seconds()
                await caller.sent(b"x", f"A{number}")
                await until(knows(slave, f"A{number}"))
                assert seconds() - began < AT_ONCE_SECONDS

    loop.run(main)


def test_a_slave_that_is_silent_counts_no_more(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        keys = {"in_sync_replicas": 2, "slave_timeout": 500}
        async with (
            replica(tmp_path / "m", clock, role="SYNC_MASTER", store=keys) as master,
            master.caller() as caller,
            master.caller() as silent,
        ):
            answer = await silent.call(19001, {"brokerId": 1, "life": "", "version": 0})
            news = json.loads(answer.body)
            assert news["whole"]
            assert (await caller.call(17, topic_fields("A"))).code == TIMED_OUT
            await asyncio.sleep(statefeed.ASK_SECONDS_MAX)
            await done(caller, 17, topic_fields("B"))

    loop.run(main)


def test_a_request_that_waits_is_answered_in_time_and_at_a_stop(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock) as master, master.caller() as asking:
            first = json.loads((await asking.call(19001, {"brokerId": 1, "life": "", "version": 0})).body)
            known: dict[str, Any] = {"brokerId": 1, "life": first["life"], "version": first["version"]}
            began = seconds()
            nothing = json.loads((await asking.call(19001, known)).body)
            assert (nothing["whole"], nothing["changes"]) == (False, [])
            assert seconds() - began == pytest.approx(statefeed.HOLD_SECONDS, abs=0.1)
            ahead = await asking.call(19001, {**known, "version": 99})
            assert json.loads(ahead.body)["whole"]
            waits = asyncio.create_task(asking.call(19001, known))
            await asyncio.sleep(1)
            await master.broker.replication.feed.stop()
            assert (await waits).code == 0

    loop.run(main)


def test_followers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statefeed, "FOLLOWERS_MAX", 1)

    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock) as master, master.caller() as one, master.caller() as two:
            asked: dict[str, Any] = {"brokerId": 1, "life": "", "version": 0}
            assert (await one.call(19001, asked)).code == 0
            assert (await one.call(19001, asked)).code == 0
            assert (await two.call(19001, asked)).code == 2

    loop.run(main)


class Known:
    """What was answered of topics and groups, and what may have come of a change that was not."""

    def __init__(self, field: Field, random: Random) -> None:
        self.field = field
        self.random = random
        self.may_be: dict[str, list[int | None]] = {}
        """By name how many queues a topic, or retries a group, may have; None: there is none."""
        self.answered = 0

    async def change(self, caller: Caller) -> None:
        """Make, change or delete something."""
        name, value = self.random.choice("ABCDEF"), self.random.randrange(1, 100)
        is_gone = self.random.random() < 0.3
        code, body = 17, b""
        fields: dict[str, Any] = topic_fields(f"t{name}", readQueueNums=value)
        if name < "D":
            name = f"t{name}"
            if is_gone:
                code, fields = 215, {"topic": name}
        elif is_gone:
            code, fields = 207, {"groupName": name}
        else:
            code, fields = 200, {}
            body = fastjson.dumps(SubscriptionGroupConfig(name, retry_max_times=value))
        wanted = None if is_gone else value
        before = self.may_be.get(name, [None])
        self.may_be[name] = [*before, wanted]
        answer = await caller.call(code, fields, body)
        if answer.code == 0:
            self.may_be[name] = [wanted]
            self.answered += 1

    def check(self, member: Member) -> None:
        """Compare with what a master has, which is what counts from now on."""
        broker = member.broker
        for name, may_be in self.may_be.items():
            topic, group = broker.topics.table.get(name), broker.groups.table.get(name)
            found = topic.read_queue_nums if topic else group.retry_max_times if group else None
            assert found in may_be, (name, found, may_be)
            self.may_be[name] = [found]


def test_the_last_topic_and_group_are_deleted_while_a_slave_is_away(tmp_path: Path) -> None:
    """It is no master that has lost its files."""

    async def main(field: Field) -> None:
        master, slave = field.members
        async with master.serving.caller() as caller:
            await make_group(caller)
            await make_topic(caller)
            await slave.kill()
            await field.in_sync(1)
            await done(caller, 207, {"groupName": "g", "cleanOffset": True})
            await done(caller, 215, {"topic": "ordered"})
        await slave.start()
        await field.in_sync(2)
        new = await killed(field, master)
        assert not has_group(new.serving)
        assert "ordered" not in new.broker.topics.table

    fielded(tmp_path, 2, main, store=ALL_ACK)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_history_keeps_what_was_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Masters are killed and replaced in the middle of changes, and slaves are slow."""
    random = Random(seed)
    ask = SlaveSync._ask_news

    async def slowly(sync: SlaveSync, life: str, version: int) -> StateNews:
        await asyncio.sleep(random.choice((0, 0.001, 0.02, 0.5)))
        news = await ask(sync, life, version)
        await asyncio.sleep(random.choice((0, 0.001, 0.02, 0.5)))
        return news

    monkeypatch.setattr(SlaveSync, "_ask_news", slowly)

    async def changes(known: Known, master: Member) -> None:
        with suppress(OSError, EOFError):
            async with master.serving.caller() as caller:
                for _ in range(random.randrange(1, 12)):
                    await known.change(caller)

    async def main(field: Field) -> None:
        known = Known(field, random)
        for _ in range(8):
            master = await field.master()
            changing = asyncio.create_task(changes(known, master))
            await asyncio.sleep(random.choice((0.01, 0.1, 1, 4)))
            if random.random() < 0.3:
                await master.stop()
            else:
                await master.kill()
            await asyncio.wait([changing])
            new = await field.master(but=master)
            known.check(new)
            if random.random() < 0.8 or sum(it.runs for it in field.members) < 2:
                for member in field.members:
                    if not member.runs:
                        await member.start()
            await field.state(lambda it: len(it["inSyncReplicas"]) > 1)
        assert known.answered > 3

    fielded(tmp_path, 3, main, store=ALL_ACK)
