"""The ways into a store: what has happened behind each of them."""

from pathlib import Path

import pytest

from firearrow.errors import DiskFull, StoreError
from firearrow.message.batch import encode_batch
from firearrow.message.record import iter_records
from firearrow.store import (
    MessagesArrived,
    MessageStore,
    Part,
    PutCounters,
    QueuesDeleted,
    members_of,
)
from firearrow.store.acknowledging import Acknowledging
from tests.broker.fakes import HandClock
from tests.store.stores import (
    BORN_HOST,
    BORN_MS,
    STORE_HOST,
    append,
    bodies,
    opened,
    settle,
    small_config,
)


def put(store: MessageStore, body: bytes, topic: str = "T", queue_id: int = 0) -> int:
    queue = store.queue(topic, queue_id)
    return store.put(queue, body, b"", 0, 0, BORN_MS, BORN_HOST, BORN_MS, 0)


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
    assert [bodies(store, topic, n) for topic in "TU" for n in (0, 1)] == [
        [b"0", b"2"], [b"4"], [b"1", b"3"], [b"5"]
    ]  # fmt: skip
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
    part = Part(store.queue("T", 0), 3, 0, BORN_MS, 0, BORN_HOST)
    appended = store.put_batch(members, [part], BORN_MS)
    assert appended.queue_offsets == [0]
    assert store.dispatching.has_undispatched
    counters_of_t = counters["T"]
    assert (counters_of_t.put_count, counters_of_t.put_bytes) == (3, store.log_end_offset)
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
    waiting = Acknowledging([disk, replica], 5, clock.monotonic)
    told: list[tuple[int, bool]] = []
    for at in (10, 20, 30):
        waiting.wait_for(at, lambda done, at=at: told.append((at, done)))  # type: ignore[misc]
    assert (disk.asked, replica.asked) == (1, 1)
    disk.reached = 30
    waiting.answer()
    assert told == []
    replica.reached = 20
    waiting.answer()
    assert told == [(10, True), (20, True)]
    clock.seconds += 5
    waiting.expire()
    assert told[2:] == [(30, False)]
    waiting.wait_for(40, lambda done: told.append((40, done)))
    replica.is_broken = True
    waiting.answer()
    assert told[3:] == [(40, False)]


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
