"""Administration of a whole cluster: its servers, and the answers of many brokers in one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec

from firearrow.client.admin.calls import Calls, Part, Silent, nobody
from firearrow.errors import BrokerError, ConfigError, FirearrowError, NotFound, TopicNotFound
from firearrow.javanumbers import LONG_MAX
from firearrow.message import names
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.wire.bodies import MASTER_ID, ClusterInfo, Route
from firearrow.wire.codes import BY_KEY, BY_TAG, BY_UNIQUE_KEY, RequestCode, ResponseCode

if TYPE_CHECKING:  # a command needs few of these modules: parts import them, and methods the bodies
    from firearrow.client.admin.auth import Auth
    from firearrow.client.admin.groups import Groups, Offsets
    from firearrow.client.admin.lites import Lite
    from firearrow.client.admin.messages import Messages
    from firearrow.client.admin.nameservers import NameServerRequests
    from firearrow.client.admin.servers import Brokers, Controllers
    from firearrow.client.admin.topics import Topics
    from firearrow.message.model import MessageView
    from firearrow.net.encryption import Tls
    from firearrow.wire.client_bodies import (
        ConsumerConnection,
        ConsumerRunningInfo,
        ConsumeStats,
        DirectResult,
        MessageQueue,
        OffsetWrapper,
        ProducerConnection,
        TopicStats,
    )
    from firearrow.wire.signature import Credentials

P = TypeVar("P", bound=Part)

UNIQUE_KEYS_MAX: Final = 32  # messages that a search for one unique key may return
THREE_DAYS_MS: Final = 3 * 24 * 60 * 60 * 1000


class Track(msgspec.Struct, frozen=True):
    """The fate of a message in a group; ``kind`` in RocketMQ's words."""

    group: str
    kind: str
    why: str | None = None


class Reset(msgspec.Struct, frozen=True):
    """Change of a group's offset in a queue, made without the group's consumers."""

    broker: str
    queue_id: int
    latest: int
    before: int
    at_time: int
    after: int


class RegisteredBroker(NamedTuple):
    """A registered broker; the number of a master is 0."""

    cluster: str
    broker: str
    number: int
    address: str


class LazyPart(Generic[P]):
    """Part of `Admin`, whose module is imported at the first use: a command needs one or two of the parts.

    It is a descriptor: Python calls ``__get__`` for the attribute, until the administrator has the part itself.
    """

    def __init__(self, module: str, kind: str = "") -> None:
        self._module = f"{__package__}.{module}"
        self._kind = kind

    def __set_name__(self, owner: type[Admin], name: str) -> None:
        self._name = name
        self._kind = self._kind or name.capitalize()

    def __get__(self, admin: Admin, owner: type[Admin]) -> P:
        """Make the part, which from then on hides this attribute."""
        kind = getattr(import_module(self._module), self._kind)
        part: P = kind(admin.calls)
        setattr(admin, self._name, part)
        return part


