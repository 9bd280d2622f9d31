"""Sets of decided halves, and what the op queue says of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.transactions import decisions
from firearrow.broker.transactions.decisions import DecidedOffsets, offsets_in
from firearrow.message.record import decode_record, encode_record

offsets = st.integers(0, 300) | st.integers(65_400, 65_700) | st.integers(0, 1 << 40)


@given(added=st.sets(offsets), asked=st.sets(offsets))
def test_what_was_added_is_in_it(added: set[int], asked: set[int]) -> None:
    decided = DecidedOffsets()
    for offset in added:
        decided.add(offset)
    assert {offset for offset in added | asked if offset in decided} == added


def test_what_is_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "KNOWN_BEFORE_MAX", 1 << 17)
    decided = DecidedOffsets()
    for offset in range(0, 1 << 20, 1 << 14):
        decided.add(offset)
    decided.forget_before(1 << 19)
    known = [offset for offset in range(0, 1 << 20, 1 << 14) if offset in decided]
    assert known == list(range((1 << 19) - (1 << 17), 1 << 20, 1 << 14))


@pytest.mark.parametrize(
    ("body", "tags", "named"),
    [
        (b"0,", "d", [0]),
        (b"17,3,4000000000,", "d", [17, 3, 4_000_000_000]),
        (b"1,x,,-2, 3,4", "d", [1, 4]),
        (b"\xff\xb2,5,", "d", [5]),
        (b"4,+2,+11,", "d", [4, 2, 11]),
        (b"9" * 30, "d", []),
        (b"", "d", []),
        (b"1,", "e", []),
        (b"1,", None, []),
    ],
)
def test_offsets_in_a_record(body: bytes, tags: str | None, named: list[int]) -> None:
    properties = f"TAGS\x01{tags}\x02".encode() if tags else b""
    host = bytes(8)
    record = encode_record("op", body, properties, 0, 0, 0, 0, 0, 0, host, 0, host)
    assert list(offsets_in(decode_record(record))) == named
