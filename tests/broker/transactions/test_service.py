"""Transactions from end to end in virtual time: every half is decided once, whoever asks when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.transactions import service as transactions
from firearrow.broker.transactions.halves import Half, check_request
from firearrow.errors import MessageError
from firearrow.message.properties import PROPERTIES_BYTES_MAX, encode
from firearrow.testing import loop
from firearrow.testing.loop import START_MS, VirtualClock
from firearrow.wire.command import Command
from tests.broker.serving import Serving, bodies, left_by_kill, serving, stored
from tests.broker.transacting import (
    COMMIT,
    GIVEN_UP,
    HALF,
    OP,
    PATIENT,
    ROLLBACK,
    ROUND_SECONDS,
    UNKNOWN,
    Fields,
    in_virtual_time,
    of_check,
    offsets,
    producing,
)
from tests.golden import extract
from tests.loglines import events
from tests.store.stores import GOLDEN_SIZES, append

# --- halves and decisions ---


def test_a_half_that_is_rolled_back_is_never_seen(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin()
            producer.end(half, ROLLBACK)
            await asyncio.sleep(100)
            assert producer.checks == []
            assert stored(served) == []
            assert bodies(served, OP) == [b"0,"]
            assert offsets(served) == (1, 1)
            assert (await producer.ended(half, COMMIT)).code == 0  # the first one counts
            assert stored(served) == []

    in_virtual_time(tmp_path, main)


def test_decisions_of_a_while_are_one_record(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            halves = [await producer.begin(b"%d" % number) for number in range(40)]
            for half in halves:
                producer.end(half, COMMIT)
            await asyncio.sleep(0.1)
            named = b"".join(b"%d," % number for number in range(40))
            assert bodies(served, OP) == [named[:65]]
            await asyncio.sleep(3.1)
            assert bodies(served, OP) == [named[:65], named[65:]]
            assert bodies(served) == [b"%d" % number for number in range(40)]

    in_virtual_time(tmp_path, main, transaction_op_msg_max_size=64)


# --- checks ---


def test_a_producer_is_asked_what_became_of_its_transaction(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"x", queue_id=3, h=5)
            answers = iter((UNKNOWN, None, COMMIT))
            producer.answer = lambda _: next(answers)
            await asyncio.sleep(200)
            assert [round(check.at_seconds) for check in producer.checks] == [30, 60, 90]
            for times, check in enumerate(producer.checks, 1):
                copy = stored(served, HALF)[times]
                assert check.fields == {
                    "topic": HALF, "bname": "broker-a", "msgId": half["msgId"],
                    "transactionId": half["msgId"], "offsetMsgId": copy.offset_message_id,
                    "commitLogOffset": str(copy.physical_offset),
                    "tranStateTableOffset": str(times),
                }  # fmt: skip
                view = check.view
                assert (view.topic, view.queue_id, view.body, view.flag) == ("T", 3, b"x", 5)
                assert view.physical_offset == copy.physical_offset
                assert view.properties["TRANSACTION_CHECK_TIMES"] == str(times)
                assert "TRAN_PREPARED_QUEUE_OFFSET" not in view.properties
            (message,) = stored(served, queue_id=3)
            assert message.flag == 5
            assert message.prepared_transaction_offset == copy.physical_offset
            assert message.properties["TRANSACTION_CHECK_TIMES"] == "3"
            assert "TRAN_PREPARED_QUEUE_OFFSET" not in message.properties
            assert offsets(served) == (4, 1)

    in_virtual_time(tmp_path, main)


def test_a_half_that_is_young_is_not_asked_about(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            await asyncio.sleep(26)
            await producer.begin()
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(100)
            assert [round(check.at_seconds) for check in producer.checks] == [60]
            assert bodies(served) == [b"body"]

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_half_that_nobody_decides_is_given_up(tmp_path: Path, is_there: bool) -> None:
    async def main(served: Serving) -> None:
        async with producing(served, "pg" if is_there else "other") as producer:
            half = await producer.begin(b"x", PGROUP="pg")
            if not is_there:
                producer._group = "pg"
            await asyncio.sleep(15 * ROUND_SECONDS + 1)
            assert len(producer.checks) == 15 * is_there
            assert stored(served, GIVEN_UP) == []
            await asyncio.sleep(ROUND_SECONDS)
            assert len(producer.checks) == 15 * is_there
            (given_up,) = stored(served, GIVEN_UP)
            assert given_up.properties == stored(served, HALF)[-1].properties
            assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
            assert offsets(served) == (16, 0)
            assert stored(served) == []
            producer.end(half, COMMIT)  # late, but said
            await asyncio.sleep(1)
            assert bodies(served) == [b"x"]

    in_virtual_time(tmp_path, main)


def test_one_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served, "silent") as silent, producing(served, "lively") as lively:
            lively.answer = lambda _: COMMIT
            for number in range(20):
                await silent.begin(b"silent")
                await lively.begin(b"%d" % number)
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert bodies(served) == [b"%d" % number for number in range(20)]
            assert len(silent.checks) == len(lively.checks) == 20
            await asyncio.sleep(ROUND_SECONDS)
            assert len(silent.checks) == 40
            assert len(lively.checks) == 20

    in_virtual_time(tmp_path, main)


def test_the_members_of_a_group_are_asked_in_turn(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as one, producing(served) as other:
            for _ in range(6):
                await one.begin()
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert len(one.checks) == len(other.checks) == 3

    in_virtual_time(tmp_path, main)


# --- once ---


@pytest.mark.parametrize("late", [COMMIT, ROLLBACK])
def test_a_half_that_was_put_again_is_committed_once(tmp_path: Path, late: int) -> None:
    """Java commits the first half, then the copies that its producer is asked about."""

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"x")
            await asyncio.sleep(2 * ROUND_SECONDS + 1)
            assert len(producer.checks) == 2
            for check in (half, *map(of_check, producer.checks)):
                assert (await producer.ended(check, late, fromTransactionCheck=True)).code == 0
                assert (await producer.ended(half, COMMIT)).code == 0
            await asyncio.sleep(5)
            expected = [b"x"] if late == COMMIT else []
            assert bodies(served) == expected
            assert bodies(served, OP) == [b"0,+2,"]  # for whoever opens the store next
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(5 * ROUND_SECONDS)
            assert len(producer.checks) == 2
            assert bodies(served) == expected
            assert offsets(served) == (3, 1)

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("after_seconds", [0.01, 4, ROUND_SECONDS + 10])
def test_a_kill_after_a_commit_makes_it_be_done_once(tmp_path: Path, after_seconds: float) -> None:
    """Whether its record in the op queue was written or not."""
    halves: list[Fields] = []

    async def before(served: Serving) -> None:
        async with producing(served) as producer:
            open_half = await producer.begin(b"open")
            halves.append(open_half)
            halves.append(await producer.begin(b"once"))
            await asyncio.sleep(1)
            producer.end(halves[1], COMMIT)
            await asyncio.sleep(after_seconds)
            left_by_kill(tmp_path / "a", tmp_path / "b")

    async def after(served: Serving) -> None:
        async with producing(served) as producer:
            producer.answer = lambda _: COMMIT
            assert (await producer.ended(halves[1], COMMIT)).code == 0
            await asyncio.sleep(2 * ROUND_SECONDS)
            assert sorted(bodies(served)) == [b"once", b"open"]
            assert (await producer.ended(halves[0], COMMIT)).code == 0
            assert (await producer.ended(halves[1], COMMIT)).code == 0
            assert sorted(bodies(served)) == [b"once", b"open"]

    in_virtual_time(tmp_path / "a", before)
    in_virtual_time(tmp_path / "b", after)


def test_a_clean_stop_writes_what_is_decided(tmp_path: Path) -> None:
    async def before(served: Serving) -> None:
        async with producing(served) as producer:
            for outcome in (COMMIT, ROLLBACK, UNKNOWN):
                producer.end(await producer.begin(b"%d" % outcome), outcome)
            await producer.call(34, {}, producer.heartbeat())

    async def after(served: Serving) -> None:
        assert bodies(served, OP) == [b"0,1,"]
        async with producing(served) as producer:
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(3 * ROUND_SECONDS)
            assert [check.view.body for check in producer.checks] == [b"0"]
            assert bodies(served) == [b"8", b"0"]
            assert offsets(served) == (4, 2)

    in_virtual_time(tmp_path, before, after)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_copy_of_a_committed_message_is_no_commit_of_the_first_half(tmp_path: Path, *, is_committed: bool) -> None:
    """Such a copy names no half, which looks like the one at the begin of the log."""
    halves: list[Fields] = []

    async def before(served: Serving) -> None:
        async with producing(served) as producer:
            halves.append(await producer.begin(b"first"))
            assert halves[0]["commitLogOffset"] == 0
            await producer.ended(await producer.begin(b"delayed", DELAY=1), COMMIT)
            await asyncio.sleep(2)
            assert bodies(served) == [b"delayed"]
            if is_committed:
                await producer.ended(halves[0], COMMIT)
            left_by_kill(tmp_path / "a", tmp_path / "b")

    async def after(served: Serving) -> None:
        async with producing(served) as producer:
            assert (await producer.ended(halves[0], COMMIT)).code == 0
            assert bodies(served) == [b"delayed", b"first"]

    in_virtual_time(tmp_path / "a", before)
    in_virtual_time(tmp_path / "b", after)


def test_a_copy_of_another_topic_is_no_commit_of_the_first_half_though_it_has_its_id(tmp_path: Path) -> None:
    """Ids are of the senders' choice."""
    halves: list[Fields] = []

    async def before(served: Serving) -> None:
        async with producing(served) as producer:
            halves.append(await producer.begin(b"first"))
            other = await producer.begin(b"delayed", topic="U", UNIQ_KEY=halves[0]["msgId"], DELAY=1)
            await producer.ended(other, COMMIT)
            await asyncio.sleep(2)
            assert bodies(served, "U") == [b"delayed"]
            left_by_kill(tmp_path / "a", tmp_path / "b")

    async def after(served: Serving) -> None:
        async with producing(served) as producer:
            assert (await producer.ended(halves[0], COMMIT)).code == 0
            assert bodies(served) == [b"first"]

    in_virtual_time(tmp_path / "a", before)
    in_virtual_time(tmp_path / "b", after)