class Admin:
    """Administrator of the cluster of some name servers; `of` opens one.

    `Calls` says what ``silent`` and ``omits_silent`` are.
    """

    auth: LazyPart[Auth] = LazyPart("auth")
    brokers: LazyPart[Brokers] = LazyPart("servers")
    controllers: LazyPart[Controllers] = LazyPart("servers")
    groups: LazyPart[Groups] = LazyPart("groups")
    lite: LazyPart[Lite] = LazyPart("lites")
    messages: LazyPart[Messages] = LazyPart("messages")
    name_servers: LazyPart[NameServerRequests] = LazyPart("nameservers", "NameServerRequests")
    offsets: LazyPart[Offsets] = LazyPart("groups")
    topics: LazyPart[Topics] = LazyPart("topics")

    def __init__(
        self, client: Client, name_servers: Sequence[str], silent: Silent = nobody, *, omits_silent: bool = False
    ) -> None:
        self.calls: Final = Calls(client, name_servers, silent, omits_silent=omits_silent)

    @staticmethod
    @asynccontextmanager
    async def of(
        name_servers: Sequence[str], credentials: Credentials | None = None, tls: Tls | None = None
    ) -> AsyncIterator[Admin]:
        """Administer a cluster for an ``async with`` block, as a user of it if there are credentials."""
        client = Client(access=Access(credentials, tls))
        try:
            yield Admin(client, name_servers)
        finally:
            await client.close()

    async def cluster(self) -> ClusterInfo:
        """Give all registered brokers, by name, and the names in each cluster."""
        return await self.calls.read_any(RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)

    async def topic_stats(self, topic: str) -> TopicStats:
        """Give the first and last offsets of a topic's queues on all its brokers; NotFound if there are none.

        The rate is not summed up. Java: DefaultMQAdminExtImpl#examineTopicStats.
        """
        from firearrow.wire.client_bodies import TopicStats

        ends = {}
        for address in addresses_in(await self.topics.route(topic)):
            ends.update((await self.topics.stats(address, topic)).offset_table)
        if not ends:
            raise NotFound(ResponseCode.QUERY_NOT_FOUND, f"topic {topic!r} has no queues")
        return TopicStats(ends)

    async def topic_groups(self, topic: str) -> list[str]:
        """List the groups that consume a topic, as its first broker knows them."""
        route = await self.topics.route(topic)
        return await self.topics.groups(addresses_in(route)[0], topic)

    async def progress(self, group: str, topic: str | None = None, route_topic: str | None = None) -> ConsumeStats:
        """Give the progress of a group on all its brokers, in one topic or in all.

        ``route_topic`` has the route of a topic without a separate one (a light topic: its parent). Without progress,
        raises BrokerError with 206 when no consumer is online, with 213 when the consumers broadcast.
        """
        from firearrow.wire.client_bodies import ConsumeStats

        route = await self._route_of_progress(group, topic, route_topic)
        offsets: dict[MessageQueue, OffsetWrapper] = {}
        rate = 0.0
        for address in addresses_in(route):
            part = await self.offsets.progress(address, group, topic)
            offsets.update(part.offset_table)
            rate += part.consume_tps
        if not route_topic:  # as in RocketMQ, only topics with a route
            for name in sorted({queue.topic for queue in offsets}):
                await self.topics.route(name)
        if not offsets:
            await self.refuse_empty(group)
        return ConsumeStats(offsets, rate)

    async def _route_of_progress(self, group: str, topic: str | None, route_topic: str | None) -> Route:
        candidates = [names.retry_topic(group)]
        if topic is not None:
            candidates += topic, names.pop_retry_topic(topic, group)
            if route_topic and needs_route_of_another(topic):
                candidates.append(route_topic)
        for name in candidates[:-1]:
            try:
                return await self.topics.route(name)
            except TopicNotFound:
                continue
        return await self.topics.route(candidates[-1])

    async def refuse_empty(self, group: str) -> None:
        """Raise BrokerError for a group without progress: with 206 if it is not online, 213 if it broadcasts."""
        from firearrow.wire.client_bodies import BROADCASTING

        try:
            model = (await self.consumers(group)).message_model
        except (OSError, FirearrowError):
            why = f"group {group!r} has consumed nothing and is not online"
            raise BrokerError.of(ResponseCode.CONSUMER_NOT_ONLINE, why) from None
        if model == BROADCASTING:
            why = f"group {group!r} broadcasts: its offsets are with its consumers"
            raise BrokerError.of(ResponseCode.BROADCAST_CONSUMPTION, why)

    async def consumers(self, group: str, address: str | None = None) -> ConsumerConnection:
        """Give the clients of a group, as a broker knows them; BrokerError with 206 for none."""
        if address is None:
            address = addresses_in(await self.topics.route(names.retry_topic(group)))[0]
        found = await self.groups.consumers(address, group)
        if not found.connection_set:
            why = f"group {group!r} is not online"
            raise BrokerError.of(ResponseCode.CONSUMER_NOT_ONLINE, why, address)
        return found

    async def producers(self, group: str, topic: str) -> ProducerConnection:
        """Give the clients of a producer group, as a topic's broker knows them; NotFound for none."""
        address = addresses_in(await self.topics.route(topic))[0]
        found = await self.groups.producers(address, group)
        if not found.connection_set:
            why = f"producer group {group!r} is not online"
            raise BrokerError.of(ResponseCode.CONSUMER_NOT_ONLINE, why, address)
        return found

    async def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Give a consumer's report about itself."""
        route = await self.topics.route(names.retry_topic(group))
        return await self.groups.running_info(addresses_in(route)[0], group, client_id, stacks=stacks)

    async def find(
        self,
        topic: str,
        key: str,
        *,
        by: str = BY_KEY,
        count: int = 64,
        since_ms: int = 0,
        until_ms: int = LONG_MAX,
        last_key: str | None = None,
        cluster: str | None = None,
    ) -> list[MessageView]:
        """Find the messages with a key, on all brokers of a topic or on its brokers in one cluster.

        For a light topic ``cluster`` is its parent. Raises NotFound when there are none.
        """
        is_light = names.is_lmq(topic)
        route = await self._route_for(topic, cluster)
        found: list[MessageView] = []
        for broker in route.broker_datas:
            if cluster and not is_light and cluster != broker.cluster:
                continue
            found += await self.messages.find(
                broker.address,
                cluster if is_light and cluster else topic,
                key,
                by=by,
                count=count,
                since_ms=since_ms,
                until_ms=until_ms,
                last_key=last_key,
            )
        matching = [message for message in found if _has(message, topic, key, by, is_light)]
        if not matching:
            why = f"topic {topic!r} has no message with key {key!r}"
            raise NotFound(ResponseCode.NO_MESSAGE, why)
        return matching

    async def message(self, topic: str, message_id: str, now_ms: int, cluster: str | None = None) -> MessageView:
        """Give the message with an offset message id, or with a unique id of the last three days."""
        try:
            return await self.messages.view(message_id, topic)
        except (OSError, FirearrowError):  # as in RocketMQ: it may be an id of the other kind
            pass
        found = await self.find(
            topic, message_id, by=BY_UNIQUE_KEY, count=UNIQUE_KEYS_MAX, since_ms=now_ms - THREE_DAYS_MS, cluster=cluster
        )
        return found[0]

    async def consume_directly(self, group: str, client_id: str, topic: str, message: MessageView) -> DirectResult:
        """Make a consumer consume a message now."""
        address = str(message.store_host)
        return await self.messages.consume_directly(address, group, client_id, topic, message.offset_message_id)

    async def tracks(self, message: MessageView) -> list[Track]:
        """Give the fate of a message in each group that consumes its topic."""
        groups = await self.topic_groups(message.topic)
        return [await self._track(message, group) for group in groups]

    async def _track(self, message: MessageView, group: str) -> Track:
        from firearrow.wire.client_bodies import CONSUME_ACTIVELY

        try:
            consumers = await self.consumers(group)
        except TopicNotFound as error:
            return Track(group, "UNKNOWN", f"CODE:{error.code} DESC:{error.remark}")
        except (OSError, FirearrowError) as error:
            return _failed(group, error)
        if consumers.consume_type == CONSUME_ACTIVELY:
            return Track(group, "PULL")
        try:
            consumed = await self.consumed(message, group)
        except (OSError, FirearrowError) as error:
            return _failed(group, error)
        if not consumed:
            return Track(group, "NOT_CONSUME_YET")
        wanted = consumers.subscription_table.get(message.topic)
        filtered = wanted is not None and wanted.tags_set and not {message.tags, "*"} & {*wanted.tags_set}
        return Track(group, "CONSUMED_BUT_FILTERED" if filtered else "CONSUMED")

    async def consumed(self, message: MessageView, group: str) -> bool:
        """Tell whether a group's offset in a message's queue is behind the message."""
        progress = await self.progress(group)
        info = await self.cluster()
        for queue, offsets in progress.offset_table.items():
            broker = info.broker_addr_table.get(queue.broker_name)
            if (
                (queue.topic, queue.queue_id) == (message.topic, message.queue_id)
                and broker is not None
                and broker.broker_addrs.get(MASTER_ID) == str(message.store_host)
                and offsets.consumer_offset > message.queue_offset
            ):
                return True
        return False

    async def _route_for(self, topic: str, route_topic: str | None) -> Route:
        """Give the route of a topic, or of ``route_topic`` if the topic has no separate route."""
        if route_topic and needs_route_of_another(topic):
            return await self.topics.route(route_topic)
        return await self.topics.route(topic)

    async def reset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True, route_topic: str | None = None
    ) -> dict[MessageQueue, int]:
        """Reset the offsets of a group to a time (-1: to the end) on all brokers of a topic."""
        route = await self._route_for(topic, route_topic)
        found: dict[MessageQueue, int] = {}
        for address in addresses_in(route):
            found |= await self.offsets.reset(address, group, topic, timestamp_ms, force=force)
        return found

    async def reset_offline(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True, route_topic: str | None = None
    ) -> list[Reset]:
        """Reset offsets as ``reset`` does, by commits: for a group without connected consumers."""
        route = await self._route_for(topic, route_topic)
        resets: list[Reset] = []
        for address in addresses_in(route):
            progress = await self.offsets.progress(address, group)
            places = {
                queue: (offsets.broker_offset, offsets.consumer_offset)
                for queue, offsets in progress.offset_table.items()
                if queue.topic == topic
            }
            if not places:
                ends = (await self.topics.stats(address, topic)).offset_table
                places = {queue: (end.max_offset, end.min_offset) for queue, end in ends.items()}
            for queue, (latest, before) in places.items():
                at_time = (
                    await self.offsets.latest(address, queue)
                    if timestamp_ms == -1
                    else await self.offsets.at_time(address, queue, timestamp_ms)
                )
                after = at_time if force or at_time <= before else before
                if force or at_time <= before:
                    await self.offsets.commit(address, group, queue, at_time)
                place = (queue.broker_name, queue.queue_id)
                resets.append(Reset(*place, latest, before, at_time, after))
        return resets

    async def delete_topic(self, topic: str, cluster: str) -> None:
        """Delete a topic from all brokers of a cluster and from the name servers."""
        for address in addresses_of_cluster(await self.cluster(), cluster):
            await self.topics.delete_from_broker(address, topic)
        for address in self.name_servers.addresses:
            await self.topics.delete_from_name_server(address, topic)
        await self.name_servers.delete(names.ORDER_NAMESPACE, topic)

    async def delete_topic_on(self, topic: str, broker: str) -> None:
        """Delete a topic from one broker with its slaves, and from its routes."""
        info = await self.cluster()
        for server in servers_in(info):
            if server.broker == broker:
                await self.topics.delete_from_broker(server.address, topic)
        for address in self.name_servers.addresses:
            await self.topics.delete_routes(address, topic, broker, cluster_with(broker, info) or "")

    async def put_order(self, topic: str, value: str, *, whole: bool) -> None:
        """Set the queue count of an ordered topic on one broker (``name:queues``).

        With ``whole``, the value has the counts on all brokers, joined by ``;``.
        """
        if not whole:
            try:
                before = await self.name_servers.value(names.ORDER_NAMESPACE, topic)
            except NotFound:
                before = ""
            brokers = {part.partition(":")[0]: part for part in before.split(";") if part}
            brokers[value.partition(":")[0]] = value
            value = ";".join(brokers.values())
        await self.name_servers.put(names.ORDER_NAMESPACE, topic, value)


