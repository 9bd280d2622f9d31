"""What of delayed messages the log has delivered: nobody who takes over delivers it again, and
nothing counts as delivered that is not."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.broker.delaying import redelivery as delivered
from firearrow.message import properties
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.message.record import iter_records
from firearrow.store import MessagesArrived
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from tests.broker.acting import test_acting
from tests.broker.acting.test_acting import group
from tests.broker.controlled import Field, Member, fielded
from tests.broker.delaying.test_delivery import delayed, offsets_in, turn
from tests.broker.replicated import caught_up
from tests.broker.serving import Caller, Serving, bodies, in_virtual_time, left_by_kill, serving, stored
from tests.golden import extract
from tests.store.stores import GOLDEN_SIZES, KINDS, append, settle

NUMBERS = range(20)
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"


def unique(number: int, level: int) -> str:
    """Properties of one of many messages with a delay level."""
    return f"UNIQ_KEY\x01U{number}\x02DELAY\x01{level}\x02"


def timed(number: int, seconds: int) -> str:
    """Properties of one of many messages with a delivery time."""
    return f"UNIQ_KEY\x01U{number}\x02TIMER_DELAY_SEC\x01{seconds}\x02"


def forget(root: Path) -> None:
    """Have a store know of no delivery but by its log, as RocketMQ's may after a crash."""
    for path in (root / "config").glob("delayOffset.json*"):
        path.unlink()


# --- who takes over ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_knows_of_no_delivery_finds_them_in_the_log(tmp_path: Path, kind: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path / "a", clock, store_type=kind) as (served, caller):
            for number in NUMBERS:
                await caller.sent(b"%d" % number, i=unique(number, 1 + number % 3))
                await asyncio.sleep(0.5)
            assert 10 < len(stored(served)) < 20
            left_by_kill(tmp_path / "a", tmp_path / "b")
        forget(tmp_path / "b")
        async with turn(tmp_path / "b", clock, store_type=kind) as (served, _):
            await asyncio.sleep(20)
            assert sorted(map(int, bodies(served))) == [*NUMBERS]
        counts = {level: len(NUMBERS[level - 1 :: 3]) for level in (1, 2, 3)}
        assert offsets_in(tmp_path / "b")["offsetTable"] == counts

    loop.run(main)


@pytest.mark.parametrize("name", ["file-cq-clean", "file-cq-killed", "rocksdb-cq-clean"])
def test_deliveries_by_rocketmq_are_found_too(tmp_path: Path, name: str) -> None:
    root = extract(name, tmp_path)
    forget(root)
    kind = KINDS[name.startswith("rocksdb")]

    async def main(served: Serving, _: Any) -> None:
        store = served.broker.store
        await asyncio.sleep(1)
        counts = {level: store.max_queue_offset(SCHEDULE_TOPIC, level - 1) for level in (1, 2, 3)}
        assert all(counts.values())
        assert {level: served.broker.delay_offsets.table[level] for level in counts} == counts
        log = b"".join(bytes(file.map) for file in store.log.segments.files)
        found = list(_records(log, store.log.segments.file_size_bytes))
        copies = Counter(
            (view.unique_key, view.reconsume_times)
            for view in found
            if properties.DELAY_LEVEL in view.properties and view.topic != SCHEDULE_TOPIC
        )
        waited = [key for view in found if view.topic == SCHEDULE_TOPIC for key in [(
            view.unique_key, view.reconsume_times)] if view.queue_id < 3]  # fmt: skip
        assert waited
        assert {key: copies[key] for key in waited} == Counter(waited)

    in_virtual_time(root, main, store={"store_type": kind, **GOLDEN_SIZES})


@pytest.mark.parametrize("keeps", [True, False])
def test_messages_of_extended_queues_are_delivered_once(tmp_path: Path, *, keeps: bool) -> None:
    """RocketMQ has put the time of delivery elsewhere (enableConsumeQueueExt)."""
    root = extract("extended-waiting", tmp_path)
    forget(root)
    if not keeps:
        rmtree(root / "consumequeue_ext")

    async def main(clock: VirtualClock) -> None:
        clock.start_ms = 1_795_876_060_000  # some seconds after its broker has stopped
        async with turn(root, clock, **GOLDEN_SIZES) as (served, _):
            await asyncio.sleep(60)
            soon = [b"soon %d" % number for number in range(4)]
            assert [body for body in bodies(served, "Ext") if body[:3] != b"ext"] == soon
            await asyncio.sleep(7200)
            found = stored(served, "Ext")
            late = [view for view in found if view.body.startswith(b"late")]
            assert [view.body for view in late] == [b"late %d" % number for number in range(3)]
            for view, waited in zip(late, stored(served, SCHEDULE_TOPIC, 17), strict=True):
                assert 0 <= view.store_timestamp_ms - waited.store_timestamp_ms - 7_200_000 < 2

    loop.run(main)


