"""Many records at once: the same answers as of each by itself."""

import mmap
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import FilterError
from firearrow.filter.sql import compile_sql
from firearrow.message.hosts import Host, pack_host
from firearrow.message.properties import parse
from firearrow.message.record import RECORD_BYTES_MIN, encode_record, properties_in
from firearrow.store import propertycolumns
from firearrow.store.propertycolumns import AnswerCache, answers_of
from firearrow.store.queues import ENTRY, ENTRY_BYTES
from firearrow.store.segments import Segment
from tests.filter.expressions import NAMES, VALUES, random_expression, random_properties

HOSTS = [pack_host(Host("127.0.0.1", 5)), pack_host(Host("::1", 5))]
TOPICS = ["T", "T", "T", "U", "t" * 128]
BASE = 1 << 20
FILE_BYTES = 64 * 1024


def stored(records: list[bytes]) -> tuple[Segment, bytes]:
    """A file with records, and the entries that lead to them."""
    mapped = mmap.mmap(-1, FILE_BYTES)
    entries = []
    for record in records:
        entries.append(ENTRY.pack(BASE + mapped.tell(), len(record), 0))
        mapped.write(record)
    return Segment(BASE, Path("file"), mapped, FILE_BYTES), b"".join(entries)


def record_of(properties: bytes, topic: str = "T", body: bytes = b"", host: bytes = HOSTS[0]) -> bytes:
    return encode_record(topic, body, properties, 0, 0, 0, 0, 0, 1, host, 1, HOSTS[0])


def one_by_one(segment: Segment, entries: bytes, wants: Callable[[bytes], bool]) -> list[bool]:
    answers = []
    for physical, size, _ in ENTRY.iter_unpack(entries):
        at = physical - BASE
        if not 0 <= at < FILE_BYTES:
            break
        sound = RECORD_BYTES_MIN <= size <= FILE_BYTES - at
        text = properties_in(segment.map, at, at + size) if sound else None
        answers.append(text is None or wants(text))
    return answers


def random_records(chance: Random) -> list[bytes]:
    """Records of few shapes and some of none, from hosts and of topics that mostly are the same;
    often of one size, for which their values, or the bytes of their bodies, make up."""
    names = chance.sample(NAMES, 4)
    values = chance.sample(VALUES, chance.choice((2, 4, len(VALUES))))
    rare, long = chance.choice((0, 0.02, 0.5)), chance.choice((1, 3, 3, 40))
    evened = chance.choice(("", "values", "bodies"))
    if evened == "values":
        values = [value for value in values if len(value) == len(values[0])]
    records = []
    for _ in range(chance.randrange(1, 120)):
        text = "".join([f"{name}\x01{chance.choice(values)}\x02" for name in names])
        text += f"k\x01{'k' * chance.randrange(long)}{chance.randrange(10)}\x02"
        if chance.random() < rare:
            text = random_properties(chance)
        topic = chance.choice(TOPICS) if chance.random() < rare else "T"
        host = chance.choice(HOSTS) if chance.random() < rare else HOSTS[0]
        body = bytes(chance.choice((9, chance.randrange(20))))
        if evened:
            body = bytes(max(200 - len(text.encode()) if evened == "bodies" else 9, 0))
        records.append(record_of(text.encode(), topic, body, host))
    return records


def damage(segment: Segment, entries: bytes, chance: Random) -> bytes:
    """Change some bytes of the file, and some entries."""
    end = segment.map.tell()
    for _ in range(chance.choice((0, 1, 20))):
        segment.map[chance.randrange(end)] = chance.choice((0, 1, 2, 3, 0x10, 0x80, 0xFF))
    some = bytearray(entries)
    for _ in range(chance.choice((0, 0, 3))):
        some[chance.randrange(len(some))] ^= chance.choice((1, 0x80, 0xFF))
    return bytes(some)


