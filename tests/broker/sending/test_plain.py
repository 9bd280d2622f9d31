"""Sends whose properties can be stored as they came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.sending.plain import plain_send, plain_unique
from firearrow.message import properties

HALF = b"TRAN_MSG\x01true\x02PGROUP\x01p_g\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02WAIT\x01true"
BY_GRPC = (
    b"UNIQ_KEY\x01U\x02RECONSUME_TIME\x010\x02PGROUP\x01a_topic\x02__BORNHOST\x01127.0.0.1:80\x02BORN_TIMESTAMP\x0117"
)


@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_usual_messages_are_plain(end: bytes) -> None:
    assert plain_send(HALF + end) == (b"U", True)
    assert plain_send(BY_GRPC + end) == (b"U", False)
    assert plain_unique(b"TAGS\x01A\x02UNIQ_KEY\x01U" + end) == b"U"


PAIRS = [
    *("TRAN_MSG\x01true", "TRAN_MSG\x01True", "UNIQ_KEY\x01U1", "UNIQ_KEY\x01U_2", "__SHARDINGKEY\x01g"),
    *("DELAY\x013", "DELAY\x01", "DELAYED\x013", "TIMER_DELIVER_MS\x011", "TAGS\x01", "\x01v", "TAGS"),
    *("__BORNHOST\x01a:1", "X__BORNHOST\x01a:1", "BORN_TIMESTAMP\x01", "é\x01ü_", "", "KEYS\x01a\x01b"),
]


@given(st.lists(st.sampled_from(PAIRS), max_size=5), st.booleans())
def test_a_plain_message_has_nothing_that_asks_for_more(pairs: list[str], is_closed: bool) -> None:
    text = "\x02".join(pairs) + "\x02" * is_closed
    found = properties.parse(text)
    known = {"UNIQ_KEY", "__BORNHOST", "BORN_TIMESTAMP", "RECONSUME_TIME"}
    plain = plain_send(text.encode())
    if plain is not None:
        assert found["UNIQ_KEY"] == plain.unique.decode()
        assert found.get("TRAN_MSG") == ("true" if plain.is_half else None)
        assert not any("_" in name for name in found.keys() - known - {"TRAN_MSG"})
        assert "DELAY" not in found
    if unique := plain_unique(text.encode()):
        assert found["UNIQ_KEY"] == unique.decode()
        assert plain is None or plain == (unique, False)
