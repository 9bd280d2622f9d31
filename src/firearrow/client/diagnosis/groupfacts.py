"""Facts about a consumer group, collected once: brokers, clients, queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.messages import PullStatus
from firearrow.client.queues import Queue
from firearrow.errors import FirearrowError, GroupNotFound, NotPermitted, TopicNotFound
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.wire.bodies import MASTER_ID, Route
from firearrow.wire.client_bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumerRunningInfo,
    MemberChange,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicOffset,
)
from firearrow.wire.codes import ResponseCode

_NOBODY: Final = frozenset({ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})
GROUP_OF_PROXIES: Final = "CID_DefaultHeartBeatSyncerTopic"
"""Group in which RocketMQ's proxies tell each other of their clients, by their usual `heartbeatSyncerTopicName`."""
IDLE_MS: Final = 60_000  # without a pull, or with messages that no handler finishes
HEADS_MAX: Final = 64  # queues without progress whose first message is examined
LAST_RETRIES: Final = 32  # examined, of each queue of the retry topic


class GroupClient(NamedTuple):
    """Member of a group: its connections to each broker, and its report; ``error`` says why the report is missing."""

    client_id: str
    connections: Mapping[str, Sequence[ClientConnection]]
    info: ConsumerRunningInfo | None = None
    error: str = ""


class QueueProgress(NamedTuple):
    """Progress of the group in a queue, and the ends of the queue."""

    offsets: OffsetWrapper
    ends: TopicOffset


class InspectedMessage(NamedTuple):
    """Message that was examined: its first topic, and the count of its failures."""

    topic: str
    message_id: str
    keys: Sequence[str]
    times: int
    stored_ms: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Facts about a group. Keys of brokers are their names. ``topics`` are those that it subscribes to or has consumed,
    without retry topics."""

    group: str
    now_ms: int
    configs: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    unknown_on: Sequence[str] = ()
    forbidden: Sequence[tuple[str, str]] = ()  # broker, topic
    connections: Mapping[str, ConsumerConnection] = field(default_factory=dict)
    changes: Mapping[str, Sequence[MemberChange]] = field(default_factory=dict)
    """Members that joined and left, the oldest first; RocketMQ's brokers do not report them."""
    members_untold: Sequence[str] = ()
    """Brokers that did not report the group's connections, for example since permission is missing."""
    clients: Sequence[GroupClient] = ()
    pops_waiting: int = 0
    """Waiting pops while no client is connected."""
    proxies: Sequence[str] = ()
    """Hosts of RocketMQ's proxies, if such pops wait: brokers do not know the clients of these."""
    topics: Sequence[str] = ()
    routes: Mapping[str, Route | None] = field(default_factory=dict)
    places: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)
    heads: Mapping[MessageQueue, InspectedMessage] = field(default_factory=dict)
    """First unfinished message of each queue that seems to make no progress."""
    retries: Sequence[InspectedMessage] = ()
    dead: int = 0
    rate: float = 0.0
    untold: Sequence[str] = ()
    refused: Sequence[str] = ()
    """Answers of brokers that the user who asks has no permission."""

    @property
    def models(self) -> set[str]:
        """Message models of its members: ``CLUSTERING``, ``BROADCASTING``."""
        said = {client.info.properties.get("messageModel", "") for client in self.clients if client.info}
        return said - {""} or {one.message_model for one in self.connections.values() if one.message_model}

    def owners(self) -> dict[MessageQueue, list[str]]:
        """Clients that claim a queue."""
        found: dict[MessageQueue, list[str]] = {}
        for client in self.clients:
            if client.info is not None:
                for queue, held in client.info.mq_table.items():
                    if not held.droped:
                        found.setdefault(queue, []).append(client.client_id)
        return found

    def lag(self, topic: str) -> int:
        """Count of messages of a topic that are not consumed."""
        return sum(place.offsets.lag for queue, place in self.places.items() if queue.topic == topic)


async def collect(admin: Admin, group: str, now_ms: int, topic: str | None = None) -> GroupFacts:
    """Ask brokers and clients about a group, in one topic or in all."""
    info = await admin.cluster()
    masters = {
        name: broker.broker_addrs[MASTER_ID]
        for name, broker in info.broker_addr_table.items()
        if MASTER_ID in broker.broker_addrs
    }
    return await _GroupCollector(admin, group, now_ms, masters).collect(topic)


