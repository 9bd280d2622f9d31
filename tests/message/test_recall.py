"""Handles of messages that can be recalled."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message.recall import RecallHandle

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters=" "), min_size=1)
handles = st.builds(RecallHandle, words, words, st.integers(0, 10**18 - 1), words)

EXAMPLE = "djEgVCBicm9rZXItYSAxNzk1MDAwMDAwMDAxIFUx"


@given(handles)
def test_what_was_encoded_is_decoded(handle: RecallHandle) -> None:
    text = handle.encode()
    assert RecallHandle.decode(text) == handle
    assert RecallHandle.decode(text.rstrip("=")) == handle


@given(st.text())
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    with suppress(MessageError):
        assert len(RecallHandle.decode(text)) == 4


def test_an_example() -> None:
    handle = RecallHandle("T", "broker-a", 1795000000001, "U1")
    assert handle.encode() == EXAMPLE
    assert RecallHandle.decode(EXAMPLE) == handle


@pytest.mark.parametrize("text", ["", "=", "A", "a b", "djEgVCBi", "djI", EXAMPLE[:-8], "+/8="])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="recall handle is invalid"):
        RecallHandle.decode(text)


def test_a_time_that_is_none_is_never_to_come() -> None:
    text = RecallHandle("T", "b", 5, "U")._replace(time_ms="soon").encode()  # type: ignore[arg-type]
    assert RecallHandle.decode(text).time_ms == -1
