"""Table of the request codes of RocketMQ 5.5.0, served here or not: one row each.

A row has the server of the code, its header and body, the permissions that a client needs, whether it is one-way, and
whether only masters take it. Each server names the functions that serve its codes: ``broker.admission``,
``namesrv.processor``.

Permissions follow RocketMQ's ACL 2.0: a client needs each `Ask` of a row, and for that any of its actions. On a retry
topic they apply to its group, with SUB in the place of PUB. For some codes RocketMQ checks only the client's identity;
here they need the permissions that fit their effect.

Source: RocketMQ's ``RequestCode``, ``RocketMQAction``, ``DefaultAuthorizationContextBuilder``.
"""

from __future__ import annotations

from enum import Enum, Flag, auto
from typing import Final, NamedTuple

from firearrow.wire import headers
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.bodies import DataVersion, Route
from firearrow.wire.client_bodies import (
    AssignmentQuery,
    BatchAckBody,
    CheckClient,
    GroupConfigList,
    GroupNames,
    Heartbeat,
    LiteSubscriptionChanges,
    LockRequest,
    RequestMode,
    SubscriptionGroupConfig,
    TopicConfigList,
    TopicNames,
)
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.controller_bodies import SyncStateSet
from firearrow.wire.registerbody import RegisterBody


class ServedBy(Enum):
    """Server that answers a code. NOBODY: no process of RocketMQ 5.5.0 answers it, and none of its clients and tools
    sends it."""

    BROKER = auto()
    NAME_SERVER = auto()
    CONTROLLER = auto()
    CONTAINER = auto()
    CLIENT = auto()
    NOBODY = auto()


class PermissionScope(Enum):
    """Kind of resource that a permission is for."""

    CLUSTER = auto()
    TOPIC = auto()
    GROUP = auto()


class Action(Flag):
    """Action that a permission allows."""

    PUB = auto()
    SUB = auto()
    CREATE = auto()
    UPDATE = auto()
    DELETE = auto()
    GET = auto()


class Ask(NamedTuple):
    """A permission that a client needs: one of the actions on the resource that it names."""

    resource: PermissionScope
    actions: Action


class Trait(Flag):
    """Further trait of a code."""

    NONE = 0
    ONEWAY = auto()  # its sender usually wants no answer
    MASTERS = auto()  # a slave refuses it
    READS = auto()  # it changes nothing, whatever right it needs: no line in the audit log


class Unread:
    """In place of a header or body that nothing here reads yet."""


class Row(NamedTuple):
    """Row of a code; ``header`` and ``body`` are None if there is none to read, and ``bytes`` is a body that is not
    JSON."""

    code: Code
    served_by: ServedBy
    header: type | None
    body: type | None
    asks: tuple[Ask, ...]
    traits: Trait = Trait.NONE


BROKER, NAME_SERVER = ServedBy.BROKER, ServedBy.NAME_SERVER
CONTROLLER, CONTAINER = ServedBy.CONTROLLER, ServedBy.CONTAINER
CLIENT, NOBODY = ServedBy.CLIENT, ServedBy.NOBODY
UNREAD: Final = Unread
ONEWAY, MASTERS = Trait.ONEWAY, Trait.MASTERS

_CLUSTER, _TOPIC, _GROUP = PermissionScope.CLUSTER, PermissionScope.TOPIC, PermissionScope.GROUP
_PUB, _SUB, _GET, _UPDATE = Action.PUB, Action.SUB, Action.GET, Action.UPDATE

