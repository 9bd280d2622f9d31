"""36: a consumer sends back a message that it failed to consume.

A copy of the message waits in ``%RETRY%group`` until the delay of its level is over, and is then consumed again. After
the last retry it goes into ``%DLQ%group`` for good. The levels follow the number of failures: 3 and up, that is 10 s to
2 h by default, 16 times.

Source: RocketMQ ``AbstractSendMessageProcessor#consumerSendMsgBack``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from firearrow.broker.context import BrokerContext
from firearrow.broker.sending.puts import UnstoredMessage, again
from firearrow.broker.sending.retrycopies import copy_of, plain_copies
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names, properties
from firearrow.message.record import Content
from firearrow.message.sysflag import INNER_BATCH
from firearrow.net.server import Answer, Peer, PeerRequest
from firearrow.store import ConsumeQueue, NewMessage
from firearrow.wire.bodies import PERM_WRITE, TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand, bare_frame
from firearrow.wire.headers import SendBack

MAX_RECONSUME_TIMES_SINCE: Final = 121
"""First version of clients (RocketMQ ``MQVersion.V3_4_9``) whose header has the maximum of retries."""

FIRST_RETRY_LEVEL: Final = 3
DLQ_QUEUES: Final = 1

REPEAT_SECONDS: Final = 10.0
"""A client may repeat its request in this time because it had no answer: it waits 5 s for one."""
REPEATS_MAX: Final = 20_000
"""Known messages that were sent back just now, and as many that are dead since then: 4 to 8 MB each."""
GROUPS_MAX: Final = 1 << 16
"""Groups that have a number. If there are more, all get new ones, and their repeats are forgotten."""
WAYS_MAX: Final = 1000  # groups whose retry routes are in memory: some 1 MB
WAITS_MAX: Final = 64  # pairs of level and queue whose properties a route has ready


SEVERAL_MAX: Final = 256
"""Copies that are put at once, which takes 2 ms; the others wait for the next turn."""


class _RetryRoute:
    """Target of a group's failed messages, as long as the configuration stays."""

    __slots__ = ("_real_topic", "_waits", "config", "queues")

    def __init__(self, config: SubscriptionGroupConfig, retry: TopicConfig) -> None:
        self.config = config
        self.queues = _retry_queues(config, retry)
        self._real_topic = names.retry_topic(config.group_name).encode()
        self._waits: dict[tuple[int, int], bytes] = {}

    def waits(self, level: int, queue_id: int) -> bytes:
        """Return the properties of a copy that hold its delay and its queue."""
        found = self._waits.get((level, queue_id))
        if found is None:
            if len(self._waits) >= WAITS_MAX:
                self._waits.clear()
            found = self._waits[level, queue_id] = b"\x02DELAY\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (
                level,
                self._real_topic,
                queue_id,
            )
        return found


class _CopyPlace(NamedTuple):
    """Place of copies that failed alike: the queue of a level, and the properties of a copy there.

    There are no properties if the copies may go to several queues afterwards. Until a time, a repeated request for a
    copy gets the waiting one. ``group_key`` begins the keys of the group's messages.
    """

    queue: ConsumeQueue
    way: _RetryRoute
    level: int
    waits: bytes
    until: float
    group_key: int


