"""A damaged record harms itself alone: what reads hand out frames, and all else arrives."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message.compress import Compression, decompress
from firearrow.message.hosts import Host, pack_host
from firearrow.message.model import MessageView
from firearrow.message.names import tag_code
from firearrow.message.record import decode_record
from firearrow.message.sysflag import INNER_BATCH, NEED_UNWRAP
from firearrow.store import GetResult, GetStatus, MessageStore, reader
from firearrow.store.recordchecks import Damaged, Fault
from tests.broker.fakes import HandClock
from tests.loglines import told
from tests.message.writing import with_compression
from tests.store.stores import ALWAYS, BORN_HOST, append, make_store, opened, settle

COUNT = 40
V6 = pack_host(Host("2001:db8::7", 4711))


def decoded(records: bytes) -> Iterator[MessageView]:
    """What the official client makes of an answer: it drops all behind what it can't decode."""
    at = 0
    while at < len(records):
        try:
            view = decode_record(records, at)
            decompress(view.body, view.sys_flag)
        except MessageError:
            return
        if view.born_host.port > 65535 or view.store_host.port > 65535:
            return
        yield view
        at += view.store_size


def pulled(store: MessageStore, tags: frozenset[int] | None = None) -> list[MessageView]:
    """All that a consumer gets of a queue that it pulls from its first offset to its end."""
    found: list[MessageView] = []
    at = store.min_queue_offset("T", 0)
    while at < store.max_queue_offset("T", 0):
        result = store.get("T", 0, at, 32, tags)
        assert result.next_offset > at
        at = result.next_offset
        found += decoded(result.records)
    return found


class Filled:
    """A store with messages of one queue, whose log can be damaged for a while."""

    def __init__(self, store: MessageStore, shape: str) -> None:
        self.store = store
        chance = random.Random(shape)
        self.places: list[tuple[int, int]] = []
        for number in range(COUNT):
            same = shape in ("alike", "batches")
            body = chance.randbytes(200 if same else chance.randrange(2, 400))
            flags, host = 0, BORN_HOST
            if shape == "kinds" and number % 3 == 0:
                body, flags = zlib.compress(body), with_compression(0, Compression.ZLIB)
            if shape == "kinds" and number % 5 == 0:
                host = V6
            properties = {"TAGS": "t", "KEYS": f"k{number}"}
            if shape == "batches":
                flags, properties["INNER_NUM"] = INNER_BATCH | NEED_UNWRAP, "3"
            at = append(store, body, sys_flag=flags, properties=properties, born_host=host)
            if shape == "batches":
                store.queue("T", 0).next_offset += 2
            self.places.append((at, store.log.end_offset - at))
        settle(store)
        store.check_again()
        self.sound = {view.physical_offset: view for view in pulled(store)}
        assert list(self.sound) == [at for at, _ in self.places]

    @contextmanager
    def damaged(self, start: int, data: bytes) -> Iterator[set[int]]:
        """Bytes of the log written over; gives the physical offsets of what that leaves alone."""
        log = self.store.log.segments.files[0].map
        end = min(start + len(data), self.store.log.end_offset)
        before = log[start:end]
        log[start:end] = data[: end - start]
        changed = [at for at in range(start, end) if log[at] != before[at - start]]
        try:
            yield {at for at, size in self.places if not any(at <= byte < at + size for byte in changed)}
        finally:
            log[start:end] = before

    def check(self, untouched: set[int], tags: frozenset[int] | None) -> None:
        """All that is not damaged arrives as it was stored, and what else comes fits its entry."""
        self.store.check_again()
        arrived = {view.physical_offset: view for view in pulled(self.store, tags)}
        assert untouched <= arrived.keys() <= self.sound.keys()
        for at, view in arrived.items():
            sound = self.sound[at]
            assert at not in untouched or view == sound
            assert (view.store_size, view.topic) == (sound.store_size, sound.topic)
            assert view.queue_offset == sound.queue_offset


SHAPES = [
    ("alike", "default"),
    ("mixed", "default"),
    ("kinds", "default"),
    ("batches", "default"),
    ("mixed", "defaultRocksDB"),
]


@pytest.fixture(scope="module", params=SHAPES, ids="-".join)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    shape, kind = request.param
    store = make_store(
        tmp_path_factory.mktemp("sound"),
        store_type=kind,
        wants_batches=lambda topic: topic == "T" and shape == "batches",
    )
    store.open(background=False)
    try:
        yield Filled(store, shape)
    finally:
        store.close()


