"""What a request of each code could reach beside what it names: one row for each code that a broker
has a handler for. Who adds a code says here what an attacker would try with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from firearrow.wire.codes import RequestCode as Code


class Reach(NamedTuple):
    """``place``: the header field that names a message by its place in the log. ``numbers``:
    fields that look like one and are none. ``text``: the field with properties of a message.
    ``claims``: names of topics and groups in header or body that nothing goes by."""

    place: str | None = None
    numbers: tuple[str, ...] = ()
    text: str | None = None
    claims: tuple[str, ...] = ()


# A group of producers says nothing, as any may send. The default topic is one that a new topic is
# made like, if it was made for that.
_SEND = Reach(text="properties", claims=("producerGroup", "defaultTopic"))
_SEND_V2 = Reach(text="i", claims=("a", "c"))
# A lite topic is its parent's, which is named beside it.
_OF_LITE = ("liteTopic",)
_PULL = Reach(numbers=("queueOffset", "commitOffset"), claims=_OF_LITE)
_POPPED = Reach(numbers=("offset", "extraInfo"), claims=_OF_LITE)  # in the queue that is named

REACHES: Final[Mapping[Code, Reach]] = {
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.ACK_MESSAGE: _POPPED,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POPPED,
    Code.NEWEST_HANDLE: _POPPED,
    # Of a message by its place, its own topic counts, whatever the request claims.
    Code.VIEW_MESSAGE_BY_ID: Reach(place="offset", claims=("topic",)),
    Code.CONSUMER_SEND_MSG_BACK: Reach(place="offset", claims=("originTopic",)),
    Code.END_TRANSACTION: Reach(
        place="commitLogOffset",
        numbers=("tranStateTableOffset", "msgId"),
        claims=("topic", "producerGroup"),
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: Reach(place="msgId", claims=("topic",)),
    Code.RESUME_CHECK_HALF_MESSAGE: Reach(place="msgId", claims=("topic",)),
    Code.RECALL_MESSAGE: Reach(numbers=("recallHandle",), claims=("producerGroup",)),
    Code.UPDATE_CONSUMER_OFFSET: Reach(numbers=("commitOffset",)),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Reach(numbers=("offset",)),
    Code.DELETE_SUBSCRIPTIONGROUP: Reach(numbers=("cleanOffset",)),
    Code.EXCHANGE_BROKER_HA_INFO: Reach(numbers=("masterFlushOffset",)),
    Code.RESET_MASTER_FLUSH_OFFSET: Reach(numbers=("masterFlushOffset",)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Reach(claims=_OF_LITE),
    Code.UPDATE_AND_CREATE_TOPIC: Reach(claims=("defaultTopic",)),
    Code.UNREGISTER_CLIENT: Reach(claims=("producerGroup",)),  # of the connection itself
    Code.QUERY_CORRECTION_OFFSET: Reach(claims=("filterGroups",)),  # those that do not count
    # What a group subscribes to is the group's.
    Code.GET_LITE_TOPIC_INFO: Reach(claims=_OF_LITE),
    Code.GET_LITE_CLIENT_INFO: Reach(claims=("parentTopic",)),
    Code.GET_LITE_GROUP_INFO: Reach(claims=_OF_LITE),
} | dict.fromkeys(
    (
        Code.QUERY_MESSAGE, Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.GET_ALL_TOPIC_CONFIG, Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_RUNTIME_INFO, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME, Code.HEART_BEAT, Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET, Code.CHECK_CLIENT_CONFIG, Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_TOPIC_STATS_INFO,
        Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_CONSUME_STATS, Code.DELETE_TOPIC_IN_BROKER,
        Code.DELETE_TOPIC_IN_BROKER_LIST, Code.DELETE_SUBSCRIPTIONGROUP_LIST,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_CONSUME_TIME_SPAN,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.GET_CONSUMER_RUNNING_INFO, Code.CLONE_GROUP_OFFSET, Code.VIEW_BROKER_STATS_DATA,
        Code.CLEAN_UNUSED_TOPIC, Code.GET_BROKER_CONSUME_STATS, Code.QUERY_CONSUME_QUEUE,
        Code.GET_ALL_PRODUCER_INFO, Code.DELETE_EXPIRED_COMMITLOG, Code.QUERY_TOPICS_BY_CONSUMER,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.GET_TOPIC_CONFIG,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        Code.QUERY_ASSIGNMENT, Code.SET_MESSAGE_REQUEST_MODE, Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.UPDATE_AND_CREATE_STATIC_TOPIC, Code.NOTIFY_MIN_BROKER_ID_CHANGE,
        Code.GET_BROKER_HA_STATUS, Code.GET_BROKER_EPOCH_CACHE, Code.NOTIFY_BROKER_ROLE_CHANGED,
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        Code.GET_COLD_DATA_FLOW_CTR_INFO, Code.SET_COMMITLOG_READ_MODE, Code.AUTH_CREATE_USER,
        Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER, Code.AUTH_LIST_USER,
        Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL, Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL, Code.SWITCH_TIMER_ENGINE, Code.POP_MESSAGE, Code.PEEK_MESSAGE,
        Code.NOTIFICATION, Code.POLLING_INFO, Code.POP_ROLLBACK, Code.POP_LITE_MESSAGE,
        Code.LITE_SUBSCRIPTION_CTL, Code.GET_BROKER_LITE_INFO, Code.GET_PARENT_TOPIC_INFO,
        Code.TRIGGER_LITE_DISPATCH, Code.BATCH_ACK_MESSAGE, Code.FOLLOW_STATE,
        Code.DELETE_SUBSCRIPTION,
    ),
    Reach(),
)  # fmt: skip
