"""Finding messages by time, by key and in order, and saying why none was found."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.store import Boundary, MessageStore, QueueEntry
from tests.attacks.forging import BODY_AT
from tests.attacks.forging import record as forged
from tests.broker.fakes import NOW_MS, HandClock
from tests.store.stores import ALWAYS, BORN_MS, KiB, append, opened, settle

FILE_BYTES = 4 * KiB
RECORD_BODY = bytes(900)  # four records a file


@contextmanager
def behind_a_deleted_head(root: Path, times_ms: list[int], files_deleted: int) -> Iterator[MessageStore]:
    """A store with one queue and messages of these store times, without its first log files."""
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": FILE_BYTES, "mapped_file_size_consume_queue": 100}
    with opened(root, message_index_enable=False, **sizes) as store:
        for time_ms in times_ms:
            append(store, RECORD_BODY, now_ms=time_ms)
        settle(store)
    files = sorted((root / "commitlog").iterdir())
    for path in files[: min(files_deleted, len(files) - 1)]:
        path.unlink()
    with opened(root, message_index_enable=False, **sizes) as store:
        yield store


pytestmark = pytest.mark.usefixtures("kind")


def expected(times_ms: list[int], least: int, time_ms: int, boundary: Boundary) -> int:
    """What upstream gives, from its definition: all that is not below ``least`` is searched."""
    kept = range(least, len(times_ms))
    if boundary is Boundary.LOWER:
        return next((n for n in kept if times_ms[n] >= time_ms), len(times_ms))
    return max((n for n in kept if times_ms[n] <= time_ms), default=least)


@given(
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    files_deleted=st.integers(0, 5),
    time=st.integers(-2, 62),
)
def test_the_offset_of_a_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], files_deleted: int, time: int
) -> None:
    times_ms = [BORN_MS + sum(steps[: n + 1]) for n in range(len(steps))]
    root = tmp_path_factory.mktemp("search")
    with behind_a_deleted_head(root, times_ms, files_deleted) as store:
        least = store.min_queue_offset("T", 0)
        for boundary in Boundary:
            found = store.search_offset("T", 0, BORN_MS + time, boundary)
            assert found == expected(times_ms, least, BORN_MS + time, boundary)
        assert [store.store_time_of("T", 0, n) for n in range(least, len(steps))] == times_ms[least:]
        assert store.time_span("T", 0) == (times_ms[least], times_ms[-1])


@given(before=st.integers(0, 20), ahead=st.integers(1, 20), after=st.integers(1, 20), time=st.integers(0, 41))
def test_a_time_is_not_missed_because_the_clock_was_ahead_for_a_while(
    tmp_path_factory: pytest.TempPathFactory, before: int, ahead: int, after: int, time: int
) -> None:
    """It may be found too early."""
    times_ms = [
        BORN_MS + n + (400 * 86_400_000 if before <= n < before + ahead else 0) for n in range(before + ahead + after)
    ]
    with opened(tmp_path_factory.mktemp("search"), background=False) as store:
        for time_ms in times_ms:
            append(store, b"", now_ms=time_ms)
        settle(store)
        found = store.search_offset("T", 0, BORN_MS + time, Boundary.LOWER)
    assert not any(BORN_MS + time <= ms < BORN_MS + 1000 for ms in times_ms[:found])


def test_a_time_in_a_queue_without_messages(tmp_path: Path) -> None:
    """All that a queue had has expired with its log file; other messages follow."""
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": FILE_BYTES}
    with opened(tmp_path, **sizes) as store:
        for _ in range(3):
            append(store, RECORD_BODY)
        for _ in range(4):
            append(store, RECORD_BODY, "U")
        settle(store)
    min((tmp_path / "commitlog").iterdir()).unlink()
    with opened(tmp_path, **sizes) as store:
        assert (store.min_queue_offset("T", 0), store.max_queue_offset("T", 0)) == (3, 3)
        for time_ms in (0, BORN_MS + 5, BORN_MS + 10):
            for boundary in Boundary:
                assert store.search_offset("T", 0, time_ms, boundary) == 3
                assert store.search_offset("none", 0, time_ms, boundary) == 0
        assert store.time_span("T", 0) == store.time_span("none", 0) == (-1, -1)
        assert list(store.iterate_from("T", 0, 3)) == list(store.iterate_from("none", 0, 0)) == []


def test_a_search_looks_at_few_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 looks would do for ten million messages."""
    with opened(tmp_path, message_index_enable=False) as store:
        for n in range(2000):
            append(store, b"", now_ms=BORN_MS + n // 3)
        settle(store)
        looks = 0
        real = store.log.record

        def record(physical_offset: int, size: int) -> bytes | None:
            nonlocal looks
            looks += 1
            return real(physical_offset, size)

        monkeypatch.setattr(store.log, "record", record)
        assert store.search_offset("T", 0, BORN_MS + 500, Boundary.LOWER) == 1500
        assert store.search_offset("T", 0, BORN_MS + 500, Boundary.UPPER) == 1502
        assert looks <= 2 * 11


def test_entries_come_in_order(tmp_path: Path) -> None:
    times_ms = [BORN_MS + n for n in range(23)]
    with behind_a_deleted_head(tmp_path, times_ms, 2) as store:
        least = store.min_queue_offset("T", 0)
        assert least > 0
        entries = list(store.iterate_from("T", 0, least))
        assert [entry.queue_offset for entry in entries] == list(range(least, 23))
        assert store.record_at(entries[0].physical_offset) is not None
        assert {entry.size for entry in entries} == {entries[0].size}
        assert entries[0] == QueueEntry(least, entries[0].physical_offset, entries[0].size, 0)
        assert list(store.iterate_from("T", 0, least, 7)) == entries[:7]
        assert list(store.iterate_from("T", 0, 22, 7)) == entries[-1:]
        for outside in (-1, least - 1, 23, 24):
            assert list(store.iterate_from("T", 0, outside)) == []


def test_what_comes_while_entries_are_asked_for_is_among_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        settle(store)
        entries = store.iterate_from("T", 0, 0)
        assert next(entries).queue_offset == 0
        append(store, b"b")
        settle(store)
        assert [entry.queue_offset for entry in entries] == [1]


# --- why nothing was found ---


def why(store: MessageStore, key: str = "k", topic: str = "T", window: tuple[int, int] = ALWAYS) -> str:
    """The reason that is given for a query, which finds nothing."""
    assert store.query(topic, key, "K", *window, 32) == []
    return store.explain_query(topic, key, "K", *window)


def test_why_no_message_has_a_key(tmp_path: Path) -> None:
    clock = HandClock()
    with opened(tmp_path, clock=clock) as store:
        assert why(store) == "nothing is indexed yet"
        append(store, b"", properties={"KEYS": "k"}, now_ms=BORN_MS)
        append(store, b"", properties={"KEYS": "l"}, now_ms=BORN_MS + 5000)
        settle(store)
        assert why(store, "m", window=(BORN_MS, BORN_MS + 9)) == "no message of topic T has it"
        assert why(store, "k", "U", (BORN_MS, BORN_MS + 9)) == "no message of topic U has it"
        assert why(store, window=(2, 1)) == "the time window ends before it begins"
        assert why(store, window=(BORN_MS + 1, BORN_MS + 9)) == (
            "a message has it, but was stored at 2026-11-18T11:06:40.000Z, 1 ms before the window begins"
        )
        assert why(store, "l", window=(0, BORN_MS)) == (
            "a message has it, but was stored at 2026-11-18T11:06:45.000Z, 5000 ms after the window ends"
        )
        assert why(store, "m", window=(0, 1)) == (
            "the window ends before the first indexed message (2026-11-18T11:06:40.000Z)"
        )
        assert why(store, "m", window=(BORN_MS + 5001, NOW_MS)) == (
            "the window begins after the last indexed message (2026-11-18T11:06:45.000Z)"
        )
        assert why(store, "m", window=(NOW_MS + 1, NOW_MS + 9)) == (
            "by this broker's clock (2026-11-20T21:31:13.741Z) the window is in the future"
        )
        assert why(store, "m") == (
            "no message of topic T has it, and none is indexed from before 2026-11-18T11:06:40.000Z"
        )


def test_why_a_key_is_not_found_without_an_index(tmp_path: Path) -> None:
    with opened(tmp_path, message_index_enable=False) as store:
        append(store, b"", properties={"KEYS": "k"})
        settle(store)
        assert why(store) == "keys are not indexed by this broker (messageIndexEnable=false)"


def test_why_a_key_is_not_found_before_its_message_is_dispatched(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"", properties={"KEYS": "k"})
        behind = store.behind_bytes
        reason = store.explain_query("T", "k", "K", *ALWAYS)
    assert reason == f"the last {behind} bytes of the CommitLog are not indexed yet"


def test_why_the_key_of_an_expired_message_is_not_found(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": FILE_BYTES}
    with opened(tmp_path, **sizes) as store:
        for n in range(8):
            append(store, RECORD_BODY, properties={"KEYS": f"k{n}"})
        settle(store)
    min((tmp_path / "commitlog").iterdir()).unlink()
    with opened(tmp_path, **sizes) as store:
        assert why(store, "k0") == (
            "its message seems to have expired: it lay before the CommitLog's first byte (4096)"
        )
        assert store.explain_offset(0) == "it has expired: the CommitLog begins at 4096"


def test_why_no_message_is_at_an_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        end = store.log.end_offset
        assert store.record_at(1) is None
        assert store.explain_offset(1) == "no message begins there"
        assert store.explain_offset(end) == f"the CommitLog ends at {end}"


def test_a_key_whose_hash_too_many_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.store.lookup._CANDIDATES_MAX", 3)
    with opened(tmp_path) as store:
        for key in ("AaAa", "BBBB", "BBBB", "BBBB"):
            append(store, b"", properties={"KEYS": key})
        settle(store)
        assert why(store, "AaAa") == ("more than 3 newer messages share its hash: narrow the window")


def test_a_message_is_viewed_only_if_it_is_sound_as_a_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first, second, third = (append(store, body) for body in (b"one", b"two", b"three"))
        assert [store.view_at(at).body for at in (first, second)] == [b"one", b"two"]
        segment = store.log.segments.find(first)
        assert segment is not None
        segment.map[second + 88] ^= 1  # its body
        segment.map[third + 35] ^= 1  # where it says that it is
        for at, why in [
            (second, "is not the CRC-32 of the body"),
            (third, "no message begins there"),
            (first + 1, "no message begins there"),
            (store.log_end_offset, "the CommitLog ends at"),
            (-1, "it has expired"),
        ]:
            with pytest.raises(MessageError, match=why):
                store.view_at(at)


# --- by a place that a client names ---


def within(store: MessageStore, topic: str = "T", queue_offset: int = 0) -> int:
    """Append a message whose body is a record in every respect; give where that one begins."""
    place = store.log_end_offset + BODY_AT
    body = forged(place, topic, queue_offset=queue_offset)
    assert append(store, body, "other", properties={"UNIQ_KEY": "V"}) + BODY_AT == place
    return place


@pytest.mark.parametrize("dispatched", [False, True])
def test_bytes_within_a_body_are_no_message(tmp_path: Path, dispatched: bool) -> None:
    with opened(tmp_path) as store:
        real = [append(store, b"%d" % number) for number in range(2)]
        places = [within(store, queue_offset=number) for number in range(3)]
        places += [within(store, "other", number) for number in range(7)]
        if dispatched:
            settle(store)
        for place in places:
            assert store.content_at(place).body == b"forged"
            with pytest.raises(MessageError, match="no message begins there"):
                store.named_at(place)
            assert store.record_named_at(place) is None
            assert store.explain_offset(place) == "no message begins there"
            assert store.all_named_at([real[0], place, real[1]]) == [store.named_at(real[0])]
        assert [found.body for found in store.all_named_at(real)] == [b"0", b"1"]
        assert store.record_named_at(real[1]) == store.record_at(real[1])
        assert store.runtime_facts()["damagedRecords"] == "0"


def test_messages_of_a_deleted_topic_are_known_by_their_keys(tmp_path: Path) -> None:
    """Their queues are gone, and those of a topic of the same name have other messages."""
    with opened(tmp_path) as store:
        keyed = [append(store, b"old", properties={"UNIQ_KEY": f"U{n}"}) for n in range(3)]
        place = within(store, queue_offset=1)
        settle(store)
        store.delete_topic("T")
        for _ in range(2):
            for at in keyed:
                assert store.named_at(at).body == b"old"
                assert store.record_named_at(at) is not None
            assert store.record_named_at(place) is None
            append(store, b"new")
            settle(store)


def test_bytes_within_a_body_are_no_damaged_message(tmp_path: Path) -> None:
    """Else a sender could have a replica asked for them, and the broker counted as damaged."""
    with opened(tmp_path) as store:
        place = store.log_end_offset + BODY_AT
        damaged = forged(place, "T").replace(b"forged", b"f*rged")
        append(store, damaged)
        for check in (store.named_at, store.record_named_at, store.explain_offset):
            with suppress(MessageError):
                check(place)
        assert store.runtime_facts()["damagedRecords"] == "0"
