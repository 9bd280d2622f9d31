"""Routes: the queues of topics on all brokers of the cluster, from the name servers.

A route is requested on demand, and cached. After a while the next caller gets the cached route, while the name servers
are asked again. So only the first caller waits, and an unused topic costs nothing. Without a configured name server,
the routes have only this broker.

Source: RocketMQ's ``TopicRouteInfoManager``, ``MQClientInstance#topicRouteData2TopicSubscribeInfo``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from firearrow.broker.registering.registration import addresses_of
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.logs import Log
from firearrow.net.access import OPEN, Access
from firearrow.net.address import first_answer
from firearrow.net.client import Client
from firearrow.net.tasks import Tasks
from firearrow.services import Service
from firearrow.wire import fastjson
from firearrow.wire.bodies import PERM_READ, Route
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

log: Final = Log(__name__)

TOPICS_MAX: Final = 10_000  # in the cache; beyond, the longest unused is dropped
ASKED_MAX: Final = 1_000  # requests in flight; beyond, routes of other topics are unknown
WAITING_MAX: Final = 10_000  # callers that wait for the queues of one topic
ASK_SECONDS_MAX: Final = 3.0  # Java: GET_TOPIC_ROUTE_TIMEOUT
LINE_SECONDS_MIN: Final = 60.0  # between two log lines about silent name servers

Queues = tuple[MessageQueue, ...]
Told = Callable[[Queues | None], None]


def own_queues(topics: TopicTable, broker_name: str) -> Callable[[str], Queues | None]:
    """Return a function that returns this broker's queues of a readable topic."""

    def own(topic: str) -> Queues | None:
        config = topics.get(topic)
        if config is None:
            return None
        count = config.read_queue_nums if config.perm & PERM_READ else 0
        return tuple(MessageQueue(topic, broker_name, number) for number in range(count))

    return own


def routes_of(settings: Settings, topics: TopicTable, clock: Clock, access: Access) -> TopicRoutes:
    """Make the routes of a broker that has these topics itself."""
    config = settings.broker
    return TopicRoutes(
        addresses_of(config.namesrv_addr),
        own_queues(topics, config.broker_name),
        lambda: settings.broker.load_balance_poll_name_server_interval / 1000,
        clock,
        access,
    )


class _Known(NamedTuple):
    """Route, and the time of its answer; None for no such topic."""

    queues: Queues | None
    at: float


class TopicRoutes(Service):
    """Readable queues of topics.

    ``own`` returns the queues of this broker. ``refresh_seconds`` returns the maximum age of an answer. ``access`` is
    the access to the name servers, with credentials and TLS.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        own: Callable[[str], Queues | None],
        refresh_seconds: Callable[[], float],
        clock: Clock,
        access: Access = OPEN,
    ) -> None:
        super().__init__("routes")
        self._name_servers = list(name_servers)
        self._own = own
        self._refresh_seconds = refresh_seconds
        self._monotonic = clock.monotonic
        self._client = Client(access=access)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asked: dict[str, list[Told]] = {}
        self._tasks = Tasks()
        self._say_again_at = 0.0

    async def start(self) -> None:
        """Do nothing: routes are requested on demand."""

    async def stop(self) -> None:
        """Ask no more; waiting callers get no answer."""
        await self._tasks.close()
        await self._client.close()

    def find(self, topic: str, tell: Told) -> None:
        """Pass the queues of a topic to ``tell``, sorted, at once if they are cached. None: there is no such topic, or
        its route is unknown.
        """
        if not self._name_servers:
            tell(self._own(topic))
            return
        known = self._known.get(topic)
        if known is None:
            waiting = self._asked.get(topic, ())
            if len(waiting) >= WAITING_MAX or (not waiting and len(self._asked) >= ASKED_MAX):
                tell(None)
            else:
                self._ask(topic, [tell])
            return
        self._known.move_to_end(topic)
        if self._monotonic() - known.at >= self._refresh_seconds():
            self._ask(topic, [])
        tell(known.queues)

    def _ask(self, topic: str, waiting: list[Told]) -> None:
        asked = self._asked.get(topic)
        if asked is not None:
            asked += waiting
            return
        self._asked[topic] = waiting
        self._tasks.begin(self._answer(topic), "a route")

    async def _answer(self, topic: str) -> None:
        known = self._known.get(topic)
        queues = None if known is None else known.queues
        try:
            queues = await self._found(topic)
        except (OSError, FirearrowError) as error:
            self._say(topic, error)
        else:
            self._known[topic] = _Known(queues, self._monotonic())
            self._known.move_to_end(topic)
            if len(self._known) > TOPICS_MAX:
                self._known.popitem(last=False)
        for tell in self._asked.pop(topic):
            tell(queues)

    async def _found(self, topic: str) -> Queues | None:
        route = await self.route(topic)
        return None if route is None else readable(topic, route)

    async def route(self, topic: str) -> Route | None:
        """Return the route of a topic from the first name server that answers; None if there is no such topic. Raises
        ConnectionError if none answers, BrokerError if it refuses.
        """
        if not self._name_servers:
            return None
        fields: dict[str, FieldValue] = {"topic": topic, "acceptStandardJsonOnly": True}

        async def asked(address: str) -> Route:
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            answer = await self._client.call(address, code, fields, timeout_seconds=ASK_SECONDS_MAX)
            route, faults = fastjson.decode(answer.body, Route).usable()
            for fault in faults:
                log.warning("entry of a route is left out", extra={"topic": topic, "reason": fault})
            return route

        try:
            return await first_answer(self._name_servers, asked)
        except TopicNotFound:
            return None

    def _say(self, topic: str, error: Exception) -> None:
        now = self._monotonic()
        if now >= self._say_again_at:
            self._say_again_at = now + LINE_SECONDS_MIN
            log.warning("no name server returns the route of a topic", extra={"topic": topic, "error": error})


def readable(topic: str, route: Route) -> Queues:
    """Return the readable queues of a route, in the order of Java's clients."""
    return tuple(
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name)
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_nums)
    )
