"""Pops (200050): messages of a topic for a group, invisible to its other consumers for a time.

*Shared pops.* Pops of several clients of a group in one turn of the loop that ask for the same are one pop. A pop costs
the look at the queues, the read and above all the checkpoint; for pops of one message the checkpoint is nearly all. So
one pop takes up to `MESSAGES_MAX` messages for all of them, with one checkpoint. Acknowledgements of one turn are one
record, too. Each client gets the batch's first offset (startOffsetInfo) and its own messages (msgOffsetInfo), as if a
filter had excluded the others. So its handles name the checkpoint, and each message is acknowledged, set aside or
redelivered alone, as always.

Rejected: one checkpoint for each client, written together. Half of the cost of a checkpoint is its encoding, and the
scan, the queue and the index of the log still have a record for each message.

Cost: if one message of a batch stays open, all records of the batch get on the timer's wheel. These are the checkpoint
and some acknowledgements for up to 32 messages, fewer than for single pops.

Source: RocketMQ ``PopMessageProcessor#processRequest``, and for the checks ``PeekMessageProcessor``,
``NotificationProcessor`` and ``PollingInfoProcessor``, whose messages are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel, tag_codes_of
from firearrow.broker.groups.filters import compile_filter
from firearrow.broker.pop.popping import Pop, PoppedMessages, Popping, split_records
from firearrow.broker.pop.waiting import HeldPops, HoldOutcome
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.errors import BrokerError, FilterError, StoreError
from firearrow.net.server import Finished, Peer, PeerRequest
from firearrow.store import Fetch, Wanted
from firearrow.wire.bodies import PERM_READ, TopicConfig
from firearrow.wire.client_bodies import is_by_tags
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.frame import AnyCommand, pop_answer
from firearrow.wire.headers import PopMessage
from firearrow.wire.pop import msg_offset_info, start_offset_info

LATE_MS_MAX: Final = 500  # after its client has given a pop up, the pop may still be served for this time

_CODES: Final = {HoldOutcome.FULL: ResponseCode.POLLING_FULL, HoldOutcome.OVER: ResponseCode.POLLING_TIMEOUT}
_FIELDS: Final = ("popTime", "invisibleTime", "reviveQid", "restNum")
"""Fields that clients read in each answer with code 210."""


class PopProcessor:
    """Answer pops, and hold those that must wait."""

    def __init__(self, context: BrokerContext, cold: ColdReads, held_pops: HeldPops, popping: Popping) -> None:
        self._settings = context.settings
        self._store = context.store
        self._stats = context.stats
        self._clock = context.clock
        self._cold = cold
        self._held = held_pops
        self._checks = PopChecks(context)
        self._popping = popping

    def pop(self, peer: Peer, request: AnyCommand) -> Finished:
        """200050: answer with messages, or that none came in time."""
        return self._serve(peer, request, aside=self._cold.are_aside)

    def pop_several(self, requests: Sequence[PeerRequest]) -> list[bytes | None]:
        """200050, several in one turn: pops that may share one pop divide its messages.

        Return None for each other pop, and for pops without a message: ``pop`` serves them.
        """
        answers: list[bytes | None] = [None] * len(requests)
        alike: dict[PopKey, list[int]] = {}
        now_ms = self._clock.now_ms()
        for number, (_, request) in enumerate(requests):
            header = request.ext
            if type(header) is PopMessage and not _is_late(header, now_ms):
                key = pop_key(header)
                if key is not None:
                    alike.setdefault(key, []).append(number)
        for (*_, count), numbers in alike.items():
            most = MESSAGES_MAX // count
            for at in range(0, len(numbers), most):
                some = numbers[at : at + most]
                if len(some) > 1:
                    frames = self._pop_together([requests[number] for number in some], now_ms)
                    for number, frame in zip(some, frames, strict=False):  # the last may get no message
                        answers[number] = frame
        return answers

    def _pop_together(self, asked: list[PeerRequest], now_ms: int) -> list[bytes]:
        """Return the answers to the first of some equal pops, one for each that gets a message."""
        peer, request = asked[0]
        header: PopMessage = request.ext
        count = header.max_msg_nums
        try:
            self._check(peer, header)
            wanted = wanted_of(header.exp, header.exp_type)
            together = replace(header, max_msg_nums=count * len(asked))
            aside = self._cold.are_aside
            pop = self._popping.pop(together, wanted, now_ms, only_resident=aside)
        except (Fetch, BrokerError, StoreError):
            return []  # each of them gets the same error alone
        left = pop.count
        frames: list[bytes] = []
        for (_, request), taken in zip(asked, shares(pop.taken, count), strict=False):
            left -= min(count, left)
            frames.append(_found(request, pop, taken, pop.rest + left))
        assert not left, "each popped message is in an answer"
        if pop.rest > 0 and pop.count:
            self._held.wake_next(header.topic, header.consumer_group, header.queue_id)
        return frames

    def _serve_fetched(self, peer: Peer, request: AnyCommand) -> Finished:
        """Run a pop again after its reads from the disk."""
        return self._serve(peer, request, aside=False)

    def _serve(self, peer: Peer, request: AnyCommand, *, aside: bool) -> Finished:
        header = request.ext
        if type(header) is not PopMessage:
            header = fields_of(request, PopMessage)
        now_ms = self._clock.now_ms()
        if not header.born_time:
            header.born_time = now_ms
            request.ext = header
        if _is_late(header, now_ms):
            remark = f"the broker[{self._settings.broker.broker_ip1}] pop message is timeout too much"
            return Response(ResponseCode.POLLING_TIMEOUT, remark, dict.fromkeys(_FIELDS, 0))
        self._check(peer, header)
        wanted = wanted_of(header.exp, header.exp_type)
        try:
            pop = self._popping.pop(header, wanted, now_ms, only_resident=aside)
            # A waiting pop is woken by a message that was just sent, as soon as that is dispatched.
            if not pop.count and header.poll_time <= 0 and self._store.catch_up():
                pop = self._popping.pop(header, wanted, now_ms, only_resident=aside)
        except Fetch as lacks:
            self._cold.hold(peer, request, lacks.stretches, self._serve_fetched)
            return None
        answer = _found(request, pop, pop.taken, pop.rest) if pop.count else self._wait(peer, request, pop)
        if pop.rest > 0 and (pop.count or pop.has_passed):  # otherwise the next one would look there for ever
            self._held.wake_next(header.topic, header.consumer_group, header.queue_id)
        return answer

    def _wait(self, peer: Peer, request: AnyCommand, pop: Pop) -> Finished:
        """Hold a pop that found nothing, if it may wait."""
        outcome = self._held.hold(peer, request, pop.header, self.pop, pop.wanted)
        if outcome is HoldOutcome.HELD:
            return None
        self._stats.pulls_missed += 1
        return _nothing(_CODES[outcome], pop)

    def _check(self, peer: Peer, header: PopMessage) -> None:
        """Refuse a pop for all other reasons, in RocketMQ's order."""
        broker = self._settings.broker
        address = broker.broker_ip1
        self._checks.broker("pop message")
        if header.max_msg_nums > MESSAGES_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{address}] pop message's num is greater than {MESSAGES_MAX}",
            )
        if not self._settings.store.timer_wheel_enable:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{address}] pop message is forbidden because timerWheelEnable is false",
            )
        most_ms = self._settings.store.timer_max_delay_sec * 1000
        if not 0 <= header.invisible_time <= most_ms:
            # Java: PopMessageProcessor gives messages, and can't note that they are popped.
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime[{header.invisible_time}] is illegal, it must be between 0 and "
                f"{most_ms} (timerMaxDelaySec)",
            )
        self._checks.place(peer, header)


