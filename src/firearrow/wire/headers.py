"""Typed request headers: one declarative table for each request that has fields.

Names follow the wire in camelCase (``consumer_group`` is ``consumerGroup``). The one-letter form of ``SEND_MESSAGE_V2``
has the same attributes under other wire names, so one processor serves both. Fields that some client leaves out have a
default. The others are mandatory, and a request without them is refused with the field's name. On the wire every value
is text; ``wire.command.fields_of`` converts it.

Source: RocketMQ's ``org.apache.rocketmq.remoting.protocol.header``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from firearrow.javanumbers import LONG_MAX, LONG_MIN
from firearrow.wire.command import Int32

# Limit of a value that a server keeps from a header. RocketMQ has no limit. The longest that its clients send is an
# address and a process id, or a random UUID.
Name = Annotated[str, Meta(max_length=255)]
Int64 = Annotated[int, Meta(ge=LONG_MIN, le=LONG_MAX)]


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all typed headers."""


class SendMessage(Header):
    """10, 324: one message; the body is the message's body."""

    producer_group: str
    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 4
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


class SendMessageV2(Header, kw_only=True):
    """310, 320, 325: the fields of SendMessage under one-letter names.

    They are in the order of the wire, which is decoded fastest.
    """

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default="")
    default_topic_queue_nums: Int32 = field(name="d", default=4)
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Int32 = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)


class PlainSend(SendMessageV2):
    """A `SendMessageV2` made in the broker's own process; its ``properties`` ask for nothing but storage.

    No header is decoded into this form.
    """

    @property
    def unique(self) -> str:
        """The unique key among the properties."""
        return self.properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]


AnySendMessage = SendMessage | SendMessageV2


class PullMessage(Header):
    """11, 361: up to ``max_msg_nums`` messages of one queue from ``queue_offset`` on.

    With ``lite_topic`` the queue is that of a lite topic of ``topic``.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    lite_topic: str | None = None


class QueryMessage(Header):
    """12: messages of a topic by key (or by unique key, see ``_UNIQUE_KEY_QUERY``)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None
    unique_key_query: bool = field(name="_UNIQUE_KEY_QUERY", default=False)


class EndTransaction(Header):
    """37: a producer commits or rolls back; the offsets are the half's."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None


class ResumeCheck(Header):
    """323: resume the checks of a transaction; ``msg_id`` names the place of the message."""

    topic: str | None = None
    msg_id: str = ""


class QueryConsumerOffset(Header):
    """14: the committed offset of a group in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header):
    """15: commit an offset; a missing queue or offset is answered with 29, not 1."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class ResetOffset(Header):
    """222: reset a group to a time, or, with a queue id, to an offset of one queue.

    Without ``is_force`` the notified consumers (220) only go back.
    """

    group: str
    topic: str
    timestamp: Int64
    queue_id: Int32 = -1
    offset: Int64 | None = None
    is_force: bool = False


class SearchOffset(Header):
    """29: the offset by store time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    lite_topic: str | None = None


class QueueHeader(Header):
    """30, 31, 32: one queue."""

    topic: str
    queue_id: Int32
    committed: bool = True


class ViewMessage(Header):
    """33: one message by physical offset."""

    offset: Int64
    topic: str | None = None


class UnregisterClient(Header):
    """35: a client leaves a producer or a consumer group (or both)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBack(Header):
    """36: a group failed to consume the message at a physical offset.

    The client's values of its id and topic (``originMsgId``, ``originTopic``) are not read: the message has them.
    """

    group: str
    offset: Int64
    delay_level: Int32
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class ConsumerGroupHeader(Header):
    """38, 40: a consumer group."""

    consumer_group: str


class ConsumersOfGroup(Header):
    """203: a consumer group; ``with_changes`` (only in Firearrow) adds the clients that joined and left it."""

    consumer_group: str
    with_changes: bool | None = None


class AskConsumer(Header):
    """307: a consumer of a group; with ``jstack_enable`` it reports the stacks of its threads."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(Header):
    """309: a message, by its offset id, and the consumer that must consume it."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""
    topic: str = ""


class ConsumerStatusHeader(Header):
    """223: a group's consumers of a topic, or the one with an id."""

    topic: str
    group: str
    client_addr: str = ""


class ProducerGroupHeader(Header):
    """204: a producer group."""

    producer_group: str


class AnyGroup(Header):
    """37, 370, 200050 and others that name a group."""

    group: str | None = None
    consumer_group: str | None = None
    producer_group: str | None = None


