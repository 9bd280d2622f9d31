"""Properties by which a message would reach more than its own topic: each is told in the
documentation, and a broker does what that says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.batch import encode_batch
from firearrow.message.names import lite_queue
from firearrow.message.recall import RecallHandle
from firearrow.wire.command import FieldValue
from tests.attacks.test_registering import heard, producing, protected, user
from tests.broker.sending.test_replies import REPLIES
from tests.broker.serving import Caller, Serving, bodies, calling, in_virtual_time, send_fields
from tests.broker.signing import Signer, signing
from tests.broker.signing import protected as protected_by_clock
from tests.pages import DOCS

REFUSED, ILLEGAL = 16, 13
LMQ: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}

MESSAGE_CONST = (
    "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "ORIGIN_GROUP", "REAL_TOPIC", "REAL_QID",
    "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID",
    "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON",
    "UNIQ_KEY", "TRANS_OFFSET", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
    "_SYS_MSG_PRIORITY_", "INNER_NUM", "INNER_BASE", "DUP_INFO", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__", "TRANSACTION_CHECK_TIMES", "INSTANCE_ID",
    "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER",
    "MSG_TYPE", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "__SHARDINGKEY", "__LITE_TOPIC",
    "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "TRACE_CONTEXT", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "__BORNHOST", "BORN_TIMESTAMP",
    "__RMQ.TRANSIENT.", "E_T", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
    "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_LABEL", "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_MS", "__CRC32#", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID",
)  # fmt: skip
"""The names of properties in ``MessageConst`` of RocketMQ 5.5.0."""


def text_of(**found: object) -> str:
    """Properties as they are sent."""
    return "".join(f"{name}\x01{value}\x02" for name, value in found.items())


def documented() -> Iterator[tuple[str, str]]:
    """The properties in the table, with the word that says what becomes of each."""
    text = (DOCS / "access.md").read_text(encoding="utf-8")
    table = text.partition("## Properties of messages")[2].partition("Nobody looks")[0]
    for word, found in re.findall(r"^\| ([a-z ]+) \| (`[^|]*) \|", table, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", found):
            yield name, word


def test_the_documentation_tells_of_each_property() -> None:
    found = list(documented())
    assert sorted(name for name, _ in found) == sorted(MESSAGE_CONST)
    assert {word for _, word in found} == {
        "obeyed", "checked", "left out", "replaced", "refused", "stored",
    }  # fmt: skip


VALUES = {
    "DELAY": "1", "TRAN_MSG": "true", "_SYS_MSG_PRIORITY_": "1", "INNER_NUM": "2",
    "INNER_MULTI_DISPATCH": "%LMQ%foreign", "REPLY_TO_CLIENT": "asker",
    "TIMER_DELAY_SEC": "10", "TIMER_DELAY_MS": "10000", "TIMER_DELIVER_MS": "1",
    "TIMER_OUT_MS": "1", "TIMER_DEL_UNIQKEY": "U",
}  # fmt: skip
"""What is sent, where "x" is none."""


def test_each_property_is_treated_as_the_documentation_says(tmp_path: Path) -> None:
    """Of a user that may send to one topic alone: nothing else gets a message."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:T", ["Pub"]))
            await producing(root, "asker")
            for name, word in documented():
                value, before = VALUES.get(name, "x"), served.broker.store.log_end_offset
                sent = text_of(**({"UNIQ_KEY": "U1"} | {name: value}))
                answer = await signer.send(topic="T", i=sent)
                if word in ("checked", "refused"):
                    code = REFUSED if word == "checked" else ILLEGAL
                    assert answer.code == code, (name, answer.remark)
                    assert served.broker.store.log_end_offset == before, name
                    continue
                assert answer.code == 0, (name, answer.remark)
                if word == "obeyed":
                    continue
                stored = (await signer.stored())[int(answer.ext["queueOffset"])].properties
                if word == "stored":
                    assert stored[name] == value
                elif word == "left out":
                    assert name not in stored
                else:
                    assert stored[name] != value
        assert not [topic for topic in served.broker.topics.table if topic.startswith("%LMQ%")]
        assert bodies(served, "x") == []

    protected_by_clock(tmp_path, main, store=LMQ)


