"""Brokers of FastStream on an embedded cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from firearrow.integrations.faststream import RocketMQBroker
from firearrow.testing import VirtualTime


def broker_of(time: VirtualTime, **options: Any) -> RocketMQBroker:
    settings: dict[str, Any] = {"group": "shop", "logger": None, "clock": time.clock}
    return RocketMQBroker(time.cluster.name_server, **settings | options)


def run(time: VirtualTime, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario, which must leave no task and no connection."""

    async def alone() -> None:
        before = asyncio.all_tasks()
        await scenario
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before

    time.run(alone())
