"""Messages chosen by their properties: the same ones, however they are looked at."""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import FilterError
from firearrow.filter.sql import compile_sql
from firearrow.message.hosts import Host, pack_host
from firearrow.message.properties import parse
from firearrow.message.record import encode_record, iter_records, properties_in
from firearrow.store import MessageStore, propertycolumns, propertylooks
from firearrow.store.events import RecordDamaged
from firearrow.store.propertylooks import PropertyFilter
from tests.filter.expressions import VALUES, random_expression, random_properties
from tests.store.stores import KINDS, KiB, opened, settle

SIZES: dict[str, Any] = {"mapped_file_size_commit_log": 16 * KiB, "mapped_file_size_consume_queue": 20_000}
NUMBER = frozenset({b"n"})
HOSTS = [pack_host(Host("127.0.0.1", 5)), pack_host(Host("::1", 5))]


@dataclass(eq=False)
class Even:
    """Chooses messages whose property ``n`` is even, and counts what it is asked."""

    asked: list[bytes] = field(default_factory=list)
    cost: int = 1
    chars: int = 0
    names: frozenset[bytes] | None = None

    def wants(self, properties: bytes) -> bool:
        self.asked.append(properties)
        return int(parse(properties)["n"]) % 2 == 0


def fill(store: MessageStore, count: int, chance: Random) -> None:
    """Put messages of many sizes, from hosts of both kinds, with their numbers."""
    for number in range(count):
        properties = f"n\x01{number}\x02x\x01{'x' * chance.randrange(200)}\x02".encode()
        born = chance.choice(HOSTS)
        queue = store.queue("T", 0)
        store.put(queue, bytes(chance.randrange(300)), properties, 0, 0, 1, born, 1, 0)
    settle(store)


def chosen(store: MessageStore, wanted: PropertyFilter) -> list[int]:
    """The numbers of all messages that pulls give."""
    found: list[int] = []
    at = 0
    while at < store.max_queue_offset("T", 0):
        result = store.get("T", 0, at, 32, wanted)
        assert result.next_offset > at
        assert result.next_offset <= store.max_queue_offset("T", 0)
        at = result.next_offset
        found += [int(view.properties["n"]) for view in iter_records(result.records)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_wanted_is_found_once_and_in_order(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, **SIZES, store_type=kind) as store:
        fill(store, 300, Random(1))
        assert len(store.log.segments.files) > 3
        wanted = Even()
        assert chosen(store, wanted) == list(range(0, 300, 2))
        assert {int(parse(properties)["n"]) for properties in wanted.asked} == set(range(300))


def test_few_and_many_are_looked_at_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, **SIZES) as store:
        fill(store, 300, Random(2))
        for few, many in [(1, 1), (1, 50), (400, 1), (2, 400)]:
            monkeypatch.setattr(propertylooks, "FEW", few)
            monkeypatch.setattr(propertylooks, "MANY", many)
            assert chosen(store, Even()) == list(range(0, 300, 2))
            assert chosen(store, Even(names=NUMBER)) == list(range(0, 300, 2))


@pytest.mark.parametrize("few", [1, 400])
def test_damaged_records_keep_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(propertylooks, "FEW", few)
    with opened(tmp_path, **SIZES) as store:
        fill(store, 120, Random(3))
        store.check_again()
        chance = Random(4)
        damaged = set(range(3, 120, 7))
        for number in damaged:
            physical, _, _ = store.queues.open("T", 0).entry(number)
            segment = store.log.segments.find(physical)
            assert segment is not None
            at = physical - segment.base + chance.choice((0, 4, 36, 84, 85, 86, 87))
            segment.map[at] ^= 0x55
        found = chosen(store, Even())
        assert found == sorted(found)
        assert {number for number in range(0, 120, 2) if number not in damaged} <= set(found)
        assert chosen(store, Even(names=NUMBER)) == found