@asynccontextmanager
async def first_master(field: Field, *, kills: bool) -> AsyncIterator[tuple[Member, Caller]]:
    """A master that has the topic, and who sends to it; in the end it is killed or stopped."""
    first = await field.master()
    async with first.serving.caller() as caller:
        first.broker.topics.create("T", 4)
        yield first, caller
    await (first.kill() if kills else first.stop())


def _records(log: bytes, file_bytes: int) -> Iterable[Any]:
    for base in range(0, len(log), file_bytes):
        yield from iter_records(log[base : base + file_bytes])


@pytest.mark.parametrize("kills", [False, True])
def test_a_new_master_delivers_nothing_again(tmp_path: Path, *, kills: bool) -> None:
    """A slave asks for the offsets every ten seconds."""

    async def main(field: Field) -> None:
        async with first_master(field, kills=kills) as (first, caller):
            for number in NUMBERS:
                await caller.sent(b"%d" % number, i=unique(number, 1 + number % 4))
            await asyncio.sleep(11)
            assert len(first.bodies()) == 15
        second = await field.master(first)
        await asyncio.sleep(40)
        assert sorted(map(int, second.bodies())) == [*NUMBERS]

    fielded(tmp_path, 2, main)


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 2.0])
def test_a_new_master_delivers_no_timer_again(tmp_path: Path, seconds: float, *, kills: bool) -> None:
    """A slave asks every three seconds how far the timer is."""

    async def main(field: Field) -> None:
        async with first_master(field, kills=kills) as (first, caller):
            for number in NUMBERS:
                await caller.sent(b"%d" % number, i=timed(number, 5 + number % 10))
            await asyncio.sleep(9 + seconds)
            assert 8 <= len(first.bodies()) <= 14
        second = await field.master(first)
        await asyncio.sleep(40)
        assert sorted(map(int, second.bodies())) == [*NUMBERS]

    fielded(tmp_path, 2, main)


@pytest.mark.parametrize("kills", [False, True])
def test_a_timer_that_has_rolled_comes_once(tmp_path: Path, *, kills: bool) -> None:
    async def main(field: Field) -> None:
        async with first_master(field, kills=kills) as (first, caller):
            await caller.sent(b"first", "U")
            for number in NUMBERS:
                await caller.sent(b"%d" % number, i=timed(number, 45))
            await asyncio.sleep(12)
            assert first.broker.store.max_queue_offset("rmq_sys_wheel_timer", 0) == 40
        second = await field.master(first)
        await asyncio.sleep(60)
        assert sorted(map(int, second.bodies())) == [*NUMBERS]

    fielded(tmp_path, 2, main, store={"timer_roll_window_slot": 10})


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seconds", [0, 2, 4, 6])
def test_what_was_recalled_comes_from_no_master(tmp_path: Path, seconds: int, *, kills: bool) -> None:
    """Half of the messages are recalled, some within the second before they are due or the master
    goes, some when they have rolled."""

    async def main(field: Field) -> None:
        handles: dict[int, str] = {}

        async def recall(number: int) -> None:
            fields = {"producerGroup": "p", "topic": "T", "recallHandle": handles[number]}
            assert (await caller.call(370, fields)).code == 0

        async with first_master(field, kills=kills) as (first, caller):
            await caller.sent(b"first", "U")
            for number in NUMBERS:
                sent = await caller.sent(b"%d" % number, i=timed(number, 5 + number))
                handles[number] = sent["recallHandle"]
            for passed in range(seconds):
                await recall(2 * passed)
                await asyncio.sleep(1)
            await recall(2 * seconds)
            await asyncio.sleep(0.1)  # nobody has waited for the slave
        second = await field.master(first)
        async with second.serving.caller() as caller:
            for number in range(2 * seconds + 2, 20, 2):
                await recall(number)
        await asyncio.sleep(60)
        assert sorted(map(int, second.bodies())) == [*NUMBERS[1::2]]

    fielded(
        tmp_path, 2, main, store={"timer_roll_window_slot": 10}, recall_message_enable=True
    )  # fmt: skip


