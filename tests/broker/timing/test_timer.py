"""Messages with a delivery time, in a whole broker in virtual time."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from firearrow.broker.timing import timer as timing_module
from firearrow.message.model import MessageView
from firearrow.message.recall import RecallHandle
from firearrow.message.record import iter_records
from firearrow.store import TimerStore
from firearrow.store.timerfiles import CHECK
from firearrow.testing import loop
from firearrow.testing.loop import START_MS, VirtualClock
from tests.broker.serving import Caller, Serving, in_virtual_time, serving
from tests.golden import extract
from tests.loglines import told
from tests.store.stores import GOLDEN_SIZES, append

PATIENT: dict[str, Any] = {"server_channel_max_idle_time_seconds": 10**7}
DAY = 86_400
COUNT = 500


def now_ms() -> int:
    return START_MS + round(asyncio.get_running_loop().time() * 1000)


def timed(key: str = "U1", **asked: object) -> str:
    pairs = {"UNIQ_KEY": key, **asked}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def left(served: Serving) -> int:
    """How many messages wait for their time."""
    return sum(served.broker.timing.store.pending.values())


async def wait_for_messages(caller: Caller, count: int, topic: str = "T") -> list[MessageView]:
    while True:
        found = await caller.stored(topic)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.01)


def test_what_is_due_does_not_wait_for_what_comes_meanwhile(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async def send_more() -> None:
            async with served.caller() as other:
                for number in range(10**6):
                    await other.sent(b"later", "U", i=timed(f"V{number}", TIMER_DELAY_MS=60_000))
                    await asyncio.sleep(0.001 if number % 8 == 0 else 0)

        await asyncio.sleep((960 - now_ms() % 1000) / 1000)
        due_ms = now_ms() // 1000 * 1000 + 2000
        await caller.sent(b"due", i=timed("U", TIMER_DELIVER_MS=due_ms))
        sending = asyncio.ensure_future(send_more())
        await asyncio.sleep((due_ms + 300 - now_ms()) / 1000)
        sending.cancel()
        [view] = await caller.stored()
        assert due_ms <= view.store_timestamp_ms <= due_ms + 10

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("ahead_ms", [1, 999, 1000, 1001, 5000, 7321])
@pytest.mark.parametrize("how", ["TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_message_is_delivered_in_its_time(tmp_path: Path, ahead_ms: int, how: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        began_ms = now_ms()
        asked = ahead_ms if how == "TIMER_DELAY_MS" else began_ms + ahead_ms
        await caller.sent(b"timed", i=timed("U1", **{how: asked}))
        assert await caller.stored() == []
        [view] = await wait_for_messages(caller, 1)
        assert began_ms + ahead_ms <= now_ms() <= began_ms + ahead_ms + 1050
        assert view.store_timestamp_ms % 1000 < 5  # at the begin of a second
        assert view.body == b"timed"
        found = view.properties
        assert (found["REAL_TOPIC"], found["REAL_QID"], found["UNIQ_KEY"]) == ("T", "0", "U1")
        due_ms = int(found["TIMER_OUT_MS"])
        assert due_ms % 1000 == 0
        assert due_ms < began_ms + ahead_ms <= due_ms + 1000
        assert int(found["TIMER_DEQUEUE_MS"]) == view.store_timestamp_ms
        assert int(found["TIMER_ENQUEUE_MS"]) <= now_ms()
        assert "TIMER_ROLL_TIMES" not in found
        assert left(served) == 0

    in_virtual_time(tmp_path, main, **PATIENT)


async def alone(served: Serving) -> None:
    """Stop what else is done by time: days of it take minutes."""
    for service in served.broker.services:
        if service.name in {
            *("retention", "queues left out", "tables", "offsets", "clients", "counters"),
            *("held pulls", "acknowledging", "registration"),
        }:
            await service.stop()


def test_three_days(tmp_path: Path) -> None:
    """On the way the message rolls, so that its record is never older than two days."""

    async def main(served: Serving, caller: Caller) -> None:
        await alone(served)
        began_ms = now_ms()
        await caller.sent(b"far", i=timed(TIMER_DELAY_SEC=3 * DAY))
        await asyncio.sleep(3 * DAY - 2)
        assert await caller.stored() == []
        [view] = await wait_for_messages(caller, 1)
        assert began_ms + 3 * DAY * 1000 <= now_ms() <= began_ms + 3 * DAY * 1000 + 1050
        assert view.properties["TIMER_ROLL_TIMES"] == "1"
        answer = await caller.send(b"too far", i=timed(TIMER_DELAY_SEC=3 * DAY + 1))
        assert answer.code == 13

    rarely = {"flush_interval_commit_log": 3_600_000, "flush_interval_consume_queue": 3_600_000}
    in_virtual_time(tmp_path, main, store=rarely, **PATIENT)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, 13),
        ({"TIMER_DELIVER_MS": "1e13"}, 13),
        ({"TIMER_DELAY_MS": 3 * DAY * 1000 + 1}, 13),
        ({"TIMER_DELIVER_MS": 1 << 62}, 13),
        ({"TIMER_DELIVER_MS": START_MS - 5, "TIMER_DEL_UNIQKEY": "U1"}, 13),
    ],
)
def test_a_time_that_can_not_be_is_refused(tmp_path: Path, asked: dict[str, object], code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        end = served.broker.store.log_end_offset
        answer = await caller.send(i=timed("U1", **asked))
        assert answer.code == code
        assert served.broker.store.log_end_offset == end

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELIVER_MS": START_MS - 5},
        {"TIMER_DELAY_SEC": 0},
        {"TIMER_DELAY_MS": -7},
        {"TIMER_DELIVER_MS": START_MS + 5000, "TIMER_OUT_MS": 1},
        {"TIMER_DELAY_SEC": 0, "TIMER_DELAY_MS": 60_000},
    ],
)
def test_what_is_due_already_goes_into_its_topic(tmp_path: Path, asked: dict[str, object]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        fields = await caller.sent(b"now", i=timed("U1", **asked))
        assert "recallHandle" not in fields
        [view] = await caller.stored()
        assert "REAL_TOPIC" not in view.properties

    in_virtual_time(tmp_path, main)


def test_without_a_wheel_times_are_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.send(i=timed(TIMER_DELAY_SEC=1))
        assert (answer.code, answer.remark) == (
            1, "accurate timer message is not enabled, timerWheelEnable is false"
        )  # fmt: skip
        await caller.sent(b"plain")

    in_virtual_time(tmp_path, main, store={"timer_wheel_enable": False})


def test_a_slot_that_has_twice_as_many_takes_no_more(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        at_ms = now_ms() + 60_000
        codes = []
        for number in range(12):
            codes.append((await caller.send(i=timed(f"U{number}", TIMER_DELIVER_MS=at_ms))).code)
            await asyncio.sleep(0.2)
        assert codes[:4] == [0] * 4  # three are on the wheel when the fourth comes
        assert 1 in codes
        assert codes.count(0) <= 7
        assert (await caller.send(i=timed(TIMER_DELIVER_MS=at_ms + 1000))).code == 0

    in_virtual_time(tmp_path, main, store={"timer_congest_num_each_slot": 3})


def test_rolling_keeps_a_record_young(tmp_path: Path) -> None:
    """With a window of ten slots a minute takes several rolls."""

    async def main(served: Serving, caller: Caller) -> None:
        began_ms = now_ms()
        await caller.sent(b"far", i=timed(TIMER_DELAY_SEC=60))
        [view] = await wait_for_messages(caller, 1)
        assert began_ms + 60_000 <= now_ms() <= began_ms + 61_050
        assert int(view.properties["TIMER_ROLL_TIMES"]) >= 5
        age_ms = view.store_timestamp_ms - int(view.properties["TIMER_ENQUEUE_MS"])
        assert age_ms <= 11_000

    in_virtual_time(tmp_path, main, store={"timer_roll_window_slot": 10})


def test_messages_of_one_second_come_in_order_and_in_steps(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        at_ms = now_ms() + 30_000
        for number in range(COUNT):
            await caller.sent(b"%d" % number, i=timed(f"U{number}", TIMER_DELIVER_MS=at_ms))
        steps = 0
        timing = next(s for s in served.broker.services if s.name == "timed messages")
        alarm = timing._alarm  # type: ignore[attr-defined]
        take_turn = alarm._call

        def turn() -> None:
            nonlocal steps
            before = served.broker.stats.put_sum()[0]
            steps += 1
            take_turn()
            assert served.broker.stats.put_sum()[0] - before <= timing_module.STEP_MESSAGES

        alarm._call = turn
        found = await wait_for_messages(caller, COUNT)
        assert [view.body for view in found] == [b"%d" % number for number in range(COUNT)]
        assert at_ms <= found[0].store_timestamp_ms
        assert found[-1].store_timestamp_ms <= at_ms + 5000
        assert steps > COUNT // timing_module.STEP_MESSAGES

    sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}
    in_virtual_time(tmp_path, main, store=sizes, **PATIENT)


def test_what_waits_outlives_restarts(tmp_path: Path) -> None:
    """A message that is due while the broker is down comes when it is up again."""

    async def sending(served: Serving, caller: Caller) -> None:
        await caller.sent(b"soon", i=timed("U1", TIMER_DELIVER_MS=START_MS + 5000))
        await caller.sent(b"later", i=timed("U2", TIMER_DELIVER_MS=START_MS + 9000))
        await asyncio.sleep(1)

    async def waiting(served: Serving, caller: Caller) -> None:
        assert left(served) == 2
        await asyncio.sleep(10)
        assert [view.body for view in await caller.stored()] == [b"soon", b"later"]

    async def over(served: Serving, caller: Caller) -> None:
        assert left(served) == 0
        await asyncio.sleep(20)
        assert len(await caller.stored()) == 2

    for main in (sending, waiting, over):
        in_virtual_time(tmp_path, main)


def test_a_stop_leaves_nothing_off_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ delivers what is late and not on the wheel in any order."""

    async def stopping(served: Serving, caller: Caller) -> None:
        for number in range(50):
            key = f"U{number}"
            await caller.sent(b"timed", i=timed(key, TIMER_DELIVER_MS=START_MS + 5000))

    def placed() -> int:
        check = (tmp_path / "config" / "timercheck").read_bytes()
        return int(CHECK.unpack_from(check)[2])

    in_virtual_time(tmp_path, stopping)
    assert placed() == 50
    monkeypatch.setattr(timing_module, "AT_STOP_MAX", 10)
    in_virtual_time(tmp_path, stopping)
    assert 50 <= placed() < 100


