"""Divide the queues of topics between the clients of a group: at the start, every 20 s, and after a change.

Each client of a group computes the same division for itself, if all of them know the same queues and clients. In
between, a queue may have two clients for a moment, or none; its messages may then be consumed twice. In broker's mode
(400), the broker assigns the queues and says whether the client must pull or pop them.

Source: RocketMQ's ``RebalanceImpl``, ``RebalanceService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from firearrow.client.consumer.member import Member
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import subscribe_queues
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.logs import Log
from firearrow.wire.allocation import Strategy
from firearrow.wire.client_bodies import PULL, MessageQueue

log: Final = Log(__name__)

REBALANCE_SECONDS: Final = 20.0
FAILED_SECONDS: Final = 1.0
APART_SECONDS: Final = 1.0
RETRY_LOOKS: Final = 10

Update = Callable[[str, set[Queue], set[Queue]], Awaitable[bool]]
"""Takes the queues of a topic to pull and those to pop; returns False to be called again soon."""


class Rebalancer:
    """Divides the topics of a member."""

    def __init__(self, member: Member, strategy: Strategy, update: Update, *, by_broker: bool = False) -> None:
        self._member = member
        self._strategy = strategy
        self._update = update
        self._by_broker = by_broker
        self._wanted = asyncio.Event()
        self._retry_looks = 0

    def soon(self) -> None:
        """Divide as soon as possible."""
        self._wanted.set()

    async def run(self) -> None:
        """Divide at intervals."""
        seconds = 0.0
        while True:
            is_done = await self.divide()
            seconds = REBALANCE_SECONDS if is_done else FAILED_SECONDS
            began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            waited = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(0.0, APART_SECONDS - waited))

    async def divide(self) -> bool:
        """Divide once; returns whether all topics could be divided."""
        self._wanted.clear()
        all_done = True
        for topic in list(self._member.subscriptions):
            try:
                is_done = await self._divide(topic)
            except TopicNotFound as error:
                is_done = topic == self._member.own_retry_topic and self._has_waited_for_retries()
                if topic != self._member.own_retry_topic:
                    log.warning("topic has no queues", extra={"topic": topic, "error": error})
            except (OSError, FirearrowError) as error:
                log.warning("queues can't be divided", extra={"topic": topic, "error": error})
                is_done = False
            all_done = is_done and all_done
        return all_done

    def _has_waited_for_retries(self) -> bool:
        """Tell whether to stop the frequent looks for the group's retry topic. As a rule, brokers create it at the
        group's first heartbeat."""
        self._retry_looks += 1
        return self._retry_looks > RETRY_LOOKS

    async def _divide(self, topic: str) -> bool:
        member = self._member
        if not member.is_clustering:
            route = await member.calls.session.route(topic)
            return await self._update(topic, set(subscribe_queues(topic, route)), set())
        if self._by_broker:
            return await self._ask_broker(topic)
        route = await member.calls.session.route(topic)
        queues = subscribe_queues(topic, route)
        clients = await member.calls.members(topic)
        if not queues or not clients:
            return bool(queues)
        own = self._strategy([MessageQueue(*queue) for queue in queues], clients, member.calls.session.client_id)
        return await self._update(topic, _as_queues(own), set())

    async def _ask_broker(self, topic: str) -> bool:
        assigned = await self._member.calls.assignments(topic, self._strategy.name)
        if assigned is None:
            return False
        pulled = [one.message_queue for one in assigned if one.mode == PULL]
        popped = [one.message_queue for one in assigned if one.mode != PULL]
        return await self._update(topic, _as_queues(pulled), _as_queues(popped))


def _as_queues(queues: Iterable[MessageQueue]) -> set[Queue]:
    return {Queue(one.topic, one.broker_name, one.queue_id) for one in queues}
