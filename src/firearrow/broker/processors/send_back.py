"""36: a consumer sends a message back that it failed to consume.

A copy of it waits in ``%RETRY%group`` until the delay of its level is over, to be consumed again;
after the last retry it goes into ``%DLQ%group`` for good. The levels follow the number of failures:
3 and up, that is 10 s to 2 h by default, 16 times.

Source: upstream ``AbstractSendMessageProcessor#consumerSendMsgBack``.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

from firearrow.broker.context import BrokerContext
from firearrow.broker.puts import Draft, asks_nothing, draft_of_content
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names, properties
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import Content
from firearrow.message.sysflag import INNER_BATCH
from firearrow.net.server import Answer, Peer
from firearrow.wire.bodies import PERM_WRITE
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import SendBack

log = logging.getLogger(__name__)

MAX_RECONSUME_TIMES_SINCE: Final = 121
"""The first version of clients (upstream ``MQVersion.V3_4_9``) of which the header counts that says
how often a message may be consumed again."""

FIRST_RETRY_LEVEL: Final = 3
DLQ_QUEUES: Final = 1

REPEAT_SECONDS: Final = 10.0
"""For so long a client may ask again because it had no answer: it waits 5 s for one."""
REPEATS_MAX: Final = 20_000
"""Messages of which is known that they were sent back just now: some 4 MB."""


_WAIT: Final = b"WAIT\x01"
_WAITS: Final = b"\x02WAIT\x01true\x02"
_WAITS_NOT: Final = b"\x02WAIT\x01false\x02"
_NOTED: Final = (b"RETRY_TOPIC\x01", b"ORIGIN_MESSAGE_ID\x01", b"TRAN_MSG\x01")


class Outcome(NamedTuple):
    """What became of a message that was sent back; nobody can consume its copy ``until`` then (on
    the monotonic clock)."""

    until: float
    is_dead: bool


class SendBackProcessor:
    """Has failed messages come again."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._store = context.store
        self._puts = context.puts
        self._topics = context.topics
        self._groups = context.groups
        self._stats = context.stats
        self._clock = context.clock
        self._chance = context.chance
        # A plain dict finds its first key by going over the places of all that were deleted before
        # it: with 20,000 messages in it that took longer than all else.
        self._lately: OrderedDict[tuple[str, int], Outcome] = OrderedDict()

    def send_back(self, peer: Peer, request: AnyCommand) -> Answer:
        """36: put a copy of a message into the group's retry topic, or into that of its dead ones.

        Who asks again while the copy waits gets the same answer, and no second copy.
        """
        header = fields_of(request, SendBack)
        config = self._group(header.group)
        if config.retry_queue_nums <= 0:
            return Response()
        content = self._failed(header.offset)
        times_max = times_max_of(config, request.version, header.max_reconsume_times)
        is_dead = content.reconsume_times >= times_max or header.delay_level < 0
        if self._was_sent_back(header, is_dead):
            return Response()
        draft = _copy_of(content)
        level = 0 if is_dead else header.delay_level or FIRST_RETRY_LEVEL + content.reconsume_times
        draft.properties[properties.DELAY_LEVEL] = str(level)
        self._place(draft, header, config, is_dead=is_dead)
        self._puts.put(draft)
        origin = draft.properties[properties.RETRY_TOPIC]
        if self._topics.get(origin) is not None:  # senders may write any name there
            self._stats.sent_back(header.group, origin)
        if self._store.sync_flush:
            self._store.flush_soon()
        self._remember(header, level)
        return Response()

    def _group(self, group: str) -> SubscriptionGroupConfig:
        """The group as it is or would be; BrokerError where nothing can be sent back for it."""
        config = self._groups.get(group)
        if config is None and not self._groups.may_create(group):
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        broker = self._settings.broker
        if not broker.broker_permission & PERM_WRITE:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.broker_ip1}] sending message is forbidden",
            )
        topic = self._topics.get(names.retry_topic(group))
        if topic is not None and not topic.perm & PERM_WRITE:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{names.retry_topic(group)}] sending message is forbidden",
            )
        return config or SubscriptionGroupConfig(group)

    def _failed(self, physical_offset: int) -> Content:
        """The message at a place of the log; BrokerError if it can't come again from there."""
        failure = f"look message by offset failed, {physical_offset}: "
        try:
            content = self._store.content_at(physical_offset)
        except MessageError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{failure}{error}") from error
        if content.sys_flag & INNER_BATCH:  # its client then sends the one that failed by itself
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{failure}it is a batch, stored as one record"
            )
        return content

    def _place(
        self, draft: Draft, header: SendBack, config: SubscriptionGroupConfig, *, is_dead: bool
    ) -> None:
        """Say where a copy goes, and create what it needs for that."""
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
        # Java: any of retryQueueNums, though consumers may know fewer queues of the topic.
        queues = min(config.retry_queue_nums, retry.read_queue_nums, retry.write_queue_nums)
        draft.queue_id = self._chance.randrange(max(queues, 1))

    # --- who asks again ---

    def _was_sent_back(self, header: SendBack, is_dead: bool) -> bool:
        """Whether a copy waits already of which nobody can have got anything yet.

        So a message that fails once more, as after a reset of its group, is never taken for one
        that was only asked for again. Java: keeps both copies.
        """
        outcome = self._lately.get((header.group, header.offset))
        if outcome is None or outcome.until <= self._clock.monotonic():
            return False
        return outcome.is_dead or not is_dead

    def _remember(self, header: SendBack, level: int) -> None:
        """Note that a copy waits now, with a delay or (level 0) as a dead letter."""
        now = self._clock.monotonic()
        lately = self._lately
        seconds = self._store.delays.due_ms(level, 0) / 1000 if level else REPEAT_SECONDS
        key = header.group, header.offset
        lately.pop(key, None)
        while lately:
            oldest = next(iter(lately))
            if len(lately) < REPEATS_MAX and lately[oldest].until > now:
                break
            del lately[oldest]
        lately[key] = Outcome(now + min(seconds, REPEAT_SECONDS), level == 0)


def times_max_of(config: SubscriptionGroupConfig, version: int, stated: int | None) -> int:
    """How often a group has a message consumed again: as its client says, if it can, or as its
    configuration does."""
    if version >= MAX_RECONSUME_TIMES_SINCE and stated is not None:
        return stated
    return config.retry_max_times


def _copy_of(content: Content) -> Draft:
    """A message as it comes again, but for where it goes."""
    stored, found = content.properties, {}
    if _fails_first(stored):
        stored = stored.replace(_WAITS, _WAITS_NOT)
    else:
        stored, found = b"", properties.parse(stored)
    found.setdefault(properties.RETRY_TOPIC, content.topic)
    if not stored:
        found[properties.WAIT_STORE] = "false"
    if not found.get(properties.ORIGIN_MESSAGE_ID, "").strip():
        host = unpack_host(content.store_host)
        found[properties.ORIGIN_MESSAGE_ID] = encode_offset_id(host, content.physical_offset)
    draft = draft_of_content(content, stored, found)
    draft.reconsume_times += 1
    return draft


def _fails_first(stored: bytes) -> bool:
    """Whether stored properties are those of a message that was never sent back, and which only
    has to be put again; of other messages they are read."""
    return (
        stored.count(_WAIT) == 1
        and stored.find(_WAITS) >= 0
        and asks_nothing(stored)
        and properties.lacks(stored, _NOTED)
    )
