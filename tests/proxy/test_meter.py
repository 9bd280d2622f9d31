"""Durations of calls and rates of messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from firearrow.clock import SystemClock
from firearrow.net.outgoing import Departures
from firearrow.net.replies import Reply
from firearrow.proxy import messages as m
from firearrow.proxy.calls import CallLimit, Context, Door, table_of, unary
from firearrow.proxy.meter import CANCELLED, CallKey, CallMeter, Rate
from tests.proxy.channels import serving

PATH = "/apache.rocketmq.v2.MessagingService/Heartbeat"


class SetClock(SystemClock):
    """A clock that the test sets."""

    ms = 1000

    def now_ms(self) -> int:
        return self.ms


class Loop:
    """Calls of the end of the turn."""

    def __init__(self) -> None:
        self.planned: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.planned.append(call)


def test_calls_of_a_turn_last_until_its_end() -> None:
    clock, loop = SetClock(), Loop()
    departures = Departures(lambda: loop)  # type: ignore[arg-type, return-value]
    meter = CallMeter(clock, departures)
    for _ in range(3):
        meter.count("SendMessage", 20000, 1000)
    meter.count("SendMessage", 40402, 1000)
    [leave] = loop.planned
    clock.ms = 1004
    leave()
    sends = meter.histograms[CallKey("SendMessage", 20000, False)]
    assert (sends.count, sends.sum, sends.counts[:3]) == (3, 12, [0, 0, 3])
    assert meter.histograms[CallKey("SendMessage", 40402, False)].count == 1
    clock.ms = 9999
    leave()
    assert sends.count == 3, "a turn counts once"


def test_a_call_that_ends_in_its_turn_has_not_waited() -> None:
    clock, loop = SetClock(), Loop()
    departures = Departures(lambda: loop)  # type: ignore[arg-type, return-value]
    meter = CallMeter(clock, departures)
    begun = [meter.begin("ReceiveMessage") for _ in range(3)]
    assert len(loop.planned) == 1, "the turn ends, though no answer leaves"
    assert meter.waiting["ReceiveMessage"] == 3
    meter.end("ReceiveMessage", 20000, 1000, begun[0])
    departures.leave()
    meter.end("ReceiveMessage", 20000, 1000, begun[1])  # as the broker's answers, which leave last
    departures.leave()
    clock.ms = 3000
    meter.end("ReceiveMessage", 20000, 1000, begun[2])
    departures.leave()
    found = {key.waited: histogram.sum for key, histogram in meter.histograms.items()}
    assert found == {False: 0, True: 2000}
    assert meter.waiting["ReceiveMessage"] == 0


def test_a_rate_is_of_the_last_ten_whole_seconds() -> None:
    rate = Rate()
    rate.add(5, 100_000)
    rate.add(5, 100_999)
    assert rate.per_second(100_999) == 0, "the second is not over"
    assert rate.per_second(101_000) == 1
    rate.add(20, 101_500)
    assert rate.per_second(102_000) == 3
    assert rate.per_second(110_999) == 3
    assert rate.per_second(111_000) == 2
    assert rate.per_second(112_000) == 0
    rate.add(1, 500_000)
    assert rate.per_second(501_000) == 0.1


def test_a_call_that_its_client_gives_up_counts_as_cancelled() -> None:
    departures = Departures(asyncio.get_running_loop)
    meter = CallMeter(SystemClock(), departures)
    never: Reply[m.HeartbeatResponse] = Reply()

    async def slow(_: Context, __: m.HeartbeatRequest) -> m.HeartbeatResponse:
        return await never

    limit = CallLimit(1)
    door = Door(lambda call: Context(call, "c", None), meter)  # type: ignore[arg-type]
    method = unary("Heartbeat", m.HeartbeatRequest, m.HeartbeatResponse, door, limit, slow)
    with serving(table_of([method])) as client:
        call = client.streamed(PATH, m.HeartbeatRequest(), m.HeartbeatResponse)
        while never.wake is None:
            time.sleep(0.01)
        call.cancel()
        deadline = time.monotonic() + 20
        while not meter.histograms:
            client.on_loop(departures.leave)
            assert time.monotonic() < deadline
    assert limit.pending == 0
    assert [(key, it.count) for key, it in meter.histograms.items()] == [
        (CallKey("Heartbeat", CANCELLED, waited=False), 1)
    ]