class GetConsumeStats(Header):
    """208: progress of a group, on all its topics or some (``topic_list`` joined by ``;``).

    ``with_pops`` (only in Firearrow): popped messages that are in flight do not count as consumed.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    with_pops: bool | None = None


class CreateTopic(Header):
    """17: create a topic or change it."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str | None = None
    topic_filter_type: str | None = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = False


class RouteHeader(Header):
    """105: a topic; as in RocketMQ, a request without one finds no topic, which is no error."""

    topic: str = "null"
    accept_standard_json_only: bool | None = None


class TopicHeader(Header):
    """202, 215, 216, 300: a topic."""

    topic: str
    cluster_name: str | None = None


class GetAllTopicConfig(Header):
    """21: a page of topic configs; clients before 5.3 send no fields and get all."""

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


class GetAllSubscriptionGroup(Header):
    """201: a page of group configs; clients before 5.3 send no fields and get all."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class GetSubscriptionGroup(Header):
    """352: the config of one group."""

    group: str


class DeleteSubscriptionGroup(Header):
    """207: delete a group, with or without its offsets."""

    group_name: str
    clean_offset: bool = False


class KvHeader(Header):
    """100, 101, 102: a key (and value) in a namespace of the name server, which names a missing field."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class KvNamespace(Header):
    """219: a namespace of the name server."""

    namespace: str


class RegisterBroker(Header):
    """103: a broker announces itself and its topics."""

    broker_name: Name
    broker_addr: Name
    cluster_name: Name
    broker_id: Int64
    ha_server_addr: Name = ""
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0
    zone_name: Name | None = field(name="__ZONE_NAME", default=None)


class UnregisterBroker(Header):
    """104: a broker leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(Header):
    """322: asks whether the name server's data of this broker are outdated."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(Header):
    """904: a broker is alive."""

    cluster_name: Name
    broker_addr: Name
    broker_name: Name
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    # RocketMQ spells this one field without the second i.
    heartbeat_timeout_millis: Int64 | None = field(name="heartbeatTimeoutMills", default=None)
    election_priority: Int32 | None = None


class MinBrokerId(Header):
    """905: the smallest id among the brokers of a name has changed.

    It names the broker that left, and the address where a new master takes slaves.
    """

    min_broker_id: Int64
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeHaInfo(Header):
    """906: the address where a master takes slaves; without fields the sender asks for it."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class BrokerNameHeader(Header):
    """205, 327, 1004: a broker name."""

    broker_name: str


class AlterSyncStateSet(Header):
    """1001: a master reports the brokers that have all its messages; the body is a SyncStateSet."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32


class ElectMaster(Header):
    """1002: elect a master; ``broker_id`` is the sender, or with ``designate_elect`` the broker to elect."""

    broker_name: str
    cluster_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False


class MasterOfName(Header):
    """1008, and answers to 1002, 1003 and 1004: the master of a broker name, if there is one."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class BrokerIdThatIsNext(Header):
    """The answer to 1012: the id that no broker of the name has."""

    next_broker_id: Int64


class RegisterToController(Header):
    """1003: a broker has started, at an address."""

    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str


class NextBrokerId(Header):
    """1012: a request for the id that a new broker may apply for."""

    cluster_name: str
    broker_name: str


class FollowState(Header):
    """19001: a slave has its master's state up to a version, and waits for the next change."""

    broker_id: Int64
    life: str
    version: Int64


class ApplyBrokerId(Header):
    """1013: a broker wants an id; its check code, ``address;time``, tells it from others."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str


class CleanBrokerData(Header):
    """1011: forget brokers, by ids joined by ``;``, or all of a name."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    # RocketMQ's field is ``isCleanLivingBroker``, like other boolean fields in Java.
    clean_living_broker: bool = field(name="isCleanLivingBroker", default=False)


class BrokerMemberGroup(Header):
    """901: the addresses of one broker name."""

    cluster_name: str
    broker_name: str


class ClusterHeader(Header):
    """224: a cluster."""

    cluster: str


class ViewBrokerStats(Header):
    """315: one counter of a broker."""

    stats_name: str
    stats_key: str


class RecallMessage(Header):
    """370: recall a message that waits for its delivery time."""

    topic: str
    recall_handle: str
    producer_group: str = ""


class GroupAndTopic(Header):
    """303, 345, 19002: a group and a topic."""

    group: str
    topic: str


