"""What a busy broker refuses, in virtual time: puts that take long, requests that wait."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.flowcontrol import LINES, FlowControl
from firearrow.broker.state.settings import Settings
from firearrow.message.batch import encode_batch
from firearrow.net.lateness import TICK_SECONDS
from firearrow.net.server import WRITE_BUFFER_BYTES_HIGH
from firearrow.store.config import StoreConfig
from firearrow.testing.loop import VirtualLoop
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue, request
from tests.broker.fakes import HandClock
from tests.broker.serving import Caller, Serving, calling, in_virtual_time, pull_fields, send_fields, until
from tests.loglines import told

BUSY = 2
PUT_SECONDS = 3.0
FLOOD = 20_000
MEANWHILE_MAX = 4000  # two reads of 256 KiB of such sends, and some
WAITED_MS = int((PUT_SECONDS - TICK_SECONDS) * 1000)
BATCH = encode_batch([(0, b"one", b""), (0, b"two", b"")])


def taking(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The same call, the first of which takes so long."""
    left = [seconds]

    def slow(*args: Any, **named: Any) -> Any:
        cast(VirtualLoop, asyncio.get_running_loop()).take(left.pop() if left else 0.0)
        return call(*args, **named)

    return slow


def slow_put(served: Serving, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    log = served.broker.store.log
    monkeypatch.setattr(log, "append", taking(log.append, seconds))


def slow_pull(served: Serving, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    store = served.broker.store
    monkeypatch.setattr(store, "get", taking(store.get, seconds))


def test_sends_that_come_while_a_put_takes_long_are_refused_and_then_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        async with served.caller() as other:
            await other.sent()
            slow_put(served, monkeypatch, PUT_SECONDS)
            caller.tell(310, send_fields())
            other.tell(310, send_fields())
            refused = await other.talker.answer()
            assert refused.code == BUSY
            assert refused.remark == (
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in "
                f"queue: {WAITED_MS}ms, size of queue: 0"
            )
            assert (await caller.talker.answer()).code == 0
            await other.sent()
            assert len(await caller.stored()) == 4

    with caplog.at_level(logging.WARNING):
        in_virtual_time(tmp_path, main, broker_fast_failure_enable=True)
    [line] = told(caplog)
    assert (line["event"], line["count"]) == ("requests are refused: the broker is busy", 1)
    assert line["waited_ms"] == WAITED_MS


def test_with_fast_failure_off_a_busy_page_cache_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as other, served.caller() as third:
            for one in (caller, other, third):
                await one.sent()
            slow_put(served, monkeypatch, PUT_SECONDS)
            caller.tell(310, send_fields())
            other.tell(310, send_fields())
            third.tell(11, pull_fields())
            refused = await other.talker.answer()
            assert refused.code == BUSY
            assert refused.remark == "[REJECTREQUEST]system busy, start flow control for a while"
            assert (await third.talker.answer()).code == 0

    in_virtual_time(tmp_path, main, broker_fast_failure_enable=False)


@pytest.mark.parametrize(
    ("seconds", "code", "fields", "is_refused"),
    [
        (0.2, 310, send_fields(), False),
        (0.3, 310, send_fields(), True),
        (4.9, 11, pull_fields(), False),
        (5.1, 11, pull_fields(), True),
        (5.1, 361, pull_fields(), True),
        (29.9, 34, {}, False),
        (5.1, 28, {}, True),
        (99.0, 15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}, False),
    ],
)
def test_what_has_waited_for_too_long_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    code: int,
    fields: dict[str, FieldValue],
    is_refused: bool,
) -> None:
    """Each kind by its own key; a stall is seen with the precision of a tick."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        async with served.caller() as other:
            await other.sent()
            await asyncio.sleep(60)
            slow_pull(served, monkeypatch, seconds + TICK_SECONDS / 2)
            caller.tell(11, pull_fields())
            other.tell(code, fields, b"x" if code == 310 else b"{}" if code == 34 else b"")
            answer = await other.talker.answer()
            remark = answer.remark or ""
            assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]") is is_refused
            assert (answer.code == BUSY) is is_refused
            assert (await caller.talker.answer()).code == 0

    options = {"server_channel_max_idle_time_seconds": 36_000, "broker_fast_failure_enable": True}
    in_virtual_time(tmp_path, main, **options)


def test_batches_that_are_gathered_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as other:
            for one in (caller, other):
                await one.sent()
            slow_put(served, monkeypatch, PUT_SECONDS)
            other.tell(320, send_fields(i="", m=True), BATCH)
            caller.tell(310, send_fields())
            refused = await other.talker.answer()
            assert (refused.code, (refused.remark or "")[:20]) == (BUSY, "[PCBUSY_CLEAN_QUEUE]")
            assert (await caller.talker.answer()).code == 0
            assert (await other.call(320, send_fields(i="", m=True), BATCH)).code == 0
            assert len(await caller.stored()) == 5

    in_virtual_time(tmp_path, main, broker_fast_failure_enable=True)


def test_a_connection_that_sends_without_pause_starves_nobody(tmp_path: Path) -> None:
    """Between a request of another connection and its answer there are a few turns of the first."""

    async def main(served: Serving, caller: Caller) -> None:
        store, done = served.broker.store, 0
        flood = [request(310, send_fields(queue_id=1), b"x", opaque=at) for at in range(FLOOD)]

        async def read_all() -> None:
            nonlocal done
            for _ in flood:
                await caller.talker.answer()
                done += 1

        async with served.caller() as other:
            await other.sent()
            caller.talker.ask(*flood)
            reading = asyncio.ensure_future(read_all())
            meanwhile = []
            while done < FLOOD // 2:
                before = store.queue("T", 1).next_offset
                await other.sent()
                meanwhile.append(store.queue("T", 1).next_offset - before)
            await reading
            assert len(meanwhile) > 1
            assert max(meanwhile) <= MEANWHILE_MAX, meanwhile

    calling(tmp_path, main)


def test_who_does_not_read_holds_up_only_itself(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as other:
            await other.sent(bytes(60_000))
            await served.dispatched()
            pulls = [request(11, pull_fields(), opaque=at) for at in range(2000)]
            caller.talker.ask(*pulls)  # 120 MB of answers
            peer = next(p for p in served.broker._server.peers if p.address == caller.talker.address)
            await until(lambda: peer._paused)
            for _ in range(100):
                await other.sent()
                assert (await other.pull()).code == 0
                assert peer.unread_bytes < 3 * WRITE_BUFFER_BYTES_HIGH
            for at in range(len(pulls)):
                assert (await caller.talker.answer()).opaque == at

    calling(tmp_path, main)


def flow_control(**config: Any) -> FlowControl:
    clock = HandClock()
    settings = Settings(clock, BrokerConfig(**config), StoreConfig())
    return FlowControl(lambda: settings, lambda: 0, clock)


def test_each_kind_has_room_for_as_many_as_its_key_says() -> None:
    flow = flow_control(send_thread_pool_queue_capacity=2, pull_thread_pool_queue_capacity=1)
    sends = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
    assert [flow.enter(code) is None for code in sends] == [True, True, False]
    assert flow.enter(RequestCode.PULL_MESSAGE) is None
    refused = flow.enter(RequestCode.PULL_MESSAGE)
    assert refused is not None
    assert refused.code == BUSY
    assert refused.remark == "[OVERLOAD]system busy, start flow control for a while"
    assert flow.enter(RequestCode.PULL_MESSAGE, must=True) is None
    flow.leave(RequestCode.SEND_MESSAGE)
    assert flow.enter(RequestCode.SEND_BATCH_MESSAGE) is None


def test_limits_are_those_of_rocketmq() -> None:
    config = BrokerConfig()
    found = {line.name: (line.waiting_max(config), line.wait_ms_max(config)) for line in LINES}
    assert found["sends"] == (10_000, 200)
    assert found["pulls"] == found["lite pulls"] == (100_000, 5000)
    assert found["heartbeats"] == (50_000, 31_000)
    assert found["ends of transactions"] == (100_000, 3000)
    assert found["administration"] == (10_000, 5000)
    assert flow_control().least_ms == 200
    assert flow_control(broker_fast_failure_enable=False).least_ms == 1000
    assert flow_control(wait_time_mills_in_pull_queue=50).least_ms == 50
