"""The ways into a store: what has happened behind each of them."""

import asyncio
import struct
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.errors import DiskFull, StoreError
from firearrow.message.batch import encode_batch
from firearrow.message.record import iter_records
from firearrow.store import BatchPart, MessagesArrived, MessageStore, NewMessage, PutCounters, QueuesDeleted, members_of
from firearrow.store.acknowledging import Acknowledging, Needed, PutStatus
from firearrow.store.commitlog import CLOCK_BACK_MS_MAX
from firearrow.testing import loop
from firearrow.testing.loop import NothingWillHappen, VirtualClock
from tests.broker.fakes import HandClock
from tests.store.stores import BORN_HOST, BORN_MS, STORE_HOST, append, bodies, opened, settle, small_config


def put(store: MessageStore, body: bytes, topic: str = "T", queue_id: int = 0) -> int:
    queue = store.queue(topic, queue_id)
    return store.put(queue, body, b"", 0, 0, BORN_MS, BORN_HOST, BORN_MS, 0)


def put_one(store: MessageStore, message: NewMessage, now_ms: int) -> int:
    queue, body, text, flag, sys_flag, born_ms, born_host, times, prepared = message
    return store.put(queue, body, text, flag, sys_flag, born_ms, born_host, now_ms, times, prepared)


def counted(tmp_path: Path) -> tuple[MessageStore, dict[str, PutCounters]]:
    """A store, and what counts the messages that are put into its topics."""
    counters: dict[str, PutCounters] = {}
    store = MessageStore(
        small_config(tmp_path, enable_lmq=True),
        HandClock(),
        STORE_HOST,
        counters=lambda topic: counters.setdefault(topic, PutCounters()),
    )
    store.open(background=False)
    return store, counters


