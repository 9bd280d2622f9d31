"""Redeliver popped messages: put them into a retry topic of their group.

The topic is ``%RETRY%<group>_<topic>`` or, with ``enableRetryTopicV2`` and if permissions are checked,
``%RETRY%<group>+<topic>``. A message of a retry topic stays in that one. The retry topic has one queue. With
``useSeparateRetryQueue`` it has as many as the topic, and each message keeps its queue, so messages of a queue stay in
order. Topics with priorities always have them, as a message would otherwise wait for all earlier failures of lower
priority.
Java: reviveRetry has one queue for them, too (apache/rocketmq#10350).

*Messages of another broker.* A slave that acts for its master sends the due messages of its timer to another master,
and among them checkpoints of pops. So a revive queue may have a checkpoint that names another broker. A pull reads its
messages from there, and they are put into the retry topic here. `RemoteReads.content` begins the read and raises
`PutLater`. ``arrived`` is called when the read has ended, and the next call of ``content`` returns its result.

Source: RocketMQ ``PopReviveService#reviveRetry``, ``#addRetryTopicIfNotExist``, ``EscapeBridge#getMessageFromRemote``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from firearrow.broker.access.control import access_of
from firearrow.broker.context import BrokerContext
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.state.attributes import has_priorities
from firearrow.errors import FirearrowError, MessageError, PutLater
from firearrow.logs import Log
from firearrow.message import names, properties
from firearrow.message.record import Content, decode_content, has_crc_property
from firearrow.message.sysflag import HOSTS_V6_MASK
from firearrow.net.client import Client
from firearrow.net.tasks import Tasks
from firearrow.store import QueueEntry
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.poprecords import PopCheckpoint

log: Final = Log(__name__)

ENTRIES_AHEAD: Final = 32  # of a queue in one read: a pop gives as many messages

_PAIR_END: Final = properties.PAIR_END.encode()
_first_pop: Final = properties.finder(properties.FIRST_POP_TIME)
_origin_group: Final = properties.finder(properties.ORIGIN_GROUP)


class RetryTarget(NamedTuple):
    """Topic for the rest of a checkpoint, and the number of its queues. ``entries`` are the known entries of the
    messages."""

    checkpoint: PopCheckpoint
    topic: str
    queue_nums: int
    entries: dict[int, QueueEntry]


class Retries:
    """Put messages of checkpoints into retry topics.

    ``arrived`` is called when a message of another broker is there.
    """

    def __init__(self, context: BrokerContext, routes: TopicRoutes, arrived: Callable[[], object]) -> None:
        self._remote = RemoteReads(context, routes, arrived)
        self._store = context.store
        self._puts = context.puts
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._settings = context.settings

    async def stop(self) -> None:
        """Read no further message of other brokers."""
        await self._remote.stop()

    def _is_foreign(self, checkpoint: PopCheckpoint) -> bool:
        """Return whether the messages are another broker's, which name servers may know."""
        broker = self._settings.broker
        named = checkpoint.broker_name not in (None, "", broker.broker_name)
        return named and bool(broker.namesrv_addr)

    def target(self, checkpoint: PopCheckpoint, *, any_group: bool = False) -> RetryTarget | None:
        """Return the retry topic for the messages of a checkpoint, and create it if necessary.

        Return None if the messages' topic is gone, or their group unless ``any_group``. Raise DiskFull if the topic
        can't be created.
        """
        if self._is_foreign(checkpoint):  # topic and group exist
            return RetryTarget(checkpoint, self._topic_of(checkpoint, 1), 1, {})
        popped = self._topics.get(popped_topic(checkpoint.topic, checkpoint.group))
        if popped is None or (not any_group and self._groups.find(checkpoint.group) is None):
            return None
        queue_nums = self._queue_nums(popped)
        topic = self._topic_of(checkpoint, queue_nums)
        return RetryTarget(checkpoint, topic, queue_nums, {})

    def put(self, target: RetryTarget, queue_offset: int, now_ms: int) -> None:
        """Put one message of a checkpoint into its retry topic, unless the message is gone from the store.

        Raise MessageError if this message can't be put now, StoreError or OSError if nothing can be put now, PutLater
        while another broker is asked for the message.
        """
        popped = target.checkpoint
        if self._is_foreign(popped):
            name = popped.broker_name or ""
            place = RemotePlace(name, popped.topic, popped.queue_id, queue_offset)
            remote = self._remote.content(place)
            if remote is not None:
                self._put(target, remote, now_ms)
            return
        entry = self._entry(target, queue_offset)
        if entry is None:
            return
        try:
            content = self._store.content_at(entry.physical_offset)
        except MessageError:
            if entry.physical_offset < self._store.log_start_offset:
                return
            raise
        self._put(target, content, now_ms)

    def _entry(self, target: RetryTarget, queue_offset: int) -> QueueEntry | None:
        """Return the entry of a message, None if the message is gone. Raise MessageError if that is not known yet.

        Java: PopReviveService#getBizMessage takes every message that the queue can't give for gone.
        """
        store, entries = self._store, target.entries
        topic, queue_id = target.checkpoint.topic, target.checkpoint.queue_id
        if queue_offset in entries:
            return entries[queue_offset]
        if queue_offset < store.min_queue_offset(topic, queue_id):
            return None
        ahead = {
            entry.queue_offset: entry for entry in store.iterate_from(topic, queue_id, queue_offset, ENTRIES_AHEAD)
        }
        if not ahead and queue_offset < store.queue(topic, queue_id).next_offset:
            raise MessageError("its queue does not reach its offset yet", "queue offset")
        entries.update(ahead)
        return entries.get(queue_offset)

    def _put(self, target: RetryTarget, content: Content, now_ms: int) -> None:
        """Put the message as it was, with this store as host, and one more failure unless it was suspended."""
        store, checkpoint = self._store, target.checkpoint
        queue_id = content.queue_id if content.queue_id < target.queue_nums else 0
        queue = store.queue(target.topic, queue_id)
        reconsume_times = content.reconsume_times + (not checkpoint.is_suspended)
        # The added properties may also make it too large for a file.
        for kept in (_noted(checkpoint, content), content.properties):
            try:
                self._puts.put_again(
                    (
                        queue,
                        content.body,
                        kept,
                        content.flag,
                        content.sys_flag & ~HOSTS_V6_MASK,
                        content.born_timestamp_ms,
                        store.store_host,
                        reconsume_times,
                        0,
                    ),
                    now_ms,
                )
            except MessageError as error:
                refusal = error
            else:
                return
        raise refusal

    def _topic_of(self, checkpoint: PopCheckpoint, queue_nums: int) -> str:
        """Return the retry topic for a checkpoint, created with at least ``queue_nums`` queues."""
        topic, group = checkpoint.topic, checkpoint.group
        if not names.is_retry(topic):
            v2 = self._settings.broker.has_retries_apart
            topic = names.pop_retry_topic(topic, group, v2=v2)
        config = self._topics.get(topic)
        if config is None:
            self._topics.create(topic, queue_nums)
            known = 0
        elif config.write_queue_nums < queue_nums:
            # Java: PopReviveService#addRetryTopicIfNotExist also shrinks it, and messages in its last queues are popped
            # no more.
            nums = {"read_queue_nums": queue_nums, "write_queue_nums": queue_nums}
            self._topics.put(replace(config, attributes={}, **nums))
            known = config.write_queue_nums
        else:
            return topic
        for queue_id in range(known, queue_nums):
            if self._offsets.query(group, topic, queue_id) < 0:
                self._offsets.commit(group, topic, queue_id, 0)
        return topic

    def _queue_nums(self, popped: TopicConfig) -> int:
        """Return the least number of queues of a topic's retry topic."""
        if has_priorities(popped) or self._settings.broker.use_separate_retry_queue:
            return max(popped.write_queue_nums, 1)
        return 1