def test_checks_go_on_after_a_restart(tmp_path: Path) -> None:
    async def before(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin(b"x")
            await asyncio.sleep(3 * ROUND_SECONDS + 1)
            assert len(producer.checks) == 3

    async def after(served: Serving) -> None:
        async with producing(served) as producer:
            await asyncio.sleep(1000)
            assert len(producer.checks) == 12
            assert len(stored(served, GIVEN_UP)) == 1

    in_virtual_time(tmp_path, before, after)


# --- not to be checked yet ---


def test_a_half_is_not_checked_before_its_time(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"x", CHECK_IMMUNITY_TIME_IN_SECONDS=1000)
            await asyncio.sleep(950)
            assert producer.checks == []
            assert len(stored(served, HALF)) == 1  # nothing is behind it
            await asyncio.sleep(110)
            assert [round(check.at_seconds) for check in producer.checks] == [1020, 1050]
            assert (await producer.ended(half, COMMIT)).code == 604
            assert (await producer.ended(half, ROLLBACK)).code == 604
            assert bodies(served) == []
            check = of_check(producer.checks[-1])
            assert (await producer.ended(check, COMMIT, fromTransactionCheck=True)).code == 0
            assert bodies(served) == [b"x"]

    in_virtual_time(tmp_path, main)


def test_others_pass_a_half_that_is_not_to_be_checked_yet(tmp_path: Path) -> None:
    """It is put again before the one that is due, which is no check."""

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"late", CHECK_IMMUNITY_TIME_IN_SECONDS=600)
            await producer.begin(b"soon")
            await asyncio.sleep(599)
            assert [check.view.body for check in producer.checks] == [b"soon"] * 15
            copies = [view for view in stored(served, HALF) if view.body == b"late"]
            assert len(copies) > 1
            for copy in copies[1:]:
                assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
                assert "TRANSACTION_CHECK_TIMES" not in copy.properties
            assert (await producer.ended(half, COMMIT)).code == 0
            await asyncio.sleep(200)
            assert bodies(served) == [b"late"]
            assert len(producer.checks) == 15

    in_virtual_time(tmp_path, main)