def needs_route_of_another(topic: str) -> bool:
    """Tell whether a topic has no separate route."""
    return names.is_lmq(topic) or topic == names.TIMER_TOPIC


def addresses_in(route: Route) -> list[str]:
    """List an address of each broker that a route names: its master's, if there is one."""
    return [broker.address for broker in route.broker_datas if broker.broker_addrs]


def cluster_with(broker: str, info: ClusterInfo) -> str | None:
    """Give the cluster of a broker name; None if it is in none."""
    found = (name for name, brokers in info.cluster_addr_table.items() if broker in brokers)
    return next(found, None)


def servers_in(info: ClusterInfo, clusters: Iterable[str] | None = None) -> list[RegisteredBroker]:
    """List the brokers of some clusters or of all, including slaves, in the order of their names."""
    chosen = sorted(info.cluster_addr_table) if clusters is None else clusters
    return [
        RegisteredBroker(cluster, name, number, address)
        for cluster in chosen
        for name in sorted(info.cluster_addr_table.get(cluster, []))
        if name in info.broker_addr_table
        for number, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]


def brokers_of(info: ClusterInfo, cluster: str) -> list[str]:
    """List the names of a cluster's brokers; ConfigError if there is no such cluster."""
    if cluster not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise ConfigError(f"there is no cluster {cluster!r}; the name servers know: {known}")
    return info.cluster_addr_table[cluster]


