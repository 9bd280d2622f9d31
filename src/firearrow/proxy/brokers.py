"""Brokers as the proxy sees them: requests to one by its name, and the topics and groups of the cluster.

There are two forms. In local mode the only broker is in the same process (`proxy.local`). In cluster mode there are
the brokers of a cluster (`proxy.cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from firearrow.net.replies import Reply, Running
from firearrow.wire.bodies import Route, TopicConfig
from firearrow.wire.client_bodies import Heartbeat, SubscriptionGroupConfig
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

QueueAt = tuple[str, int]
"""Broker name and queue id."""


class Link(Protocol):
    """Way to the brokers for one client."""

    def call(self, broker: str, request: AnyCommand, timeout_ms: float) -> Reply[AnyCommand]:
        """Send a request to the master of a broker name, or while there is none to a slave.

        The reply is the answer, with any code; ConnectionError, TimeoutError, or ProxyError for an unknown broker.
        """
        ...

    def prove(self, user: str | None) -> None:
        """Send the following requests for a user that the proxy has checked; None if users are not checked."""
        ...

    def for_call(self, user: str | None) -> Link:
        """Return the link for one call of a user; other users may have calls on the same connection."""
        ...

    def tell(self, broker: str, request: AnyCommand) -> None:
        """Send a one-way request; without effect if the broker is unknown or can't be reached."""
        ...

    def end_wait(self, request: AnyCommand) -> None:
        """Let a request that waits for messages be answered now, without any, if its broker can do that."""
        ...

    def pause(self) -> None:
        """Note that the client does not read: if possible, brokers wake other requests than its own."""
        ...

    def resume(self) -> None:
        """Note that the client reads again."""
        ...

    def close(self) -> None:
        """Close; the brokers forget the client."""
        ...


class Asked(NamedTuple):
    """Request of a broker to a client."""

    command: AnyCommand
    broker: str
    answer: Callable[[Response], None]


class KnownQueues(NamedTuple):
    """Queues of a topic that messages can be sent to; ``topic_type`` as `messagetypes` has it."""

    topic_type: str
    queues: Sequence[QueueAt]


class QueueGroup(NamedTuple):
    """Queues of a topic at one broker name."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int
    addresses: dict[int, tuple[str, int]]
    """Host and gRPC port by broker id."""


class TopicRoute(NamedTuple):
    """Brokers of a topic, in the order of their names."""

    groups: Sequence[QueueGroup]


class Brokers(Protocol):
    """The brokers of a proxy."""

    @property
    def register_seconds(self) -> float:
        """Time after which a heartbeat of a client registers it again."""
        ...

    @property
    def keeps_endpoints(self) -> bool:
        """Tell whether clients reach every broker by the endpoints that they use already."""
        ...

    def link(self, address: str, asked: Callable[[Asked], None], lost: Callable[[], None]) -> Link:
        """Open a link for the client at an address. ``asked`` gets the requests of brokers; ``lost`` is called when
        they have ended the link.
        """
        ...

    def beat(self, link: Link, heartbeat: Heartbeat, topics: Sequence[str], language: str) -> Running[None]:
        """Register a client of these topics at their brokers; BrokerError if one refuses it. ``language`` is the name
        of a `LanguageCode`.
        """
        ...

    def route(self, topic: str) -> Running[TopicRoute]:
        """Return the route of a topic for clients; ProxyError if there is none."""
        ...

    def names(self) -> Running[Sequence[str]]:
        """Return the names of all brokers."""
        ...

    def remoting_route(self, topic: str) -> Running[Route]:
        """Return the route of a topic for clients that speak remoting; ProxyError if there is none."""
        ...

    def write_queues(self, topic: str) -> Running[Sequence[QueueAt]]:
        """Return the queues that this proxy sends to, by broker name and number; ProxyError for an unknown topic."""
        ...

    def known_queues(self, topic: str) -> KnownQueues | None:
        """Return the queues of a topic as `write_queues` told them; None at first, and when the topic has changed."""
        ...

    def readable(self, topic: str) -> Running[Sequence[str]]:
        """Return the names of the brokers that this proxy receives from; ProxyError for an unknown topic."""
        ...

    def topic(self, topic: str) -> Running[TopicConfig | None]:
        """Return the configuration of a topic at any of its brokers; None if it is not known."""
        ...

    def group(self, group: str) -> Running[SubscriptionGroupConfig | None]:
        """Return the configuration of a group, which a broker may create; None if there is none."""
        ...
