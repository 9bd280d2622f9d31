"""Calls that end in unusual ways, by gRPC's own client."""

from __future__ import annotations

import asyncio
import time

from firearrow.clock import SystemClock
from firearrow.net.outgoing import Departures
from firearrow.net.replies import Reply
from firearrow.proxy import messages as m
from firearrow.proxy.calls import CallLimit, Context, Door, table_of, unary
from firearrow.proxy.meter import CANCELLED, CallKey, CallMeter
from tests.proxy.channels import serving

PATH = "/apache.rocketmq.v2.MessagingService/Heartbeat"


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
