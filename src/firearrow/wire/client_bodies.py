"""Bodies of the requests that clients, and administrators of clients, send to a broker.

All are JSON in fastjson2's dialect (see ``wire.fastjson``). A map by queue has objects as keys::

    {"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:{"maxOffset":7,...}},"topicPutTps":0.0}

Source: RocketMQ's ``org.apache.rocketmq.remoting.protocol.{body,heartbeat,admin,subscription}``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, field

from firearrow.errors import BrokerError, MessageError
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion, TopicConfig
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand

BROADCASTING: Final = "BROADCASTING"
CLUSTERING: Final = "CLUSTERING"
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
CONSUME_POP: Final = "CONSUME_POP"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
PULL: Final = "PULL"
POP: Final = "POP"
SUBSCRIBE_ALL: Final = "*"
PAUSED: Final = "paused"  # a property of consumers (307) that RocketMQ's don't have

B = TypeVar("B")


# A heartbeat of 10,000 subscriptions, or a list of 10,000 topics, has 2 MB. A larger body is made of a million small
# values that no client needs, each of which takes a microsecond.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
# Of topics, groups, subscriptions of a group or queues in one request. Each takes some microseconds and is kept; no
# client has this count.
ITEMS_MAX: Final = 20_000


def body_of(command: AnyCommand, type_: type[B]) -> B:
    """Read the body of a request; raises BrokerError(SYSTEM_ERROR) that names the fault.

    Java: any size, at the cost of its threads.
    """
    if len(command.body) > BODY_BYTES_MAX:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"request {command.code} has a body of {len(command.body)} bytes, the limit is {BODY_BYTES_MAX}",
        )
    try:
        return fastjson.decode(command.body, type_, fastjson.REQUEST_LIMITS)
    except MessageError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"request {command.code} has a bad body: {error}") from None


class ClientBody(msgspec.Struct, rename="camel", frozen=True):
    """Base of the bodies; ``fastjson.dumps`` writes them and `body_of` reads them."""


class TimingCount(ClientBody, frozen=True):
    """Count of messages of a topic that wait for their time."""

    count: int = 0


class TimingCounts(ClientBody, frozen=True):
    """61: messages that wait for their time, by topic."""

    timing_count: dict[str, TimingCount] = {}


class DelayProgress(ClientBody, frozen=True):
    """45: queue offset of the next message of each delay level."""

    offset_table: dict[int, int] = {}


class MessageQueue(ClientBody, frozen=True):
    """One queue of a topic on a broker; the key of many maps."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0

    @property
    def text(self) -> str:
        """Text of the queue, as Java's clients and tools print and hash it."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


class SubscriptionData(ClientBody, frozen=True):
    """Subscription of a group to a topic. ``sub_version`` is the time of the client's decision, in ms."""

    topic: str = ""
    sub_string: str = ""
    sub_version: int = 0
    expression_type: str = TAG
    tags_set: list[str] = []
    code_set: list[int] = []
    class_filter_mode: bool = False


def is_by_tags(expression_type: str | None) -> bool:
    """Tell whether an expression of this type is one of tags."""
    return not expression_type or expression_type == TAG


def tags_in(expression: str | None) -> list[str] | None:
    """Return the tags of an expression ``A || B``; None for all messages.

    The list is empty for an expression of nothing but bars, or blanks between them.
    """
    if not expression or expression == SUBSCRIBE_ALL:
        return None
    return [tag for tag in map(str.strip, expression.split("||")) if tag]


class ConsumerData(ClientBody, frozen=True):
    """Membership of one client in a consumer group, with its subscriptions."""

    group_name: str = ""
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: Annotated[list[SubscriptionData], Meta(max_length=ITEMS_MAX)] = []
    unit_mode: bool = False


class ProducerData(ClientBody, frozen=True):
    """Membership of a client in a producer group."""

    group_name: str = ""


class Heartbeat(ClientBody, frozen=True):
    """34: all groups of a client. With a fingerprint other than 0 it is a heartbeat of version 2."""

    client_id: str = field(name="clientID", default="")
    producer_data_set: Annotated[list[ProducerData], Meta(max_length=ITEMS_MAX)] = []
    consumer_data_set: Annotated[list[ConsumerData], Meta(max_length=ITEMS_MAX)] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClient(ClientBody, frozen=True):
    """46: a subscription that a client wants to make."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerIdList(ClientBody, frozen=True):
    """38: the clients of a consumer group."""

    consumer_id_list: list[str] = []


class LockRequest(ClientBody, frozen=True):
    """41, 42: the queues that a client wants to lock or unlock."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: Annotated[list[MessageQueue], Meta(max_length=ITEMS_MAX)] = []
    only_this_broker: bool = False


