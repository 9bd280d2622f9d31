"""Pops (200050): messages of a topic for a group, invisible to its other consumers for a time.

Source: upstream ``PopMessageProcessor#processRequest``.
"""

from __future__ import annotations

from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.popping import Pop, Popping
from firearrow.broker.state.clients import tag_codes_of
from firearrow.broker.state.filters import compile_filter
from firearrow.errors import BrokerError, FilterError
from firearrow.net.server import Finished, Peer
from firearrow.store import Fetch, Wanted
from firearrow.wire.bodies import PERM_READ
from firearrow.wire.client_bodies import is_by_tags
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.frame import AnyCommand, pop_answer
from firearrow.wire.headers import PopMessage

MESSAGES_MAX: Final = 32  # of one pop
LATE_MS_MAX: Final = 500  # for so long a pop is served after its client has given it up


class PopProcessor:
    """Answers pops, and keeps those that have to wait."""

    def __init__(self, context: BrokerContext, popping: Popping) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._stats = context.stats
        self._clock = context.clock
        self._cold = context.cold
        self._popping = popping

    def pop(self, peer: Peer, request: AnyCommand) -> Finished:
        """200050: answer messages, or that there are none in time."""
        return self._serve(peer, request, aside=self._cold.are_aside)

    def _serve_fetched(self, peer: Peer, request: AnyCommand) -> Finished:
        """Run a pop again that waited for the disk."""
        return self._serve(peer, request, aside=False)

    def _serve(self, peer: Peer, request: AnyCommand, *, aside: bool) -> Finished:
        header = request.ext
        if type(header) is not PopMessage:
            header = fields_of(request, PopMessage)
        now_ms = self._clock.now_ms()
        if not header.born_time:
            header.born_time = now_ms
            request.ext = header
        self._check(peer, header, now_ms)
        wanted = _wanted_of(header)
        try:
            pop = self._popping.pop(header, wanted, now_ms, only_resident=aside)
            if not pop.count and self._store.catch_up():
                pop = self._popping.pop(header, wanted, now_ms, only_resident=aside)
        except Fetch as lacks:
            self._cold.hold(peer, request, lacks.stretches, self._serve_fetched)
            return None
        if pop.count:
            return _found(request, pop)
        self._stats.pulls_missed += 1
        return _nothing(ResponseCode.POLLING_TIMEOUT, pop)

    def _check(self, peer: Peer, header: PopMessage, now_ms: int) -> None:
        """All reasons to refuse a pop, in upstream's order."""
        broker = self._settings.broker
        address = broker.broker_ip1
        if now_ms - header.born_time - header.poll_time > LATE_MS_MAX:
            raise BrokerError(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{address}] pop message is timeout too much",
            )
        if not broker.broker_permission & PERM_READ:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the broker[{address}] pop message is forbidden"
            )
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
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!",
            )
        if not topic.perm & PERM_READ:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] peeking message is forbidden",
            )
        if header.queue_id >= topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )
        self._check_group(header)

    def _check_group(self, header: PopMessage) -> None:
        name = header.consumer_group
        group = self._groups.find(name)
        if group is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist",
            )
        if not group.consume_enable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}"
            )
        # Java: PopMessageProcessor pops for a group that may not read the topic.
        if self._groups.is_read_forbidden(name, header.topic):
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{name}] is forbidden for topic[{header.topic}]",
            )


def _wanted_of(header: PopMessage) -> Wanted:
    """Which messages a pop asks for, retried ones included."""
    expression = header.exp
    if not expression:
        return None
    if is_by_tags(header.exp_type):
        return tag_codes_of(expression)
    try:
        return compile_filter(expression, header.exp_type)
    except FilterError as error:
        code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        raise BrokerError.lookup(code)(
            code, f"parse the consumer's subscription failed: {error}"
        ) from None


def _found(request: AnyCommand, pop: Pop) -> Finished:
    return pop_answer(
        request,
        pop.pop_ms,
        pop.header.invisible_time,
        pop.revive_queue_id,
        pop.rest,
        ";".join(pop.starts),
        ";".join(pop.offsets),
        ";".join(pop.order_counts) if pop.header.order else None,
        b"".join(pop.records),
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
    return Response(code, "NO_MESSAGE_IN_QUEUE", fields)