NOTHING: Final[tuple[Ask, ...]] = ()
CLUSTER_GET: Final = (Ask(_CLUSTER, _GET),)
CLUSTER_UPDATE: Final = (Ask(_CLUSTER, _UPDATE),)
TOPIC_PUB: Final = (Ask(_TOPIC, _PUB),)
TOPIC_GET: Final = (Ask(_TOPIC, _GET),)
TOPIC_CREATE: Final = (Ask(_TOPIC, Action.CREATE),)
TOPIC_UPDATE: Final = (Ask(_TOPIC, _UPDATE),)
TOPIC_DELETE: Final = (Ask(_TOPIC, Action.DELETE),)
TOPIC_ROUTE: Final = (Ask(_TOPIC, _PUB | _SUB | _GET),)
LOOK_UP: Final = (Ask(_TOPIC, _SUB | _GET),)
GROUP_GET: Final = (Ask(_GROUP, _GET),)
GROUP_SUB: Final = (Ask(_GROUP, _SUB),)
GROUP_CREATE: Final = (Ask(_GROUP, Action.CREATE),)
GROUP_DELETE: Final = (Ask(_GROUP, Action.DELETE),)
MEMBERS: Final = (Ask(_GROUP, _SUB | _GET),)
CONSUME: Final = (Ask(_TOPIC, _SUB), Ask(_GROUP, _SUB))
SUBSCRIBE: Final = CONSUME  # each topic and each group that the body names
COMMIT: Final = (Ask(_TOPIC, _SUB | _UPDATE), Ask(_GROUP, _SUB | _UPDATE))
PROGRESS: Final = (Ask(_TOPIC, _SUB | _GET), Ask(_GROUP, _SUB | _GET))
TOPIC_AND_GROUP_GET: Final = (Ask(_TOPIC, _GET), Ask(_GROUP, _GET))
TOPIC_AND_GROUP_UPDATE: Final = (Ask(_TOPIC, _UPDATE), Ask(_GROUP, _UPDATE))

