"""Sends whose properties can be stored as they came."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.sending import processor as send
from firearrow.broker.sending.plain import plain_properties, plain_unique
from firearrow.message import properties
from firearrow.message.record import iter_records
from tests.broker.serving import Caller, Serving, calling

HALF = b"TRAN_MSG\x01true\x02PGROUP\x01p_g\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02WAIT\x01true"
BY_GRPC = (
    b"UNIQ_KEY\x01U\x02RECONSUME_TIME\x010\x02PGROUP\x01a_topic\x02__BORNHOST\x01127.0.0.1:80\x02BORN_TIMESTAMP\x0117"
)


@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_usual_messages_are_plain(end: bytes) -> None:
    assert plain_properties(HALF + end) == (b"U", True)
    assert plain_properties(BY_GRPC + end) == (b"U", False)
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
    plain = plain_properties(text.encode())
    if plain is not None:
        assert found["UNIQ_KEY"] == plain.unique.decode()
        assert found.get("TRAN_MSG") == ("true" if plain.is_half else None)
        assert not any("_" in name for name in found.keys() - known - {"TRAN_MSG"})
        assert "DELAY" not in found
    if unique := plain_unique(text.encode()):
        assert found["UNIQ_KEY"] == unique.decode()
        assert plain is None or plain == (unique, False)


SENT_PAIRS = [
    *("TAGS\x01A", "KEYS\x01a b", "KEYS\x01a_b", "WAIT\x01false", "x", "", "TAGS\x01", "标签\x01值", "DELAYED\x01x"),
    *("__BORNHOST\x01h_1", "BORN_TIMESTAMP\x011", "RECONSUME_TIME\x010", "A_BORN_TIMESTAMP\x01x"),
]


@pytest.mark.parametrize("mark", ["", "TRAN_MSG\x01true\x02"], ids=["plain", "half"])
def test_plain_messages_are_stored_and_answered_as_drafts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    chance = Random(mark)
    texts = [[*chance.sample(SENT_PAIRS, chance.randrange(5)), f"UNIQ_KEY\x01U{number}"] for number in range(100)]
    for pairs in texts:
        chance.shuffle(pairs)
    found: list[tuple[list[dict[str, str]], list[dict[str, Any]], int]] = []
    drafts = [0]
    of_send = send.draft_of_send

    def counted(*about: Any) -> Any:
        drafts[-1] += 1
        return of_send(*about)

    async def main(served: Serving, caller: Caller) -> None:
        answers = []
        for number, pairs in enumerate(texts):
            text = mark + "\x02".join(pairs) + "\x02" * (number % 2)
            fields = await caller.sent(b"%d" % number, queue_id=number % 4, i=text)
            answers.append({name: value for name, value in fields.items() if name != "msgId"})
        views = [
            {"body": view.body, "flag": view.flag, "sys_flag": view.sys_flag, "topic": view.topic, **view.properties}
            for view in iter_records(served.broker.store.log.stretch(0, 1 << 20))
        ]
        found.append((answers, views, drafts[-1]))

    monkeypatch.setattr(send, "draft_of_send", counted)
    calling(tmp_path / "plain", main)
    drafts.append(0)
    monkeypatch.setattr(send, "plain_unique", lambda text: b"")
    monkeypatch.setattr(send, "plain_properties", lambda text: None)
    calling(tmp_path / "drafts", main)
    (answers, views, few), (others_answers, others_views, all_of_them) = found
    assert few < len(texts) * 3 // 4
    assert all_of_them == len(texts) == len(views)
    assert answers == others_answers
    assert views == others_views