def _is_late(header: PopMessage, now_ms: int) -> bool:
    """Return whether the client has given a pop up; one without a born time is new."""
    return now_ms - (header.born_time or now_ms) - header.poll_time > LATE_MS_MAX


def _found(request: AnyCommand, pop: Pop, taken: Sequence[PoppedMessages], rest: int) -> bytes:
    """Encode the answer with the messages for one client, ``taken``, of all messages of a pop."""
    starts, offsets, records = [], [], []
    for origin, queue_id, start_offset, queue_offsets, some in taken:
        starts.append(start_offset_info(origin, queue_id, start_offset))
        offsets.append(msg_offset_info(origin, queue_id, queue_offsets))
        records += some
    return pop_answer(
        request,
        pop.pop_ms,
        pop.header.invisible_time,
        pop.revive_queue_id,
        rest,
        ";".join(starts),
        ";".join(offsets),
        ";".join(pop.order_counts) if pop.header.order else None,
        b"".join(records),
    )


def _nothing(code: ResponseCode, pop: Pop) -> Response:
    fields: dict[str, FieldValue] = {
        "popTime": pop.pop_ms,
        "invisibleTime": pop.header.invisible_time,
        "reviveQid": pop.revive_queue_id,
        "restNum": pop.rest,
        "startOffsetInfo": "",
        "msgOffsetInfo": "",
    }
    if pop.header.order:
        fields["orderCountInfo"] = ""
    return Response(code, "NO_MESSAGE_IN_QUEUE", fields)