def test_what_is_put_is_counted_and_waits_for_dispatch(tmp_path: Path) -> None:
    store, counters = counted(tmp_path)
    assert not store.dispatching.has_undispatched
    places = [put(store, b"%d" % n, "TU"[n % 2], n // 4) for n in range(6)]
    assert store.dispatching.has_undispatched
    assert {topic: it.put_count for topic, it in counters.items()} == {"T": 3, "U": 3}
    assert sum(it.put_bytes for it in counters.values()) == store.log_end_offset - places[0]
    settle(store)
    assert not store.dispatching.has_undispatched
    assert [bodies(store, topic, n) for topic in "TU" for n in (0, 1)] == [[b"0", b"2"], [b"4"], [b"1", b"3"], [b"5"]]
    store.close()


def test_lmqs_are_counted_as_one(tmp_path: Path) -> None:
    store, counters = counted(tmp_path)
    for name in ("%LMQ%a", "%LMQ%b"):
        put(store, b"", name)
    assert {topic: it.put_count for topic, it in counters.items()} == {"%LMQ%": 2}
    store.close()


def test_what_is_refused_is_not_counted(tmp_path: Path) -> None:
    store, counters = counted(tmp_path)
    put(store, b"")
    store.log.refuse("no more")
    assert store.refused == "no more"
    with pytest.raises(DiskFull):
        put(store, b"")
    assert counters["T"].put_count == 1
    store.close()


def test_a_batch_counts_each_of_its_members(tmp_path: Path) -> None:
    store, counters = counted(tmp_path)
    members = members_of(encode_batch([(0, body, b"") for body in (b"a", b"bb", b"ccc")]))
    part = BatchPart(store.queue("T", 0), 3, 0, BORN_MS, 0, BORN_HOST)
    appended = store.put_batch(members, [part], BORN_MS)
    assert appended.queue_offsets == [0]
    assert store.dispatching.has_undispatched
    counters_of_t = counters["T"]
    assert (counters_of_t.put_count, counters_of_t.put_bytes) == (3, store.log_end_offset)
    store.close()


@pytest.mark.parametrize("back_ms", [0, 1, CLOCK_BACK_MS_MAX + 20])
@pytest.mark.parametrize("body_bytes", [0, 200, 2000])
def test_several_are_put_as_each_would_be_alone(tmp_path: Path, body_bytes: int, back_ms: int) -> None:
    """Where they may not fit into the file, or the clock was set back far, nothing was put yet."""
    chance = Random(body_bytes)
    one, counters_of_one = counted(tmp_path / "one")
    many, counters_of_many = counted(tmp_path / "many")
    for store in (one, many):
        put(store, b"")
    refused = 0
    for turn in range(8):
        now_ms = BORN_MS + turn * 5 - (turn % 2) * back_ms
        parts: list[tuple[str, int, Any, Any]] = []
        for _ in range(chance.randrange(1, 40)):
            host = chance.choice([BORN_HOST, bytes(16) + b"\0\0\0\1"])
            body, text = bytes(chance.randrange(body_bytes + 1)), b"TAGS\x01A\x02"
            about = body, text, chance.randrange(9), chance.choice([0, 8]), BORN_MS - 1, host
            place = chance.choice("TU"), chance.randrange(2)
            parts.append((*place, about, (chance.randrange(3), chance.randrange(9))))
        several: list[NewMessage] = [
            (many.queue(topic, queue_id), *about, *last) for topic, queue_id, about, last in parts
        ]
        end = many.log_end_offset
        places = many.put_several(several, now_ms)
        if places is None:
            refused += 1
            assert many.log_end_offset == end
            places = [put_one(many, it, now_ms) for it in several]
        assert places == [
            put_one(one, (one.queue(topic, queue_id), *about, *last), now_ms) for topic, queue_id, about, last in parts
        ]
        assert one.log.noted(end, 1000) == many.log.noted(end, 1000) == places
        assert many.dispatching.has_undispatched == one.dispatching.has_undispatched
        if turn % 3 == 2:
            settle(one)
            settle(many)
    assert bool(refused) == (body_bytes == 2000 or back_ms > CLOCK_BACK_MS_MAX)
    files = [[bytes(file.map) for file in store.log.segments.files] for store in (one, many)]
    assert files[0] == files[1]
    figures = [
        {topic: (it.put_count, it.put_bytes) for topic, it in counters.items()}
        for counters in (counters_of_one, counters_of_many)
    ]
    assert figures[0] == figures[1]
    for store in (one, many):
        settle(store)
    for topic, queue_id in product("TU", (0, 1)):
        assert bodies(one, topic, queue_id) == bodies(many, topic, queue_id)
        ends = [store.queue(topic, queue_id).next_offset for store in (one, many)]
        assert ends[0] == ends[1]
    one.close()
    many.close()


def test_what_cant_be_put_leaves_no_trace(tmp_path: Path) -> None:
    store, counters = counted(tmp_path)
    queue = store.queue("T", 0)
    good: NewMessage = (queue, b"x", b"", 0, 0, BORN_MS, BORN_HOST, 0, 0)
    with pytest.raises(struct.error):
        store.put_several([good, (*good[:7], 1 << 31, 0)], BORN_MS)
    store.log.refuse("no more")
    assert store.put_several([good], BORN_MS) is None
    assert (queue.next_offset, store.log_end_offset, counters["T"].put_count) == (0, 0, 0)
    assert not store.dispatching.has_undispatched
    store.close()


# --- the bytes of another log ---


@pytest.mark.parametrize("step", [100, 5000, 1 << 20])
def test_a_log_can_be_made_of_the_bytes_of_another(tmp_path: Path, step: int) -> None:
    """However they are cut, over the ends of files."""
    with opened(tmp_path / "one", background=False) as one:
        for number in range(40):
            append(one, bytes(number * 200), queue_id=number % 2)
        data = b"".join(bytes(segment.map) for segment in one.log.segments.files)
        data = data[: one.log_end_offset]
        settle(one)
        with opened(tmp_path / "other", background=False) as other:
            arrived: list[MessagesArrived] = []
            other.messages_arrived.listen(arrived.append)
            for at in range(0, len(data), step):
                other.put_raw(at, data[at : at + step])
            assert other.log_end_offset == one.log_end_offset
            settle(other)
            assert arrived
            for queue_id in (0, 1):
                assert bodies(other, queue_id=queue_id) == bodies(one, queue_id=queue_id)
            append(other, b"goes on")
            settle(other)
            [last] = iter_records(other.get("T", 0, 20, 1).records)
            assert (last.body, last.queue_offset) == (b"goes on", 20)
    with opened(tmp_path / "other", background=False) as again:
        assert len(bodies(again)) == 21


def test_bytes_that_belong_elsewhere_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, background=False) as store:
        append(store, b"a")
        end = store.log_end_offset
        for at in (0, end - 1, end + 1):
            with pytest.raises(StoreError, match=f"ends at {end}, {at} is not its next byte"):
                store.put_raw(at, b"x")
        store.put_raw(end, b"")
        assert store.log_end_offset == end


# --- when it is safe ---


class Replica:
    """A condition that holds as far as the test says."""

    def __init__(self) -> None:
        self.reached = 0
        self.is_broken = False
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1


def test_what_is_safe_is_what_all_conditions_hold_for() -> None:
    clock = HandClock()
    disk, replica = Replica(), Replica()
    needed = Needed(disk, 5, PutStatus.NOT_FLUSHED), Needed(replica, 3, PutStatus.NOT_COPIED)
    waiting = Acknowledging(needed, clock.monotonic)
    told: list[tuple[int, PutStatus]] = []
    for at in (10, 20, 30):
        waiting.wait_for(at, lambda done, at=at: told.append((at, done)))  # type: ignore[misc]
    assert (disk.asked, replica.asked) == (1, 1)
    disk.reached = 30
    waiting.answer()
    assert told == []
    replica.reached = 20
    waiting.answer()
    assert told == [(10, PutStatus.SAFE), (20, PutStatus.SAFE)]
    assert (disk.asked, replica.asked) == (1, 3), "the disk has all that is waited for"
    clock.seconds += 2.9
    waiting.expire()
    assert told[2:] == []
    clock.seconds += 0.1
    waiting.expire()
    assert told[2:] == [(30, PutStatus.NOT_COPIED)]
    waiting.wait_for(40, lambda done: told.append((40, done)))
    replica.is_broken = True
    waiting.answer()
    assert told[3:] == [(40, PutStatus.NOT_COPIED)]


def test_who_lacks_the_disk_only_waits_as_long_as_it_may() -> None:
    clock = HandClock()
    disk, replica = Replica(), Replica()
    needed = Needed(disk, 5, PutStatus.NOT_FLUSHED), Needed(replica, 3, PutStatus.NOT_COPIED)
    waiting = Acknowledging(needed, clock.monotonic)
    told: list[PutStatus] = []
    waiting.wait_for(10, told.append)
    replica.reached = 10
    clock.seconds += 4
    waiting.expire()
    assert told == []
    clock.seconds += 1
    waiting.expire()
    assert told == [PutStatus.NOT_FLUSHED]


def test_who_waits_for_too_long_is_told_and_later_nobody_looks_any_more() -> None:
    told: list[tuple[PutStatus, float]] = []

    async def main(clock: VirtualClock) -> None:
        scheduler = asyncio.get_running_loop()
        waiting = Acknowledging([Needed(Replica(), 5, PutStatus.NOT_FLUSHED)], clock.monotonic, scheduler)
        for at in (10, 20):
            waiting.wait_for(at, lambda done: told.append((done, clock.monotonic())))
            await asyncio.sleep(1)
        await asyncio.Event().wait()

    with pytest.raises(NothingWillHappen):  # a sweep would be planned
        loop.run(main)
    assert [outcome for outcome, _ in told] == [PutStatus.NOT_FLUSHED] * 2
    assert [seconds for _, seconds in told] == [pytest.approx(at, abs=0.11) for at in (5, 6)]


# --- who is told of queues that go ---


def test_queues_that_are_deleted_are_told(tmp_path: Path) -> None:
    told: list[QueuesDeleted] = []
    with opened(tmp_path, background=False) as store:
        store.queues_deleted.listen(told.append)
        for topic, queue_id in (("T", 0), ("T", 1), ("U", 3)):
            append(store, b"", topic, queue_id)
        settle(store)
        store.delete_topic("T")
        assert told == [QueuesDeleted("T")]
        store.queues.correct_min(store.log_end_offset)  # as if the log began here now
        assert list(store.delete_expired_queues())
        assert told[1:] == [QueuesDeleted("U", 3)]
