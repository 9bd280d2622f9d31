"""Handles of received messages, and their successors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.proxy import handles
from firearrow.proxy.handles import Receipt, Renewed, parse_receipt, place_of
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import typed_request, with_text

TEXT = "7 1795211880000 30000 2 0 broker-a 3 8 4711"


def fields_of(receipt: Receipt) -> dict[str, str]:
    """Return the fields of a request about a message as a broker elsewhere gets them, the same for both requests."""
    found: dict[str, str] = with_text(typed_request(RequestCode.ACK_MESSAGE, receipt.header("g", "T"))).ext
    assert with_text(receipt.change("g", "T", 5)).ext == found | {"invisibleTime": "5"}
    suspended = with_text(receipt.change("g", "T", 5, is_suspended=True)).ext
    assert suspended == found | {"invisibleTime": "5", "suspend": "true"}
    return found


def test_the_fields_of_a_handle() -> None:
    receipt = parse_receipt(TEXT)
    assert str(receipt) == TEXT
    handle = receipt.handle
    assert (handle.start_offset, handle.queue_id, handle.queue_offset, handle.broker_name) == (7, 3, 8, "broker-a")
    assert (receipt.log_offset, handle.visible_ms) == (4711, 1_795_211_910_000)
    assert fields_of(receipt) == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "3",
        "extraInfo": TEXT.rsplit(" ", 1)[0],
        "offset": "8",
        "bname": "broker-a",
    }


def test_a_handle_of_a_retry_topic_names_that() -> None:
    topics = [parse_receipt(f"0 1 2 3 {kind} b 0 0 5").header("g", "T").topic for kind in (0, 1, 2)]
    assert topics == ["T", "%RETRY%g_T", "%RETRY%g+T"]


def test_a_message_of_a_lite_topic() -> None:
    receipt = parse_receipt(TEXT, "lite")
    assert str(receipt) == f"{TEXT} lite"
    assert parse_receipt(f"{TEXT} lite") == receipt
    fields = fields_of(receipt)
    assert (fields["liteTopic"], fields["extraInfo"]) == ("lite", TEXT.rsplit(" ", 1)[0])
    assert place_of("g", "T", receipt) != place_of("g", "T", parse_receipt(TEXT))


@pytest.mark.parametrize(
    ("last", "expected"), [("", None), (" 5", 5), (" x", None), (" -1", None), (" " + "9" * 20, None), (" 5 6", 5)]
)
def test_the_offset_of_the_record_may_be_missing(last: str, expected: int | None) -> None:
    assert parse_receipt(TEXT.rsplit(" ", 1)[0] + last).log_offset == expected


@given(st.text() | st.lists(st.sampled_from(["0", "1", "-1", "x", "b", "", "9" * 30]), max_size=12).map(" ".join))
def test_a_text_is_a_handle_or_refused(text: str) -> None:
    try:
        receipt = parse_receipt(text)
    except ProxyError as error:
        if error.code is not Code.INVALID_RECEIPT_HANDLE:
            raise
        return
    assert parse_receipt(str(receipt)) == receipt


def renewed(receipt: Receipt, pop_ms: int) -> Receipt:
    ext = {"popTime": str(pop_ms), "invisibleTime": "60000", "reviveQid": "5"}
    return receipt.changed(ext)


def test_the_newest_handle_of_a_message() -> None:
    table = Renewed()
    first = parse_receipt(TEXT)
    assert table.newest("g", "T", first) is first
    second = renewed(first, 1_795_211_900_000)
    table.note("g", "T", second)
    third = renewed(second, 1_795_211_910_000)
    table.note("g", "T", third)
    for known in (first, second, third):
        assert table.newest("g", "T", known) is third
    assert str(third) == "8 1795211910000 60000 5 0 broker-a 3 8 4711"
    for group, topic, other in (
        ("other", "T", first),
        ("g", "other", first),
        ("g", "T", parse_receipt(TEXT, "lite")),
        ("g", "T", parse_receipt(TEXT.replace("broker-a", "broker-b"))),
        ("g", "T", parse_receipt(TEXT.replace(" 3 8 ", " 3 9 "))),
        ("g", "T", parse_receipt(TEXT.replace(" 3 8 ", " 4 8 "))),
    ):
        assert table.newest(group, topic, other) is other
    table.forget("g", "T", first)
    assert table.newest("g", "T", first) is first


def test_a_message_that_is_popped_again_has_a_new_handle() -> None:
    table = Renewed()
    table.note("g", "T", parse_receipt(TEXT))
    again = parse_receipt(TEXT.replace(" 1795211880000 ", " 1795211910000 "))
    assert table.newest("g", "T", again) is again


def test_a_limited_count_of_handles_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "RENEWED_MAX", 2)
    table = Renewed()
    receipts = [parse_receipt(TEXT.replace(" 3 8 ", f" 3 {number} ")) for number in range(3)]
    for receipt in (receipts[0], receipts[1], receipts[0], receipts[2]):
        table.note("g", "T", renewed(receipt, 1_795_211_900_000))
    assert [table.newest("g", "T", receipt) is receipt for receipt in receipts] == [False, True, False]
