"""Assignment of queues to clients by the broker (400), and the request mode of groups, pulls or POP (401, 402).

Source: RocketMQ's ``QueryAssignmentProcessor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.registering.routes import Queues as KnownQueues
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, StateFile, typed
from firearrow.errors import BrokerError, DiskFull
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.message import names
from firearrow.net.server import Finished, Peer
from firearrow.wire import fastjson
from firearrow.wire.allocation import BROKER_STRATEGIES, Queues, Strategy
from firearrow.wire.client_bodies import (
    BROADCASTING,
    POP,
    PULL,
    AssignmentQuery,
    Assignments,
    MessageQueue,
    QueueAssignment,
    RequestMode,
    body_of,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import ANY_QUEUE

log: Final = Log(__name__)


class AssignmentProcessor:
    """400, 401, 402."""

    def __init__(self, context: BrokerContext, modes: RequestModes, routes: TopicRoutes) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._modes = modes
        self._routes = routes

    def query(self, peer: Peer, request: AnyCommand) -> Finished:
        """400: the queues of a topic for a client; without a route the client keeps its queues."""
        asked = body_of(request, AssignmentQuery)
        if names.is_lmq(asked.topic):
            own = MessageQueue(asked.topic, self._settings.broker.broker_name, 0)
            return self._answer(asked, (own,))
        known: list[KnownQueues | None] = []
        is_open = False

        def tell(queues: KnownQueues | None) -> None:
            known.append(queues)
            if is_open:
                peer.owed -= 1
                peer.reply(request, peer.refusal_now(request) or self._answer(asked, queues))

        self._routes.find(asked.topic, tell)
        if known:
            return self._answer(asked, known[0])
        is_open = True
        peer.owed += 1
        return None

    def _answer(self, asked: AssignmentQuery, queues: KnownQueues | None) -> Response:
        mode = self._mode(asked.topic, asked.consumer_group)
        chosen = None if queues is None else self._chosen(asked, queues, mode)
        if chosen is None:
            return Response(body=fastjson.dumps(Assignments()))
        found = [QueueAssignment(queue, mode.mode) for queue in dict.fromkeys(chosen)]
        return Response(body=fastjson.dumps(Assignments(found)))

    def _mode(self, topic: str, group: str) -> RequestMode:
        """Request mode of a topic and group: the administrator's, or the default."""
        said = self._modes.get(topic, group)
        if said is not None:
            return said
        config = self._settings.broker
        if names.is_retry(topic) or config.default_message_request_mode == PULL:
            return RequestMode(mode=PULL)
        return RequestMode(mode=POP, pop_share_queue_num=config.default_pop_share_queue_num)

    def _chosen(self, asked: AssignmentQuery, queues: KnownQueues, mode: RequestMode) -> KnownQueues | None:
        if asked.message_model == BROADCASTING:
            return queues
        if not self._settings.broker.server_load_balancer_enable:
            return queues
        group = self._clients.consumer_group(asked.consumer_group)
        strategy = BROKER_STRATEGIES.get(asked.strategy_name or "")
        if group is None or strategy is None or not queues or not asked.client_id:
            return None
        clients = sorted(group.client_ids())
        if mode.mode == POP:
            share = mode.pop_share_queue_num
            return tuple(shared_for_pop(strategy, queues, clients, asked.client_id, share))
        return tuple(strategy(queues, clients, asked.client_id))

    def set_mode(self, _: Peer, request: AnyCommand) -> Response:
        """401: set the request mode of a group for a topic."""
        mode = body_of(request, RequestMode)
        topic, group = mode.topic or "", mode.consumer_group or ""
        if names.is_retry(topic):
            raise BrokerError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.get(topic) is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self._groups.find(group) is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist")
        self._modes.put(topic, group, mode)
        log.info("request mode of a group is set", extra={"topic": topic, "group": group, "mode": mode.mode})
        return Response()

    def modes(self, _: Peer, __: AnyCommand) -> Response:
        """402: the request modes of all topics and groups."""
        return Response(body=fastjson.dumps(self._modes.content()))


# --- Division of queues by POP ---
#
# By POP, clients share queues: a division is by brokers, or by queues with some neighbours. ``wire.allocation`` has the
# division without that.
#
# Source: RocketMQ's ``QueryAssignmentProcessor``.


def shared_for_pop(strategy: Strategy, queues: Queues, clients: Sequence[str], client: str, share: int) -> Queues:
    """Return the queues that a client may pop from.

    Each queue goes to a client and to the ``share`` clients before it. With 0 or less, or where that would be all
    clients, each client has all brokers. With more clients than queues, each has one queue.
    """
    if share <= 0 or share >= len(clients) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic, broker_name, ANY_QUEUE) for topic, broker_name in brokers]
    if client not in clients:
        return []
    index = clients.index(client)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    neighbours = [clients[(index + ahead) % len(clients)] for ahead in range(share + 1)]
    return [queue for other in neighbours for queue in strategy(queues, clients, other)]


# --- Request modes of groups ---
#
# ``config/messageRequestMode.json``, written at each change::
#
#     {
#         "messageRequestModeMap":{"T":{
#             "G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":0,"topic":"T"}
#         }}
#     }
#
# Source: RocketMQ's ``MessageRequestModeManager``.


FILE_NAME: Final = "messageRequestMode.json"
_TABLE: Final = "messageRequestModeMap"


class RequestModes:
    """Request modes by topic and group."""

    def __init__(self, store_root: Path | None, generations: int) -> None:
        self._table: dict[str, dict[str, RequestMode]] = {}
        storage = None
        if store_root is not None:
            storage = JsonFile(store_root / CONFIG_DIRECTORY / FILE_NAME, generations)
        self.file: Final = StateFile(storage, self.content)
        self.changed: Event[None] = Event()

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Return the mode of a group for a topic, None if none is set."""
        return self._table.get(topic, {}).get(group)

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set the mode of a group for a topic, durably; DiskFull if the write fails.

        The call writes the whole file: administrators do that rarely.
        """
        before = self._table
        self._table = {**before, topic: {**before.get(topic, {}), group: mode}}
        self.file.behind = True
        self.file.save()
        if self.file.behind:
            self._table = before
            raise DiskFull(f"{FILE_NAME} can't be written")
        self.changed(None)

    def follow(self, table: Mapping[str, dict[str, RequestMode]]) -> None:
        """Take the modes of a master, and remove all others."""
        if table != self._table:
            self._table = dict(table)
            self.file.behind = True
            self.file.save()

    def load(self) -> None:
        """Read the file; ConfigError when it can't be read."""
        raw = self.file.read()
        self._table = typed(raw.get(_TABLE) or {}, dict[str, dict[str, RequestMode]], FILE_NAME)

    def content(self) -> Mapping[str, Any]:
        """Return the content of the file, which is also the answer to a slave (402)."""
        return {_TABLE: self._table}
