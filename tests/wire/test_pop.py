"""Handles of popped messages."""

from base64 import b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.wire.client_bodies import BatchAck
from firearrow.wire.pop import (
    Handle,
    batch_acks,
    msg_offset_info,
    order_count_infos,
    origin_of,
    origin_topic,
    parse_handle,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
    start_offset_info,
)

longs = st.integers(0, (1 << 63) - 1)
ints = st.integers(0, (1 << 31) - 1)
handles = st.builds(
    Handle, longs, longs, longs, ints, st.integers(0, 2), st.from_regex(r"[a-z-]+", fullmatch=True), ints, longs
)


@given(handles)
def test_a_handle_is_read_as_it_was_written(handle: Handle) -> None:
    assert parse_handle(str(handle)) == handle


def test_the_example_of_the_format() -> None:
    handle = parse_handle("7 1700000000000 60000 3 0 broker-a 2 9")
    assert handle == Handle(7, 1_700_000_000_000, 60_000, 3, 0, "broker-a", 2, 9)
    assert handle.visible_ms == 1_700_000_060_000
    assert not handle.is_ordered
    assert parse_handle("7 1700000000000 60000 999 0 broker-a 2 9").is_ordered


def test_an_old_handle_has_no_offset() -> None:
    assert parse_handle("7 1 2 3 0 b 2", 11).queue_offset == 11


@pytest.mark.parametrize("text", ["", "7", "7 1 2 3 0 b x 9", "7 1 2 3 9 b 2 9", "7 1 2 99999999999 0 b 2 9"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        parse_handle(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(MessageError):
        parse_handle(text)


@pytest.mark.parametrize(("topic", "origin"), [("T", 0), ("%RETRY%G_T", 1), ("%RETRY%G+T", 2), ("%RETRY%G", 1)])
def test_origins(topic: str, origin: int) -> None:
    assert origin_of(topic) == origin


def test_the_topic_of_an_origin() -> None:
    assert [origin_topic("T", "G", origin) for origin in range(3)] == ["T", "%RETRY%G_T", "%RETRY%G+T"]


def test_items_of_an_answer() -> None:
    assert start_offset_info(1, 0, 4) == "1 0 4"
    assert msg_offset_info(0, 2, [4, 5, 9]) == "0 2 4,5,9"


def test_counts_of_an_answer() -> None:
    assert order_count_infos(0, 1, [0, 1], {}) == ["0 1 0"]
    assert order_count_infos(0, 1, [0, 1, 2], {0: 1, 1: 1}) == ["0 qo1%0 1", "0 qo1%1 1", "0 1 0"]
    assert order_count_infos(0, 1, [0, 1], {0: 2, 1: 3}) == ["0 qo1%0 2", "0 qo1%1 3", "0 1 2"]


def test_items_of_an_answer_are_read_again() -> None:
    assert parse_start_offsets("1 0 4;0 2 7") == {(1, 0): 4, (0, 2): 7}
    assert parse_offsets("0 2 4,5,9;1 0 4") == {(0, 2): [4, 5, 9], (1, 0): [4]}
    counts = ";".join(order_count_infos(0, 1, [0, 1], {0: 2, 1: 3}))
    assert parse_order_counts(counts) == {(0, "qo1%0"): 2, (0, "qo1%1"): 3, (0, "1"): 2}
    assert parse_start_offsets("") == {}
    assert parse_offsets("") == {}
    assert parse_order_counts("") == {}


@pytest.mark.parametrize("text", ["0", "0 2", "0 2 x", "0 2 4,", "a 2 4", "0 2 4 5"])
def test_what_is_no_item_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        parse_offsets(text)
    with pytest.raises(MessageError):
        parse_start_offsets(text)


def test_what_is_no_count_is_refused() -> None:
    with pytest.raises(MessageError, match="not orderCountInfo"):
        parse_order_counts("0 qo1%0 x")


def test_acknowledgements_of_a_pop_go_together() -> None:
    one = Handle(7, 1, 2, 3, 0, "b", 2, 7)
    other = Handle(7, 1, 2, 3, 1, "b", 2, 8)
    [first, second] = batch_acks("G", "T", [one, other, one._replace(queue_offset=16)])
    assert first == BatchAck("G", "T", 7, 2, 3, 1, 2, "0", b64encode(b"\x01\x02").decode())
    assert (second.origin, second.bits) == ("1", b64encode(b"\x02").decode())