def test_a_topic_that_has_shrunk_gets_its_messages(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"timed", queue_id=3, i=timed(TIMER_DELAY_SEC=5))
        config = served.broker.topics.get("T")
        assert config is not None
        smaller = structs.replace(config, read_queue_nums=2, write_queue_nums=2)
        served.broker.topics.put(smaller)
        await asyncio.sleep(7)
        assert [view.body for view in await caller.stored(queue_id=1)] == [b"timed"]

    in_virtual_time(tmp_path, main)


def test_a_message_of_a_deleted_topic_is_there_when_the_topic_is_made_again(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"gone", "Gone", i=timed("U1", TIMER_DELAY_SEC=5))
        await caller.sent(b"timed", i=timed("U2", TIMER_DELAY_SEC=5))
        await caller.call(215, {"topic": "Gone"})
        await asyncio.sleep(7)
        assert [view.body for view in await caller.stored()] == [b"timed"]
        served.broker.topics.create("Gone", 1)
        assert [view.body for view in await caller.stored("Gone")] == [b"gone"]

    in_virtual_time(tmp_path, main)


def test_a_message_for_no_possible_topic_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log that somebody hands over may have such a record."""

    async def main(served: Serving, caller: Caller) -> None:
        found = {"TIMER_OUT_MS": str(now_ms() + 5000), "REAL_TOPIC": "../../x", "REAL_QID": "0"}
        store = served.broker.store
        append(store, b"odd", "rmq_sys_wheel_timer", properties=found, now_ms=now_ms())
        await caller.sent(b"timed", i=timed(TIMER_DELAY_SEC=6))
        await asyncio.sleep(1)
        assert left(served) == 2
        await asyncio.sleep(7)
        assert [view.body for view in await caller.stored()] == [b"timed"]
        assert served.broker.troubles == {}
        refused = [line for line in told(caplog) if "it is refused" in str(line["event"])]
        assert [line["topic"] for line in refused] == ["../../x"]

    in_virtual_time(tmp_path, main)


def test_a_full_disk_delays_messages_and_loses_none(tmp_path: Path) -> None:
    """RocketMQ gives a message up after three tries."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"timed", i=timed(TIMER_DELAY_SEC=5))
        await asyncio.sleep(1)
        served.broker.store.log.refuse("no room")
        await asyncio.sleep(7)
        assert "no room" in served.broker.troubles["timed messages"]
        served.broker.store.log.refuse(None)
        [view] = await wait_for_messages(caller, 1)
        assert view.body == b"timed"
        assert served.broker.troubles == {}

    in_virtual_time(tmp_path, main)


