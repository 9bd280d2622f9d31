"""A request of every code that a broker has, and all that one may change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from msgspec.structs import fields

from firearrow.broker.access.requestresources import fields_naming
from firearrow.wire.codes import RequestCode
from firearrow.wire.headers import Header
from firearrow.wire.requests import REQUESTS, Row, ServedBy
from tests.broker.serving import Serving

ROWS = [row for row in REQUESTS.values() if row.served_by is ServedBy.BROKER]

_ONE_QUEUE = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
BODIES: Mapping[RequestCode, Any] = {
    RequestCode.HEART_BEAT: {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": "T", "subString": "*"}],
            }
        ],
    },
    RequestCode.CHECK_CLIENT_CONFIG: {
        "clientId": "c",
        "group": "g",
        "subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"},
    },
    RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "g", "clientId": "c", "mqSet": [_ONE_QUEUE]},
    RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "g", "clientId": "c", "mqSet": [_ONE_QUEUE]},
    RequestCode.QUERY_ASSIGNMENT: {
        "topic": "T",
        "consumerGroup": "g",
        "clientId": "c",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
    },
    RequestCode.BATCH_ACK_MESSAGE: {"acks": [{"c": "g", "t": "T", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}]},
    RequestCode.LITE_SUBSCRIPTION_CTL: {
        "subscriptionSet": [{"action": "COMPLETE_REMOVE", "clientId": "c", "group": "g", "topic": "T"}]
    },
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "T", "perm": 4}]},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "g", "retryMaxTimes": 3},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "g", "retryMaxTimes": 3}]},
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: {"topicList": ["T"]},
    RequestCode.DELETE_SUBSCRIPTIONGROUP_LIST: {"groupNameList": ["g"], "cleanOffset": True},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {"topic": "T", "consumerGroup": "g", "mode": "POP"},
    RequestCode.AUTH_CREATE_USER: {"username": "new", "password": "p"},
    RequestCode.AUTH_UPDATE_USER: {"username": "root", "password": "mine"},
    RequestCode.AUTH_CREATE_ACL: {
        "policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}]
    },
    RequestCode.AUTH_UPDATE_ACL: {
        "policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}]
    },
}
VALUES: Mapping[str, str] = {
    "topic": "T", "b": "T", "parentTopic": "T", "username": "root", "subject": "User:stranger",
    "queueId": "0", "e": "0", "perm": "4", "destGroup": "g", "srcGroup": "g", "topicList": "T",
    "READ_AHEAD_MODE": "1", "msgId": "7F00000100002A9F0000000000000000", "policyType": "Custom",
}  # fmt: skip


def header_of(row: Row) -> dict[str, str]:
    """Fields of a header with something in each: names of topics are T, those of groups g."""
    if row.header is None or not issubclass(row.header, Header):
        return {}
    found: dict[str, str] = {}
    for field in fields(row.header):
        name, types = field.encode_name, {field.type, *get_args(field.type)}
        if name in VALUES:
            found[name] = VALUES[name]
        elif bool in types:
            found[name] = "false"
        else:
            is_group = name in fields_naming(row)[1]
            found[name] = "g" if is_group else "x" if str in types else "0"
    return found


def body_of(row: Row) -> bytes:
    """A body that can be read."""
    body = BODIES.get(row.code)
    return b"body" if body is None and row.body is bytes else b"" if body is None else as_json(body)


def as_json(value: Any) -> bytes:
    """A body."""
    return json.dumps(value).encode()


def seen(served: Serving) -> tuple[Any, ...]:
    """All that a request may change."""
    broker = served.broker
    assert broker.users is not None
    return (
        broker.store.log_end_offset,
        dict(broker.topics.table),
        broker.topics.data_version,
        dict(broker.groups.table),
        broker.settings.version,
        dict(broker.users.users),
        dict(broker.users._acls),
        broker.clients.consumer_group("g") is None,
        broker.locks.holds_any("g"),
        broker.locks.lock("other", [], "c"),
        dict(broker.offsets.queues("g", "T")),
    )
