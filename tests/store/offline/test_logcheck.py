"""Odd properties are found in a batch as they are found one by one."""

from hypothesis import given
from hypothesis import strategies as st

from firearrow.message.properties import fault_of
from firearrow.message.record import encode_record
from firearrow.store.offline.logcheck import faults
from firearrow.store.scan import scan
from tests.store.stores import BORN_HOST, STORE_HOST

PARTS = [b"\x01", b"\x02", b"A\x01b\x02", b"A\x01b", b"KEYS\x01k\x02", b"x", "é".encode(), b"\xff"]
strings = st.lists(st.sampled_from(PARTS), max_size=5).map(b"".join)


def found(properties: list[bytes]) -> list[tuple[int, str]]:
    log = b"".join(encode_record("T", b"body", text, 0, 0, 0, 0, 0, 1, BORN_HOST, 2, STORE_HOST) for text in properties)
    columns = scan(log, 0, len(log))
    assert len(columns) == len(properties)
    return faults(columns)


def one_by_one(properties: list[bytes]) -> list[tuple[int, str]]:
    faults_of_all = [(number, fault_of(text)) for number, text in enumerate(properties)]
    return [(number, fault) for number, fault in faults_of_all if fault]


@given(st.lists(strings, min_size=1, max_size=12))
def test_a_batch_is_looked_at_as_each_record_is(properties: list[bytes]) -> None:
    assert found(properties) == one_by_one(properties)


@given(strings, strings, st.integers(0, 11))
def test_one_among_equal_ones(usual: bytes, odd: bytes, at: int) -> None:
    properties = [usual] * 12
    properties[at] = odd
    assert found(properties) == one_by_one(properties)


def test_what_is_odd() -> None:
    assert found([b"A\x01b\x02", b"A\x01b", b"", b"\x02", b"A\x01\x02"]) == []
    assert found([b"A\x01b\x02", b"A", b"\x01b"]) == [
        (1, "its properties have the odd pair 'A'"),
        (2, "its properties have the odd pair '\\x01b'"),
    ]
    assert found([b"A\x01b\x01c\x02"]) == [(0, "its properties have the odd pair 'A\\x01b\\x01c'")]
    assert found([b"A\x01\xff\x02"]) == [(0, "its properties are not UTF-8")]