class LockResult(ClientBody, frozen=True):
    """41: the requested queues that the client has locked now."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default=[])


class ClientConnection(ClientBody, frozen=True):
    """One connection of a client; ``client_addr`` is ``ip:port``."""

    client_id: str
    client_addr: str
    language: str | None = None
    version: int = 0


class MemberChange(ClientBody, frozen=True):
    """203: a client has joined a group at a time (ms), or left it."""

    at: int
    client_id: str
    joined: bool


class ConsumerConnection(ClientBody, frozen=True):
    """203: the clients of a consumer group, and its subscriptions.

    ``member_changes`` exist only in Firearrow, on request: the clients that joined or left lately.
    """

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    member_changes: list[MemberChange] | None = None


class ProducerConnection(ClientBody, frozen=True):
    """204: the clients of a producer group."""

    connection_set: list[ClientConnection] = []


class TopicOffset(ClientBody, frozen=True):
    """The ends of a queue; ``last_update_timestamp`` is the store time of its last message, in ms."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStats(ClientBody, frozen=True):
    """202: the queues of a topic and the messages a second that it receives."""

    offset_table: dict[MessageQueue, TopicOffset]
    topic_put_tps: float = 0.0


class OffsetWrapper(ClientBody, frozen=True):
    """Position of a group in a queue; ``last_timestamp`` is the store time of that message, in ms."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def lag(self) -> int:
        """Count of messages that the group has not consumed; all of the queue's if it has committed no offset (-1)."""
        return max(0, self.broker_offset - max(0, self.consumer_offset))

    @property
    def diff(self) -> int:
        """Lag as RocketMQ's tools show it: one more without an offset, below 0 for an offset beyond the queue's end."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Count of messages that the group has pulled and not consumed."""
        return self.pull_offset - self.consumer_offset


