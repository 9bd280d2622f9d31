"""What halves are made of, and what becomes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.broker.halves import committed, copied, half_of, waits_as_half
from firearrow.broker.puts import Draft, Puts, wait_elsewhere
from firearrow.message.hosts import Host, pack_host
from firearrow.testing.loop import START_MS
from tests.broker.fakes import FakeBroker
from tests.broker.serving import Serving, bodies, stored
from tests.broker.transacting import (
    COMMIT,
    HALF,
    OP,
    ROUND_SECONDS,
    in_virtual_time,
    producing,
)
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
            assert (op.body, op.properties, op.sys_flag) == (
                b"0,",
                {"TAGS": "d", "WAIT": "true"},
                0,
            )

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

    def delayed(draft: Draft, now_ms: int) -> None:
        wait_elsewhere(draft, later, 2)

    async def main(served: Serving) -> None:
        broker = served.broker
        redirections = (waits_as_half(broker.settings), delayed)
        puts = Puts(broker.store, broker.topics, broker._clock, Random(1), redirections)
        broker.topics.create("T", 4)
        found = {"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "pg", asking: "3"}
        puts.put(Draft("T", 1, b"x", found, START_MS, pack_host(Host("127.0.0.1", 1))))
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
    draft = Draft(topic, 0, b"", found, START_MS, b"", reconsume_times=times)
    waits_as_half(FakeBroker().settings)(draft, START_MS)
    assert (draft.topic == HALF) is is_half


def test_what_the_broker_notes_is_not_taken_from_a_client(tmp_path: Path) -> None:
    """Who forwards a message with all its properties begins a transaction of its own."""

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            first = await producer.begin(b"first")
            noted: dict[str, Any] = {
                "TRAN_PREPARED_QUEUE_OFFSET": "0",
                "TRANSACTION_CHECK_TIMES": "15",
            }
            second = await producer.begin(b"second", **noted)
            producer.end(second, COMMIT)
            producer.end(first, COMMIT)
            await asyncio.sleep(1)
            assert bodies(served) == [b"second", b"first"]
            assert noted.keys().isdisjoint(stored(served)[0].properties)

    in_virtual_time(tmp_path, main)