def _noted(checkpoint: PopCheckpoint, content: Content) -> bytes:
    """Return the properties with the time and group of the first pop, or without them if there is no room.

    Java: PopReviveService#reviveRetry can't put such a message, and retries for ever.
    """
    stored, group = content.properties, checkpoint.group
    first_pop, origin_group = _first_pop(stored), _origin_group(stored)
    if first_pop and origin_group == group.encode() and content.reconsume_times:
        return stored
    first_pop_ms = checkpoint.pop_ms
    if not (first_pop or origin_group or has_crc_property(stored)) and stored.endswith(_PAIR_END):
        noted = stored + f"1ST_POP_TIME\1{first_pop_ms}\2ORIGIN_GROUP\1{group}\2".encode()
        return noted if len(noted) <= properties.PROPERTIES_BYTES_MAX else stored
    found = properties.parse(stored)
    if not (first_pop and content.reconsume_times):
        found[properties.FIRST_POP_TIME] = str(first_pop_ms)
    found[properties.ORIGIN_GROUP] = group
    found.pop(properties.CRC32, None)
    try:
        return properties.encode(found)
    except MessageError:
        return stored


def popped_topic(topic: str, group: str) -> str:
    """Return the topic that messages were popped from first, by the topic that they are in now."""
    for v2 in (True, False):
        prefix = names.pop_retry_topic("", group, v2=v2)
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