def test_a_filter_that_costs_much_is_asked_less_often(tmp_path: Path) -> None:
    with opened(tmp_path, **SIZES) as store:
        fill(store, 100, Random(5))
        wanted = Even(cost=propertylooks.LOOKS_MAX // 10)
        result = store.get("T", 0, 1, 32, wanted)
        assert len(wanted.asked) == 10
        assert (result.count, result.next_offset) == (5, 11)
        assert chosen(store, wanted) == list(range(0, 100, 2))


def alike(chance: Random) -> str:
    """Properties of which many differ in their values only, in some of these, or in nothing."""
    if chance.random() < 0.1:
        return random_properties(chance)
    values = [value for value in VALUES if len(value.encode()) == chance.choice((1, 1, 1, 2))]
    return "".join([f"{name}\x01{chance.choice(values)}\x02" for name in ("a", "b", "c", "a1")])


def test_an_expression_chooses_of_many_as_of_each(tmp_path: Path) -> None:
    chance = Random(7)
    stored = [f"{alike(chance)}\x02n\x01{number}\x02".encode() for number in range(900)]
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        queue = store.queue("T", 0)
        for properties in stored:
            store.put(queue, b"", properties, 0, 0, 1, HOSTS[0], 1, 0)
        settle(store)

        @given(st.integers(0, 2**64))
        def check(seed: int) -> None:
            try:
                wanted = compile_sql(random_expression(Random(seed)))
            except FilterError:
                return
            expected = [number for number, text in enumerate(stored) if wanted.wants(text)]
            assert chosen(store, wanted) == expected

        check()


def test_who_goes_on_looks_at_nothing_again(tmp_path: Path) -> None:
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        fill(store, 500, Random(8))
        wanted = Even(names=NUMBER)
        assert chosen(store, wanted) == list(range(0, 500, 2))
        assert len(wanted.asked) == len(set(wanted.asked)) == 500
        assert chosen(store, wanted) == list(range(0, 500, 2))


def test_what_was_kept_is_of_the_same_entries_only(tmp_path: Path) -> None:
    """A queue that was cut off may lead to other records where it goes on."""
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        fill(store, 400, Random(9))
        queue, wanted = store.queues.open("T", 0), Even(names=NUMBER)
        looks = propertylooks.Looks(store.log.segments)
        entries = queue.read(0, 400)
        numbers, found, following, _ = looks.wanted_entries(queue, entries, 0, wanted, lambda _: 50)
        assert (numbers, following) == ([*range(0, 100, 2)], 99)
        assert found == b"".join([entries[20 * at : 20 * at + 20] for at in numbers])
        others = entries[20 * (following + 1) :]
        numbers, found, *_ = looks.wanted_entries(queue, others, following, wanted, lambda _: 5)
        assert numbers == [99, 101, 103, 105, 107]
        assert found == b"".join([entries[20 * at + 20 : 20 * at + 40] for at in numbers])


def test_what_is_known_is_what_a_look_would_give(tmp_path: Path) -> None:
    sizes = {**SIZES, "mapped_file_size_commit_log": 1024 * KiB}
    with opened(tmp_path, **sizes) as store:
        fill(store, 400, Random(12))
        queue, wanted = store.queues.open("T", 0), Even(names=NUMBER)
        looks = propertylooks.Looks(store.log.segments)
        entries = queue.read(0, 400)
        assert looks.known(queue, 0, wanted, lambda _: 1) is None
        looks.wanted_entries(queue, entries, 0, wanted, lambda _: 50)
        recent_from, _, _ = queue.entry(200)
        asked = len(wanted.asked)
        for start, count in [(99, 1), (100, 40), (101, 40), (398, 1), (350, 25), (32, 184)]:
            other = propertylooks.Looks(store.log.segments)
            behind = entries[start * 20 :]
            look = other.wanted_entries(queue, behind, start, Even(), lambda _, most=count: most)  # type: ignore[misc]
            assert looks.known(queue, start, wanted, lambda _, most=count: most) == look  # type: ignore[misc]
        assert len(wanted.asked) == asked
        for start, count in [(399, 1), (350, 26), (400, 1)]:
            assert looks.known(queue, start, wanted, lambda _, most=count: most) is None  # type: ignore[misc]
        few = lambda physical: 32 if physical >= recent_from else 8  # noqa: E731
        assert looks.known(queue, 190, wanted, few) is None
        assert looks.known(queue, 180, wanted, few) == looks.known(queue, 180, wanted, lambda _: 8)
        other_queue = store.queues.open("T", 1)
        assert looks.known(other_queue, 100, wanted, lambda _: 1) is None
        assert looks.known(queue, 100, Even(names=NUMBER), lambda _: 1) is None


@pytest.mark.parametrize("copies_bytes_max", [0, 20_000, propertylooks.COPIES_BYTES_MAX])
def test_pulls_give_the_records_as_the_log_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies_bytes_max: int
) -> None:
    """Wherever they begin and end: of stretches of records of one size, some of which are copied
    with the answers, and from files of the log that end within these."""
    monkeypatch.setattr(propertylooks, "COPIES_BYTES_MAX", copies_bytes_max)
    chance = Random(13)
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 96 * KiB, "mapped_file_size_consume_queue": 80_000}
    with opened(tmp_path, **sizes) as store:
        queue = store.queue("T", 0)
        bodies: list[bytes] = []
        while len(bodies) < 2000:
            bodies += [bytes(chance.choice((10, 20, 400)))] * chance.choice((3, 40, 300))
        for number, body in enumerate(bodies):
            properties = f"n\x01{number:06}\x02".encode()
            store.put(queue, body, properties, 0, 0, 1, HOSTS[0], 1, 0)
        settle(store)
        end = len(bodies)
        stored = [store.get("T", 0, number, 1).records for number in range(end)]
        wanted = [Even(names=NUMBER) for _ in range(3)]
        at = [0, 0, 0]
        for _ in range(600):
            who = chance.randrange(3)
            if chance.random() < 0.1:
                at[who] = chance.randrange(end)
            most = chance.choice((1, 7, 32, 32, 32))
            result = store.get("T", 0, at[who], most, wanted[who])
            expected = [n for n in range(at[who], result.next_offset) if n % 2 == 0]
            assert result.records == b"".join([stored[n] for n in expected])
            assert result.count == len(expected) <= most
            assert result.count == most or result.next_offset >= min(at[who] + 800, end)
            at[who] = result.next_offset % end


