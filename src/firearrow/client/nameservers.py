"""The name servers of a cluster, asked on asyncio.

Name servers don't know of each other; any one that answers will do. The list is in a random order,
so that the clients of a cluster spread over it; the one that answered last is asked first, and one
that can't be reached is passed over for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from firearrow.client.answers import read_route
from firearrow.errors import TopicNotFound
from firearrow.net.client import Client
from firearrow.net.failover import first_answer
from firearrow.wire.bodies import Route
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand

ASK_SECONDS_MAX: Final = 3.0  # as Java's clients have it


class NameServers:
    """Some name servers (``host:port``)."""

    def __init__(self, client: Client, addresses: Sequence[str], chance: Random) -> None:
        self._client = client
        self._chance = chance
        self._addresses: list[str] = []
        self.replace(addresses)

    def replace(self, addresses: Sequence[str]) -> None:
        """Ask others from now on; those that are known already keep their order."""
        if set(addresses) != set(self._addresses):
            self._addresses = list(addresses)
            self._chance.shuffle(self._addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them, the one that is asked next at first."""
        return tuple(self._addresses)

    async def route(self, topic: str) -> Route:
        """Where a topic's queues are; TopicNotFound if no broker has registered the topic."""
        fields: dict[str, FieldValue] = {"topic": topic, "acceptStandardJsonOnly": True}
        try:
            answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except TopicNotFound as error:
            raise TopicNotFound(error.code, f"topic {topic!r} has no route: no broker has it", error.address) from None
        return read_route(answer, topic)

    async def ask(self, code: int, fields: Mapping[str, FieldValue] = NO_FIELDS, body: bytes = b"") -> AnyCommand:
        """Ask one after another; ConnectionError when none answers, BrokerError as it refuses."""
        return await first_answer(
            self._addresses,
            lambda address: self._client.call(address, code, fields, body, timeout_seconds=ASK_SECONDS_MAX),
        )