class SendBackProcessor:
    """Redeliver failed messages.

    The facts that a group's messages have in common are found out once for as long as no topic, group or key of the
    configuration changes. Plain copies (``broker.sending.retrycopies``) of one turn are put side by side into the
    queues of their levels: 7 µs each, instead of 27 by drafts. Drafts are for all others, and for the first message of
    each group, whose topic and group may have to be created.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._store = context.store
        self._puts = context.puts
        self._topics = context.topics
        self._groups = context.groups
        self._stats = context.stats
        self._clock = context.clock
        self._chance = context.chance
        self._sync_flush = context.store.sync_flush
        self._sent_back: RecentKeys[int] = RecentKeys(REPEATS_MAX)
        self._dead: RecentKeys[int] = RecentKeys(REPEATS_MAX)
        self._numbers = itertools.count()
        self._group_keys: dict[str, int] = {}
        self._ways: dict[str, _RetryRoute] = {}
        self._delay_queues = 0
        self._seen: tuple[object, ...] = (None, None, None)

    def send_back(self, peer: Peer, request: AnyCommand) -> Answer:
        """36: put a copy of a message into the group's retry topic, or into its dead-letter topic.

        A repeated request gets the same answer while the copy waits, and no second copy.
        """
        request.ext = header = fields_of(request, SendBack)
        answers = self._put_plain(((peer, request),))
        if answers:
            return answers[0]
        config = self._group(header.group)
        if config.retry_queue_nums <= 0:
            return Response()
        content = self._failed(header.offset)
        times = content.reconsume_times
        is_dead = header.delay_level < 0 or times >= times_max_of(config, request.version, header.max_reconsume_times)
        # Only while no consumer can have the copy yet: a message that fails once more, as after a reset of its group,
        # is not a repeated request. Java: keeps both copies.
        key = header.offset | self._group_key(header.group)
        now = self._clock.monotonic()
        if self._dead.has(key, now) or (not is_dead and self._sent_back.has(key, now)):
            return Response()
        if is_dead:
            self._put(copy_of(content), 0, header, config, is_dead=True)
            self._dead.note(key, now + REPEAT_SECONDS)
            self._sent_back.note(key, now + REPEAT_SECONDS)
        else:
            level = header.delay_level or FIRST_RETRY_LEVEL + times
            self._put(copy_of(content), level, header, config, is_dead=False)
            self._sent_back.note(key, now + self._repeat_seconds(level))
        if self._sync_flush:
            self._store.flush_soon()
        return bare_frame(request.opaque, request.binary)

    def _repeat_seconds(self, level: int) -> float:
        """Return the seconds that a request may be a repetition for a waiting copy."""
        return min(self._store.delays.delay_ms(level) / 1000, REPEAT_SECONDS)

    # --- plain copies ---

    def send_back_several(self, requests: Sequence[PeerRequest]) -> list[bytes | None] | None:
        """36, several in one turn: answer like ``send_back`` to the first of them, while their copies are plain;
        ``send_back`` serves the others."""
        answers: list[bytes | None] = [*self._put_plain(requests[:SEVERAL_MAX])]
        return answers + [None] * (len(requests) - len(answers)) if answers else None

    def _put_plain(self, requests: Sequence[PeerRequest]) -> list[bytes]:
        """Put the copies of failed messages up to the first that is not plain, or may be refused; return their
        answers."""
        store = self._store
        copies: list[NewMessage] = []
        noted: dict[int, float] = {}
        origins: list[tuple[str, str]] = []
        headers: list[SendBack] = []
        for _, request in requests:
            header = request.ext
            if type(header) is not SendBack:
                break
            headers.append(header)
        contents = store.all_named_at([header.offset for header in headers])
        known, place = None, None
        for (_, request), header, content, (kept, origin) in zip(
            requests, headers, contents, plain_copies(contents), strict=False
        ):
            group, times = header.group, content.reconsume_times
            failure = group, header.delay_level, header.max_reconsume_times, request.version, times
            if failure != known:  # messages of one turn nearly always failed alike
                known, place = failure, self._place_of(*failure)
            if place is None:
                break
            key = header.offset | place.group_key
            stored = kept + (place.waits or place.way.waits(place.level, self._queue_id(place.way.queues)))
            if key in noted or len(stored) > properties.PROPERTIES_BYTES_MAX:
                break
            noted[key] = place.until
            copies.append(again(place.queue, content, stored, content.sys_flag, times + 1))
            origins.append((group, origin))
        unknown = self._sent_back.before_known(noted, self._clock.monotonic())
        if unknown < len(copies):
            del copies[unknown:], origins[unknown:]
            noted = dict(itertools.islice(noted.items(), unknown))
        if not copies or store.put_several(copies, self._clock.now_ms()) is None:
            return []
        self._sent_back.note_all(noted)
        self._count(origins)
        if self._sync_flush:
            store.flush_soon()
        return [bare_frame(it.opaque, it.binary) for _, it in requests[: len(copies)]]

    def _place_of(
        self, group: str, delay_level: int, stated_max: int | None, version: int, times: int
    ) -> _CopyPlace | None:
        """Return the place of a copy by its earlier failures; None if the general path must decide."""
        way = self._known_ways().get(group) or self._find_way(group)
        if way is None or times >= times_max_of(way.config, version, stated_max):
            return None
        store = self._store
        level = min(delay_level or FIRST_RETRY_LEVEL + times, store.delays.highest)
        if not 0 < level <= self._delay_queues:
            return None
        queue = store.queue(names.SCHEDULE_TOPIC, level - 1)
        until = self._clock.monotonic() + self._repeat_seconds(level)
        waits = way.waits(level, 0) if way.queues == 1 else b""
        return _CopyPlace(queue, way, level, waits, until, self._group_key(group))

    def _group_key(self, group: str) -> int:
        """Return the group's number, shifted to leave room for offsets.

        The key of a message that a group has sent back is one number made of both: with a pair, each of five look-ups
        would compute the hash again.
        """
        keys = self._group_keys
        if group not in keys:
            if len(keys) >= GROUPS_MAX:
                keys.clear()
            keys[group] = next(self._numbers) << 64
        return keys[group]

    def _count(self, origins: Iterable[tuple[str, str]]) -> None:
        """Count a message that was sent back, by its group and its first topic."""
        for (group, origin), count in Counter(origins).items():
            if self._topics.get(origin) is not None:  # senders may write any name there
                self._stats.sent_back(group, origin, count)

    def _known_ways(self) -> dict[str, _RetryRoute]:
        """Return the known, unchanged routes by group."""
        topics, groups, settings = self._seen
        if (
            self._topics.data_version is not topics
            or self._groups.data_version is not groups
            or self._settings.version is not settings
        ):
            self._see_changes()
        return self._ways

    def _see_changes(self) -> None:
        self._seen = self._topics.data_version, self._groups.data_version, self._settings.version
        self._ways.clear()
        waiting = self._topics.table[names.SCHEDULE_TOPIC]
        self._delay_queues = max(waiting.read_queue_nums, waiting.write_queue_nums)

    def _find_way(self, group: str) -> _RetryRoute | None:
        """Return the route of a group; None if the general path must find it."""
        config = self._groups.table.get(group)
        retry = self._topics.table.get(names.retry_topic(group))
        if config is None or retry is None or retry.order or config.retry_queue_nums <= 0:
            return None
        if not self._settings.broker.broker_permission & retry.perm & PERM_WRITE:
            return None
        if len(self._ways) >= WAYS_MAX:
            self._ways.clear()
        way = self._ways[group] = _RetryRoute(config, retry)
        return way

    def _queue_id(self, queues: int) -> int:
        return self._chance.randrange(queues) if queues > 1 else 0

    # --- all other copies ---

    def _put(
        self, draft: UnstoredMessage, level: int, header: SendBack, config: SubscriptionGroupConfig, *, is_dead: bool
    ) -> None:
        """Put a copy where it waits, or where dead letters are (level 0)."""
        draft.properties[properties.DELAY_LEVEL] = str(level)
        self._place(draft, header, config, is_dead=is_dead)
        self._puts.put(draft)
        origin = draft.properties[properties.RETRY_TOPIC]
        if self._topics.get(origin) is not None:
            self._stats.sent_back(header.group, origin)
            if is_dead and self._stats.tally is not None:
                self._stats.tally.dead.add((header.group, origin))

    def _group(self, group: str) -> SubscriptionGroupConfig:
        """Return the group as it is or would be created; BrokerError if it can have no retries."""
        config = self._groups.get(group)
        if config is None and not self._groups.may_create(group):
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
        broker = self._settings.broker
        if not broker.broker_permission & PERM_WRITE:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the broker[{broker.broker_ip1}] sending message is forbidden"
            )
        topic = self._topics.get(names.retry_topic(group))
        if topic is not None and not topic.perm & PERM_WRITE:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the topic[{names.retry_topic(group)}] sending message is forbidden"
            )
        return config or SubscriptionGroupConfig(group)

    def _failed(self, physical_offset: int) -> Content:
        """Return the message at an offset of the log; BrokerError if it can't be redelivered from there."""
        try:
            content = self._store.named_at(physical_offset)
        except MessageError as error:
            raise _not_found(physical_offset, str(error)) from error
        if content.sys_flag & INNER_BATCH:  # its client then sends the failed one alone
            raise _not_found(physical_offset, "it is a batch, stored as one record")
        return content

    def _place(
        self, draft: UnstoredMessage, header: SendBack, config: SubscriptionGroupConfig, *, is_dead: bool
    ) -> None:
        """Return the destination of a copy, and create the topic that it needs."""
        refused = self._store.refused
        if refused is not None:
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, refused)
        group = header.group
        self._groups.find(group)
        retry = self._topics.create_retry(group, config.retry_queue_nums, unit=header.unit_mode)
        if is_dead:
            draft.topic = names.dlq_topic(group)
            self._topics.create(draft.topic, DLQ_QUEUES)
            draft.queue_id = 0
            return
        draft.topic = names.retry_topic(group)
        draft.queue_id = self._queue_id(_retry_queues(config, retry))