def test_a_round_does_not_go_over_many_halves_again_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "HELD_BEHIND_MAX", 10)

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin(b"late", CHECK_IMMUNITY_TIME_IN_SECONDS=6000)
            for _ in range(11):
                producer.end(await producer.begin(b"done"), COMMIT)
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert offsets(served)[0] == 12
            assert [view.body for view in stored(served, HALF)][-1] == b"late"

    in_virtual_time(tmp_path, main)


# --- counts ---


def test_open_transactions_are_counted_by_topic(tmp_path: Path) -> None:
    path = tmp_path / "config" / "transactionMetrics"

    def counts() -> dict[str, int]:
        text = path.read_text()
        assert "\n" not in text
        table = json.loads(text)["transactionCount"]
        assert all(row["timeStamp"] >= START_MS for row in table.values())
        return {topic: row["count"] for topic, row in table.items()}

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            halves = [await producer.begin(topic=topic) for topic in ("T", "T", "T", "U", "U")]
            producer.end(halves[0], COMMIT)
            producer.end(halves[0], COMMIT)
            producer.end(halves[3], ROLLBACK)
            await asyncio.sleep(11)
            assert counts() == {"T": 2, "U": 1}

    async def after(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin(topic="V")
            await asyncio.sleep(17 * ROUND_SECONDS)
            assert counts() == {"T": 0, "U": 0, "V": 0}
            await producer.call(215, {"topic": "V"})

    async def damaged(served: Serving) -> None:
        assert counts() == {"T": 0, "U": 0}
        async with producing(served) as producer:
            await producer.begin()

    async def last(served: Serving) -> None:
        assert counts() == {"T": 1, "U": 0}
        path.write_text("{")

    in_virtual_time(tmp_path, main, after, damaged, last, damaged_again)


async def damaged_again(served: Serving) -> None:
    async with producing(served) as producer:
        await producer.begin()


# --- rest ---


def test_a_broker_that_has_seen_transactions_is_at_rest(tmp_path: Path) -> None:
    """No timer of theirs, no record, until the next one comes."""

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            for outcome in (COMMIT, ROLLBACK, UNKNOWN):
                producer.end(await producer.begin(), outcome)
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(2 * ROUND_SECONDS + 4)
            service = served.broker.transactions.service
            end = served.broker.store.log_end_offset
            assert (service._alarm.is_set, service._ops._alarm.is_set) == (False, False)
            assert service._steps is None
            began = served.broker.offsets.data_version.counter
            await asyncio.sleep(3600)
            assert served.broker.store.log_end_offset == end
            assert served.broker.offsets.data_version.counter == began
            assert (service._alarm.is_set, service._ops._alarm.is_set) == (False, False)
            assert service._steps is None
            await producer.begin(b"next")
            await asyncio.sleep(2 * ROUND_SECONDS)
            assert bodies(served)[-1] == b"next"

    in_virtual_time(tmp_path, main)


# --- what stands in the way ---


def test_a_half_without_room_for_notes_holds_nobody_up(tmp_path: Path) -> None:
    """Java tries it in vain for a minute, in every round."""

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin(b"some", filler="x")
            (half,) = stored(served, HALF)
            room = PROPERTIES_BYTES_MAX - len(encode(half.properties))
            await producer.begin(b"full", filler="x" * (room - 10))
            await producer.begin(b"other")
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert bodies(served) == [b"some", b"other"]
            assert bodies(served, GIVEN_UP) == [b"full"]

    in_virtual_time(tmp_path, main)


def test_nothing_is_lost_while_the_disk_is_full(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            halves = [await producer.begin(b"%d" % number) for number in range(3)]
            log = served.broker.store.log
            log.refuse("the disk is full")
            assert (await producer.ended(halves[0], COMMIT)).code == 14
            assert (await producer.ended(halves[1], ROLLBACK)).code == 0
            await asyncio.sleep(100)
            assert producer.checks == []
            assert "transactions" in served.broker.troubles
            assert offsets(served) == (-1, -1)
            log.refuse(None)
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(100)
            assert sorted(bodies(served)) == [b"0", b"2"]
            assert bodies(served, OP)[0] == b"1,"
            assert served.broker.troubles == {}

    in_virtual_time(tmp_path, main, store={"clean_resource_interval": 10**7})


def test_a_message_whose_topic_is_gone_is_given_up_not_lost(tmp_path: Path) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            half = await producer.begin(b"x", topic="Gone")
            served.broker.topics.delete("Gone")
            assert (await producer.ended(half, COMMIT)).code == 17
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(17 * ROUND_SECONDS)
            assert bodies(served, GIVEN_UP) == [b"x"]

    in_virtual_time(tmp_path, main)


def test_a_half_of_which_nothing_can_be_made_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def asked(half: Half, *rest: Any) -> Command[dict[str, str]]:
        if half.view.body == b"odd":
            raise MessageError("can't be written", "properties")
        return check_request(half, *rest)

    monkeypatch.setattr(transactions, "check_request", asked)

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            producer.answer = lambda _: COMMIT
            append(served.broker.store, b"no half", HALF)
            await producer.begin(b"odd")
            await producer.begin(b"other")
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert bodies(served) == [b"other"]
            assert events(caplog) == [
                "a half can't be read: its transaction is not checked", "a half can't be checked"
            ]  # fmt: skip
            assert served.broker.troubles == {}

    in_virtual_time(tmp_path, main)


def test_offsets_follow_what_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            await producer.begin()
            store = served.broker.store
            asked: list[Callable[[bool], None]] = []
            monkeypatch.setattr(store, "when_safe", lambda _, told: asked.append(told))
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert offsets(served) == (-1, -1)
            asked.pop()(False)
            await asyncio.sleep(ROUND_SECONDS)
            assert offsets(served) == (-1, -1)
            asked.pop()(True)
            assert offsets(served) == (2, 0)

    in_virtual_time(tmp_path, main)


def count_turns(monkeypatch: pytest.MonkeyPatch, served: Serving) -> list[None]:
    """A list that grows with each turn of the event loop that a round takes."""
    turns: list[None] = []
    service = served.broker.transactions.service
    work = service._work

    def turn() -> float:
        turns.append(None)
        return work()

    monkeypatch.setattr(service, "_work", turn)
    return turns


def test_a_round_is_made_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_STEP_COST", 1)

    async def main(served: Serving) -> None:
        async with producing(served) as producer:
            halves = [await producer.begin(b"%d" % number) for number in range(9)]
            for half in halves[::2]:
                producer.end(half, COMMIT)
            producer.answer = lambda _: COMMIT
            turns = count_turns(monkeypatch, served)
            await asyncio.sleep(ROUND_SECONDS + 1)
            assert sorted(bodies(served)) == [b"%d" % number for number in range(9)]
            assert len(turns) > len(halves)

    in_virtual_time(tmp_path, main)


# --- a store of RocketMQ ---


def test_halves_of_rocketmq_are_checked(tmp_path: Path) -> None:
    """See the README beside the golden stores: three of five are open, and were checked before."""
    root = extract("waiting", tmp_path)

    async def run(clock: VirtualClock) -> None:
        clock.start_ms = 1_795_320_700_000
        async with (
            serving(root, clock=clock, background=False, store=GOLDEN_SIZES, **PATIENT) as served,
            producing(served) as producer,
        ):
            before = len(stored(served))
            producer.answer = lambda _: COMMIT
            await asyncio.sleep(ROUND_SECONDS + 1)
            asked = [check.view for check in producer.checks]
            assert len({view.unique_key for view in asked}) == len(asked) == 3
            assert {view.properties["TRANSACTION_CHECK_TIMES"] for view in asked} == {"3"}
            assert len(stored(served)) == before + 3
            await asyncio.sleep(3 * ROUND_SECONDS)
            assert len(producer.checks) == 3
            assert offsets(served) == (14, 2)

    loop.run(run)
