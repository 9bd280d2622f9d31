"""Name servers of a cluster, asked on asyncio.

Name servers do not know each other, so the answer of any one will do. The client shuffles the list, so that the clients
of a cluster spread over it, unless the caller fixes the order. The server that answered last is asked first. A server
that can't be reached is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from firearrow.client.session.answers import read_body, read_route
from firearrow.errors import TopicNotFound
from firearrow.net.address import first_answer
from firearrow.net.client import Client
from firearrow.wire.bodies import MASTER_ID, ClusterInfo, Route, TopicList
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand

ASK_SECONDS_MAX: Final = 3.0  # as in RocketMQ's clients


class NameServers:
    """Name servers (``host:port``), in the given order unless ``chance`` shuffles them.

    Each has ``ask_seconds`` to answer.
    """

    def __init__(
        self,
        client: Client,
        addresses: Sequence[str],
        chance: Random | None = None,
        *,
        ask_seconds: float = ASK_SECONDS_MAX,
    ) -> None:
        self._client = client
        self._chance = chance
        self._ask_seconds = ask_seconds
        self._addresses: list[str] = []
        self.replace(addresses)

    def replace(self, addresses: Sequence[str]) -> None:
        """Use other servers from now on; an unchanged set keeps its order."""
        if set(addresses) != set(self._addresses):
            self._addresses = list(addresses)
            if self._chance is not None:
                self._chance.shuffle(self._addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, the next one to be asked first."""
        return tuple(self._addresses)

    async def route(self, topic: str) -> Route:
        """Route of a topic. Raises TopicNotFound if no broker has registered the topic."""
        fields: dict[str, FieldValue] = {"topic": topic, "acceptStandardJsonOnly": True}
        try:
            answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except TopicNotFound as error:
            raise TopicNotFound(
                error.code, f"topic {topic!r} has no route: no broker has registered it", error.address
            ) from None
        return read_route(answer, topic)

    async def topics(self) -> list[str]:
        """Names of all topics, including the brokers' own."""
        answer = await self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(read_body(answer, TopicList, "list of topics").topic_list)

    async def masters(self) -> dict[str, str]:
        """Address of each broker's master, by the broker's name."""
        answer = await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = read_body(answer, ClusterInfo, "list of brokers")
        return {
            name: broker.broker_addrs[MASTER_ID]
            for name, broker in sorted(info.broker_addr_table.items())
            if MASTER_ID in broker.broker_addrs
        }

    async def ask(self, code: int, fields: Mapping[str, FieldValue] = NO_FIELDS, body: bytes = b"") -> AnyCommand:
        """Ask one server after another. Raises ConnectionError if none answers, BrokerError if one refuses."""
        return await first_answer(
            self._addresses,
            lambda address: self._client.call(address, code, fields, body, timeout_seconds=self._ask_seconds),
        )