# --- shared pops ---

MESSAGES_MAX: Final = 32  # of one pop, and so of one checkpoint

PopKey = tuple[str, str, int, str | None, str | None, int, int, int]
"""Fields that pops must have in common to share one pop."""


def pop_key(header: PopMessage) -> PopKey | None:
    """Return the fields that a pop must have in common with others; None for a pop in order or of many messages, which
    shares with none."""
    count = header.max_msg_nums
    if header.order or not 0 < count <= MESSAGES_MAX // 2:
        return None
    return (
        header.topic,
        header.consumer_group,
        header.queue_id,
        header.exp,
        header.exp_type,
        header.invisible_time,
        header.init_mode,
        count,
    )


def shares(taken: Sequence[PoppedMessages], count: int) -> list[list[PoppedMessages]]:
    """Divide messages among pops of ``count`` messages each, in order.

    The last pop may get fewer; none gets zero.
    """
    found: list[list[PoppedMessages]] = []
    missing = 0
    for origin, queue_id, start_offset, offsets, records in taken:
        if len(records) != len(offsets):
            records = split_records(b"".join(records))
        assert len(records) == len(offsets), "a record for each message"
        at = 0
        while at < len(offsets):
            if not missing:
                found.append([])
                missing = count
            end = min(at + missing, len(offsets))
            part = PoppedMessages(origin, queue_id, start_offset, offsets[at:end], records[at:end])
            found[-1].append(part)
            missing -= end - at
            at = end
    return found


# --- checks ---


class GroupHeader(Protocol):
    """Header that names a group, a topic, and one of its queues or any (below 0)."""

    consumer_group: str
    topic: str
    queue_id: int


class PopChecks:
    """Checks of pops, peeks and notifications."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups

    def broker(self, what: str) -> None:
        """Refuse everything while the broker may not be read; ``what`` is RocketMQ's word for the request."""
        config = self._settings.broker
        if not config.broker_permission & PERM_READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] {what} is forbidden")

    def place(self, peer: ClientChannel, header: GroupHeader) -> TopicConfig:
        """Return the topic, if the group may read the queue."""
        name = header.topic
        topic = self._topics.get(name)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not topic.perm & PERM_READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if header.queue_id >= topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )
        self._check_group(header)
        return topic

    def _check_group(self, header: GroupHeader) -> None:
        name = header.consumer_group
        group = self._groups.find(name)
        if group is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
        if not group.consume_enable:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        # Java: PopMessageProcessor pops for a group that may not read the topic.
        if self._groups.is_read_forbidden(name, header.topic):
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{name}] is forbidden for topic[{header.topic}]"
            )


def wanted_of(expression: str | None, expression_type: str | None) -> Wanted:
    """Return the filter of a request's expression. Raise BrokerError if the expression is invalid."""
    if not expression:
        return None
    if is_by_tags(expression_type):
        return tag_codes_of(expression)
    try:
        return compile_filter(expression, expression_type)
    except FilterError as error:
        code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        raise BrokerError.lookup(code)(code, f"parse the consumer's subscription failed: {error}") from None