class _GroupCollector:
    """Facts during their collection."""

    def __init__(self, admin: Admin, group: str, now_ms: int, masters: Mapping[str, str]) -> None:
        self._admin = admin
        self._group = group
        self._now_ms = now_ms
        self._masters = masters
        self._untold: list[str] = []
        self._refused: list[str] = []
        self._members_untold: list[str] = []

    async def collect(self, only: str | None) -> GroupFacts:
        configs, unknown_on, forbidden = await self._configs()
        told = await self._connections()
        connections = {name: one for name, one in told.items() if one.connection_set}
        changes = {name: one.member_changes for name, one in told.items() if one.member_changes}
        clients = await self._clients(connections)
        topics = [only] if only else sorted(await self._topics(connections, clients))
        routes = {topic: await self._route(topic) for topic in topics}
        places, rate = await self._places({topic for topic in topics if routes[topic]})
        heads = await self._heads(clients)
        pops_waiting = 0 if clients else await self._pops_waiting(topics)
        proxies = await self._proxies() if pops_waiting else []
        retry, dead = names.retry_topic(self._group), names.dlq_topic(self._group)
        retries, dead_count = await self._retries(retry), await self._count(dead)
        return GroupFacts(
            self._group,
            self._now_ms,
            configs=configs,
            unknown_on=unknown_on,
            forbidden=forbidden,
            connections=connections,
            changes=changes,
            members_untold=self._members_untold,
            clients=clients,
            pops_waiting=pops_waiting,
            proxies=proxies,
            topics=topics,
            routes=routes,
            places=places,
            heads=heads,
            retries=retries,
            dead=dead_count,
            rate=rate,
            untold=self._untold,
            refused=list(dict.fromkeys(self._refused)),
        )

    def _note(self, about: str, error: Exception) -> None:
        if isinstance(error, NotPermitted):
            self._refused.append(f"{about}: {error.remark}")
        else:
            self._untold.append(f"{about}: {error}")

    async def _configs(self) -> tuple[dict[str, SubscriptionGroupConfig], list[str], list[tuple[str, str]]]:
        found: dict[str, SubscriptionGroupConfig] = {}
        unknown: list[str] = []
        forbidden: list[tuple[str, str]] = []
        for name, address in self._masters.items():
            try:
                table = await self._admin.groups.configs(address)
            except (OSError, FirearrowError) as error:
                self._note(name, error)
                continue
            config = table.subscription_group_table.get(self._group)
            if config is None:
                unknown.append(name)
            else:
                found[name] = config
            bits = table.forbidden_table.get(self._group, {})
            forbidden += [(name, topic) for topic, bit in bits.items() if bit]
        return found, unknown, forbidden

    async def _connections(self) -> dict[str, ConsumerConnection]:
        found: dict[str, ConsumerConnection] = {}
        for name, address in self._masters.items():
            try:
                found[name] = await self._admin.groups.consumers(address, self._group, with_changes=True)
            except (OSError, FirearrowError) as error:
                if getattr(error, "code", None) not in _NOBODY:
                    self._note(name, error)
                    self._members_untold.append(name)
        return found

    async def _pops_waiting(self, topics: Sequence[str]) -> int:
        count = 0
        for topic in topics:
            for address in self._masters.values():
                with suppress(OSError, FirearrowError):  # another broker may have it
                    count += await self._admin.groups.pops_waiting(address, self._group, topic)
        return count

    async def _proxies(self) -> list[str]:
        found: set[str] = set()
        for address in self._masters.values():
            with suppress(OSError, FirearrowError):  # nobody is in the group, or the user may not know
                connected = await self._admin.groups.consumers(address, GROUP_OF_PROXIES)
                found |= {one.client_addr.rpartition(":")[0] for one in connected.connection_set}
        return sorted(found)

    async def _clients(self, connections: Mapping[str, ConsumerConnection]) -> list[GroupClient]:
        by_id: dict[str, dict[str, list[ClientConnection]]] = {}
        for broker, found in connections.items():
            for one in found.connection_set:
                by_id.setdefault(one.client_id, {}).setdefault(broker, []).append(one)
        return await concurrently(sorted(by_id.items()), self._client)

    async def _client(self, known: tuple[str, Mapping[str, Sequence[ClientConnection]]]) -> GroupClient:
        client_id, connections = known
        address = self._masters[next(iter(connections))]
        try:
            info = await self._admin.groups.running_info(address, self._group, client_id)
        except (OSError, FirearrowError) as error:
            return GroupClient(client_id, connections, None, str(error))
        return GroupClient(client_id, connections, info)

    async def _topics(self, connections: Mapping[str, ConsumerConnection], clients: Sequence[GroupClient]) -> set[str]:
        found = {topic for one in connections.values() for topic in one.subscription_table}
        for client in clients:
            found |= {one.topic for one in client.info.subscription_set} if client.info else set()
        for name, address in self._masters.items():
            try:
                found |= {*await self._admin.groups.topics(address, self._group)}
            except (OSError, FirearrowError) as error:
                self._note(name, error)
        return {topic for topic in found if not names.is_retry(topic)}

    async def _route(self, topic: str) -> Route | None:
        try:
            return await self._admin.topics.route(topic)
        except TopicNotFound:
            return None

    async def _places(self, topics: set[str]) -> tuple[dict[MessageQueue, QueueProgress], float]:
        found: dict[MessageQueue, QueueProgress] = {}
        rate = 0.0
        for topic in sorted(topics):
            for name, address in self._masters.items():
                try:
                    ends = (await self._admin.topics.stats(address, topic)).offset_table
                    stats = await self._admin.offsets.progress(address, self._group, topic)
                except (GroupNotFound, TopicNotFound):  # another broker may have it
                    continue
                except (OSError, FirearrowError) as error:
                    self._note(f"{name}, topic {topic}", error)
                    continue
                rate += stats.consume_tps
                found |= {
                    queue: QueueProgress(offsets, ends[queue])
                    for queue, offsets in stats.offset_table.items()
                    if queue in ends
                }
        return found, rate

    async def _count(self, topic: str) -> int:
        return sum(end.max_offset - end.min_offset for end in (await self._ends(topic)).values())

    async def _ends(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        try:
            return (await self._admin.topic_stats(topic)).offset_table
        except FirearrowError:  # the topic does not exist before the first failure
            return {}
        except OSError as error:
            self._note(topic, error)
            return {}

    async def _retries(self, topic: str) -> list[InspectedMessage]:
        """Last messages that were redelivered."""
        found: list[InspectedMessage] = []
        for queue, end in (await self._ends(topic)).items():
            first = max(end.min_offset, end.max_offset - LAST_RETRIES)
            if first < end.max_offset:
                found += await self._look(queue, first, LAST_RETRIES)
        return found

    async def _heads(self, clients: Sequence[GroupClient]) -> dict[MessageQueue, InspectedMessage]:
        idle = [
            (queue, held.first_in_hand)
            for client in clients
            for queue, held in (client.info.mq_table.items() if client.info else ())
            if held.cached_msg_count and self._now_ms - held.last_consume_timestamp > IDLE_MS
        ]
        found = await concurrently(idle[:HEADS_MAX], lambda one: self._look(*one, 1))
        pairs = zip(idle, found, strict=False)
        return {queue: seen[0] for (queue, _), seen in pairs if seen}

    async def _look(self, queue: MessageQueue, offset: int, count: int) -> list[InspectedMessage]:
        """Read messages from an offset on, without delivering them to a group."""
        address = self._masters.get(queue.broker_name)
        if address is None:
            return []
        place = Queue(queue.topic, queue.broker_name, queue.queue_id)
        try:
            pulled = await self._admin.messages.pull(address, place, offset, count)
        except (OSError, FirearrowError) as error:
            self._note(queue.text, error)
            return []
        return list(map(_seen, pulled.messages)) if pulled.status is PullStatus.FOUND else []


def _seen(message: MessageView) -> InspectedMessage:
    properties = message.properties
    return InspectedMessage(
        properties.get(keys_of.RETRY_TOPIC, message.topic),
        message.unique_key or properties.get(keys_of.ORIGIN_MESSAGE_ID) or message.offset_message_id,
        message.keys,
        message.reconsume_times,
        message.store_timestamp_ms,
    )
