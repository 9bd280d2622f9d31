"""Brokers that answer when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firearrow.net.replies import Reply
from firearrow.proxy.brokers import Asked, KnownQueues, Link, QueueAt, TopicRoute
from firearrow.wire.bodies import Route, TopicConfig
from firearrow.wire.client_bodies import Heartbeat, SubscriptionGroupConfig
from firearrow.wire.command import Command
from firearrow.wire.frame import AnyCommand

BROKER = "broker-a"


class SilentLink:
    """A link whose requests wait in ``pending``."""

    def __init__(self, brokers: SilentBrokers) -> None:
        self._brokers = brokers
        self.is_closed = False

    def call(self, broker: str, request: AnyCommand, timeout_ms: float) -> Reply[AnyCommand]:
        reply: Reply[AnyCommand] = Reply()
        self._brokers.pending.append((request, reply))
        return reply

    def prove(self, user: str | None) -> None: ...

    def for_call(self, user: str | None) -> SilentLink:
        return self

    def end_wait(self, request: AnyCommand) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def tell(self, broker: str, request: AnyCommand) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class SilentBrokers:
    """One broker with every topic and group."""

    keeps_endpoints = False
    register_seconds = 55.0

    def __init__(self) -> None:
        self.pending: list[tuple[AnyCommand, Reply[AnyCommand]]] = []
        self.links: list[SilentLink] = []
        self.asked: list[Callable[[Asked], None]] = []

    def answer(self, code: int = 0, **fields: str) -> AnyCommand:
        """Answer the oldest pending request; return that."""
        request, reply = self.pending.pop(0)
        reply.set_result(Command(code, fields, remark=""))
        return request

    def link(self, address: str, asked: Callable[[Asked], None], lost: Callable[[], None]) -> SilentLink:
        found = SilentLink(self)
        self.links.append(found)
        self.asked.append(asked)
        return found

    async def beat(self, link: Link, heartbeat: Heartbeat, topics: Sequence[str], language: str) -> None: ...

    async def route(self, topic: str) -> TopicRoute:
        return TopicRoute([])

    async def names(self) -> Sequence[str]:
        return [BROKER]

    async def remoting_route(self, topic: str) -> Route:
        return Route()

    async def write_queues(self, topic: str) -> Sequence[QueueAt]:
        return [(BROKER, 0)]

    def known_queues(self, topic: str) -> KnownQueues | None:
        return None

    async def readable(self, topic: str) -> Sequence[str]:
        return [BROKER]

    async def topic(self, topic: str) -> TopicConfig | None:
        return None

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        return SubscriptionGroupConfig(group_name=group)
