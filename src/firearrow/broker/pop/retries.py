"""Messages that a POP consumer did not acknowledge in time go to a retry topic of its group.

``%RETRY%<group>_<topic>`` or, with ``enableRetryTopicV2`` and where permissions count,
``%RETRY%<group>+<topic>``; what is in a retry topic already stays in that one. It has one queue, or
as many as the topic and a message keeps its own: with ``useSeparateRetryQueue``, so those of a
queue stay in order; and for topics with priorities always, or a message would wait there for all of
lower priority that failed before. Java: reviveRetry has one queue for them, too
(apache/rocketmq#10350).

Source: upstream ``PopReviveService#reviveRetry``, ``#addRetryTopicIfNotExist``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from firearrow.broker.access.control import access_of
from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.records import Checkpoint
from firearrow.broker.state.attributes import has_priorities
from firearrow.errors import FirearrowError, MessageError, PutLater
from firearrow.message import names, properties
from firearrow.message.record import Content, decode_content, has_crc_property
from firearrow.message.sysflag import HOSTS_V6_MASK
from firearrow.net.client import Client
from firearrow.net.tasks import Tasks
from firearrow.store import QueueEntry
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.codes import RequestCode, ResponseCode

ENTRIES_AHEAD: Final = 32  # read at a time of a queue: a pop gives as many messages

_PAIR_END: Final = properties.PAIR_END.encode()
_first_pop: Final = properties.finder(properties.FIRST_POP_TIME)
_origin_group: Final = properties.finder(properties.ORIGIN_GROUP)


class Target(NamedTuple):
    """Destination of the rest of a checkpoint: a count of queues of a topic. ``entries`` are the known entries of its
    messages."""

    checkpoint: Checkpoint
    topic: str
    queue_nums: int
    entries: dict[int, QueueEntry]


class Retries:
    """Puts messages of checkpoints into retry topics; ``arrived`` is called when one is there that
    was asked of another broker."""

    def __init__(self, context: BrokerContext, arrived: Callable[[], object]) -> None:
        self._remote = RemoteReads(context, arrived)
        self._store = context.store
        self._puts = context.puts
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._settings = context.settings

    async def stop(self) -> None:
        """Ask other brokers no more."""
        await self._remote.stop()

    def _is_foreign(self, checkpoint: Checkpoint) -> bool:
        """Tell whether the messages are another broker's, which name servers may know."""
        broker = self._settings.broker
        named = checkpoint.broker_name not in (None, "", broker.broker_name)
        return named and bool(broker.namesrv_addr)

    def target(self, checkpoint: Checkpoint, *, any_group: bool = False) -> Target | None:
        """Give where messages of a checkpoint go, which is there with its queues then; None if
        their topic is gone, or their group and that matters. Raises DiskFull if that can't be."""
        if self._is_foreign(checkpoint):  # topic and group are there
            return Target(checkpoint, self._topic_of(checkpoint, 1), 1, {})
        popped = self._topics.get(popped_topic(checkpoint.topic, checkpoint.group))
        if popped is None or (not any_group and self._groups.find(checkpoint.group) is None):
            return None
        queue_nums = self._queue_nums(popped)
        topic = self._topic_of(checkpoint, queue_nums)
        return Target(checkpoint, topic, queue_nums, {})

    def put(self, target: Target, queue_offset: int, now_ms: int) -> None:
        """Put one message of a checkpoint into its retry topic, unless it is gone from the store.

        MessageError says why that can't be done with this message for now; StoreError and OSError,
        why nothing can be put; PutLater, that another broker is asked for it.
        """
        popped = target.checkpoint
        if self._is_foreign(popped):
            name = popped.broker_name or ""
            place = Place(name, popped.topic, popped.queue_id, queue_offset)
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

    def _entry(self, target: Target, queue_offset: int) -> QueueEntry | None:
        """Give the entry of a message, None if it is gone. Raises MessageError if that is not known yet.

        Java: PopReviveService#getBizMessage takes whatever the queue can't give for gone.
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
            raise MessageError("its queue does not reach it yet", "queue offset")
        entries.update(ahead)
        return entries.get(queue_offset)

    def _put(self, target: Target, content: Content, now_ms: int) -> None:
        """Put the message as it was, born here, and failed once more unless it was set aside."""
        store, checkpoint = self._store, target.checkpoint
        queue_id = content.queue_id if content.queue_id < target.queue_nums else 0
        queue = store.queue(target.topic, queue_id)
        reconsume_times = content.reconsume_times + (not checkpoint.is_suspended)
        # The notes may make it too large for a file, too.
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

    def _topic_of(self, checkpoint: Checkpoint, queue_nums: int) -> str:
        """The retry topic for a checkpoint; it is there with so many queues when this returns."""
        topic, group = checkpoint.topic, checkpoint.group
        if not names.is_retry(topic):
            v2 = self._settings.broker.has_retries_apart
            topic = names.pop_retry_topic(topic, group, v2=v2)
        config = self._topics.get(topic)
        if config is None:
            self._topics.create(topic, queue_nums)
            known = 0
        elif config.write_queue_nums < queue_nums:
            # Java: PopReviveService#addRetryTopicIfNotExist makes it smaller, too, and what is in
            # its last queues is popped no more.
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
        """Give the least number of queues of a topic's retry topic."""
        if has_priorities(popped) or self._settings.broker.use_separate_retry_queue:
            return max(popped.write_queue_nums, 1)
        return 1


