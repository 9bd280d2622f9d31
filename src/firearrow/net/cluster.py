"""Where topics are: what the name servers of a cluster know, asked by a client that blocks.

Name servers don't know of each other; any one that answers will do. One that can't be reached, or
has just been started and says so, is passed over for the next, and the one that answered last is
asked first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from firearrow.errors import (
    BrokerBusy,
    BrokerFailed,
    BrokerUnavailable,
    MessageError,
    RemoteProtocolError,
    TopicNotFound,
)
from firearrow.net.blocking import BlockingClient
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, Route, TopicList
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand

B = TypeVar("B")

_ELSEWHERE: Final = (OSError, BrokerFailed, BrokerBusy, BrokerUnavailable)


class Cluster:
    """The name servers at some addresses (``host:port``)."""

    def __init__(self, client: BlockingClient, name_servers: Sequence[str]) -> None:
        assert name_servers
        self.client = client
        self._name_servers = list(name_servers)

    def route(self, topic: str) -> Route:
        """Where a topic's queues are; TopicNotFound if no broker has registered the topic."""
        try:
            answer = self._ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True}
            )
        except TopicNotFound as error:
            raise TopicNotFound(
                error.code, f"topic {topic!r} has no route: no broker has it", error.address
            ) from None
        return read_body(answer, Route, "route")

    def topics(self) -> list[str]:
        """The names of all topics, those of the brokers themselves among them."""
        answer = self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(read_body(answer, TopicList, "list of topics").topic_list)

    def masters(self) -> dict[str, str]:
        """The address of each broker's master, by the broker's name."""
        answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = read_body(answer, ClusterInfo, "list of brokers")
        return {
            name: broker.broker_addrs[0]
            for name, broker in sorted(info.broker_addr_table.items())
            if 0 in broker.broker_addrs
        }

    def _ask(self, code: int, fields: Mapping[str, FieldValue] = NO_FIELDS) -> AnyCommand:
        """Ask one name server after another."""
        failures: list[str] = []
        for address in tuple(self._name_servers):
            try:
                answer = self.client.call(address, code, fields)
            except _ELSEWHERE as error:
                failures.append(str(error))
                self._name_servers.remove(address)
                self._name_servers.append(address)
            else:
                return answer
        raise ConnectionError(f"no name server answers: {'; '.join(failures)}")


def read_body(answer: AnyCommand, kind: type[B], what: str) -> B:
    """Read the body of an answer; RemoteProtocolError if it is not what it ought to be."""
    try:
        return fastjson.decode(answer.body, kind)
    except MessageError as error:
        raise RemoteProtocolError(f"a server sent no {what}: {error}") from None


def address_of(broker: BrokerData) -> str:
    """The address of a broker's master, else of the slave with the lowest id."""
    return broker.broker_addrs[min(broker.broker_addrs)]