# --- messages of other brokers ---

PULL_SECONDS_MAX: Final = 10.0  # Java: EscapeBridge#DEFAULT_PULL_TIMEOUT_MILLIS
UNDER_WAY_MAX: Final = 64
"""Messages that are being read, or wait for the next call of ``content``."""
_SUBSCRIPTION: Final = 4


class RemotePlace(NamedTuple):
    """Broker, queue and offset of a message."""

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int


class RemoteReads:
    """Read messages of other brokers."""

    def __init__(self, context: BrokerContext, routes: TopicRoutes, arrived: Callable[[], object]) -> None:
        self._settings = context.settings
        self._routes = routes
        self._arrived = arrived
        self._client = Client(access=access_of(context.settings.broker))
        self._found: dict[RemotePlace, Content | MessageError | None] = {}
        self._under_way: set[RemotePlace] = set()
        self._tasks = Tasks()

    async def stop(self) -> None:
        """Read nothing more."""
        await self._tasks.close()
        await self._client.close()

    def content(self, place: RemotePlace) -> Content | None:
        """Return a message; None if it is gone.

        Raise PutLater while it is being read, and MessageError if it can't be read now.
        """
        if place not in self._found:
            if place not in self._under_way and len(self._under_way) < UNDER_WAY_MAX:
                self._under_way.add(place)
                self._tasks.begin(self._read(place), "a message of another broker")
            raise PutLater(f"the message is read from {place.broker_name}")
        found = self._found.pop(place)
        if isinstance(found, MessageError):
            raise found
        return found

    async def _read(self, place: RemotePlace) -> None:
        found: Content | MessageError | None = MessageError("the message was not read", "broker")
        try:
            found = await self._pulled(place)
        except (OSError, FirearrowError) as error:
            found = MessageError(f"the message can't be read from {place.broker_name}: {error}", "broker")
        finally:
            self._under_way.discard(place)
            if len(self._found) >= UNDER_WAY_MAX:
                del self._found[next(iter(self._found))]
            self._found[place] = found
        asyncio.get_running_loop().call_soon(self._arrived)

    async def _pulled(self, place: RemotePlace) -> Content | None:
        route = await self._routes.route(place.topic)
        brokers = [] if route is None else route.broker_datas
        addresses = [it.broker_addrs for it in brokers if it.broker_name == place.broker_name]
        if not addresses or 0 not in addresses[0]:
            raise MessageError(f"no name server knows the broker {place.broker_name} of topic {place.topic}", "broker")
        broker = self._settings.broker
        answer = await self._client.answer(
            addresses[0][0],
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": f"InnerConsumerGroup_{broker.broker_name}_{broker.broker_id}",
                "topic": place.topic,
                "queueId": place.queue_id,
                "queueOffset": place.queue_offset,
                "maxMsgNums": 1,
                "sysFlag": _SUBSCRIPTION,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
                "expressionType": "TAG",
            },
            timeout_seconds=PULL_SECONDS_MAX,
        )
        if answer.code == ResponseCode.SUCCESS:
            return decode_content(bytes(answer.body))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            return None
        raise MessageError(f"the broker answered {answer.code}: {answer.remark}", "broker")


# --- the log of failed redeliveries ---

LOGGED_MAX: Final = 1000  # messages, topics and groups with a line in the log


class RetryLog:
    """Log about each message, topic and group once."""

    def __init__(self) -> None:
        self._logged: set[object] = set()

    def place_gone(self, topic: str, group: str) -> None:
        """Log that a topic or a group is gone."""
        if self._is_first((topic, group)):
            log.warning(
                "popped messages are not redelivered: their topic or group is gone",
                extra={"topic": topic, "group": group},
            )

    def failed(self, record: object, place: tuple[str, int, int], group: str, outcome: str, error: Exception) -> None:
        """Log the outcome of a message that can't be put, once for each ``record`` and outcome.

        ``place`` is the message's topic, queue and offset.
        """
        if self._is_first((record, outcome)):
            log.error(
                "popped message can't be put into its retry topic",
                extra={
                    "topic": place[0],
                    "queue_id": place[1],
                    "queue_offset": place[2],
                    "group": group,
                    "outcome": outcome,
                    "error": error,
                },
            )

    def _is_first(self, subject: object) -> bool:
        """Return whether a subject has no line in the log yet."""
        if subject in self._logged or len(self._logged) >= LOGGED_MAX:
            return False
        self._logged.add(subject)
        return True