@pytest.mark.parametrize(("copies_bytes_max", "seen"), [(0, b"x"), (100_000, b"b")])
def test_wanted_records_of_one_size_are_copied_by_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies_bytes_max: int, seen: bytes
) -> None:
    """As far as there is room; the log is read again when all records are checked again."""
    monkeypatch.setattr(propertylooks, "COPIES_BYTES_MAX", copies_bytes_max)
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        queue = store.queue("T", 0)
        for number in range(400):
            properties = f"n\x01{number:06}\x02".encode()
            store.put(queue, b"b", properties, 0, 0, 1, HOSTS[0], 1, 0)
        settle(store)
        wanted = Even(names=NUMBER)
        at = store.get("T", 0, 0, 32, wanted).next_offset
        [segment] = store.log.segments.files
        for number in range(400):
            physical, size, _ = store.queues.open("T", 0).entry(number)
            record = segment.map[physical : physical + size]
            segment.map[physical : physical + size] = record.replace(b"b\x01T", b"x\x01T")
        result = store.get("T", 0, at, 32, wanted)
        assert {view.body for view in iter_records(result.records)} == {seen}
        store.check_again()
        result = store.get("T", 0, at, 32, wanted)
        assert {view.body for view in iter_records(result.records)} == {b"x"}


def test_a_record_that_was_put_right_is_read_again(tmp_path: Path) -> None:
    """A look may have copied it while it was damaged."""
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        queue = store.queue("T", 0)
        for number in range(400):
            properties = f"n\x01{number:06}\x02".encode()
            store.put(queue, b"b", properties, 0, 0, 1, HOSTS[0], 1, 0)
        settle(store)
        physical, size, _ = store.queues.open("T", 0).entry(200)
        damaged = RecordDamaged(physical, size)
        asked = store.asked_for(damaged)
        assert asked is not None
        of_replica = store.log.stretch(asked.start, asked.size)
        [segment] = store.log.segments.files
        record = segment.map[physical : physical + size]
        segment.map[physical : physical + size] = record.replace(b"b\x01T", b"x\x01T")
        wanted = Even(names=NUMBER)
        assert chosen(store, wanted) == list(range(0, 400, 2))
        assert store.mend(damaged, asked, of_replica) is None
        assert store.get("T", 0, 200, 1, wanted).records == record