def test_a_timer_is_delivered_once_by_a_kill_within_its_slot(tmp_path: Path) -> None:
    """A slot is noted when it was read as a whole."""

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path / "a", clock) as (served, caller):
            counts: list[int] = []

            def arrived(arrivals: MessagesArrived) -> None:
                counts.extend(end for topic, _, _, end in arrivals if topic == "T" and not counts)
                if counts and not (tmp_path / "b").exists():
                    left_by_kill(tmp_path / "a", tmp_path / "b")

            await caller.sent(b"first", "U")  # by its place, no message names the first of a log
            served.broker.events.listen(MessagesArrived, arrived)
            for number in range(300):
                await caller.sent(b"%d" % number, i=timed(number, 5))
            await asyncio.sleep(10)
            assert 0 < counts[0] < 300
        async with turn(tmp_path / "b", clock) as (served, _):
            await asyncio.sleep(10)
            assert sorted(map(int, bodies(served))) == [*range(300)]

    loop.run(main)


@pytest.mark.parametrize("kills", [False, True])
def test_a_new_master_asks_nobody_again_who_has_rolled_back(tmp_path: Path, *, kills: bool) -> None:
    """The log says so as soon as the rollback is written there, within three seconds."""

    async def main(field: Field) -> None:
        async with first_master(field, kills=kills) as (first, caller):
            for number in NUMBERS:
                half = await caller.sent(
                    b"%d" % number, i=f"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U{number}\x02"
                )
                place = stored(first.serving, HALVES)[-1].physical_offset
                fields: dict[str, Any] = {
                    "producerGroup": "p", "tranStateTableOffset": half["queueOffset"],
                    "commitLogOffset": place, "commitOrRollback": 12 if number % 2 else 8,
                    "fromTransactionCheck": False, "msgId": f"U{number}",
                    "transactionId": f"U{number}",
                }  # fmt: skip
                assert (await caller.call(37, fields)).code == 0
            if kills:
                await asyncio.sleep(4)
        second = await field.master(first)
        await asyncio.sleep(120)
        assert sorted(map(int, second.bodies())) == [*NUMBERS[::2]]
        assert second.broker.store.max_queue_offset(HALVES, 0) == len(NUMBERS)

    fielded(tmp_path, 2, main)


@pytest.mark.parametrize("seconds", [0, 1, 2])
def test_a_slave_that_acts_gives_away_nothing_that_its_master_has_delivered(tmp_path: Path, seconds: int) -> None:
    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g:
            for number in NUMBERS:
                some = unique(number, 2) if number % 2 else timed(number, 5)
                await g.caller.sent(b"%d" % number, i=some)
                await asyncio.sleep(0.2)
            await asyncio.sleep(seconds)
            before = len(bodies(g.master))
            await g.lose()
            await asyncio.sleep(20)
            assert sorted(map(int, bodies(g.slave) + bodies(g.other))) == [*NUMBERS]
            assert len(bodies(g.slave)) >= before

    loop.run(main)


def test_a_slave_whose_log_is_behind_loses_nothing_that_its_master_has_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told what was delivered before it has the deliveries."""

    async def nothing(*_: Serving) -> None:
        """It will never catch up."""

    async def main(clock: VirtualClock) -> None:
        async with group(tmp_path, clock) as g:
            await g.caller.sent(b"x", i=unique(0, 3))
            await asyncio.sleep(5)
            await caught_up(g.slave, g.master)
            replicas = g.slave.broker.replicas
            replicas.follow("127.0.0.1:1")
            monkeypatch.setattr(replicas, "follow", lambda address: None)
            await asyncio.sleep(15)
            assert (bodies(g.master), bodies(g.slave)) == ([b"x"], [])
            monkeypatch.setattr(test_acting, "caught_up", nothing)
            await g.lose()
            await asyncio.sleep(10)
            assert bodies(g.other) == [b"x"]

    loop.run(main)


def test_what_a_loss_of_power_took_is_delivered_again_and_nothing_else(tmp_path: Path) -> None:
    """RocketMQ's file says more than what is on the disk."""

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path / "a", clock) as (served, caller):
            for number in range(6):
                await caller.sent(b"%d" % number, i=unique(number, 1 + number % 2))
            await asyncio.sleep(6)
            *kept, lost = stored(served)
            left_by_kill(tmp_path / "a", tmp_path / "b")
        forget(tmp_path / "b")
        (tmp_path / "b/config/delayOffset.json").write_text('{"offsetTable":{1:3,2:3}}')
        (tmp_path / "b/settled").unlink()
        with (tmp_path / "b/commitlog" / f"{0:020d}").open("r+b") as log_file:
            log_file.seek(lost.physical_offset)
            log_file.write(bytes(lost.store_size))
        async with turn(tmp_path / "b", clock) as (served, _):
            await asyncio.sleep(2)
            assert bodies(served) == [view.body for view in kept] + [lost.body]

    loop.run(main)


