"""Ids of transactions, which carry places."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.javanumbers import LONG_MAX
from firearrow.proxy.transactionids import TransactionId

OFFSETS = st.integers(0, LONG_MAX)


@given(st.text(max_size=100), OFFSETS, OFFSETS)
def test_an_id_carries_its_place(broker: str, queue_offset: int, log_offset: int) -> None:
    found = TransactionId(broker, queue_offset, log_offset)
    assert TransactionId.parse(str(found)) == found


@given(st.text() | st.binary(max_size=60).map(lambda it: urlsafe_b64encode(it).decode()))
def test_a_text_is_an_id_or_refused(text: str) -> None:
    try:
        found = TransactionId.parse(text)
    except MessageError:
        return
    assert TransactionId.parse(str(found)) == found


@pytest.mark.parametrize("words", ["v2 1 2 b", "v1 1 2", "v1 -1 2 b", "v1 1 9223372036854775808 b", "v1 x 2 b", ""])
def test_words_that_are_no_place(words: str) -> None:
    with pytest.raises(MessageError, match="not a transaction id of this proxy"):
        TransactionId.parse(urlsafe_b64encode(words.encode()).decode())