def _not_found(physical_offset: int, reason: str) -> BrokerError:
    failure = f"look message by offset failed, {physical_offset}: {reason}"
    return BrokerError(ResponseCode.SYSTEM_ERROR, failure)


def _retry_queues(config: SubscriptionGroupConfig, retry: TopicConfig) -> int:
    """Return the number of queues of a group's retry topic for its failed messages.

    Java: retryQueueNums, though consumers may know fewer queues of the topic.
    """
    return min(config.retry_queue_nums, retry.read_queue_nums, retry.write_queue_nums)


def times_max_of(config: SubscriptionGroupConfig, version: int, stated: int | None) -> int:
    """Return the maximum of retries of a group: that of its client if the client sends one, otherwise of its
    configuration."""
    if version >= MAX_RECONSUME_TIMES_SINCE and stated is not None:
        return stated
    return config.retry_max_times


# --- recent keys ---


Key = TypeVar("Key", bound=Hashable)


class RecentKeys(Generic[Key]):
    """Keys, each with the time until which it counts: the last ``keys_max`` of them at least, and twice as many at
    most, not counting the last call's.

    They are in two generations, and the older one is forgotten as a whole: so one assignment notes a key. To remove
    keys one by one, in their order, takes eight times as long.
    """

    __slots__ = ("_before", "_keys_max", "_now")

    def __init__(self, keys_max: int) -> None:
        assert keys_max > 0
        self._keys_max = keys_max
        self._now: dict[Key, float] = {}
        self._before: dict[Key, float] = {}

    def note(self, key: Key, until: float) -> None:
        """Let a key count until a time, by any clock; its earlier time is void."""
        self.note_all({key: until})

    def note_all(self, keys: Mapping[Key, float]) -> None:
        """Note keys, no more than a few hundred at once, and the time until which each counts."""
        if len(self._now) >= self._keys_max:
            self._before, self._now = self._now, {}
        self._now.update(keys)

    def has(self, key: Key, now: float) -> bool:
        """Return whether a key still counts."""
        until = self._now.get(key)
        if until is None and self._before:
            until = self._before.get(key)
        return until is not None and until > now

    def before_known(self, keys: Collection[Key], now: float) -> int:
        """Count the keys before the first that still counts."""
        if self._now.keys().isdisjoint(keys) and self._before.keys().isdisjoint(keys):
            return len(keys)
        return next((n for n, key in enumerate(keys) if self.has(key, now)), len(keys))
