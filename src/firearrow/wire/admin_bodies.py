"""Bodies of what administrators are answered about groups, queues and clients.

All are JSON in fastjson2's dialect, see ``wire.fastjson``; a map by queue id has bare numbers as
keys::

    {"correctionOffsets":{0:25,1:7}}

Source: upstream ``org.apache.rocketmq.remoting.protocol.body``.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import field

from firearrow.wire.client_bodies import Body, MessageQueue, OffsetWrapper, SubscriptionData, TopicOffset

S = TypeVar("S")


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

    @property
    def age_ms(self) -> int:
        """How old the next message is. Of a queue that a group has not begun it is the first one;
        RocketMQ gives a delay since 1970 there, as if that had been stored at -1."""
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
    """317: of each group the ``ConsumeStats`` of its topics, or what is already written of them."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[S]]]
    total_diff: int
    total_inflight_diff: int


class QueueEntryData(Body, frozen=True):
    """One entry of a ConsumeQueue. RocketMQ says whether a group wants it only where it has a
    ConsumeQueueExt."""

    physic_offset: int
    physic_size: int
    tags_code: int
    is_wanted: bool = field(default=False, name="eval")
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


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


class LiteBrokerInfo(Body, frozen=True):
    """200074: how much a broker has of lite topics; parents with the minutes that theirs live, and
    the groups of each."""

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
    """200075: how many lite topics a topic has, and which groups consume them."""

    groups: list[str]
    lite_topic_count: int
    lmq_num: int
    topic: str
    ttl: int


class LiteSubscriber(Body, frozen=True):
    """A client that subscribes to a lite topic; ``*`` for all of a group."""

    client_id: str
    group: str


class LiteTopicInfo(Body, frozen=True):
    """200076: who subscribes to a lite topic, and what it has."""

    lite_topic: str
    parent_topic: str
    sharding_to_broker: bool
    subscriber: list[LiteSubscriber]
    topic_offset: TopicOffset


class LiteClientInfo(Body, frozen=True):
    """200077: what a client subscribes to."""

    client_id: str
    group: str
    last_access_time: int
    lite_topic_count: int
    parent_topic: str
    last_consume_time: int = 0
    lite_topic_set: list[str] | None = None


class LiteLag(Body, frozen=True):
    """How far a group is behind in a lite topic."""

    earliest_unconsumed_timestamp: int
    lag_count: int
    lite_topic: str


class LiteGroupInfo(Body, frozen=True):
    """200078: how far a group is behind, in all or in one lite topic."""

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
    """What a policy says of a resource: whether the actions are allowed, and from where."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class AuthPolicy(Body, frozen=True):
    """Entries of one kind: Custom or Default."""

    policy_type: str | None = None
    entries: list[AuthEntry] | None = None


class AuthAcl(Body, frozen=True):
    """3006, 3007, 3009, 3010: what a subject may do."""

    subject: str | None = None
    policies: list[AuthPolicy] | None = None


class HaConnection(Body, frozen=True):
    """How far a slave is behind its master."""

    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HaClient(Body, frozen=True):
    """What a slave says of its replication. Times are in ms."""

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