_ROWS: Final = (
    Row(Code.SEND_MESSAGE, BROKER, headers.SendMessage, bytes, TOPIC_PUB, MASTERS),
    Row(Code.PULL_MESSAGE, BROKER, headers.PullMessage, None, CONSUME),
    Row(Code.QUERY_MESSAGE, BROKER, headers.QueryMessage, None, LOOK_UP),
    Row(Code.QUERY_BROKER_OFFSET, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.QUERY_CONSUMER_OFFSET, BROKER, headers.QueryConsumerOffset, None, PROGRESS),
    Row(Code.UPDATE_CONSUMER_OFFSET, BROKER, headers.UpdateConsumerOffset, None, COMMIT, ONEWAY),
    Row(Code.UPDATE_AND_CREATE_TOPIC, BROKER, headers.CreateTopic, None, TOPIC_CREATE, MASTERS),
    Row(Code.UPDATE_AND_CREATE_TOPIC_LIST, BROKER, None, TopicConfigList, TOPIC_CREATE, MASTERS),
    Row(Code.GET_ALL_TOPIC_CONFIG, BROKER, headers.GetAllTopicConfig, None, CLUSTER_GET),
    Row(Code.GET_TOPIC_CONFIG_LIST, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.GET_TOPIC_NAME_LIST, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.UPDATE_BROKER_CONFIG, BROKER, None, bytes, CLUSTER_UPDATE),
    Row(Code.GET_BROKER_CONFIG, BROKER, None, None, CLUSTER_GET),
    Row(Code.TRIGGER_DELETE_FILES, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.GET_BROKER_RUNTIME_INFO, BROKER, None, None, CLUSTER_GET),
    Row(Code.SEARCH_OFFSET_BY_TIMESTAMP, BROKER, headers.SearchOffset, None, LOOK_UP),
    Row(Code.GET_MAX_OFFSET, BROKER, headers.QueueHeader, None, LOOK_UP),
    Row(Code.GET_MIN_OFFSET, BROKER, headers.QueueHeader, None, LOOK_UP),
    Row(Code.GET_EARLIEST_MSG_STORETIME, BROKER, headers.QueueHeader, None, TOPIC_GET),
    Row(Code.VIEW_MESSAGE_BY_ID, BROKER, headers.ViewMessage, None, TOPIC_GET),
    Row(Code.HEART_BEAT, BROKER, None, Heartbeat, SUBSCRIBE),
    Row(Code.UNREGISTER_CLIENT, BROKER, headers.UnregisterClient, None, GROUP_SUB),
    Row(Code.CONSUMER_SEND_MSG_BACK, BROKER, headers.SendBack, None, CONSUME, MASTERS),
    Row(Code.END_TRANSACTION, BROKER, headers.EndTransaction, None, TOPIC_PUB, ONEWAY | MASTERS),
    Row(Code.GET_CONSUMER_LIST_BY_GROUP, BROKER, headers.ConsumerGroupHeader, None, MEMBERS),
    Row(Code.CHECK_TRANSACTION_STATE, CLIENT, UNREAD, UNREAD, NOTHING, ONEWAY),
    Row(Code.NOTIFY_CONSUMER_IDS_CHANGED, CLIENT, headers.ConsumerGroupHeader, None, NOTHING, ONEWAY),
    Row(Code.LOCK_BATCH_MQ, BROKER, None, LockRequest, SUBSCRIBE),
    Row(Code.UNLOCK_BATCH_MQ, BROKER, None, LockRequest, SUBSCRIBE),
    Row(Code.GET_ALL_CONSUMER_OFFSET, BROKER, None, None, CLUSTER_GET),
    Row(Code.GET_ALL_DELAY_OFFSET, BROKER, None, None, CLUSTER_GET),
    Row(Code.CHECK_CLIENT_CONFIG, BROKER, None, CheckClient, SUBSCRIBE),
    Row(Code.GET_CLIENT_CONFIG, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.GET_TIMER_CHECK_POINT, BROKER, None, None, CLUSTER_GET),
    Row(Code.GET_TIMER_METRICS, BROKER, None, None, CLUSTER_GET),
    Row(Code.PUT_KV_CONFIG, NAME_SERVER, headers.KvHeader, None, CLUSTER_UPDATE),
    Row(Code.GET_KV_CONFIG, NAME_SERVER, headers.KvHeader, None, CLUSTER_GET),
    Row(Code.DELETE_KV_CONFIG, NAME_SERVER, headers.KvHeader, None, CLUSTER_UPDATE),
    Row(Code.REGISTER_BROKER, NAME_SERVER, headers.RegisterBroker, RegisterBody, CLUSTER_UPDATE),
    Row(Code.UNREGISTER_BROKER, NAME_SERVER, headers.UnregisterBroker, None, CLUSTER_UPDATE),
    Row(Code.GET_ROUTEINFO_BY_TOPIC, NAME_SERVER, headers.RouteHeader, None, TOPIC_ROUTE),
    Row(Code.GET_BROKER_CLUSTER_INFO, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, BROKER, None, SubscriptionGroupConfig, GROUP_CREATE, MASTERS),
    Row(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, BROKER, headers.GetAllSubscriptionGroup, None, CLUSTER_GET),
    Row(Code.GET_TOPIC_STATS_INFO, BROKER, headers.TopicHeader, None, TOPIC_GET),
    Row(Code.GET_CONSUMER_CONNECTION_LIST, BROKER, headers.ConsumersOfGroup, None, GROUP_GET),
    Row(Code.GET_PRODUCER_CONNECTION_LIST, BROKER, headers.ProducerGroupHeader, None, CLUSTER_GET),
    Row(Code.WIPE_WRITE_PERM_OF_BROKER, NAME_SERVER, headers.BrokerNameHeader, None, CLUSTER_UPDATE),
    Row(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.DELETE_SUBSCRIPTIONGROUP, BROKER, headers.DeleteSubscriptionGroup, None, GROUP_DELETE, MASTERS),
    Row(Code.GET_CONSUME_STATS, BROKER, headers.GetConsumeStats, None, TOPIC_AND_GROUP_GET),
    Row(Code.SUSPEND_CONSUMER, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.RESUME_CONSUMER, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.RESET_CONSUMER_OFFSET_IN_CONSUMER, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.RESET_CONSUMER_OFFSET_IN_BROKER, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.ADJUST_CONSUMER_THREAD_POOL, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.WHO_CONSUME_THE_MESSAGE, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.DELETE_TOPIC_IN_BROKER, BROKER, headers.TopicHeader, None, TOPIC_DELETE, MASTERS),
    Row(Code.DELETE_TOPIC_IN_NAMESRV, NAME_SERVER, headers.TopicHeader, None, CLUSTER_UPDATE),
    Row(Code.REGISTER_TOPIC_IN_NAMESRV, NAME_SERVER, headers.TopicHeader, Route, CLUSTER_UPDATE),
    Row(Code.GET_KVLIST_BY_NAMESPACE, NAME_SERVER, headers.KvNamespace, None, CLUSTER_GET),
    Row(Code.RESET_CONSUMER_CLIENT_OFFSET, CLIENT, UNREAD, UNREAD, NOTHING, ONEWAY),
    Row(Code.GET_CONSUMER_STATUS_FROM_CLIENT, CLIENT, UNREAD, UNREAD, NOTHING),
    Row(Code.INVOKE_BROKER_TO_RESET_OFFSET, BROKER, headers.ResetOffset, None, TOPIC_AND_GROUP_UPDATE, MASTERS),
    Row(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, BROKER, headers.ConsumerStatusHeader, None, TOPIC_AND_GROUP_GET),
    Row(Code.GET_TOPICS_BY_CLUSTER, NAME_SERVER, headers.ClusterHeader, None, CLUSTER_GET),
    Row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, BROKER, None, GroupConfigList, GROUP_CREATE, MASTERS),
    Row(Code.QUERY_TOPIC_CONSUME_BY_WHO, BROKER, headers.TopicHeader, None, TOPIC_GET),
    Row(Code.REGISTER_FILTER_SERVER, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.REGISTER_MESSAGE_FILTER_CLASS, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.QUERY_CONSUME_TIME_SPAN, BROKER, headers.GroupAndTopic, None, TOPIC_AND_GROUP_GET),
    Row(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, BROKER, None, None, CLUSTER_GET),
    Row(Code.CLEAN_EXPIRED_CONSUMEQUEUE, BROKER, None, None, CLUSTER_UPDATE),
    Row(Code.GET_CONSUMER_RUNNING_INFO, BROKER, headers.AskConsumer, None, GROUP_GET),
    Row(Code.QUERY_CORRECTION_OFFSET, BROKER, headers.CorrectionOffset, None, TOPIC_AND_GROUP_GET),
    Row(Code.CONSUME_MESSAGE_DIRECTLY, BROKER, headers.ConsumeDirectly, None, CONSUME),
    Row(Code.SEND_MESSAGE_V2, BROKER, headers.SendMessageV2, bytes, TOPIC_PUB, MASTERS),
    Row(Code.GET_UNIT_TOPIC_LIST, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.CLONE_GROUP_OFFSET, BROKER, headers.CloneGroupOffset, None, TOPIC_AND_GROUP_UPDATE),
    Row(Code.VIEW_BROKER_STATS_DATA, BROKER, headers.ViewBrokerStats, None, CLUSTER_GET),
    Row(Code.CLEAN_UNUSED_TOPIC, BROKER, None, None, CLUSTER_UPDATE),
    Row(Code.GET_BROKER_CONSUME_STATS, BROKER, headers.AllProgress, None, CLUSTER_GET),
    Row(Code.UPDATE_NAMESRV_CONFIG, NAME_SERVER, None, bytes, CLUSTER_UPDATE),
    Row(Code.GET_NAMESRV_CONFIG, NAME_SERVER, None, None, CLUSTER_GET),
    Row(Code.SEND_BATCH_MESSAGE, BROKER, headers.SendMessageV2, bytes, TOPIC_PUB, MASTERS),
    Row(Code.QUERY_CONSUME_QUEUE, BROKER, headers.QueryConsumeQueue, None, TOPIC_AND_GROUP_GET),
    Row(Code.QUERY_DATA_VERSION, NAME_SERVER, headers.QueryDataVersion, DataVersion, CLUSTER_GET),
    Row(Code.RESUME_CHECK_HALF_MESSAGE, BROKER, headers.ResumeCheck, None, TOPIC_UPDATE),
    Row(Code.SEND_REPLY_MESSAGE, BROKER, headers.SendMessage, bytes, TOPIC_PUB, MASTERS),
    Row(Code.SEND_REPLY_MESSAGE_V2, BROKER, headers.SendMessageV2, bytes, TOPIC_PUB, MASTERS),
    Row(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, CLIENT, UNREAD, UNREAD, NOTHING),
    Row(Code.ADD_WRITE_PERM_OF_BROKER, NAME_SERVER, headers.BrokerNameHeader, None, CLUSTER_UPDATE),
    Row(Code.GET_ALL_PRODUCER_INFO, BROKER, None, None, CLUSTER_GET),
    Row(Code.DELETE_EXPIRED_COMMITLOG, BROKER, None, None, CLUSTER_UPDATE),
    Row(Code.QUERY_TOPICS_BY_CONSUMER, BROKER, headers.TopicsOfGroup, None, GROUP_GET),
    Row(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, BROKER, headers.GroupAndTopic, None, TOPIC_AND_GROUP_GET),
    Row(Code.GET_TOPIC_CONFIG, BROKER, headers.TopicHeader, None, TOPIC_GET),
    Row(Code.GET_SUBSCRIPTIONGROUP_CONFIG, BROKER, headers.GetSubscriptionGroup, None, GROUP_GET),
    Row(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, BROKER, headers.ForbidGroup, None, TOPIC_AND_GROUP_UPDATE, MASTERS),
    Row(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, BROKER, headers.CheckQueues, None, TOPIC_GET),
    Row(Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, BROKER, UNREAD, UNREAD, CLUSTER_GET),
    Row(Code.LITE_PULL_MESSAGE, BROKER, headers.PullMessage, None, CONSUME),
    Row(Code.RECALL_MESSAGE, BROKER, headers.RecallMessage, None, TOPIC_PUB, MASTERS),
    Row(Code.QUERY_ASSIGNMENT, BROKER, None, AssignmentQuery, CONSUME),
    Row(Code.SET_MESSAGE_REQUEST_MODE, BROKER, None, RequestMode, CLUSTER_UPDATE, MASTERS),
    Row(Code.GET_ALL_MESSAGE_REQUEST_MODE, BROKER, None, None, CLUSTER_GET),
    Row(Code.UPDATE_AND_CREATE_STATIC_TOPIC, BROKER, UNREAD, UNREAD, CLUSTER_UPDATE, MASTERS),
    Row(Code.GET_BROKER_MEMBER_GROUP, NAME_SERVER, headers.BrokerMemberGroup, None, CLUSTER_GET),
    Row(Code.ADD_BROKER, CONTAINER, UNREAD, UNREAD, CLUSTER_UPDATE),
    Row(Code.REMOVE_BROKER, CONTAINER, UNREAD, UNREAD, CLUSTER_UPDATE),
    Row(Code.BROKER_HEARTBEAT, NAME_SERVER, headers.BrokerHeartbeat, None, CLUSTER_UPDATE),
    Row(Code.NOTIFY_MIN_BROKER_ID_CHANGE, BROKER, headers.MinBrokerId, None, CLUSTER_UPDATE, ONEWAY),
    Row(Code.EXCHANGE_BROKER_HA_INFO, BROKER, headers.ExchangeHaInfo, None, CLUSTER_UPDATE),
    Row(Code.GET_BROKER_HA_STATUS, BROKER, None, None, CLUSTER_GET),
    Row(Code.RESET_MASTER_FLUSH_OFFSET, BROKER, headers.FlushOffset, None, CLUSTER_UPDATE),
    Row(Code.CONTROLLER_ALTER_SYNC_STATE_SET, CONTROLLER, headers.AlterSyncStateSet, SyncStateSet, CLUSTER_UPDATE),
    Row(Code.CONTROLLER_ELECT_MASTER, CONTROLLER, headers.ElectMaster, None, CLUSTER_UPDATE),
    Row(Code.CONTROLLER_REGISTER_BROKER, CONTROLLER, headers.RegisterToController, None, CLUSTER_UPDATE),
    Row(Code.CONTROLLER_GET_REPLICA_INFO, CONTROLLER, headers.BrokerNameHeader, None, CLUSTER_GET),
    Row(Code.CONTROLLER_GET_METADATA_INFO, CONTROLLER, None, None, CLUSTER_GET),
    Row(Code.CONTROLLER_GET_SYNC_STATE_DATA, CONTROLLER, None, list, CLUSTER_GET),
    Row(Code.GET_BROKER_EPOCH_CACHE, BROKER, None, None, CLUSTER_GET),
    Row(Code.NOTIFY_BROKER_ROLE_CHANGED, BROKER, headers.MasterOfName, SyncStateSet, CLUSTER_UPDATE),
    Row(Code.UPDATE_CONTROLLER_CONFIG, CONTROLLER, None, bytes, CLUSTER_UPDATE),
    Row(Code.GET_CONTROLLER_CONFIG, CONTROLLER, None, None, CLUSTER_GET),
    Row(Code.CLEAN_BROKER_DATA, CONTROLLER, headers.CleanBrokerData, None, CLUSTER_UPDATE),
    Row(Code.CONTROLLER_GET_NEXT_BROKER_ID, CONTROLLER, headers.NextBrokerId, None, CLUSTER_GET),
    Row(Code.CONTROLLER_APPLY_BROKER_ID, CONTROLLER, headers.ApplyBrokerId, None, CLUSTER_UPDATE),
    Row(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, BROKER, UNREAD, UNREAD, CLUSTER_UPDATE),
    Row(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, BROKER, UNREAD, UNREAD, CLUSTER_UPDATE),
    Row(Code.GET_COLD_DATA_FLOW_CTR_INFO, BROKER, None, None, CLUSTER_GET),
    Row(Code.SET_COMMITLOG_READ_MODE, BROKER, headers.ReadMode, None, CLUSTER_UPDATE),
    Row(Code.AUTH_CREATE_USER, BROKER, headers.AuthUser, AuthUserInfo, CLUSTER_UPDATE),
    Row(Code.AUTH_UPDATE_USER, BROKER, headers.AuthUser, AuthUserInfo, CLUSTER_UPDATE),
    Row(Code.AUTH_DELETE_USER, BROKER, headers.AuthUser, None, CLUSTER_UPDATE),
    Row(Code.AUTH_GET_USER, BROKER, headers.AuthUser, None, CLUSTER_GET),
    Row(Code.AUTH_LIST_USER, BROKER, headers.AuthUsers, None, CLUSTER_GET),
    Row(Code.AUTH_CREATE_ACL, BROKER, headers.AuthSubject, AuthAcl, CLUSTER_UPDATE),
    Row(Code.AUTH_UPDATE_ACL, BROKER, headers.AuthSubject, AuthAcl, CLUSTER_UPDATE),
    Row(Code.AUTH_DELETE_ACL, BROKER, headers.AuthResource, None, CLUSTER_UPDATE),
    Row(Code.AUTH_GET_ACL, BROKER, headers.AuthSubject, None, CLUSTER_GET),
    Row(Code.AUTH_LIST_ACL, BROKER, headers.AuthSubjects, None, CLUSTER_GET),
    Row(Code.SWITCH_TIMER_ENGINE, BROKER, UNREAD, UNREAD, CLUSTER_UPDATE),
    Row(Code.DELETE_TOPIC_IN_BROKER_LIST, BROKER, None, TopicNames, TOPIC_DELETE, MASTERS),
    Row(Code.DELETE_SUBSCRIPTIONGROUP_LIST, BROKER, None, GroupNames, GROUP_DELETE, MASTERS),
    Row(Code.POP_MESSAGE, BROKER, headers.PopMessage, None, CONSUME, MASTERS),
    Row(Code.ACK_MESSAGE, BROKER, headers.AckMessage, None, CONSUME, MASTERS),
    Row(Code.PEEK_MESSAGE, BROKER, headers.PeekMessage, None, CONSUME),
    Row(Code.CHANGE_MESSAGE_INVISIBLETIME, BROKER, headers.ChangeInvisibleTime, None, CONSUME, MASTERS),
    Row(Code.NOTIFICATION, BROKER, headers.Notification, None, CONSUME),
    Row(Code.POLLING_INFO, BROKER, headers.PollingInfo, None, TOPIC_AND_GROUP_GET),
    Row(Code.POP_ROLLBACK, BROKER, None, None, CLUSTER_UPDATE, MASTERS),
    Row(Code.POP_LITE_MESSAGE, BROKER, headers.PopLiteMessage, None, CONSUME, MASTERS),
    Row(Code.LITE_SUBSCRIPTION_CTL, BROKER, None, LiteSubscriptionChanges, SUBSCRIBE, MASTERS),
    Row(Code.ACK_LITE_MESSAGE, NOBODY, UNREAD, UNREAD, NOTHING),
    Row(Code.NOTIFY_UNSUBSCRIBE_LITE, CLIENT, UNREAD, UNREAD, NOTHING),
    Row(Code.GET_BROKER_LITE_INFO, BROKER, None, None, CLUSTER_GET),
    Row(Code.GET_PARENT_TOPIC_INFO, BROKER, headers.LiteParent, None, TOPIC_GET),
    Row(Code.GET_LITE_TOPIC_INFO, BROKER, headers.LiteTopic, None, TOPIC_GET),
    Row(Code.GET_LITE_CLIENT_INFO, BROKER, headers.LiteClient, None, GROUP_GET),
    Row(Code.GET_LITE_GROUP_INFO, BROKER, headers.LiteGroup, None, GROUP_GET),
    Row(Code.FOLLOW_STATE, BROKER, headers.FollowState, None, CLUSTER_UPDATE, Trait.READS),
    Row(Code.DELETE_SUBSCRIPTION, BROKER, headers.GroupAndTopic, None, TOPIC_AND_GROUP_UPDATE, MASTERS),
    Row(Code.NEWEST_HANDLE, BROKER, headers.AckMessage, None, CONSUME),
    Row(Code.TRIGGER_LITE_DISPATCH, BROKER, headers.LiteDispatch, None, CLUSTER_UPDATE),
    Row(Code.BATCH_ACK_MESSAGE, BROKER, None, BatchAckBody, CONSUME, MASTERS),
)

REQUESTS: Final = {row.code: row for row in _ROWS}
assert len(REQUESTS) == len(_ROWS), "a code has one row"
assert REQUESTS.keys() == set(Code), "each code has a row"
assert all(row.asks == NOTHING for row in _ROWS if row.served_by is NOBODY)