@given(
    at=st.floats(0, 0.999),
    data=st.one_of(st.binary(min_size=1, max_size=1), st.binary(min_size=64, max_size=64)),
    tags=st.sampled_from([None, frozenset({tag_code("t")})]),
)
def test_what_is_sound_arrives_whatever_is_damaged(
    filled: Filled, at: float, data: bytes, tags: frozenset[int] | None
) -> None:
    with filled.damaged(int(at * filled.store.log.end_offset), data) as untouched:
        filled.check(untouched, tags)


def test_each_byte_of_a_head_and_of_the_lengths_behind_the_body(filled: Filled) -> None:
    """Each byte outside the body of one record, turned over."""
    start, size = filled.places[7]
    body = len(filled.sound[start].body)
    log = filled.store.log.segments.files[0].map
    for at in [*range(start, start + 112), *range(start + 80 + body, start + size)]:
        with filled.damaged(at, bytes([log[at] ^ 0xFF])) as untouched:
            filled.check(untouched, None)


@contextmanager
def flipped(store: MessageStore, at: int) -> Iterator[None]:
    """One byte of the log turned over."""
    log = store.log.segments.files[0].map
    log[at] ^= 0xFF
    try:
        yield
    finally:
        log[at] ^= 0xFF


def test_a_pull_that_meets_only_damage_goes_on_behind_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        places = [append(store, b"body of one") for _ in range(3)]
        settle(store)
        store.check_again()
        with flipped(store, places[0] + 3), flipped(store, places[1] + 87):
            found = store.get("T", 0, 0, 2)
            assert found == GetResult(GetStatus.NO_MATCHED_MESSAGE, 2, 0, 3)
            assert store.get("T", 0, 0, 32).count == 1
            assert store.runtime_facts()["damagedRecords"] == "2"
    named = [line for line in told(caplog) if line["event"] == "record is damaged"]
    assert [(line["physical_offset"], line["place"]) for line in named] == [
        (places[n], f"queue T-0, queue offset {n}") for n in (0, 1)
    ], "once each"
    assert all(line["reason"] for line in named)


