"""What producers and administrators ask of transactions, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.wire.command import FieldValue
from tests.broker.serving import Caller, Serving, bodies, send_fields, stored
from tests.broker.together import Ask, is_the_same_together
from tests.broker.transacting import (
    COMMIT,
    GIVEN_UP,
    HALF,
    PREPARED,
    ROLLBACK,
    ROUND_SECONDS,
    UNKNOWN,
    Fields,
    in_virtual_time,
    of_check,
    producing,
)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"commitLogOffset": 7}, 1),
        ({"commitLogOffset": -1}, 1),
        ({"commitLogOffset": 1 << 62}, 1),
        ({"producerGroup": "other"}, 1),
        ({"tranStateTableOffset": 1}, 1),
        ({"commitOrRollback": 4}, 1),
        ({"commitOrRollback": "x"}, 1),
        ({"commitOrRollback": UNKNOWN}, 0),
    ],
)
@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_what_is_not_for_a_half_decides_nothing(
    tmp_path: Path, changed: dict[str, Any], code: int, outcome: int
) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin()
            end = served.broker.store.log_end_offset
            answer = await producer.ended(half, outcome, **changed)
            assert (answer.code, bool(answer.remark)) == (code, code != 0)
            await asyncio.sleep(5)
            assert served.broker.store.log_end_offset == end
            assert (await producer.ended(half, COMMIT)).code == 0
            assert bodies(served) == [b"body"]

    in_virtual_time(tmp_path, main)


def test_a_message_that_is_no_half_is_not_committed(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            place = await producer.begin(TRAN_MSG="false", f=0)
            answer = await producer.ended(place, COMMIT)
            assert answer.code == 1
            assert bodies(served) == [b"body"]

    in_virtual_time(tmp_path, main)


def test_a_transaction_that_was_given_up_is_checked_again(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"x")
            await asyncio.sleep(17 * ROUND_SECONDS + 1)
            (given_up,) = stored(served, GIVEN_UP)
            fields: Fields = {"topic": GIVEN_UP, "msgId": given_up.offset_message_id}
            assert (await producer.call(323, fields)).code == 0
            producer.checks.clear()
            await asyncio.sleep(ROUND_SECONDS)
            (check,) = producer.checks
            assert check.view.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await producer.ended(half, COMMIT)).code == 0
            assert (await producer.ended(of_check(check), COMMIT)).code == 0
            assert bodies(served) == [b"x"]
            answer = await producer.call(323, fields)
            assert (answer.code, answer.remark) == (1, "the transaction is decided")
            await asyncio.sleep(100)
            assert bodies(served) == [b"x"]

    in_virtual_time(tmp_path, main)


def test_what_is_no_half_is_not_checked(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin(TRAN_MSG="false", f=0)
            (plain,) = stored(served)
            end = served.broker.store.log_end_offset
            for msg_id in (plain.offset_message_id, "", "x", "0" * 32):
                answer = await producer.call(323, {"topic": "T", "msgId": msg_id})
                assert answer.code == 1
                assert answer.remark
            assert served.broker.store.log_end_offset == end

    in_virtual_time(tmp_path, main)


def test_a_producer_can_be_refused(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            fields = send_fields(i="UNIQ_KEY\x01U\x02TRAN_MSG\x01TRUE\x02")
            answer = await producer.call(310, fields)
            assert answer.code == 16
            assert "rejectTransactionMessage" in (answer.remark or "")
            assert stored(served, HALF) == []

    in_virtual_time(tmp_path, main, reject_transaction_message=True)


def test_a_transaction_that_waits_is_checked_from_the_begin_and_once_a_round(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin(b"x")
            await asyncio.sleep(2 * ROUND_SECONDS + 1)
            for half in stored(served, HALF):
                fields: Fields = {"topic": HALF, "msgId": half.offset_message_id}
                assert (await producer.call(323, fields)).code == 0
            producer.checks.clear()
            await asyncio.sleep(3 * ROUND_SECONDS)
            times = [it.view.properties["TRANSACTION_CHECK_TIMES"] for it in producer.checks]
            assert times == ["1", "2", "3"]
            producer.end(of_check(producer.checks[-1]), COMMIT)
            await asyncio.sleep(3 * ROUND_SECONDS)
            assert bodies(served) == [b"x"]
            assert len(producer.checks) == 3

    in_virtual_time(tmp_path, main)


ODD_ENDS: list[dict[str, FieldValue]] = [
    {"commitOrRollback": ROLLBACK}, {"commitOrRollback": UNKNOWN}, {"commitOrRollback": 4},
    {"producerGroup": "other"}, {"tranStateTableOffset": 0}, {"commitLogOffset": 7},
    {"commitOrRollback": "x"}, {"fromTransactionCheck": True}, {},
]  # fmt: skip
ODD_PAIRS = [
    "CHECK_IMMUNITY_TIME_IN_SECONDS\x01100", "DELAY\x013", "a_b\x01c", "x", "KEYS\x01DELAY",
    "TIMER_DELAY_SEC\x0160", "PGROUP\x01other", "TRANSACTION_CHECK_TIMES\x013",
]  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "file_bytes", "at_once", "least"),
    [(0.0, 1 << 20, 200, 200), (0.0, 1 << 15, 200, 0), (0.1, 1 << 20, 20, 40), (0.5, 1 << 20, 5, 9)],
)
def test_halves_ended_together_become_what_each_would_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: float, file_bytes: int, at_once: int, least: int
) -> None:
    """Whatever is asked between: of others, again, in vain; some halves were put again before."""

    async def prepare(served: Serving, caller: Caller) -> list[Ask]:
        chance = Random(str(odd))
        checked: list[Fields] = []
        if odd:
            async with producing(served) as producer:
                checked = [await producer.begin(b"%d" % number) for number in range(6)]
                await asyncio.sleep(ROUND_SECONDS + 1)
                checked += map(of_check, producer.checks)
                assert len(checked) == 12
        halves: list[Fields] = []
        for number in range(200):
            pairs = ["TRAN_MSG\x01true", "PGROUP\x01pg", f"UNIQ_KEY\x01U{number}"]
            pairs += chance.sample(ODD_PAIRS, 1) * (chance.random() < odd)
            changed: dict[str, FieldValue] = {"i": "\x02".join(pairs), "f": PREPARED, "h": number}
            queue_id = chance.randrange(4)
            sent = await caller.sent(b"%d" % number, queue_id=queue_id, **changed)
            places = int(sent["msgId"][-16:], 16), int(sent["queueOffset"])
            halves.append({"commitLogOffset": places[0], "tranStateTableOffset": places[1]})
        asked = list[Ask]()
        for half in halves:
            fields = {"producerGroup": "pg", "commitOrRollback": COMMIT, **half}
            asked.append((37, fields))
            if chance.random() < odd:
                asked.append((37, fields | chance.choice(ODD_ENDS)))
            if checked and chance.random() < odd:
                asked.append((37, fields | chance.choice(checked)))
        return asked

    def decided(served: Serving) -> Any:
        return served.broker.transactions.service._decided._chunks, served.broker.open_counts._content()

    sizes = {"mapped_file_size_commit_log": file_bytes}
    together = is_the_same_together(tmp_path, monkeypatch, prepare, decided, at_once, store=sizes)
    assert least <= together
