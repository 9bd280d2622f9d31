"""Where topics and their queues are: what the name servers of a cluster know.

Name servers don't know of each other; any one that answers will do. One that can't be reached, or
has just been started and says so, is passed over for the next, and the one that answered last is
asked first. Their answers are kept for a while, as RocketMQ's clients do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.answers import read_body, read_route
from firearrow.client.queues import Queue
from firearrow.client.routequeues import MASTER, address_of, publish_queues
from firearrow.clock import Clock
from firearrow.errors import MAY_PASS, ConfigError, TopicNotFound
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.net.blocking import BlockingClient
from firearrow.wire.bodies import PERM_READ, PERM_WRITE, ClusterInfo, Route, TopicList
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand

ROUTE_SECONDS_MAX: Final = 30.0  # as RocketMQ's clients have it


class Cluster:
    """The name servers at some addresses (``host:port``)."""

    def __init__(self, client: BlockingClient, name_servers: Sequence[str]) -> None:
        assert name_servers
        self.client = client
        self._name_servers = list(name_servers)

    def route(self, topic: str) -> Route:
        """Where a topic's queues are; TopicNotFound if no broker has registered the topic."""
        try:
            answer = self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
        except TopicNotFound as error:
            raise TopicNotFound(error.code, f"topic {topic!r} has no route: no broker has it", error.address) from None
        return read_route(answer, topic)

    def topics(self) -> list[str]:
        """The names of all topics, those of the brokers themselves among them."""
        answer = self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(read_body(answer, TopicList, "list of topics").topic_list)

    def masters(self) -> dict[str, str]:
        """The address of each broker's master, by the broker's name."""
        answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = read_body(answer, ClusterInfo, "list of brokers")
        return {
            name: broker.broker_addrs[MASTER]
            for name, broker in sorted(info.broker_addr_table.items())
            if MASTER in broker.broker_addrs
        }

    def _ask(self, code: int, fields: Mapping[str, FieldValue] = NO_FIELDS) -> AnyCommand:
        """Ask one name server after another."""
        failures: list[str] = []
        for address in tuple(self._name_servers):
            try:
                answer = self.client.call(address, code, fields)
            except MAY_PASS as error:
                failures.append(str(error))
                self._name_servers.remove(address)
                self._name_servers.append(address)
            else:
                return answer
        raise ConnectionError(f"no name server answers: {'; '.join(failures)}")


class Routes:
    """The latest routes, and the addresses of the brokers in them."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.cluster = cluster
        self._clock = clock
        self._routes: dict[str, tuple[Route, float]] = {}  # and until when each will do
        self._addresses: dict[str, str] = {}

    def route(self, topic: str) -> Route:
        """Where a topic's queues are; raises as ``Cluster.route``, ConfigError if it is static."""
        known = self._routes.get(topic)
        if known is not None and known[1] > self._clock.monotonic():
            return known[0]
        route = self.cluster.route(topic)
        if route.topic_queue_mapping_by_broker:
            raise ConfigError(f"topic {topic!r} is a static topic, whose queues can't be read")
        for broker in route.broker_datas:
            self._addresses[broker.broker_name] = address_of(broker)
        self._routes[topic] = route, self._clock.monotonic() + ROUTE_SECONDS_MAX
        return route

    def forget(self) -> None:
        """Ask for routes again, as they may be out of date."""
        self._routes.clear()

    def assume(self, broker: str, address: str) -> None:
        """Take a broker to be where it was, if nothing is known of it."""
        self._addresses.setdefault(broker, address)

    def address(self, broker: str) -> str:
        """The address of a broker that a route has named, or that was assumed."""
        try:
            return self._addresses[broker]
        except KeyError:
            raise ConnectionError(f"no name server knows where broker {broker!r} is") from None

    def address_of(self, queue: Queue, *, anew: bool = False) -> str:
        """The address of a queue's broker; ``anew`` if the last one did not answer."""
        if anew or queue.broker not in self._addresses:
            self._addresses.pop(queue.broker, None)
            self._routes.pop(queue.topic, None)
            self.route(queue.topic)
        try:
            return self._addresses[queue.broker]
        except KeyError:
            raise ConnectionError(
                f"no name server knows where broker {queue.broker!r} of topic {queue.topic!r} is"
            ) from None


class Target(NamedTuple):
    """A queue that may be written to."""

    broker_name: str
    address: str
    queue_id: int


def writable(route: Route, queues_max: int | None = None) -> list[Target]:
    """The queues that may be written to, in the order in which Java's clients have them."""
    masters = {
        broker.broker_name: broker.broker_addrs[MASTER]
        for broker in route.broker_datas
        if MASTER in broker.broker_addrs
    }
    return [
        Target(queue.broker, masters[queue.broker], queue.queue_id)
        for queue in publish_queues("", route, queues_max)
        if queue.broker in masters
    ]


def create_topic(
    client: BlockingClient, address: str, topic: str, queues: int, perm: int = PERM_READ | PERM_WRITE
) -> None:
    """Make a topic on a broker, or give it so many queues; raises as ``BlockingClient.call``."""
    fields: dict[str, FieldValue] = {
        "topic": topic,
        "defaultTopic": AUTO_CREATE_TOPIC,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": perm,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    client.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