@given(st.integers(0, 2**64))
def test_many_are_chosen_as_each(seed: int) -> None:
    chance = Random(seed)
    try:
        wanted = compile_sql(random_expression(chance))
    except FilterError:
        return
    cache = AnswerCache(wanted.wants, wanted.names)
    unknown = AnswerCache(wanted.wants, None)
    for _ in range(3):  # the later ones with what was kept of the first
        segment, entries = stored(random_records(chance))
        entries = damage(segment, entries, chance)
        expected = one_by_one(segment, entries, wanted.wants)
        assert answers_of(segment, entries, cache).wanted.tolist() == expected
        assert answers_of(segment, entries, unknown).wanted.tolist() == expected
        if chance.random() < 0.3:
            cache.forget_many()


def counted(values: list[bytes], calls: list[bytes]) -> AnswerCache:
    """A filter that wants some values of ``n``, and says what it is asked."""

    def wants(properties: bytes) -> bool:
        calls.append(properties)
        return parse(properties).get("n", "").encode() in values

    return AnswerCache(wants, frozenset({b"n"}))


def test_a_kind_is_asked_about_once_whatever_else_the_records_have() -> None:
    calls: list[bytes] = []
    cache = counted([b"3", b"4"], calls)
    for length in (1, 2, 3):
        texts = [f"k\x01{'k' * length}\x02n\x01{number % 10}\x02" for number in range(100)]
        segment, entries = stored([record_of(text.encode()) for text in texts])
        assert answers_of(segment, entries, cache).wanted.nonzero()[0].tolist() == [
            number for number in range(100) if number % 10 in (3, 4)
        ]
    assert len(calls) == 10


@pytest.mark.parametrize("odd", ["as it is", "all the same"])
def test_kinds_with_one_number_are_told_apart(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if odd == "all the same":  # then the words of a value may change places
        monkeypatch.setattr(propertycolumns, "_ODD", np.ones(8, np.uint64))
    words = [b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"]
    values = [first + second for first in words for second in words]
    wanted = [values[1], values[5]]
    cache = counted(wanted, [])
    for turn in (1, -1):
        texts = [b"n\x01%s\x02" % value for value in values[::turn] * 4]
        segment, entries = stored([record_of(text) for text in texts])
        expected = [value in wanted for value in values[::turn] * 4]
        assert answers_of(segment, entries, cache).wanted.tolist() == expected


def test_shapes_that_come_no_more_give_way() -> None:
    calls: list[bytes] = []
    cache = counted([b"1"], calls)

    def look(names: list[str]) -> None:
        texts = [f"{name}\x01y\x02n\x01{number % 2}\x02" for name in names for number in range(40)]
        segment, entries = stored([record_of(text.encode()) for text in texts])
        assert answers_of(segment, entries, cache).wanted.tolist() == [False, True] * 20 * len(names)

    look(["a", "b", "c", "d"])
    look(["e"])
    calls.clear()
    look(["e"])
    assert not calls


def test_few_and_long_ones_are_asked_about_one_by_one() -> None:
    for count, size in [(propertycolumns.ALIKE_MIN - 1, 1), (20, propertycolumns.SHAPE_BYTES_MAX)]:
        calls: list[bytes] = []
        text = b"n\x011\x02k\x01%s\x02" % (b"k" * size)
        segment, entries = stored([record_of(text)] * count)
        assert answers_of(segment, entries, counted([b"1"], calls)).wanted.all()
        assert len(calls) == count == len(entries) // ENTRY_BYTES


@pytest.mark.parametrize("at", [0, 3, 4, 7, 39, 84, 87, 88, -1])
@pytest.mark.parametrize("number", [0, 1, 39])
def test_one_of_many_alike_is_damaged(number: int, at: int) -> None:
    record = record_of(b"k\x01k\x02n\x011\x02")
    segment, entries = stored([record] * 40)
    segment.map[number * len(record) + at % len(record)] ^= 0x10
    cache = counted([b"2"], [])
    expected = one_by_one(segment, entries, cache.wants)
    for _ in range(2):
        assert answers_of(segment, entries, cache).wanted.tolist() == expected