# --- recalls ---


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("appends_topic", [False, True])
def test_a_property_recalls_nothing_of_another_topic(tmp_path: Path, allowed: bool, appends_topic: bool) -> None:
    async def main(served: Serving, root: Signer, stack: Any) -> None:
        attacker = await user(served, root, stack, "attacker", "T")
        at_ms = served.broker._clock.now_ms() + 20_000
        for topic, unique in (("Secret", "U1"), ("T", "U2"), ("T", "U3")):
            sent = text_of(UNIQ_KEY=unique, TIMER_DELIVER_MS=at_ms)
            await root.sent(unique.encode(), topic, i=sent)
        for key in ("U1", "Secret+U1", "U2" if not appends_topic else "T+U2"):
            sent = text_of(UNIQ_KEY="R", TIMER_DELIVER_MS=at_ms, TIMER_DEL_UNIQKEY=key)
            answer = await attacker.send(b"", "T", i=sent)
            assert answer.code == (0 if allowed else REFUSED)
        handle = RecallHandle("T", "broker-a", at_ms, "U1").encode()
        fields: dict[str, FieldValue] = {
            "producerGroup": "p", "topic": "T", "recallHandle": handle, "bname": "broker-a",
        }  # fmt: skip
        answer = await attacker.call(370, fields)
        assert answer.code == (0 if allowed else REFUSED)
        await asyncio.sleep(30)
        assert bodies(served, "Secret") == [b"U1"]
        assert bodies(served) == ([b"U3"] if allowed else [b"U2", b"U3"])

    keys = {"append_topic_for_timer_delete_key": appends_topic}
    protected(tmp_path, main, recall_message_enable=allowed, store=keys)


