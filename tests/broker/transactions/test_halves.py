"""What halves are made of, and what becomes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.sending.plain import plain_properties
from firearrow.broker.sending.puts import Puts, UnstoredMessage, wait_elsewhere
from firearrow.broker.transactions.halves import (
    PlainHalf,
    as_half,
    committed,
    copied,
    half_of,
    plain_half,
    put_committed,
    stored_as_half,
    waits_as_half,
)
from firearrow.message import properties
from firearrow.message.hosts import Host, pack_host
from firearrow.message.record import decode_content, decode_record, encode_record
from firearrow.store import NewMessage
from firearrow.testing.loop import START_MS
from tests.broker.fakes import FakeBroker
from tests.broker.serving import Serving, bodies, stored
from tests.broker.transacting import COMMIT, HALF, OP, ROUND_SECONDS, in_virtual_time, producing
from tests.message.strategies import hosts, i32, i64, property_maps, texts
from tests.message.writing import encode_view


def test_a_half_waits_until_it_is_committed(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"x", queue_id=2, KEYS="k", f=4 | 2, h=9)
            (view,) = stored(served, HALF)
            assert (view.topic, view.queue_id, view.sys_flag, view.flag) == (HALF, 0, 2, 9)
            assert half["commitLogOffset"] == view.physical_offset
            assert view.properties == {
                "UNIQ_KEY": half["msgId"], "TRAN_MSG": "true", "PGROUP": "pg", "KEYS": "k",
                "__transactionId__": half["msgId"], "REAL_TOPIC": "T", "REAL_QID": "2",
                "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C",
            }  # fmt: skip
            assert stored(served, queue_id=2) == []
            await asyncio.sleep(1)
            assert (await producer.ended(half, COMMIT)).code == 0
            (message,) = stored(served, queue_id=2)
            assert (message.body, message.sys_flag, message.flag) == (b"x", 2 | COMMIT, 9)
            assert message.prepared_transaction_offset == view.physical_offset
            assert message.born_timestamp_ms == view.born_timestamp_ms
            assert message.born_host == view.born_host
            assert abs(message.store_timestamp_ms - START_MS - 1000) <= 1
            left = {"REAL_TOPIC", "REAL_QID"}
            kept = {name: it for name, it in view.properties.items() if name not in left}
            assert message.properties == kept
            assert stored(served, OP) == []
            await asyncio.sleep(3.1)
            (op,) = stored(served, OP)
            assert (op.body, op.properties, op.sys_flag) == (b"0,", {"TAGS": "d", "WAIT": "true"}, 0)

    in_virtual_time(tmp_path, main)


def test_a_half_is_in_no_lmq(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            lmq = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"}
            half = await producer.begin(b"x", **lmq)  # type: ignore[arg-type]
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert bodies(served, "%LMQ%a") == []
            assert (await producer.ended(half, COMMIT)).code == 0
            assert bodies(served, "%LMQ%a") == bodies(served) == [b"x"]

    lmqs = {"enable_lmq": True, "enable_multi_dispatch": True}
    in_virtual_time(tmp_path, main, store=lmqs)


@pytest.mark.parametrize("asking", ["DELAY", "TIMER_DELAY_SEC"])
def test_a_half_is_not_delayed_before_it_is_committed(tmp_path: Path, asking: str) -> None:
    later = "SCHEDULE_TOPIC_XXXX"

    def delayed(draft: UnstoredMessage, now_ms: int) -> None:
        wait_elsewhere(draft, later, 2)

    async def main(served: Serving) -> None:
        broker = served.broker
        redirections = (waits_as_half(broker.settings), delayed)
        puts = Puts(broker.store, broker.topics, broker._clock, Random(1), redirections)
        broker.topics.create("T", 4)
        found = {"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "pg", asking: "3"}
        puts.put(UnstoredMessage("T", 1, b"x", found, START_MS, pack_host(Host("127.0.0.1", 1))))
        assert bodies(served, later) == []
        half = half_of(encode_view(stored(served, HALF)[0]))
        assert half is not None
        puts.put(copied(half, 1))
        assert bodies(served, later) == []
        puts.put(committed(half))
        (view,) = stored(served, later, 2)
        assert view.properties["REAL_TOPIC"] == "T"
        assert view.properties["REAL_QID"] == "1"
        assert "TRAN_MSG" not in view.properties
        assert view.prepared_transaction_offset == half.view.physical_offset

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    ("topic", "found", "times", "is_half"),
    [
        ("T", {}, 0, True),
        ("T", {}, 2, True),
        ("%RETRY%g", {"DELAY": "3"}, 2, False),
        ("%DLQ%g", {}, 2, False),
        ("%RETRY%g", {}, 0, True),
        ("T", {"TRAN_MSG": "no"}, 0, False),
    ],
)
def test_a_failed_message_that_comes_again_is_no_half(
    topic: str, found: dict[str, str], times: int, is_half: bool
) -> None:
    """Clients before 4.6.1 leave the property in."""
    found = {"TRAN_MSG": "True", **found}
    draft = UnstoredMessage(topic, 0, b"", found, START_MS, b"", reconsume_times=times)
    waits_as_half(FakeBroker().settings)(draft, START_MS)
    assert (draft.topic == HALF) is is_half


def test_what_the_broker_notes_is_not_taken_from_a_client(tmp_path: Path) -> None:
    """Who forwards a message with all its properties begins a transaction of its own."""

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            first = await producer.begin(b"first")
            noted: dict[str, Any] = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "15"}
            second = await producer.begin(b"second", **noted)
            producer.end(second, COMMIT)
            producer.end(first, COMMIT)
            await asyncio.sleep(1)
            assert bodies(served) == [b"second", b"first"]
            assert noted.keys().isdisjoint(stored(served)[0].properties)

    in_virtual_time(tmp_path, main)


# --- what is spared ---


@pytest.mark.parametrize("trailing", ["", "\x02"])
@pytest.mark.parametrize(
    "sent",
    [
        "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01U\x02WAIT\x01true",
        "UNIQ_KEY\x01U\x02PGROUP\x01pg\x02TRAN_MSG\x01true",
        "PGROUP\x01pg\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01U",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U",
        "XTRAN_MSG\x01true\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01U",
        "TRAN_MSG\x01true\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01U",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02CLUSTER\x01other\x02TAGS\x01A\x02TAGS\x01B",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02TRACE_ON\x01false\x02__RMQ.TRANSIENT.x\x01y",
        "TRAN_MSG\x01TRUE\x02UNIQ_KEY\x01U\x02a_b\x01c",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02KEYS\x01DELAY",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02DELAY\x013",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02KEYS\x01k\x02DELAY\x01",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02TRANSACTION_CHECK_TIMES\x013",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02TRAN_PREPARED_QUEUE_OFFSET\x013",
    ],
)
def test_a_half_has_the_properties_that_it_was_sent_with(tmp_path: Path, sent: str, trailing: str) -> None:
    dropped = ("__RMQ.TRANSIENT.x", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET")
    own = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}
    noted = {"__transactionId__": "U", "REAL_TOPIC": "T", "REAL_QID": "1"}

    async def main(served: Serving) -> None:
        async with served.caller() as caller:
            answer = await caller.sent(b"x", i=sent + trailing, queue_id=1, f=4)
            assert answer["transactionId"] == "U"
            (view,) = stored(served, HALF)
            assert (view.sys_flag, view.body) == (0, b"x")
            found = properties.parse(sent)
            expected = {name: it for name, it in found.items() if name not in dropped}
            assert view.properties == {**expected, **own, **noted}
            raw = served.broker.store.content_at(view.physical_offset).properties
            assert raw.endswith(b"REAL_TOPIC\x01T\x02REAL_QID\x011\x02")

    in_virtual_time(tmp_path, main)


SENT = st.lists(
    st.sampled_from([
        "TRAN_MSG\x01true", "UNIQ_KEY\x01U1", "UNIQ_KEY\x01U_2", "PGROUP\x01p_g", "KEYS\x01a b",
        "DELAY\x013", "DELAY\x01", "DELAYED\x013", "CLUSTER\x01x", "TAGS\x01", "\x01v", "TAGS",
        "a_b\x01c", "TRACE_ON\x01false", "__CRC32#\x01n", "__BORNHOST\x01a_b", "é\x01ü", "", "TRAN_MSG\x01TRUE",
    ]), max_size=6,
).map("\x02".join)  # fmt: skip


@given(st.permutations(["TRAN_MSG\x01true", "UNIQ_KEY\x01U1"]), SENT, st.booleans())
def test_what_is_stored_as_it_was_sent_reads_as_if_it_had_been_read(
    marks: list[str], others: str, closed: bool
) -> None:
    text = "\x02".join([*marks, others]) + ("\x02" if closed else "")
    plain = plain_properties(text.encode())
    if plain is None:
        return
    unique = plain.unique
    assert plain.is_half
    found = properties.parse(text)
    assert found["TRAN_MSG"] == "true"
    assert unique.decode() == found["UNIQ_KEY"]
    assert "DELAY" not in found
    assert not any("_" in name for name in found.keys() - {"TRAN_MSG", "UNIQ_KEY", "__BORNHOST"})
    added = text.encode() + (b"" if text.endswith("\x02") else b"\x02") + b"CLUSTER\x01C\x02"
    draft = UnstoredMessage("T", 3, b"", {**found, "CLUSTER": "C"}, START_MS, b"")
    waits_as_half(FakeBroker().settings)(draft, START_MS)
    assert properties.parse(stored_as_half(added, unique, "T", 3)) == draft.properties


NAMES = [
    "TAGS", "WAIT", "PGROUP", "UNIQ_KEY", "TRAN_MSG", "DELAY", "TIMER_DELIVER_MS", "REAL_QID",
    "INNER_MULTI_DISPATCH", "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "TRANSACTION_CHECK_TIMES", "__CRC32#", "x" * 20_000,
]  # fmt: skip
known = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "true", "-1", "né"]))
sent = st.builds(lambda one, other: one | other, property_maps, known)
real_topics = st.sampled_from(["T", "é", "", "%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC"])
real_queue_ids = st.sampled_from(["0", "7", "+3", "-1", "x", "", "9" * 19])


def halves_are_alike(text: bytes, reads_alike: bool, **fields: Any) -> PlainHalf | None:
    """Compare what becomes of a half when its properties are left as they are, and when they are
    read and written."""
    numbers = {"queue_id": 0, "queue_offset": 5, "physical_offset": 7, "flag": 0, "sys_flag": 0}
    times = {"born_timestamp_ms": 1, "store_timestamp_ms": 2}
    host = pack_host(Host("127.0.0.1", 1))
    about = {"topic": HALF, "body": b"b", "born_host": host, "store_host": host}
    record = encode_record(properties=text, **(numbers | times | about | fields))
    plain = plain_half(decode_content(record))
    if plain is None:
        return None
    half = as_half(decode_record(record))
    assert half is not None
    assert (plain.queue_offset, plain.root) == (half.queue_offset, half.root)
    assert (plain.producer_group, plain.immunity) == (half.producer_group, half.immunity)
    assert (plain.real_topic, plain.born_timestamp_ms) == (half.real_topic, half.born_timestamp_ms)
    expected, puts = committed(half), PutAgain()
    put_committed(cast(Puts, puts), plain, 9)
    (draft,) = puts.drafts
    if reads_alike:
        assert properties.parse(draft.stored) == expected.properties
    else:
        assert draft.stored == properties.encode(expected.properties)
    draft.stored, draft.properties = b"", expected.properties
    assert draft == expected
    return plain


class PutAgain:
    """Keeps as drafts what is put again with its properties formatted."""

    def __init__(self) -> None:
        self.drafts: list[UnstoredMessage] = []

    def queue(self, topic: str, queue_id: int) -> tuple[str, int]:
        return topic, queue_id

    def put_again(self, message: NewMessage, now_ms: int) -> None:
        queue, body, stored, flag, sys_flag, born_ms, born_host, times, prepared = message
        topic, queue_id = cast(tuple[str, int], queue)
        about = flag, sys_flag, times, prepared, stored
        draft = UnstoredMessage(topic, queue_id, body, {}, born_ms, born_host, *about)
        self.drafts.append(draft)


@given(sent, real_topics, real_queue_ids, st.binary(max_size=50), i32, i32, i64, hosts, hosts, i32, i64)
def test_a_plain_half_becomes_what_it_would_become_if_all_of_it_were_read(
    found: dict[str, str],
    topic: str,
    queue_id: str,
    body: bytes,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: Host,
    store_host: Host,
    reconsume_times: int,
    queue_offset: int,
) -> None:
    noted = {**found, "REAL_TOPIC": topic, "REAL_QID": queue_id}
    halves_are_alike(
        properties.encode(noted),
        reads_alike=False,
        body=body,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_host=pack_host(born_host),
        store_host=pack_host(store_host),
        reconsume_times=reconsume_times,
        queue_offset=queue_offset,
    )


ODD_PAIRS = [
    "", "a", "\x01", "a\x01", "\x01b", "a\x01b", "a\x01c", "a\x01b\x01c", "REAL_TOPIC\x01T",
    "REAL_QID\x011", "xREAL_TOPIC\x01T", "PGROUP\x01one", "PGROUP\x01two", "\udcff",
]  # fmt: skip


@given(st.lists(st.sampled_from(ODD_PAIRS), max_size=6), st.booleans(), st.booleans())
def test_odd_properties_of_a_half_read_alike(pairs: list[str], ends: bool, is_half: bool) -> None:
    """As other programs than a broker may write them."""
    more = ["REAL_TOPIC\x01T", "REAL_QID\x011"] if is_half else []
    text = "\x02".join(pairs + more) + "\x02" * ends
    halves_are_alike(text.encode("utf-8", "surrogateescape"), reads_alike=True)


@given(st.dictionaries(texts.filter(lambda name: name.isalpha()), texts, max_size=3))
def test_usual_halves_are_plain_and_other_messages_are_not(found: dict[str, str]) -> None:
    usual = found | {"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "pg", "WAIT": "true"}
    place = {"__transactionId__": "U", "REAL_TOPIC": "T", "REAL_QID": "3"}
    text = properties.encode(usual | place)
    plain = halves_are_alike(text, reads_alike=False)
    assert plain is not None
    assert (plain.producer_group, plain.real_topic, plain.real_queue_id) == ("pg", "T", 3)
    assert halves_are_alike(text, reads_alike=False, topic="T") is None
    assert halves_are_alike(text[:-1], reads_alike=False) is None
    assert halves_are_alike(properties.encode(usual), reads_alike=False) is None