class CorrectionOffset(Header):
    """308: a group to compare other groups with, and the groups, joined by ``,``, that do not count."""

    topic: str
    compare_group: str
    filter_groups: str = ""


class CloneGroupOffset(Header):
    """314: copy a group's offsets to another group, for a blank topic in all topics.

    ``offline`` includes topics that the source group does not subscribe to now.
    """

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class AllProgress(Header):
    """317: progress of all groups; the field limits it to topics with an order."""

    is_order: bool


class QueryConsumeQueue(Header):
    """321: a count of entries of a queue, from an offset on."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class TopicsOfGroup(Header):
    """343: a group."""

    group: str


class ForbidGroup(Header):
    """353: set or get the permission of a group to read a topic; without ``readable`` nothing is changed."""

    group: str
    topic: str
    readable: bool | None = None


class ReadMode(Header):
    """2004: 0 to read the CommitLog ahead, 1 not to."""

    mode: Int32 = field(name="READ_AHEAD_MODE")


class CheckQueues(Header):
    """354: a topic whose queues are compared, from a store time in ms on."""

    topic: str
    check_store_time: Int64 = 0


class PopMessage(Header):
    """200050: up to ``max_msg_nums`` messages for a group, invisible to others for a time in ms.

    Queue -1 is any. A pop that finds nothing waits until ``poll_time`` ms after ``born_time``. A group without an
    offset begins at a queue's first message (``init_mode`` 0) or its last (1). ``attempt_id`` names a pop in order that
    the client may repeat.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = False
    attempt_id: Name | None = None


class AckMessage(Header):
    """200051, 19003: a popped message (that was consumed); ``extra_info`` is its handle (``wire.pop``)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None
    bname: str | None = None


class PopLiteMessage(Header):
    """200070: messages of the lite topics of ``topic`` that a client of a group subscribes to; fields as in 200050."""

    client_id: Annotated[str, Meta(max_length=1024)]
    consumer_group: str
    topic: str
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    attempt_id: Name | None = None


class ChangeInvisibleTime(Header):
    """200053: a popped message becomes visible ``invisible_time`` ms from now.

    With ``suspend`` its count of deliveries does not grow.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool | None = None
    bname: str | None = None


class Notification(Header):
    """200054: notify the client when a group has a message to pop; queue -1 is any.

    Since RocketMQ 5.5.1 also when a subscribed lite topic of the client has one.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = False
    attempt_id: Name | None = None
    exp_type: str | None = None
    exp: str | None = None
    is_lite_consumer: bool | None = False
    client_id: str | None = None


class PeekMessage(Header):
    """200052: the next messages of a group, which are not popped by it."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class PollingInfo(Header):
    """200055: count of a group's pops that wait for messages of a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32


class LiteParent(Header):
    """200075: a topic that has lite topics."""

    topic: str


class LiteTopic(Header):
    """200076: a lite topic and its parent."""

    parent_topic: str
    lite_topic: str


class LiteClient(Header):
    """200077: a client of a group, and the limit of its lite topics in the answer."""

    parent_topic: str
    group: str
    client_id: str
    max_count: Int32 = 1000


class LiteGroup(Header):
    """200078: a group, and one of its lite topics, or the count of lite topics with the largest lag."""

    group: str
    lite_topic: str = ""
    top_k: Int32 = 0


class LiteDispatch(Header):
    """200079: a group, or one of its clients, that must get all ready messages."""

    group: str
    client_id: str = ""


class FlushOffset(Header):
    """908: the physical offset that a slave must assume its master has flushed."""

    master_flush_offset: Int64 | None = None


class ExportConfig(Header):
    """355: the tables that a broker must write as JSON, each ended by ``;``."""

    config_type: str


class TimerEngine(Header):
    """5001: the engine that keeps timed messages, ``R``ocksDB or ``F``iles."""

    engine: str = field(name="E_T")


class AuthUser(Header):
    """3001 to 3004: a user."""

    username: str = ""


class AuthUsers(Header):
    """3005: users whose name contains a text."""

    filter: str | None = None


class AuthSubject(Header):
    """3006, 3007, 3009: the subject of permissions, ``User:name``."""

    subject: str = ""


class AuthResource(Header):
    """3008: the resource that a subject may no longer use; without a resource, all of them."""

    subject: str = ""
    resource: str | None = None
    policy_type: str | None = None


class AuthSubjects(Header):
    """3010: subjects and resources whose names contain a text."""

    subject_filter: str | None = None
    resource_filter: str | None = None