def test_without_access_control_a_property_recalls_as_in_rocketmq(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        at_ms = served.broker._clock.now_ms() + 20_000
        await caller.sent(i=text_of(UNIQ_KEY="U1", TIMER_DELIVER_MS=at_ms))
        sent = text_of(UNIQ_KEY="R", TIMER_DELIVER_MS=at_ms, TIMER_DEL_UNIQKEY="U1")
        await caller.sent(topic="other", i=sent)
        await asyncio.sleep(30)
        assert bodies(served) == []

    in_virtual_time(tmp_path, main)


def test_a_message_does_not_count_as_rolled_because_another_has_its_id(tmp_path: Path) -> None:
    """Nor because its sender says so."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(i=text_of(UNIQ_KEY="U1", TIMER_DELAY_SEC=10, TIMER_ROLL_TIMES=1))
        [waiting] = await caller.stored("rmq_sys_wheel_timer")
        assert "TIMER_ROLL_TIMES" not in waiting.properties
        assert waiting.properties["REAL_TOPIC"] == "T"

    in_virtual_time(tmp_path, main)


# --- LMQs ---


def test_who_may_send_to_a_topic_may_not_put_into_any_lmq(tmp_path: Path) -> None:
    lite = lite_queue("Secret", "l")

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:

            async def refused(*lmqs: str) -> str:
                sent = text_of(UNIQ_KEY="U1", INNER_MULTI_DISPATCH=",".join(lmqs))
                answers = [
                    await signer.call(code, fields, b"x")
                    for code, fields in (
                        (310, send_fields(i=sent)),
                        (325, send_fields(REPLIES, i=sent)),
                        (320, send_fields(i=sent, m=True)),
                    )
                ]
                assert {answer.code for answer in answers} == {REFUSED}
                [remark] = {answer.remark or "" for answer in answers}
                return remark

            rights: list[tuple[str, list[str]]] = [("Topic:T", ["Pub"]), (f"Topic:{REPLIES}", ["Pub"])]
            await root.allow("u", *rights)
            assert "access Topic:%LMQ%a " in await refused("%LMQ%a")
            assert "access Topic:Secret " in await refused(lite)
            await root.allow("u", ("Topic:%LMQ%a", ["Pub"]), ("Topic:%LMQ%*", ["Pub"]), *rights)
            assert "access Topic:Secret " in await refused("%LMQ%a", lite)
            await root.allow("u", ("Topic:Secret", ["Pub"]))
            for lmqs in ("%LMQ%a", f"%LMQ%a,{lite}"):
                sent = text_of(UNIQ_KEY="U1", INNER_MULTI_DISPATCH=lmqs)
                assert (await signer.send(lmqs.encode(), i=sent)).code == 0
        assert bodies(served, "%LMQ%a") == [b"%LMQ%a", f"%LMQ%a,{lite}".encode()]
        assert len(bodies(served, lite)) == 1

    protected_by_clock(tmp_path, main, store=LMQ)


def test_a_batch_puts_nothing_into_lmqs(tmp_path: Path) -> None:
    """Whatever queue offset there its messages claim to have."""

    async def main(served: Serving, caller: Caller) -> None:
        text = text_of(INNER_MULTI_DISPATCH="%LMQ%a", INNER_MULTI_QUEUE_OFFSET=0)
        batch = encode_batch([(0, b"one", b""), (0, b"two", text.encode())])
        answer = await caller.call(320, send_fields(m=True, i=""), batch)
        assert answer.code == ILLEGAL
        assert "INNER_MULTI_QUEUE_OFFSET" in (answer.remark or "")
        in_body = encode_batch([(0, text.encode(), b"")])
        assert (await caller.call(320, send_fields(m=True, i=""), in_body)).code == 0
        assert bodies(served, "%LMQ%a") == []

    calling(tmp_path, main, store=LMQ)


# --- replies, retries, pops ---


def test_nobody_asks_in_the_name_of_another_users_client(tmp_path: Path) -> None:
    """Who answers would be sent a reply to by a client that has asked for nothing."""

    async def main(served: Serving, root: Signer, stack: Any) -> None:
        asker = await user(served, root, stack, "asker", "T")
        other = await user(served, root, stack, "other", "T")
        await producing(asker, "asker")
        sent = text_of(UNIQ_KEY="U1", REPLY_TO_CLIENT="asker", CORRELATION_ID="7")
        assert (await asker.send(i=sent)).code == 0
        answer = await other.send(i=sent)
        assert (answer.code, answer.remark) == (
            REFUSED, "client asker (property REPLY_TO_CLIENT) is of another user",
        )  # fmt: skip
        unknown = text_of(UNIQ_KEY="U1", REPLY_TO_CLIENT="nobody")
        assert (await other.send(i=unknown)).code == 0
        assert await heard(asker) == []

    protected(tmp_path, main)


@pytest.mark.parametrize("name", ["POP_CK", "REPLY_TO_CLIENT", "RETRY_TOPIC"])
def test_messages_of_a_batch_have_no_properties_that_act_later(tmp_path: Path, name: str) -> None:
    batch = encode_batch([(0, b"one", b""), (0, b"two", text_of(**{name: "x"}).encode())])

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:T", ["Pub"]))
            answer = await signer.call(320, send_fields(m=True, i=""), batch)
            assert answer.code == ILLEGAL
            assert f"the property {name} is not for a batch" in (answer.remark or "")
        assert bodies(served) == []

    async def without(served: Serving, caller: Caller) -> None:
        assert (await caller.call(320, send_fields(m=True, i=""), batch)).code == 0
        assert bodies(served) == [b"one", b"two"]

    protected_by_clock(tmp_path / "with", main)
    calling(tmp_path / "without", without)


def test_without_access_control_properties_are_those_of_rocketmq(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await producing_plainly(caller)
        sent = text_of(UNIQ_KEY="U1", REPLY_TO_CLIENT="asker", RETRY_TOPIC="S")
        await caller.sent(i=sent + text_of(INNER_MULTI_DISPATCH="%LMQ%a"))
        [view] = await caller.stored()
        assert (view.properties["RETRY_TOPIC"], view.properties["REPLY_TO_CLIENT"]) == (
            "S", "asker",
        )  # fmt: skip
        assert len(bodies(served, "%LMQ%a")) == 1

    calling(tmp_path, main, store=LMQ)


async def producing_plainly(caller: Caller) -> None:
    """Announce a producer of nobody."""
    beat = b'{"clientID":"asker","producerDataSet":[{"groupName":"pg"}]}'
    assert (await caller.call(34, {}, beat)).code == 0
