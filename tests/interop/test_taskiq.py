"""Tasks of Taskiq on RocketMQ's broker and on Firearrow's."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from taskiq import Context, TaskiqDepends
from taskiq.acks import AcknowledgeType
from taskiq.receiver import Receiver

from firearrow.integrations.taskiq import RocketMQBroker
from tests.interop.servers import Server


def test_tasks_run_at_their_time_and_again_if_not_acknowledged(server: Server) -> None:
    broker = RocketMQBroker(
        server.namesrv, topic="taskiq", group="taskiq", invisible=timedelta(seconds=2), priorities=2
    )
    ran: list[tuple[int, float]] = []
    finish = asyncio.Event()

    @broker.task(ack_type=AcknowledgeType.MANUAL.value)
    async def note(number: int, context: Context = TaskiqDepends()) -> None:
        ran.append((number, time.monotonic() - began))
        if number < 22 or [it for it, _ in ran].count(22) == 2:
            await context.ack()
        if len(ran) == 24:
            finish.set()

    async def main() -> None:
        await broker.startup()
        for number in range(20):
            await note.kicker().with_labels(priority=number % 2).kiq(number)
        await note.kicker().with_labels(delay=3).kiq(20)
        await note.kiq(21)
        await note.kiq(22)
        receiver = Receiver(broker, max_async_tasks=4, run_startup=False)
        async with asyncio.timeout(60):
            await receiver.listen(finish)
        await broker.shutdown()

    began = time.monotonic()
    asyncio.run(main())
    assert sorted(number for number, _ in ran) == [*range(22), 22, 22]
    assert dict(ran)[20] >= 3
    first, second = (when for number, when in ran if number == 22)
    assert second - first >= 0.5, "it is another delivery"