class ConsumeStats(ClientBody, frozen=True):
    """208: positions of a group, and the messages a second that it consumes."""

    offset_table: dict[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0

    @property
    def diff(self) -> int:
        """Sum over the queues."""
        return sum(at.diff for at in self.offset_table.values())

    @property
    def in_flight(self) -> int:
        """Sum over the queues."""
        return sum(at.in_flight for at in self.offset_table.values())


class ResetOffsets(ClientBody, frozen=True):
    """222: the offset where a group continues in each queue."""

    offset_table: dict[MessageQueue, int]


class ConsumerStatus(ClientBody, frozen=True):
    """221: the offsets of a consumer in its queues; 223: the offsets of all consumers, by client."""

    message_queue_table: dict[MessageQueue, int] = {}
    consumer_table: dict[str, dict[MessageQueue, int]] = {}


class ProcessQueueInfo(ClientBody, frozen=True):
    """307: a queue that a client pulls, and the messages of it that the client holds. Times are ms since 1970."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False  # RocketMQ's spelling
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    @property
    def first_in_hand(self) -> int:
        """The offset of the first message that is not consumed: in progress, or pending."""
        return self.transaction_msg_min_offset or self.cached_msg_min_offset


class ConsumeStatus(ClientBody, frozen=True):
    """307: consumption rates of a client for a topic; times in ms, failures of the last hour."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class PopProcessQueueInfo(ClientBody, frozen=True):
    """307: unacknowledged messages of a client that pops a queue. Time in ms since 1970."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumerRunningInfo(ClientBody, frozen=True):
    """307: settings, subscriptions, queues and rates of a consumer."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None

    @property
    def is_push(self) -> bool:
        """True if it is a push consumer."""
        return self.properties.get("PROP_CONSUME_TYPE") == CONSUME_PASSIVELY

    @property
    def is_ordered(self) -> bool:
        """True if it consumes its queues in order."""
        return self.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"

    @property
    def is_paused(self) -> bool:
        """True if it reports that it is paused; Java's consumers do not report it."""
        return self.properties.get(PAUSED) == "true"


class DirectResult(ClientBody, frozen=True):
    """309: result of consuming one message; ``spent_time_mills`` is RocketMQ's spelling."""

    order: bool = False
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
    auto_commit: bool = True


class GroupList(ClientBody, frozen=True):
    """300: names of groups."""

    group_list: list[str] = []


class TopicConfigList(ClientBody, frozen=True):
    """18: topics to create or change."""

    topic_config_list: Annotated[list[TopicConfig], Meta(max_length=ITEMS_MAX)]


def _default_retry_policy() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


class SubscriptionGroupConfig(ClientBody, frozen=True):
    """A broker's configuration of a consumer group.

    ``group_retry_policy`` and ``subscription_data_set`` are kept as they are written: nothing here reads them yet.
    """

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=_default_retry_policy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class GroupConfigList(ClientBody, frozen=True):
    """225: groups to create or change."""

    group_config_list: Annotated[list[SubscriptionGroupConfig], Meta(max_length=ITEMS_MAX)]


class GroupNames(ClientBody, frozen=True):
    """5003: groups to delete, and whether with their offsets."""

    group_name_list: Annotated[list[str], Meta(max_length=ITEMS_MAX)]
    clean_offset: bool = False


class TopicNames(ClientBody, frozen=True):
    """5002: topics to delete."""

    topic_list: Annotated[list[str], Meta(max_length=ITEMS_MAX)]


class AllOffsets(ClientBody, frozen=True):
    """43: committed offsets of all groups, by ``topic@group`` and queue."""

    data_version: DataVersion
    offset_table: dict[str, dict[int, int]]


class SubscriptionGroupTable(ClientBody, frozen=True):
    """201: the groups of a broker; ``forbidden_table`` has bits by group and topic."""

    data_version: DataVersion
    subscription_group_table: dict[str, SubscriptionGroupConfig]
    forbidden_table: dict[str, dict[str, int]]


class StatsSnapshot(ClientBody, frozen=True):
    """A counter over some time: its sum, the sum a second, and the sum a call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(ClientBody, frozen=True):
    """315: a counter over the last minute, hour and day."""

    stats_minute: StatsSnapshot
    stats_hour: StatsSnapshot
    stats_day: StatsSnapshot


class RequestMode(ClientBody, frozen=True):
    """401: a group's mode for a topic.

    By POP, ``pop_share_queue_num`` further clients share each queue.
    """

    consumer_group: str | None = None
    mode: Literal["PULL", "POP"] = PULL
    pop_share_queue_num: int = 0
    topic: str | None = None


class AssignmentQuery(ClientBody, frozen=True):
    """400: request of a client for its queues of a topic."""

    topic: str
    consumer_group: str
    client_id: str
    message_model: Literal["CLUSTERING", "BROADCASTING"]
    strategy_name: str | None = None


class QueueAssignment(ClientBody, frozen=True):
    """A queue that a client has; -1 is any queue of the broker."""

    message_queue: MessageQueue
    mode: Literal["PULL", "POP"]


class Assignments(ClientBody, frozen=True, omit_defaults=True):
    """400: the queues of a client. None: it keeps its present queues."""

    message_queue_assignments: list[QueueAssignment] | None = None


class BatchAck(msgspec.Struct, frozen=True):
    """Messages of one pop, of one queue: bit i of ``bits`` is queue offset ``start_offset`` + i.

    ``bits`` is base64 of little-endian bytes (Java's ``BitSet``); ``origin`` as in ``wire.pop``.
    """

    group: str = field(name="c")
    topic: str = field(name="t")
    start_offset: int = field(name="so")
    queue_id: int = field(name="q")
    revive_queue_id: int = field(name="rq")
    pop_ms: int = field(name="pt")
    invisible_ms: int = field(name="it")
    origin: str = field(name="r", default="0")
    bits: str | None = field(name="b", default=None)


class BatchAckBody(ClientBody, frozen=True):
    """200151: messages that were consumed."""

    broker_name: str | None = None
    acks: Annotated[list[BatchAck], Meta(max_length=ITEMS_MAX)] = []


class OffsetOption(ClientBody, frozen=True):
    """The place where a group must begin with a lite topic.

    POLICY: 0 its present offset, 1 the first message, 2 behind the last. OFFSET: this offset. TAIL_N: n messages before
    its present offset. TIMESTAMP has no effect.
    """

    type: Literal["POLICY", "OFFSET", "TAIL_N", "TIMESTAMP"] = "POLICY"
    value: int = 0


LiteAction = Literal["PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"]


class LiteSubscription(ClientBody, frozen=True):
    """A change of a client's subscription: lite topics to add or remove, or all of its lite topics."""

    action: LiteAction
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    version: int = 0


class LiteSubscriptionChanges(ClientBody, frozen=True):
    """200071: changes, in their order."""

    subscription_set: list[LiteSubscription] | None = None