def test_files_of_the_log_are_kept_for_what_waits(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        store = served.broker.store
        await caller.sent(b"plain")
        await caller.sent(b"timed", i=timed(TIMER_DELAY_SEC=DAY))
        for _ in range(10):
            await caller.sent(bytes(20_000))
        await served.dispatched()
        await asyncio.sleep(120)
        store.clean_on_request()
        assert store.log_start_offset == 0
        await asyncio.sleep(DAY)
        answer = await caller.pull(served.broker.store.max_queue_offset("T", 0) - 1)
        assert [view.body for view in iter_records(answer.body)] == [b"timed"]

    keys = {
        "file_reserved_time": 0, "flush_interval_commit_log": 60_000,
        "flush_interval_consume_queue": 60_000, "delete_when": "00;01;02;03;04;05;06;07;08;09;10;11"
        ";12;13;14;15;16;17;18;19;20;21;22;23",
    }  # fmt: skip

    async def only(served: Serving, caller: Caller) -> None:
        for service in served.broker.services:
            if service.name in {"acknowledging", "tables", "queues left out"}:
                await service.stop()
        await main(served, caller)

    in_virtual_time(tmp_path, only, store=keys, **PATIENT)


# --- recall ---


def recall_fields(handle: str, **changed: object) -> dict[str, Any]:
    return {"producerGroup": "p", "topic": "T", "recallHandle": handle} | changed


ALLOWED: dict[str, Any] = {"recall_message_enable": True}


def test_a_message_is_recalled(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        at_ms = now_ms() + 10_000
        first = await caller.sent(b"first", i=timed("U1", TIMER_DELIVER_MS=at_ms))
        await caller.sent(b"second", i=timed("U2", TIMER_DELIVER_MS=at_ms))
        slot_ms = (at_ms - 1) // 1000 * 1000
        handle = RecallHandle.decode(first["recallHandle"])
        assert handle == RecallHandle("T", "broker-a", slot_ms + 1, "U1")
        answer = await caller.call(370, recall_fields(first["recallHandle"]))
        assert (answer.code, answer.ext["msgId"]) == (0, "U1")
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        await asyncio.sleep(12)
        assert [view.body for view in await caller.stored()] == [b"second"]
        assert left(served) == 0
        late = await caller.call(370, recall_fields(first["recallHandle"]))
        assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")

    in_virtual_time(tmp_path, main, **ALLOWED)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_recalled_twice_keeps_nobody_waiting(tmp_path: Path, restarts: bool) -> None:
    """Though each recall counts as one message less that waits (61)."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"kept", i=timed("U2", TIMER_DELAY_SEC=5))
        sent = await caller.sent(b"recalled", i=timed("U1", TIMER_DELAY_SEC=5))
        for _ in range(2):
            answer = await caller.call(370, recall_fields(sent["recallHandle"]))
            assert answer.code == 0
        await asyncio.sleep(1)
        assert left(served) == 0

    async def after(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(6)
        assert [view.body for view in await caller.stored()] == [b"kept"]
        assert left(served) == 0

    async def both(served: Serving, caller: Caller) -> None:
        await main(served, caller)
        await after(served, caller)

    async def lives(clock: VirtualClock) -> None:
        for life in [main, after] if restarts else [both]:
            async with serving(tmp_path, clock=clock, background=False, **ALLOWED) as served, served.caller() as caller:
                await life(served, caller)

    loop.run(lives)


def test_a_recall_counts_before_there_is_room_for_it_on_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main(served: Serving, caller: Caller) -> None:
        sent = await caller.sent(b"recalled", i=timed("U1", TIMER_DELAY_SEC=5))
        await asyncio.sleep(1)
        monkeypatch.setattr(TimerStore, "place", full)
        assert (await caller.call(370, recall_fields(sent["recallHandle"]))).code == 0
        await asyncio.sleep(7)
        assert "No space left" in served.broker.troubles["timed messages"]
        monkeypatch.undo()
        await caller.sent(b"kept", i=timed("U2", TIMER_DELAY_SEC=5))
        [view] = await wait_for_messages(caller, 1)
        assert view.body == b"kept"

    in_virtual_time(tmp_path, main, **ALLOWED)


def test_a_message_that_rolls_is_recalled(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        sent = await caller.sent(b"first", i=timed("U1", TIMER_DELAY_SEC=60))
        await asyncio.sleep(17)
        answer = await caller.call(370, recall_fields(sent["recallHandle"]))
        assert answer.code == 0
        await asyncio.sleep(60)
        assert await caller.stored() == []
        assert left(served) == 0

    in_virtual_time(tmp_path, main, store={"timer_roll_window_slot": 10}, **ALLOWED)


@pytest.mark.parametrize(
    ("handle", "changed", "code", "remark"),
    [
        ("nonsense!", {}, 604, "recall handle is invalid"),
        (RecallHandle("O", "broker-a", START_MS + 5000, "U").encode(), {}, 604,
         "recall failed, topic not match"),
        (RecallHandle("T", "broker-b", START_MS + 5000, "U").encode(), {}, 604,
         "recall failed, broker service not available"),
        (RecallHandle("T", "broker-a", START_MS - 1, "U").encode(), {}, 604,
         "recall failed, timestamp invalid"),
        (RecallHandle("T", "broker-a", START_MS + 3 * DAY * 1000 + 9000, "U").encode(), {}, 604,
         "recall failed, timestamp invalid"),
        ("x", {"topic": "Unknown"}, 17, "recall failed, the topic[Unknown] not exist"),
    ],
)  # fmt: skip
def test_a_recall_is_refused(tmp_path: Path, handle: str, changed: dict[str, object], code: int, remark: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        end = served.broker.store.log_end_offset
        answer = await caller.call(370, recall_fields(handle, **changed))
        assert (answer.code, answer.remark) == (code, remark)
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        assert served.broker.store.log_end_offset == end

    in_virtual_time(tmp_path, main, **ALLOWED)


def test_recall_is_off_unless_it_is_allowed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        sent = await caller.sent(i=timed(TIMER_DELAY_SEC=5))
        answer = await caller.call(370, recall_fields(sent["recallHandle"]))
        assert answer.code == 16
        assert "recall failed, operation is forbidden" in str(answer.remark)

    in_virtual_time(tmp_path, main)


def test_the_timer_says_how_far_it_is(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(i=timed(TIMER_DELAY_SEC=50))
        await asyncio.sleep(2)
        check = await caller.call(60, {})
        read_ms, end, offset, same, *_ = CHECK.unpack(check.body)
        assert (end, offset, same) == (52, 1, 1)
        assert now_ms() - 2000 <= read_ms <= now_ms()
        counts = json.loads((await caller.call(61, {})).body)
        assert counts["timingCount"]["T"]["count"] == 1
        facts = json.loads((await caller.call(28, {})).body)["table"]
        assert (facts["timerCongestNum"], facts["timerOffsetBehind"]) == ("1", "0")

    in_virtual_time(tmp_path, main)


# --- stores of RocketMQ ---


def test_a_wheel_that_rocketmq_kept_in_snapshots_is_made_again(tmp_path: Path) -> None:
    """`timerWheelSnapshotFlush` leaves ``timerwheel.N`` in place of the file; it asks nothing of us
    either, as the wheel follows from the units."""

    async def sending(served: Serving, caller: Caller) -> None:
        await caller.sent(b"timed", i=timed("U1", TIMER_DELIVER_MS=START_MS + 5000))
        await asyncio.sleep(1)

    async def waiting(served: Serving, caller: Caller) -> None:
        assert left(served) == 1
        await asyncio.sleep(10)
        assert [view.body for view in await caller.stored()] == [b"timed"]

    in_virtual_time(tmp_path, sending)
    (tmp_path / "timerwheel").rename(tmp_path / "timerwheel.52")
    in_virtual_time(tmp_path, waiting)


def test_timers_that_rocketmq_left_are_delivered(tmp_path: Path) -> None:
    """See the README beside the golden stores: one was delivered, four wait."""
    root = extract("waiting", tmp_path)

    async def main(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(5)
        found = [view for view in await caller.stored() if "TIMER_OUT_MS" in view.properties]
        assert len(found) == len({view.unique_key for view in found}) == 5
        assert found[0].store_timestamp_ms < START_MS + DAY * 1000 * 10  # by RocketMQ
        assert left(served) == 0

    async def again(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(5)
        found = [view for view in await caller.stored() if "TIMER_OUT_MS" in view.properties]
        assert len(found) == 5

    async def when_all_is_due(clock: VirtualClock) -> None:
        clock.start_ms = START_MS + 30 * DAY * 1000
        for each in (main, again):
            options: dict[str, Any] = {"store": GOLDEN_SIZES, "clock": clock}
            async with serving(root, background=False, **options) as served, served.caller() as own:
                await each(served, own)

    loop.run(when_all_is_due)