def masters_of(info: ClusterInfo, cluster: str) -> list[str]:
    """List the addresses of a cluster's masters; ConfigError if there is no such cluster."""
    tables = [info.broker_addr_table.get(name) for name in brokers_of(info, cluster)]
    return [table.broker_addrs[MASTER_ID] for table in tables if table and MASTER_ID in table.broker_addrs]


def addresses_of_cluster(info: ClusterInfo, cluster: str) -> list[str]:
    """List the addresses of a cluster's masters and slaves; ConfigError if there is no such cluster."""
    tables = [info.broker_addr_table.get(name) for name in brokers_of(info, cluster)]
    return [address for table in tables if table for address in table.broker_addrs.values()]


def _has(message: MessageView, topic: str, key: str, by: str, any_topic: bool) -> bool:
    if by == BY_UNIQUE_KEY:
        return key in (message.unique_key, message.offset_message_id)
    if not (any_topic or message.topic == topic):
        return False
    return message.tags == key if by == BY_TAG else key in message.keys


def _failed(group: str, error: Exception) -> Track:
    code = error.code if isinstance(error, BrokerError) else None
    if code == ResponseCode.CONSUMER_NOT_ONLINE:
        assert isinstance(error, BrokerError)
        return Track(group, "NOT_ONLINE", f"CODE:{code} DESC:{error.remark}")
    if code == ResponseCode.BROADCAST_CONSUMPTION:
        return Track(group, "CONSUME_BROADCASTING")
    return Track(group, "UNKNOWN", f"{type(error).__name__}: {error}")