# --- what is no delivery ---


def test_a_message_that_was_put_twice_comes_twice(tmp_path: Path) -> None:
    """With the same unique key, and with the same body and times in each."""

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path / "a", clock) as (served, caller):
            await caller.sent(b"x", i=delayed(1))
            await asyncio.sleep(0.5)
            await caller.sent(b"x", i=delayed(1))
            await asyncio.sleep(0.7)
            assert bodies(served) == [b"x"]
            left_by_kill(tmp_path / "a", tmp_path / "b")
        forget(tmp_path / "b")
        async with turn(tmp_path / "b", clock) as (served, _):
            await asyncio.sleep(2)
            assert bodies(served) == [b"x", b"x"]

    loop.run(main)


def test_a_message_that_a_group_retries_comes_after_each_attempt(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        root = tmp_path / "0"
        async with turn(root, clock) as (served, caller):
            await caller.sent(b"x", i="UNIQ_KEY\x01U\x02")
            place = stored(served)[0].physical_offset
        for attempt in range(1, 4):
            async with turn(root, clock) as (served, caller):
                fields: dict[str, Any] = {"offset": place, "group": "g", "delayLevel": 1, "originMsgId": "o"}
                assert (await caller.call(36, fields)).code == 0
                after = tmp_path / f"{attempt}"
                left_by_kill(root, after)
            forget(after)
            root = after
            async with turn(root, clock) as (served, _):
                await asyncio.sleep(2)
                found = stored(served, "%RETRY%g")
                assert [view.reconsume_times for view in found] == [*range(1, attempt + 1)]
                place = found[-1].physical_offset

    loop.run(main)


LEVEL_1 = {"UNIQ_KEY": "U", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
ANOTHER = LEVEL_1 | {"UNIQ_KEY": "V"}


def claimed(served: Serving, noted: int = 0) -> set[int]:
    """The messages of level 1 that count as delivered, where it is known up to an offset."""
    look = delivered.LevelDeliveries(served.broker.store, {1: noted})
    for _ in look.learn([1]):
        pass
    return look.found.get(1, set())


@pytest.mark.parametrize(
    ("other", "is_it"),
    [
        ({}, True),
        ({"properties": LEVEL_1 | {"INNER_MULTI_QUEUE_OFFSET": "3", "__CRC32#": "5"}}, True),
        ({"properties": dict(reversed(LEVEL_1.items()))}, True),
        ({"topic": "U"}, False),
        ({"queue_id": 1}, False),
        ({"body": b"z"}, False),
        ({"flag": 1}, False),
        ({"sys_flag": 1}, False),
        ({"born_ms": 7}, False),
        ({"born_host": b"\x01\x02\x03\x04\0\0\0\1"}, False),
        ({"reconsume_times": 1}, False),
        ({"properties": LEVEL_1 | {"a": "b"}}, False),
        ({"properties": {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}}, False),
        ({"early": True}, False),
    ],
    ids=str,
)
def test_a_message_that_differs_in_anything_is_no_delivery(
    tmp_path: Path, other: dict[str, Any], *, is_it: bool
) -> None:
    """RocketMQ's deliveries name no message, so they must agree in all."""

    async def main(served: Serving, _: Any) -> None:
        store, now_ms = served.broker.store, served.broker._clock.now_ms()
        changed: dict[str, Any] = {"body": b"x", "topic": "T", "properties": LEVEL_1} | other
        append(store, b"x", SCHEDULE_TOPIC, properties=LEVEL_1, now_ms=now_ms)
        append(store, b"y", SCHEDULE_TOPIC, properties=ANOTHER, now_ms=now_ms)
        due_ms = now_ms + 1000 - changed.pop("early", False)
        append(store, changed.pop("body"), changed.pop("topic"), **changed, now_ms=due_ms)
        append(store, b"y", properties=ANOTHER, now_ms=now_ms + 1000)
        settle(store)
        assert claimed(served) == ({0, 1} if is_it else {1})

    in_virtual_time(tmp_path, main)


def test_the_same_messages_that_were_delivered_before_are_told_from_those_that_were_not(tmp_path: Path) -> None:
    """A delivery that names no message is of the one before, of which it is known."""

    async def main(served: Serving, _: Any) -> None:
        store, now_ms = served.broker.store, served.broker._clock.now_ms()
        for at_ms in (0, 500):
            append(store, b"x", SCHEDULE_TOPIC, properties=LEVEL_1, now_ms=now_ms + at_ms)
        append(store, b"x", properties=LEVEL_1, now_ms=now_ms + 1600)
        settle(store)
        assert claimed(served) == {0}
        assert claimed(served, 1) == set()

    in_virtual_time(tmp_path, main)


def test_a_commit_is_no_delivery(tmp_path: Path) -> None:
    """It names its half, and is delayed before it is delivered."""

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path / "a", clock) as (served, caller):
            half = await caller.sent(b"x", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02" + delayed(1))
            [waits] = stored(served, "RMQ_SYS_TRANS_HALF_TOPIC")
            fields: dict[str, Any] = {
                "producerGroup": "p", "tranStateTableOffset": half["queueOffset"],
                "commitLogOffset": waits.physical_offset, "commitOrRollback": 8,
                "fromTransactionCheck": False, "msgId": "U1", "transactionId": "U1",
            }  # fmt: skip
            assert (await caller.call(37, fields)).code == 0
            await asyncio.sleep(0.5)
            left_by_kill(tmp_path / "a", tmp_path / "b")
            await asyncio.sleep(1)
            assert bodies(served) == [b"x"]
            left_by_kill(tmp_path / "a", tmp_path / "c")
        for name in "b", "c":
            forget(tmp_path / name)
            async with turn(tmp_path / name, clock) as (served, _):
                await asyncio.sleep(2)
                assert bodies(served) == [b"x"]
                assert len(stored(served, SCHEDULE_TOPIC)) == 1

    loop.run(main)


KIND_OF_STEP = st.sampled_from(["put", "put", "deliver", "deliver", "deliver again", "note"])


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(KIND_OF_STEP, st.integers(0, 2)), max_size=25), names=st.booleans())
def test_nothing_that_was_not_delivered_counts_as_delivered(steps: list[tuple[str, int]], *, names: bool) -> None:
    """Messages of three kinds, those of one alike in everything, are delivered in order, some of
    them twice, and now and then it is noted how far that is."""

    async def main(clock: VirtualClock) -> None:
        async with serving(Path(directory), clock=clock, background=False) as served:
            store = served.broker.store
            now_ms = clock.now_ms() - 1_000_000
            put: list[tuple[int, int]] = []
            counts: Counter[int] = Counter()
            reached = noted = 0
            for kind, which in steps:
                now_ms += 300
                found = LEVEL_1 | {"UNIQ_KEY": f"U{which}"}
                if kind == "put":
                    at = append(store, b"", SCHEDULE_TOPIC, properties=found, now_ms=now_ms)
                    put.append((at, which))
                elif kind == "note":
                    noted = reached
                elif put[:reached] or (kind == "deliver" and put[reached:]):
                    again = kind != "deliver" or reached == len(put)
                    at, which = put[reached - 1 if again else reached]
                    reached += not again
                    now_ms += 1000
                    queue = store.queue("T", 0)
                    text = properties.encode(LEVEL_1 | {"UNIQ_KEY": f"U{which}"})
                    message = store.content_at(at)
                    host = message.born_host
                    store.put(
                        queue, b"", text, 0, 0, message.born_timestamp_ms, host, now_ms, 0,
                        at * names,
                    )  # fmt: skip
                    counts[which] += 1
            settle(store)
            found_again = claimed(served, noted)
            assert found_again <= {*range(noted, reached)}
            if names:
                unnamed = {number for number in range(noted, reached) if put[number][0] == 0}
                assert found_again | unnamed == {*range(noted, reached)}

    with TemporaryDirectory() as directory:
        loop.run(main)
