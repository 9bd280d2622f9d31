"""Views of bodies: which one is chosen, and what they show."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.cli.messages.bodyviews import VIEWS, Undecodable, beginning, guess, shown


@pytest.mark.parametrize(
    ("body", "view", "text"),
    [
        (b'{"a": [1]}', "json", '"a": ['),
        (b"{no json", "text", "{no json"),
        ("füü\r\nbar\x1b".encode(), "text", "bar\\x1b"),
        ("füü\r\nbar".encode(), "text", "füü\nbar"),
        (msgspec.msgpack.encode({"a": 1, 2: b"x"}), "messagepack", '"a": 1'),
        (b"\x00\xff" * 9, "hex", "00000010  00 ff"),
        (b"", "text", ""),
    ],
)
def test_the_view_of_a_body(body: bytes, view: str, text: str) -> None:
    assert guess(body) == view
    assert text in shown(body, view)


def test_a_protobuf_message_is_shown_by_its_numbers() -> None:
    body = bytes.fromhex("089601 1207 74657374696e67 1a02 0801 1a02 0802")
    assert json.loads(shown(body, "protobuf")) == {"1": 150, "2": "testing", "3": [{"1": 1}, {"1": 2}]}
    with pytest.raises(Undecodable):
        shown(b"\xff\xff\xff", "protobuf")


@given(st.binary(max_size=200))
def test_any_body_has_a_view_and_no_view_fails_otherwise(body: bytes) -> None:
    shown(body, guess(body))
    assert "\n" not in beginning(body, 40)
    for view in VIEWS:
        with suppress(Undecodable):
            assert isinstance(shown(body, view), str)


def test_a_deeply_nested_body_is_no_recursion() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert guess(deep) == "text"
    assert guess(b"\x91" * 10_000 + b"\x01") == "hex"
