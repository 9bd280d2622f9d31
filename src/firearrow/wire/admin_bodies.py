"""Bodies of answers to administrators about groups, queues and clients.

All are JSON in fastjson2's dialect, see ``wire.fastjson``; a map by queue id has bare numbers as keys::

    {"correctionOffsets":{0:25,1:7}}

Source: RocketMQ's ``org.apache.rocketmq.remoting.protocol.body``.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import field

from firearrow.wire.bodies import Body
from firearrow.wire.client_bodies import MessageQueue, OffsetWrapper, SubscriptionData, TopicOffset

S = TypeVar("S")


class QueueOffset(Body, frozen=True):
    """220, to consumers in C++: the offset where a group continues in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsetList(Body, frozen=True):
    """220, to consumers in C++: the offsets of all queues."""

    offset_table: list[QueueOffset]


class QueueTimeSpan(Body, frozen=True):
    """Store times in a queue, in ms: of the first message, the last, and the last that a group has consumed.

    -1 stands for none. ``delay_time`` is the age of the next message that the group must consume.
    """

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int

    @property
    def age_ms(self) -> int:
        """Age of the next message.

        If the group has not begun with the queue, that is its first message. RocketMQ returns a delay since 1970 then,
        as if the message had been stored at -1.
        """
        if not self.delay_time > self.max_time_stamp > 0:
            return max(0, self.delay_time)
        return self.delay_time - 1 - self.min_time_stamp


class QueueTimeSpans(Body, frozen=True):
    """303: the queues of a topic."""

    consume_time_span_set: list[QueueTimeSpan]


class CorrectionOffsets(Body, frozen=True):
    """308: an offset for each queue id."""

    correction_offsets: dict[int, int]


class AllConsumeStats(Body, Generic[S], frozen=True):
    """317: of each group the ``ConsumeStats`` of its topics, or their text if it is already written."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[S]]]
    total_diff: int
    total_inflight_diff: int


class QueueEntryData(Body, frozen=True):
    """One entry of a ConsumeQueue. RocketMQ says whether a group wants it only if the queue has a ConsumeQueueExt."""

    physic_offset: int
    physic_size: int
    tags_code: int
    is_wanted: bool = field(default=False, name="eval")
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class QueueEntries(Body, frozen=True):
    """321: entries of a queue, its first offset and the one behind its last, and the named group's subscription."""

    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueEntryData] | None = None
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class ProducerInfo(Body, frozen=True):
    """A producer; ``last_update_timestamp`` is the time of its last heartbeat, in ms."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str | None
    version: int
    last_update_timestamp: int


class ProducerTable(Body, frozen=True):
    """328: the producers of each group."""

    data: dict[str, list[ProducerInfo]]


class GroupSubscription(Body, frozen=True):
    """345: a group's subscription to a topic, if the group exists and has one."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class GroupReadable(Body, frozen=True):
    """353: permission of a group to read a topic."""

    group: str
    topic: str
    readable: bool


class QueueCheckResult(Body, frozen=True):
    """354: result of comparing queues that are kept twice; the status 0 says that they agree."""

    check_result: str
    check_status: int


class LiteBrokerInfo(Body, frozen=True):
    """200074: a broker's counts of lite topics; parents with the TTL of their lite topics in minutes, and the groups of
    each."""

    cq_table_size: int
    current_lmq_num: int
    event_map_size: int
    group_meta: dict[str, list[str]]
    lite_subscription_count: int
    max_lmq_num: int
    offset_table_size: int
    order_info_count: int
    store_type: str
    topic_meta: dict[str, int]


class LiteParentInfo(Body, frozen=True):
    """200075: count of lite topics of a topic, and the groups that consume them."""

    groups: list[str]
    lite_topic_count: int
    lmq_num: int
    topic: str
    ttl: int


class LiteSubscriber(Body, frozen=True):
    """A client that subscribes to a lite topic; ``*`` stands for all clients of a group."""

    client_id: str
    group: str


class LiteTopicInfo(Body, frozen=True):
    """200076: the subscribers and the content of a lite topic."""

    lite_topic: str
    parent_topic: str
    sharding_to_broker: bool
    subscriber: list[LiteSubscriber]
    topic_offset: TopicOffset


class LiteClientInfo(Body, frozen=True):
    """200077: the lite topics that a client subscribes to."""

    client_id: str
    group: str
    last_access_time: int
    lite_topic_count: int
    parent_topic: str
    last_consume_time: int = 0
    lite_topic_set: list[str] | None = None


class LiteLag(Body, frozen=True):
    """Lag of a group in a lite topic."""

    earliest_unconsumed_timestamp: int
    lag_count: int
    lite_topic: str


class LiteGroupInfo(Body, frozen=True):
    """200078: lag of a group, in all lite topics or in one."""

    group: str
    parent_topic: str
    total_lag_count: int
    earliest_unconsumed_timestamp: int = -1
    lite_topic: str | None = None
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    lag_count_top_k: list[LiteLag] | None = None
    lag_timestamp_top_k: list[LiteLag] | None = None


class AuthUserInfo(Body, frozen=True):
    """3001, 3002, 3004, 3005: a user; its type is Super or Normal, its status enable or disable."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class AuthEntry(Body, frozen=True):
    """A policy's decision on a resource: whether the actions are allowed, and their source addresses."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class AuthPolicy(Body, frozen=True):
    """Entries of one kind: Custom or Default."""

    policy_type: str | None = None
    entries: list[AuthEntry] | None = None


class AuthAcl(Body, frozen=True):
    """3006, 3007, 3009, 3010: permissions of a subject."""

    subject: str | None = None
    policies: list[AuthPolicy] | None = None


class HaConnection(Body, frozen=True):
    """Lag of a slave behind its master."""

    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HaClient(Body, frozen=True):
    """State of a slave's replication, as the slave reports it. Times are in ms."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HaStatus(Body, frozen=True):
    """907: replication of a broker, as a master or as a slave sees it."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HaConnection] = field(default_factory=list)
    ha_client_runtime_info: HaClient = HaClient()