def test_more_may_be_taken_of_what_is_recent(tmp_path: Path) -> None:
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        fill(store, 400, Random(10))
        queue = store.queues.open("T", 0)
        entries = queue.read(0, 400)
        for few in (10, 60):  # the first look is at 32, one by one; then at all the others
            recent_from, _, _ = queue.entry(few)
            looks = propertylooks.Looks(store.log.segments)
            numbers, _, following, _ = looks.wanted_entries(
                queue,
                entries,
                0,
                Even(names=NUMBER),
                lambda physical, first=recent_from: 100 if physical >= first else 40,  # type: ignore[misc]
            )
            assert (numbers, following) == ([*range(0, 200, 2)], 199)


def test_answers_are_remembered_from_one_look_to_the_next_but_not_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 4
    with opened(tmp_path, mapped_file_size_consume_queue=80_000) as store:
        queue = store.queue("T", 0)
        for number in range(looks * propertylooks.MANY):
            properties = f"k\x01{number:09}\x02n\x01{number % 10}\x02".encode()
            store.put(queue, b"", properties, 0, 0, 1, HOSTS[0], 1, 0)
        settle(store)
        asked = []
        for kinds_max in (10, 9):
            monkeypatch.setattr(propertycolumns, "KINDS_MAX", kinds_max)
            wanted = Even(names=NUMBER)
            assert len(chosen(store, wanted)) == looks * propertylooks.MANY // 2
            asked.append(len(wanted.asked) - propertylooks.FEW)
        assert asked[0] <= 10
        assert asked[1] >= looks * 10


def test_messages_that_differ_in_other_properties_are_asked_about_once(tmp_path: Path) -> None:
    with opened(tmp_path, mapped_file_size_consume_queue=20_000) as store:
        queue = store.queue("T", 0)
        for number in range(500):
            properties = f"k\x01{number:09}\x02n\x01{number % 10}\x02".encode()
            store.put(queue, b"", properties, 0, 0, 1, HOSTS[0], 1, 0)
        settle(store)
        wanted = Even(names=NUMBER)
        assert len(chosen(store, wanted)) == 250
        assert len(wanted.asked) <= propertylooks.FEW + 10


def test_an_expired_record_ends_the_look(tmp_path: Path) -> None:
    with opened(tmp_path, **SIZES) as store:
        fill(store, 200, Random(6))
    min((tmp_path / "commitlog").iterdir()).unlink()
    with opened(tmp_path, **SIZES) as store:
        least = store.min_queue_offset("T", 0)
        assert chosen(store, Even())[:1] in ([least], [least + 1])


# --- one record ---


@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200])
@pytest.mark.parametrize("host", HOSTS, ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("properties", [b"", b"n\x011\x02", b"n\x01" + b"1" * 700])
def test_properties_of_a_record(topic: str, host: bytes, properties: bytes) -> None:
    record = encode_record(topic, b"body", properties, 0, 0, 0, 0, 0, 1, host, 1, host)
    around = b"before" + record + b"behind"
    assert properties_in(around, 6, 6 + len(record)) == properties
    for at in range(len(record)):
        broken = bytearray(record)
        broken[at] ^= 0x41
        found = properties_in(bytes(broken), 0, len(broken))
        assert found is None or len(found) <= len(record)