def test_a_first_record_that_says_it_has_larger_hosts_than_it_has_room_for(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            append(store, b"")
        settle(store)
        store.check_again()
        with flipped(store, 39):
            assert [view.queue_offset for view in pulled(store)] == [1, 2]


@pytest.mark.parametrize("count", [1, 3, 8], ids="{} messages".format)
def test_bodies_are_checked_if_asked(tmp_path: Path, count: int) -> None:
    for check in (False, True):
        with opened(tmp_path / f"{check}", check_crc_on_read=check) as store:
            first, *_ = [append(store, b"body", properties={"KEYS": "k"}) for _ in range(count)]
            settle(store)
            with flipped(store, first + 90):
                assert len(pulled(store)) == count - check
                assert len(store.query("T", "k", "K", *ALWAYS, 32)) == count - check
                assert (store.record_at(first) is None) is check
                assert ("doesn't match its CRC" in store.explain_offset(first)) is check


def test_what_clients_can_not_decompress_goes_out_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was sent like that, so it is not damaged."""
    flags = with_compression(0, Compression.ZLIB)
    with opened(tmp_path) as store:
        for number in range(6):
            append(store, b"plain", sys_flag=flags if number in (2, 3) else 0)
        settle(store)
        pulls = []
        at = 0
        while at < 6:
            found = store.get("T", 0, at, 32)
            pulls.append((found.count, found.next_offset))
            at = found.next_offset
        assert pulls == [(2, 2), (1, 3), (1, 4), (2, 6)]
        assert store.runtime_facts()["damagedRecords"] == "0"
    assert not [line for line in told(caplog) if line["event"] == "record is damaged"]
    assert len([line for line in told(caplog) if "is sent alone" in str(line["event"])]) == 2


def test_damaged_entries_are_passed_over_one_by_one(tmp_path: Path) -> None:
    """Whatever an entry of a queue says, the others' records arrive."""
    with opened(tmp_path, mapped_file_size_consume_queue=4000) as store:
        for number in range(12):
            append(store, b"%d" % number)
        settle(store)
        store.check_again()
        queue = store.queues.open("T", 0).segments.files[0].map  # type: ignore[attr-defined]
        for at in range(5 * 20, 5 * 20 + 12):
            before = queue[at]
            for value in (0xFF, 0x7F, 0x80, before ^ 1):
                queue[at] = value
                offsets = [view.queue_offset for view in pulled(store)]
                assert offsets == [n for n in range(12) if n != 5 or value == before], (at, value)
            queue[at] = before


COUNTS = [1, 8, 20]


def bodies(count: int, *, alike: bool) -> list[bytes]:
    return [bytes(200 if alike else 200 + 3 * n) for n in range(count)]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_records_are_trusted_for_ten_minutes(tmp_path: Path, count: int, alike: bool) -> None:
    clock = HandClock()
    with opened(tmp_path, clock=clock) as store:
        places = [append(store, body) for body in bodies(count, alike=alike)]
        settle(store)
        store.check_again()
        assert len(pulled(store)) == count
        with flipped(store, places[-1] + 4):
            clock.seconds += 599
            store.clean()
            assert store.get("T", 0, 0, 32).count == count  # it was sound a moment ago
            clock.seconds += 1
            store.clean()
            assert len(pulled(store)) == store.get("T", 0, 0, 32).count == count - 1
            append(store, b"new")
            settle(store)
            assert len(pulled(store)) == count
            assert len(pulled(store, frozenset({tag_code("")}))) == count


@pytest.mark.parametrize("step", [32, 5], ids="{} at once".format)
def test_groups_that_read_in_different_places_check_each_record_once(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "AHEAD_ENTRIES", 48)
    with opened(tmp_path, mapped_file_size_consume_queue=8000) as store:
        places = [append(store, bytes(number % 7)) for number in range(400)]
        settle(store)
        store.check_again()
        for start in range(0, 200, step):  # two groups in turn, one of them 200 messages ahead
            for at in (start, 200 + start):
                assert store.get("T", 0, at, step).count == min(step, 400 - at)
        for place in places:  # all of them are known to be sound: nobody looks at them now
            store.log.segments.files[0].map[place + 4] ^= 1
        for at in (0, 7, 190, 368):
            assert store.get("T", 0, at, 32).count == 32
        store.check_again()
        assert not pulled(store)


def test_only_so_much_as_surely_is_in_memory_goes_out_without_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_OWN_BYTES_MAX", 4096)
    with opened(tmp_path) as store:
        first = append(store, b"first")
        settle(store)
        with flipped(store, first + 3):
            assert store.get("T", 0, 0, 32).count == 1
            append(store, bytes(4096), "Other")
            assert store.get("T", 0, 0, 32).count == 0


@pytest.mark.parametrize("count", COUNTS)
def test_what_another_process_has_appended_is_looked_at(tmp_path: Path, count: int) -> None:
    with opened(tmp_path) as store:
        places = [append(store, body) for body in bodies(count, alike=False)]
        settle(store)
    with opened(tmp_path) as store:
        with flipped(store, places[-1] + 4):
            assert len(pulled(store)) == count - 1
        assert len(pulled(store)) == count


def test_an_entry_that_leads_into_what_was_just_appended(tmp_path: Path) -> None:
    """What it seems to mean begins in the middle of a record there."""
    with opened(tmp_path) as store:
        append(store, b"old")
        settle(store)
        store.check_again()
        at = append(store, bytes(1000))
        settle(store)
        queue = store.queues.open("T", 0).segments.files[0].map  # type: ignore[attr-defined]
        queue[:8] = (at + 7).to_bytes(8, "big")
        for tags in (None, frozenset({0})):
            assert [view.queue_offset for view in pulled(store, tags)] == [1]


def test_records_of_lmqs_are_looked_at_together(tmp_path: Path) -> None:
    lmq = {"enable_lmq": True, "enable_multi_dispatch": True}
    with opened(tmp_path, mapped_file_size_consume_queue=4000, **lmq) as store:
        places = []
        for number in range(32):
            properties = {"INNER_MULTI_DISPATCH": "%LMQ%a", "KEYS": "k" * (number % 5)}
            properties["INNER_MULTI_QUEUE_OFFSET"] = str(number)
            places.append(append(store, bytes(300), "Topic", properties=properties))
        settle(store)
        store.check_again()

        def found() -> list[int]:
            records = store.get("%LMQ%a", 0, 0, 32).records
            return [view.physical_offset for view in decoded(records)]

        assert found() == places
        for number, at in ((0, 390), (5, 388), (5, 390), (31, 28), (31, 3), (9, 30)):
            with flipped(store, places[number] + at):
                store.check_again()
                assert found() == [*places[:number], *places[number + 1 :]], (number, at)


def test_what_was_named_is_forgotten_in_time(caplog: pytest.LogCaptureFixture) -> None:
    damaged = Damaged()
    for at in [*range(1025), 0, 1024]:
        damaged.note(at, "somewhere", Fault("somehow"))
    assert (damaged.count, len(caplog.records)) == (1026, 1026)