def _noted(checkpoint: Checkpoint, content: Content) -> bytes:
    """The properties with what is noted of a message that comes again: when it was popped first,
    and by whom. Where there is no room for that, without.

    Java: PopReviveService#reviveRetry can't put it then, and tries again for ever.
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
    """Give the topic that messages were popped from at first, of that which they are in now."""
    for v2 in (True, False):
        prefix = names.pop_retry_topic("", group, v2=v2)
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


# --- Popped messages of another broker, that come again here ---
#
#  A slave that acts for its master sends what is due in its timer to another master: checkpoints of pops among it.
# So a revive queue may have one that names another broker. Its messages are read from there, by a pull, and put
# into the retry topic here.
#
# Who wants a message does not wait: `RemoteReads.content` begins to read it and raises `PutLater`; when it is
# there, or can't be had, ``arrived`` is called, and who asks again gets it.
#
# Source: upstream ``EscapeBridge#getMessageFromRemote``.


PULL_SECONDS_MAX: Final = 10.0  # Java: EscapeBridge#DEFAULT_PULL_TIMEOUT_MILLIS
UNDER_WAY_MAX: Final = 64
"""Messages that are being read, or that nobody has asked for again."""
_SUBSCRIPTION: Final = 4


class Place(NamedTuple):
    """Place of a message."""

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int


class RemoteReads:
    """Reads messages of other brokers."""

    def __init__(self, context: BrokerContext, arrived: Callable[[], object]) -> None:
        self._settings = context.settings
        self._routes = context.routes
        self._arrived = arrived
        self._client = Client(access=access_of(context.settings.broker))
        self._found: dict[Place, Content | MessageError | None] = {}
        self._under_way: set[Place] = set()
        self._tasks = Tasks()

    async def stop(self) -> None:
        """Read nothing more."""
        await self._tasks.close()
        await self._client.close()

    def content(self, place: Place) -> Content | None:
        """Give a message; None if it is gone. Raises PutLater as long as it is being read, and
        MessageError if it can't be had now."""
        if place not in self._found:
            if place not in self._under_way and len(self._under_way) < UNDER_WAY_MAX:
                self._under_way.add(place)
                self._tasks.begin(self._read(place), "a message of another broker")
            raise PutLater(f"the message is read from {place.broker_name}")
        found = self._found.pop(place)
        if isinstance(found, MessageError):
            raise found
        return found

    async def _read(self, place: Place) -> None:
        found: Content | MessageError | None = MessageError("it was not read", "broker")
        try:
            found = await self._pulled(place)
        except (OSError, FirearrowError) as error:
            found = MessageError(f"it can't be read from {place.broker_name}: {error}", "broker")
        finally:
            self._under_way.discard(place)
            if len(self._found) >= UNDER_WAY_MAX:
                del self._found[next(iter(self._found))]
            self._found[place] = found
        asyncio.get_running_loop().call_soon(self._arrived)

    async def _pulled(self, place: Place) -> Content | None:
        route = await self._routes.route(place.topic)
        brokers = [] if route is None else route.broker_datas
        addresses = [it.broker_addrs for it in brokers if it.broker_name == place.broker_name]
        if not addresses or 0 not in addresses[0]:
            raise MessageError(f"no name server knows where {place.topic} is there", "broker")
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
        raise MessageError(f"it is answered with {answer.code}: {answer.remark}", "broker")


# --- Log lines about popped messages that can't be redelivered ---


log = logging.getLogger(__name__)

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
