"""Bodies of what administrators are answered about groups, queues and clients.

All are JSON in fastjson2's dialect, see ``wire.fastjson``; a map by queue id has bare numbers as
keys::

    {"correctionOffsets":{0:25,1:7}}

Source: upstream ``org.apache.rocketmq.remoting.protocol.body``.
"""

from __future__ import annotations

from msgspec import Raw, field

from firearrow.wire.client_bodies import Body, MessageQueue, SubscriptionData


class QueueOffset(Body, frozen=True):
    """220, to consumers in C++: where a group goes on in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsetList(Body, frozen=True):
    """220, to consumers in C++: the same for all queues."""

    offset_table: list[QueueOffset]


class QueueTimeSpan(Body, frozen=True):
    """When messages of a queue were stored, in ms: the first, the last, and the last that a group
    has consumed; -1 for none. ``delay_time`` is how old the next is that it has to consume."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class QueueTimeSpans(Body, frozen=True):
    """303: the queues of a topic."""

    consume_time_span_set: list[QueueTimeSpan]


class CorrectionOffsets(Body, frozen=True):
    """308: an offset for each queue id."""

    correction_offsets: dict[int, int]


class AllConsumeStats(Body, frozen=True):
    """317: of each group the ``ConsumeStats`` of its topics, already written."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[Raw]]]
    total_diff: int
    total_inflight_diff: int


class QueueEntryData(Body, frozen=True):
    """One entry of a ConsumeQueue. RocketMQ says whether a group wants it only where it has a
    ConsumeQueueExt."""

    physic_offset: int
    physic_size: int
    tags_code: int
    is_wanted: bool = field(default=False, name="eval")


class QueueEntries(Body, frozen=True):
    """321: entries of a queue, its first offset and that behind its last, and what a group that
    was named wants of its topic."""

    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueEntryData] | None = None
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class ProducerInfo(Body, frozen=True):
    """A producer; ``last_update_timestamp`` is when it was heard last, in ms."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str | None
    version: int
    last_update_timestamp: int


class ProducerTable(Body, frozen=True):
    """328: the producers of each group."""

    data: dict[str, list[ProducerInfo]]


class GroupSubscription(Body, frozen=True):
    """345: what a group wants of a topic, if it is there and wants anything."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class GroupReadable(Body, frozen=True):
    """353: whether a group may read a topic."""

    group: str
    topic: str
    readable: bool


class QueueCheck(Body, frozen=True):
    """354: whether queues that are kept twice agree; the status 0 says that they do."""

    check_result: str
    check_status: int
