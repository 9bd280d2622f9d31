"""Checks of pops, peeks and notifications before they look for messages.

Source: upstream ``PopMessageProcessor``, ``PeekMessageProcessor``, ``NotificationProcessor`` and
``PollingInfoProcessor``, which say the same with the same words.
"""

from __future__ import annotations

from typing import Protocol

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import Channel, tag_codes_of
from firearrow.broker.groups.filters import compile_filter
from firearrow.errors import BrokerError, FilterError
from firearrow.store import Wanted
from firearrow.wire.bodies import PERM_READ, TopicConfig
from firearrow.wire.client_bodies import is_by_tags
from firearrow.wire.codes import ResponseCode


class OfGroup(Protocol):
    """A header that names a queue of a topic, or any (below 0), and a group."""

    consumer_group: str
    topic: str
    queue_id: int


class PopChecks:
    """Refuses what can't be popped."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups

    def broker(self, what: str) -> None:
        """Refuse everything while the broker may not be read; ``what`` is upstream's word for the
        request."""
        config = self._settings.broker
        if not config.broker_permission & PERM_READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] {what} is forbidden")

    def place(self, peer: Channel, header: OfGroup) -> TopicConfig:
        """Give the topic, if the group may read the queue."""
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

    def _check_group(self, header: OfGroup) -> None:
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
    """Give the filter that a request brings as an expression.

    Raises BrokerError for one that can't be read.
    """
    if not expression:
        return None
    if is_by_tags(expression_type):
        return tag_codes_of(expression)
    try:
        return compile_filter(expression, expression_type)
    except FilterError as error:
        code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        raise BrokerError.lookup(code)(code, f"parse the consumer's subscription failed: {error}") from None
