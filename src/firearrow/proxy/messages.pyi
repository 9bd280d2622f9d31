# Written by tools/write_protos.py
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, Literal

from google.protobuf.internal import containers, well_known_types
from google.protobuf.message import Message as _Message

class Duration(_Message, well_known_types.Duration):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int | None = None, nanos: int | None = None) -> None: ...
    def ClearField(self, field_name: Literal["seconds", "nanos"]) -> None: ...

class Timestamp(_Message, well_known_types.Timestamp):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int | None = None, nanos: int | None = None) -> None: ...
    def ClearField(self, field_name: Literal["seconds", "nanos"]) -> None: ...

class TransactionResolution(IntEnum):
    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2

class TransactionSource(IntEnum):
    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2

class Permission(IntEnum):
    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4

class FilterType(IntEnum):
    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2

class AddressScheme(IntEnum):
    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3

class MessageType(IntEnum):
    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6

class DigestType(IntEnum):
    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3

class ClientType(IntEnum):
    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6

class Encoding(IntEnum):
    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2

class Code(IntEnum):
    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    INVALID_CLIENT_PROPERTIES = 40021
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000

class Language(IntEnum):
    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12

class LiteSubscriptionAction(IntEnum):
    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3

class QueryOffsetPolicy(IntEnum):
    BEGINNING = 0
    END = 1
    TIMESTAMP = 2

class FilterExpression(_Message):
    type: int
    expression: str
    def __init__(self, *, type: int | None = None, expression: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["type", "expression"]) -> None: ...

class RetryPolicy(_Message):
    max_attempts: int
    exponential_backoff: Final[ExponentialBackoff]
    customized_backoff: Final[CustomizedBackoff]
    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        exponential_backoff: ExponentialBackoff | None = None,
        customized_backoff: CustomizedBackoff | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["exponential_backoff", "customized_backoff", "strategy"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["max_attempts", "exponential_backoff", "customized_backoff", "strategy"]
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["strategy"]
    ) -> Literal["exponential_backoff", "customized_backoff"] | None: ...

class ExponentialBackoff(_Message):
    initial: Final[Duration]
    max: Final[Duration]
    multiplier: float
    def __init__(
        self, *, initial: Duration | None = None, max: Duration | None = None, multiplier: float | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["initial", "max"]) -> bool: ...
    def ClearField(self, field_name: Literal["initial", "max", "multiplier"]) -> None: ...

class CustomizedBackoff(_Message):
    next: Final[containers.RepeatedCompositeFieldContainer[Duration]]
    def __init__(self, *, next: Iterable[Duration] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["next"]) -> None: ...

class Resource(_Message):
    resource_namespace: str
    name: str
    def __init__(self, *, resource_namespace: str | None = None, name: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["resource_namespace", "name"]) -> None: ...

class SubscriptionEntry(_Message):
    topic: Final[Resource]
    expression: Final[FilterExpression]
    def __init__(self, *, topic: Resource | None = None, expression: FilterExpression | None = None) -> None: ...
    def HasField(self, field_name: Literal["topic", "expression"]) -> bool: ...
    def ClearField(self, field_name: Literal["topic", "expression"]) -> None: ...

class Address(_Message):
    host: str
    port: int
    def __init__(self, *, host: str | None = None, port: int | None = None) -> None: ...
    def ClearField(self, field_name: Literal["host", "port"]) -> None: ...

class Endpoints(_Message):
    scheme: int
    addresses: Final[containers.RepeatedCompositeFieldContainer[Address]]
    def __init__(self, *, scheme: int | None = None, addresses: Iterable[Address] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["scheme", "addresses"]) -> None: ...

class Broker(_Message):
    name: str
    id: int
    endpoints: Final[Endpoints]
    def __init__(
        self, *, name: str | None = None, id: int | None = None, endpoints: Endpoints | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["endpoints"]) -> bool: ...
    def ClearField(self, field_name: Literal["name", "id", "endpoints"]) -> None: ...

class MessageQueue(_Message):
    topic: Final[Resource]
    id: int
    permission: int
    broker: Final[Broker]
    accept_message_types: Final[containers.RepeatedScalarFieldContainer[int]]
    def __init__(
        self,
        *,
        topic: Resource | None = None,
        id: int | None = None,
        permission: int | None = None,
        broker: Broker | None = None,
        accept_message_types: Iterable[int] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["topic", "broker"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["topic", "id", "permission", "broker", "accept_message_types"]
    ) -> None: ...

class Digest(_Message):
    type: int
    checksum: str
    def __init__(self, *, type: int | None = None, checksum: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["type", "checksum"]) -> None: ...

class SystemProperties(_Message):
    tag: str
    keys: Final[containers.RepeatedScalarFieldContainer[str]]
    message_id: str
    body_digest: Final[Digest]
    body_encoding: int
    message_type: int
    born_timestamp: Final[Timestamp]
    born_host: str
    store_timestamp: Final[Timestamp]
    store_host: str
    delivery_timestamp: Final[Timestamp]
    receipt_handle: str
    queue_id: int
    queue_offset: int
    invisible_duration: Final[Duration]
    delivery_attempt: int
    message_group: str
    trace_context: str
    orphaned_transaction_recovery_duration: Final[Duration]
    dead_letter_queue: Final[DeadLetterQueue]
    lite_topic: str
    priority: int
    def __init__(
        self,
        *,
        tag: str | None = None,
        keys: Iterable[str] | None = None,
        message_id: str | None = None,
        body_digest: Digest | None = None,
        body_encoding: int | None = None,
        message_type: int | None = None,
        born_timestamp: Timestamp | None = None,
        born_host: str | None = None,
        store_timestamp: Timestamp | None = None,
        store_host: str | None = None,
        delivery_timestamp: Timestamp | None = None,
        receipt_handle: str | None = None,
        queue_id: int | None = None,
        queue_offset: int | None = None,
        invisible_duration: Duration | None = None,
        delivery_attempt: int | None = None,
        message_group: str | None = None,
        trace_context: str | None = None,
        orphaned_transaction_recovery_duration: Duration | None = None,
        dead_letter_queue: DeadLetterQueue | None = None,
        lite_topic: str | None = None,
        priority: int | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "tag",
            "body_digest",
            "born_timestamp",
            "store_timestamp",
            "delivery_timestamp",
            "receipt_handle",
            "queue_offset",
            "invisible_duration",
            "delivery_attempt",
            "message_group",
            "trace_context",
            "orphaned_transaction_recovery_duration",
            "dead_letter_queue",
            "lite_topic",
            "priority",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "tag",
            "keys",
            "message_id",
            "body_digest",
            "body_encoding",
            "message_type",
            "born_timestamp",
            "born_host",
            "store_timestamp",
            "store_host",
            "delivery_timestamp",
            "receipt_handle",
            "queue_id",
            "queue_offset",
            "invisible_duration",
            "delivery_attempt",
            "message_group",
            "trace_context",
            "orphaned_transaction_recovery_duration",
            "dead_letter_queue",
            "lite_topic",
            "priority",
        ],
    ) -> None: ...

class DeadLetterQueue(_Message):
    topic: str
    message_id: str
    def __init__(self, *, topic: str | None = None, message_id: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["topic", "message_id"]) -> None: ...

class Message(_Message):
    topic: Final[Resource]
    user_properties: Final[containers.ScalarMap[str, str]]
    system_properties: Final[SystemProperties]
    body: bytes
    def __init__(
        self,
        *,
        topic: Resource | None = None,
        user_properties: Mapping[str, str] | None = None,
        system_properties: SystemProperties | None = None,
        body: bytes | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["topic", "system_properties"]) -> bool: ...
    def ClearField(self, field_name: Literal["topic", "user_properties", "system_properties", "body"]) -> None: ...

class Assignment(_Message):
    message_queue: Final[MessageQueue]
    def __init__(self, *, message_queue: MessageQueue | None = None) -> None: ...
    def HasField(self, field_name: Literal["message_queue"]) -> bool: ...
    def ClearField(self, field_name: Literal["message_queue"]) -> None: ...

class Status(_Message):
    code: int
    message: str
    def __init__(self, *, code: int | None = None, message: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["code", "message"]) -> None: ...

class UA(_Message):
    language: int
    version: str
    platform: str
    hostname: str
    def __init__(
        self,
        *,
        language: int | None = None,
        version: str | None = None,
        platform: str | None = None,
        hostname: str | None = None,
    ) -> None: ...
    def ClearField(self, field_name: Literal["language", "version", "platform", "hostname"]) -> None: ...

class Settings(_Message):
    client_type: int
    access_point: Final[Endpoints]
    backoff_policy: Final[RetryPolicy]
    request_timeout: Final[Duration]
    publishing: Final[Publishing]
    subscription: Final[Subscription]
    user_agent: Final[UA]
    metric: Final[Metric]
    client_properties: Final[containers.ScalarMap[str, str]]
    def __init__(
        self,
        *,
        client_type: int | None = None,
        access_point: Endpoints | None = None,
        backoff_policy: RetryPolicy | None = None,
        request_timeout: Duration | None = None,
        publishing: Publishing | None = None,
        subscription: Subscription | None = None,
        user_agent: UA | None = None,
        metric: Metric | None = None,
        client_properties: Mapping[str, str] | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "client_type",
            "access_point",
            "backoff_policy",
            "request_timeout",
            "publishing",
            "subscription",
            "user_agent",
            "metric",
            "pub_sub",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "client_type",
            "access_point",
            "backoff_policy",
            "request_timeout",
            "publishing",
            "subscription",
            "user_agent",
            "metric",
            "client_properties",
            "pub_sub",
        ],
    ) -> None: ...
    def WhichOneof(self, oneof_group: Literal["pub_sub"]) -> Literal["publishing", "subscription"] | None: ...

class Publishing(_Message):
    topics: Final[containers.RepeatedCompositeFieldContainer[Resource]]
    max_body_size: int
    validate_message_type: bool
    def __init__(
        self,
        *,
        topics: Iterable[Resource] | None = None,
        max_body_size: int | None = None,
        validate_message_type: bool | None = None,
    ) -> None: ...
    def ClearField(self, field_name: Literal["topics", "max_body_size", "validate_message_type"]) -> None: ...

class Subscription(_Message):
    group: Final[Resource]
    subscriptions: Final[containers.RepeatedCompositeFieldContainer[SubscriptionEntry]]
    fifo: bool
    receive_batch_size: int
    long_polling_timeout: Final[Duration]
    lite_subscription_quota: int
    max_lite_topic_size: int
    def __init__(
        self,
        *,
        group: Resource | None = None,
        subscriptions: Iterable[SubscriptionEntry] | None = None,
        fifo: bool | None = None,
        receive_batch_size: int | None = None,
        long_polling_timeout: Duration | None = None,
        lite_subscription_quota: int | None = None,
        max_lite_topic_size: int | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "group",
            "fifo",
            "receive_batch_size",
            "long_polling_timeout",
            "lite_subscription_quota",
            "max_lite_topic_size",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "group",
            "subscriptions",
            "fifo",
            "receive_batch_size",
            "long_polling_timeout",
            "lite_subscription_quota",
            "max_lite_topic_size",
        ],
    ) -> None: ...

class Metric(_Message):
    on: bool
    endpoints: Final[Endpoints]
    def __init__(self, *, on: bool | None = None, endpoints: Endpoints | None = None) -> None: ...
    def HasField(self, field_name: Literal["endpoints"]) -> bool: ...
    def ClearField(self, field_name: Literal["on", "endpoints"]) -> None: ...

class OffsetOption(_Message):
    class Policy(IntEnum):
        LAST = 0
        MIN = 1
        MAX = 2

    policy: int
    offset: int
    tail_n: int
    timestamp: int
    def __init__(
        self,
        *,
        policy: int | None = None,
        offset: int | None = None,
        tail_n: int | None = None,
        timestamp: int | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["policy", "offset", "tail_n", "timestamp", "offset_type"]) -> bool: ...
    def ClearField(self, field_name: Literal["policy", "offset", "tail_n", "timestamp", "offset_type"]) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["offset_type"]
    ) -> Literal["policy", "offset", "tail_n", "timestamp"] | None: ...

class MessageModel(IntEnum):
    MESSAGE_MODEL_UNSPECIFIED = 0
    CLUSTERING = 1
    BROADCASTING = 2
    LITE_SELECTIVE = 3

class ChangeLogLevelRequest(_Message):
    class Level(IntEnum):
        TRACE = 0
        DEBUG = 1
        INFO = 2
        WARN = 3
        ERROR = 4

    level: int
    def __init__(self, *, level: int | None = None) -> None: ...
    def ClearField(self, field_name: Literal["level"]) -> None: ...

class ChangeLogLevelResponse(_Message):
    remark: str
    def __init__(self, *, remark: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["remark"]) -> None: ...

class DescribeTopicStatusRequest(_Message):
    deployment_name: str
    topic: Final[Resource]
    def __init__(self, *, deployment_name: str | None = None, topic: Resource | None = None) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "topic"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "topic"]) -> None: ...

class DescribeTopicStatusResponse(_Message):
    status: Final[Status]
    topic_message_type: int
    description: str
    create_timestamp: Final[Timestamp]
    tags: Final[containers.ScalarMap[str, str]]
    def __init__(
        self,
        *,
        status: Status | None = None,
        topic_message_type: int | None = None,
        description: str | None = None,
        create_timestamp: Timestamp | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status", "description", "create_timestamp"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["status", "topic_message_type", "description", "create_timestamp", "tags"]
    ) -> None: ...

class ListSubscriptionRequest(_Message):
    deployment_name: str
    topic: Final[Resource]
    group: Final[Resource]
    def __init__(
        self, *, deployment_name: str | None = None, topic: Resource | None = None, group: Resource | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "topic", "group"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "topic", "group"]) -> None: ...

class SubscriptionInfo(_Message):
    group: Final[Resource]
    topic: Final[Resource]
    expression: Final[FilterExpression]
    online: bool
    last_update_timestamp: Final[Timestamp]
    message_model: int
    subscription_consistency: bool
    def __init__(
        self,
        *,
        group: Resource | None = None,
        topic: Resource | None = None,
        expression: FilterExpression | None = None,
        online: bool | None = None,
        last_update_timestamp: Timestamp | None = None,
        message_model: int | None = None,
        subscription_consistency: bool | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["group", "topic", "expression", "last_update_timestamp"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "group",
            "topic",
            "expression",
            "online",
            "last_update_timestamp",
            "message_model",
            "subscription_consistency",
        ],
    ) -> None: ...

class ListSubscriptionResponse(_Message):
    status: Final[Status]
    subscription_info: Final[containers.RepeatedCompositeFieldContainer[SubscriptionInfo]]
    def __init__(
        self, *, status: Status | None = None, subscription_info: Iterable[SubscriptionInfo] | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "subscription_info"]) -> None: ...

class DescribeSubscriptionRequest(_Message):
    deployment_name: str
    topic: Final[Resource]
    group: Final[Resource]
    def __init__(
        self, *, deployment_name: str | None = None, topic: Resource | None = None, group: Resource | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "topic", "group"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "topic", "group"]) -> None: ...

class DescribeSubscriptionResponse(_Message):
    class ClientSubscriptionInfo(_Message):
        client_info: Final[ClientInfo]
        subscription_info: Final[SubscriptionInfo]
        def __init__(
            self, *, client_info: ClientInfo | None = None, subscription_info: SubscriptionInfo | None = None
        ) -> None: ...
        def HasField(self, field_name: Literal["client_info", "subscription_info"]) -> bool: ...
        def ClearField(self, field_name: Literal["client_info", "subscription_info"]) -> None: ...

    status: Final[Status]
    client_subscription_info: Final[
        containers.RepeatedCompositeFieldContainer[DescribeSubscriptionResponse.ClientSubscriptionInfo]
    ]
    def __init__(
        self,
        *,
        status: Status | None = None,
        client_subscription_info: Iterable[DescribeSubscriptionResponse.ClientSubscriptionInfo] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "client_subscription_info"]) -> None: ...

class DeleteSubscriptionRequest(_Message):
    deployment_name: str
    topic: Final[Resource]
    group: Final[Resource]
    expression: Final[FilterExpression]
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        topic: Resource | None = None,
        group: Resource | None = None,
        expression: FilterExpression | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "topic", "group", "expression"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "topic", "group", "expression"]) -> None: ...

class DeleteSubscriptionResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class ClientInfo(_Message):
    client_id: str
    version: str
    language: str
    hostname: str
    egress_ip: str
    message_model: int
    def __init__(
        self,
        *,
        client_id: str | None = None,
        version: str | None = None,
        language: str | None = None,
        hostname: str | None = None,
        egress_ip: str | None = None,
        message_model: int | None = None,
    ) -> None: ...
    def ClearField(
        self, field_name: Literal["client_id", "version", "language", "hostname", "egress_ip", "message_model"]
    ) -> None: ...

class MessageQueueItem(_Message):
    message_queue: Final[MessageQueue]
    process_queue_info: Final[ProcessQueueInfo]
    def __init__(
        self, *, message_queue: MessageQueue | None = None, process_queue_info: ProcessQueueInfo | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["message_queue", "process_queue_info"]) -> bool: ...
    def ClearField(self, field_name: Literal["message_queue", "process_queue_info"]) -> None: ...

class ProcessQueueInfo(_Message):
    commit_offset: int
    cached_msg_min_offset: int
    cached_msg_max_offset: int
    cached_msg_count: int
    cached_msg_size_in_mib: int
    transaction_msg_min_offset: int
    transaction_msg_max_offset: int
    transaction_msg_count: int
    locked: bool
    try_unlock_times: int
    last_lock_timestamp: int
    dropped: bool
    last_pull_timestamp: int
    last_consume_timestamp: int
    def __init__(
        self,
        *,
        commit_offset: int | None = None,
        cached_msg_min_offset: int | None = None,
        cached_msg_max_offset: int | None = None,
        cached_msg_count: int | None = None,
        cached_msg_size_in_mib: int | None = None,
        transaction_msg_min_offset: int | None = None,
        transaction_msg_max_offset: int | None = None,
        transaction_msg_count: int | None = None,
        locked: bool | None = None,
        try_unlock_times: int | None = None,
        last_lock_timestamp: int | None = None,
        dropped: bool | None = None,
        last_pull_timestamp: int | None = None,
        last_consume_timestamp: int | None = None,
    ) -> None: ...
    def ClearField(
        self,
        field_name: Literal[
            "commit_offset",
            "cached_msg_min_offset",
            "cached_msg_max_offset",
            "cached_msg_count",
            "cached_msg_size_in_mib",
            "transaction_msg_min_offset",
            "transaction_msg_max_offset",
            "transaction_msg_count",
            "locked",
            "try_unlock_times",
            "last_lock_timestamp",
            "dropped",
            "last_pull_timestamp",
            "last_consume_timestamp",
        ],
    ) -> None: ...

class ConsumeStatus(_Message):
    receive_rt: float
    receive_tps: float
    consume_rt: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_failed_msgs: int
    def __init__(
        self,
        *,
        receive_rt: float | None = None,
        receive_tps: float | None = None,
        consume_rt: float | None = None,
        consume_ok_tps: float | None = None,
        consume_failed_tps: float | None = None,
        consume_failed_msgs: int | None = None,
    ) -> None: ...
    def ClearField(
        self,
        field_name: Literal[
            "receive_rt", "receive_tps", "consume_rt", "consume_ok_tps", "consume_failed_tps", "consume_failed_msgs"
        ],
    ) -> None: ...

class ConsumerRunningInfo(_Message):
    properties: Final[containers.ScalarMap[str, str]]
    subscriptions: Final[containers.MessageMap[str, FilterExpression]]
    message_queue_table: Final[containers.RepeatedCompositeFieldContainer[MessageQueueItem]]
    consume_status_table: Final[containers.MessageMap[str, ConsumeStatus]]
    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        subscriptions: Mapping[str, FilterExpression] | None = None,
        message_queue_table: Iterable[MessageQueueItem] | None = None,
        consume_status_table: Mapping[str, ConsumeStatus] | None = None,
    ) -> None: ...
    def ClearField(
        self, field_name: Literal["properties", "subscriptions", "message_queue_table", "consume_status_table"]
    ) -> None: ...

class DescribeGroupAccumulationRequest(_Message):
    deployment_name: str
    group: Final[Resource]
    topics: Final[containers.RepeatedCompositeFieldContainer[Resource]]
    lite_topic: str
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        group: Resource | None = None,
        topics: Iterable[Resource] | None = None,
        lite_topic: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group", "lite_topic"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "group", "topics", "lite_topic"]) -> None: ...

class DescribeGroupAccumulationResponse(_Message):
    class GroupAccumulation(_Message):
        inflight_messages: int
        ready_messages: int
        accumulation: int
        deliver_delay_time: Final[Duration]
        last_consume_timestamp: int
        def __init__(
            self,
            *,
            inflight_messages: int | None = None,
            ready_messages: int | None = None,
            accumulation: int | None = None,
            deliver_delay_time: Duration | None = None,
            last_consume_timestamp: int | None = None,
        ) -> None: ...
        def HasField(self, field_name: Literal["deliver_delay_time"]) -> bool: ...
        def ClearField(
            self,
            field_name: Literal[
                "inflight_messages", "ready_messages", "accumulation", "deliver_delay_time", "last_consume_timestamp"
            ],
        ) -> None: ...

    status: Final[Status]
    accumulation: Final[DescribeGroupAccumulationResponse.GroupAccumulation]
    topic_accumulation: Final[containers.MessageMap[str, DescribeGroupAccumulationResponse.GroupAccumulation]]
    lite_topic_accumulation: Final[containers.MessageMap[str, DescribeGroupAccumulationResponse.GroupAccumulation]]
    def __init__(
        self,
        *,
        status: Status | None = None,
        accumulation: DescribeGroupAccumulationResponse.GroupAccumulation | None = None,
        topic_accumulation: Mapping[str, DescribeGroupAccumulationResponse.GroupAccumulation] | None = None,
        lite_topic_accumulation: Mapping[str, DescribeGroupAccumulationResponse.GroupAccumulation] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status", "accumulation"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["status", "accumulation", "topic_accumulation", "lite_topic_accumulation"]
    ) -> None: ...

class QueryTimeSpanRequest(_Message):
    deployment_name: str
    group: Final[Resource]
    topics: Final[containers.RepeatedCompositeFieldContainer[Resource]]
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        group: Resource | None = None,
        topics: Iterable[Resource] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "group", "topics"]) -> None: ...

class QueryTimeSpanResponse(_Message):
    class QueueTimeSpan(_Message):
        message_queue: Final[MessageQueue]
        min_timestamp: int
        max_timestamp: int
        consume_timestamp: int
        delay_time_ms: int
        def __init__(
            self,
            *,
            message_queue: MessageQueue | None = None,
            min_timestamp: int | None = None,
            max_timestamp: int | None = None,
            consume_timestamp: int | None = None,
            delay_time_ms: int | None = None,
        ) -> None: ...
        def HasField(self, field_name: Literal["message_queue"]) -> bool: ...
        def ClearField(
            self,
            field_name: Literal[
                "message_queue", "min_timestamp", "max_timestamp", "consume_timestamp", "delay_time_ms"
            ],
        ) -> None: ...

    status: Final[Status]
    queue_time_span_list: Final[containers.RepeatedCompositeFieldContainer[QueryTimeSpanResponse.QueueTimeSpan]]
    def __init__(
        self,
        *,
        status: Status | None = None,
        queue_time_span_list: Iterable[QueryTimeSpanResponse.QueueTimeSpan] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "queue_time_span_list"]) -> None: ...

class ListConsumerConnectionRequest(_Message):
    deployment_name: str
    group: Final[Resource]
    topic: Final[Resource]
    liteTopic: str
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        group: Resource | None = None,
        topic: Resource | None = None,
        liteTopic: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group", "topic", "liteTopic"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "group", "topic", "liteTopic"]) -> None: ...

class ListConsumerConnectionResponse(_Message):
    status: Final[Status]
    client_info: Final[containers.RepeatedCompositeFieldContainer[ClientInfo]]
    def __init__(self, *, status: Status | None = None, client_info: Iterable[ClientInfo] | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "client_info"]) -> None: ...

class ResetGroupOffsetRequest(_Message):
    deployment_name: str
    group: Final[Resource]
    topic: Final[Resource]
    reset_timestamp: Final[Timestamp]
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        group: Resource | None = None,
        topic: Resource | None = None,
        reset_timestamp: Timestamp | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group", "topic", "reset_timestamp"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "group", "topic", "reset_timestamp"]) -> None: ...

class ResetGroupOffsetResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class ListMessageRequest(_Message):
    deployment_name: str
    topic: Final[Resource]
    max_message_nums: int
    begin_timestamp: Final[Timestamp]
    end_timestamp: Final[Timestamp]
    message_id: str
    message_key: str
    subscription: str
    lite_topic: str
    scroll_id: str
    page_num: int
    page_size: int
    broker_name: str
    queue_id: int
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        topic: Resource | None = None,
        max_message_nums: int | None = None,
        begin_timestamp: Timestamp | None = None,
        end_timestamp: Timestamp | None = None,
        message_id: str | None = None,
        message_key: str | None = None,
        subscription: str | None = None,
        lite_topic: str | None = None,
        scroll_id: str | None = None,
        page_num: int | None = None,
        page_size: int | None = None,
        broker_name: str | None = None,
        queue_id: int | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "deployment_name",
            "topic",
            "begin_timestamp",
            "end_timestamp",
            "message_id",
            "message_key",
            "subscription",
            "lite_topic",
            "scroll_id",
            "page_num",
            "page_size",
            "broker_name",
            "queue_id",
            "search_key",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "deployment_name",
            "topic",
            "max_message_nums",
            "begin_timestamp",
            "end_timestamp",
            "message_id",
            "message_key",
            "subscription",
            "lite_topic",
            "scroll_id",
            "page_num",
            "page_size",
            "broker_name",
            "queue_id",
            "search_key",
        ],
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["search_key"]
    ) -> Literal["message_id", "message_key", "subscription", "lite_topic"] | None: ...

class ListMessageResponse(_Message):
    status: Final[Status]
    messages: Final[containers.RepeatedCompositeFieldContainer[Message]]
    scroll_id: str
    def __init__(
        self, *, status: Status | None = None, messages: Iterable[Message] | None = None, scroll_id: str | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "messages", "scroll_id"]) -> None: ...

class PrintThreadStackTraceRequest(_Message):
    deployment_name: str
    client_id: str
    group: Final[Resource]
    def __init__(
        self, *, deployment_name: str | None = None, client_id: str | None = None, group: Resource | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "client_id", "group"]) -> None: ...

class PrintThreadStackTraceResponse(_Message):
    status: Final[Status]
    thread_stack_trace: str
    def __init__(self, *, status: Status | None = None, thread_stack_trace: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["status", "thread_stack_trace"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "thread_stack_trace"]) -> None: ...

class VerifyMessageRequest(_Message):
    deployment_name: str
    client_id: str
    group: Final[Resource]
    topic: Final[Resource]
    message_id: str
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        client_id: str | None = None,
        group: Resource | None = None,
        topic: Resource | None = None,
        message_id: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group", "topic"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["deployment_name", "client_id", "group", "topic", "message_id"]
    ) -> None: ...

class VerifyMessageResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class AdminSendMessageRequest(_Message):
    deployment_name: str
    topic: Final[Resource]
    tag: str
    key: str
    body: bytes
    user_properties: Final[containers.ScalarMap[str, str]]
    system_properties: Final[SystemProperties]
    ext_info: Final[containers.ScalarMap[str, str]]
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        topic: Resource | None = None,
        tag: str | None = None,
        key: str | None = None,
        body: bytes | None = None,
        user_properties: Mapping[str, str] | None = None,
        system_properties: SystemProperties | None = None,
        ext_info: Mapping[str, str] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "topic", "tag", "key", "system_properties"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "deployment_name", "topic", "tag", "key", "body", "user_properties", "system_properties", "ext_info"
        ],
    ) -> None: ...

class AdminSendMessageResponse(_Message):
    status: Final[Status]
    message_id: str
    def __init__(self, *, status: Status | None = None, message_id: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "message_id"]) -> None: ...

class GetConsumerRunningInfoRequest(_Message):
    deployment_name: str
    group: Final[Resource]
    client_id: str
    def __init__(
        self, *, deployment_name: str | None = None, group: Resource | None = None, client_id: str | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "group"]) -> bool: ...
    def ClearField(self, field_name: Literal["deployment_name", "group", "client_id"]) -> None: ...

class GetConsumerRunningInfoResponse(_Message):
    status: Final[Status]
    consumer_running_info: Final[ConsumerRunningInfo]
    def __init__(
        self, *, status: Status | None = None, consumer_running_info: ConsumerRunningInfo | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status", "consumer_running_info"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "consumer_running_info"]) -> None: ...

class GetTopicRouteRequest(_Message):
    class NetworkType(IntEnum):
        INTERNAL = 0
        INTERNET = 1
        INTRANET = 2

    deployment_name: str
    topic: Final[Resource]
    network_type: int
    protocol_type: str
    stream_request_type: bool
    client_address: str
    def __init__(
        self,
        *,
        deployment_name: str | None = None,
        topic: Resource | None = None,
        network_type: int | None = None,
        protocol_type: str | None = None,
        stream_request_type: bool | None = None,
        client_address: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["deployment_name", "topic"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "deployment_name", "topic", "network_type", "protocol_type", "stream_request_type", "client_address"
        ],
    ) -> None: ...

class GetTopicRouteResponse(_Message):
    status: Final[Status]
    topic_route_data: str
    def __init__(self, *, status: Status | None = None, topic_route_data: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "topic_route_data"]) -> None: ...

class GetProxyRuntimeStatsRequest(_Message): ...

class GetProxyRuntimeStatsResponse(_Message):
    status: Final[Status]
    proxy_name: str
    version: str
    in_tps: float
    out_tps: float
    connections: int
    producers: int
    consumers: int
    def __init__(
        self,
        *,
        status: Status | None = None,
        proxy_name: str | None = None,
        version: str | None = None,
        in_tps: float | None = None,
        out_tps: float | None = None,
        connections: int | None = None,
        producers: int | None = None,
        consumers: int | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "status", "proxy_name", "version", "in_tps", "out_tps", "connections", "producers", "consumers"
        ],
    ) -> None: ...

class QueryRouteRequest(_Message):
    topic: Final[Resource]
    endpoints: Final[Endpoints]
    def __init__(self, *, topic: Resource | None = None, endpoints: Endpoints | None = None) -> None: ...
    def HasField(self, field_name: Literal["topic", "endpoints"]) -> bool: ...
    def ClearField(self, field_name: Literal["topic", "endpoints"]) -> None: ...

class QueryRouteResponse(_Message):
    status: Final[Status]
    message_queues: Final[containers.RepeatedCompositeFieldContainer[MessageQueue]]
    def __init__(
        self, *, status: Status | None = None, message_queues: Iterable[MessageQueue] | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "message_queues"]) -> None: ...

class SendMessageRequest(_Message):
    messages: Final[containers.RepeatedCompositeFieldContainer[Message]]
    def __init__(self, *, messages: Iterable[Message] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["messages"]) -> None: ...

class SendResultEntry(_Message):
    status: Final[Status]
    message_id: str
    transaction_id: str
    offset: int
    recall_handle: str
    def __init__(
        self,
        *,
        status: Status | None = None,
        message_id: str | None = None,
        transaction_id: str | None = None,
        offset: int | None = None,
        recall_handle: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["status", "message_id", "transaction_id", "offset", "recall_handle"]
    ) -> None: ...

class SendMessageResponse(_Message):
    status: Final[Status]
    entries: Final[containers.RepeatedCompositeFieldContainer[SendResultEntry]]
    def __init__(self, *, status: Status | None = None, entries: Iterable[SendResultEntry] | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "entries"]) -> None: ...

class QueryAssignmentRequest(_Message):
    topic: Final[Resource]
    group: Final[Resource]
    endpoints: Final[Endpoints]
    def __init__(
        self, *, topic: Resource | None = None, group: Resource | None = None, endpoints: Endpoints | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["topic", "group", "endpoints"]) -> bool: ...
    def ClearField(self, field_name: Literal["topic", "group", "endpoints"]) -> None: ...

class QueryAssignmentResponse(_Message):
    status: Final[Status]
    assignments: Final[containers.RepeatedCompositeFieldContainer[Assignment]]
    def __init__(self, *, status: Status | None = None, assignments: Iterable[Assignment] | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "assignments"]) -> None: ...

class ReceiveMessageRequest(_Message):
    group: Final[Resource]
    message_queue: Final[MessageQueue]
    filter_expression: Final[FilterExpression]
    batch_size: int
    invisible_duration: Final[Duration]
    auto_renew: bool
    long_polling_timeout: Final[Duration]
    attempt_id: str
    def __init__(
        self,
        *,
        group: Resource | None = None,
        message_queue: MessageQueue | None = None,
        filter_expression: FilterExpression | None = None,
        batch_size: int | None = None,
        invisible_duration: Duration | None = None,
        auto_renew: bool | None = None,
        long_polling_timeout: Duration | None = None,
        attempt_id: str | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "group", "message_queue", "filter_expression", "invisible_duration", "long_polling_timeout", "attempt_id"
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "group",
            "message_queue",
            "filter_expression",
            "batch_size",
            "invisible_duration",
            "auto_renew",
            "long_polling_timeout",
            "attempt_id",
        ],
    ) -> None: ...

class ReceiveMessageResponse(_Message):
    status: Final[Status]
    message: Final[Message]
    delivery_timestamp: Final[Timestamp]
    def __init__(
        self,
        *,
        status: Status | None = None,
        message: Message | None = None,
        delivery_timestamp: Timestamp | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["status", "message", "delivery_timestamp", "content"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "message", "delivery_timestamp", "content"]) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["content"]
    ) -> Literal["status", "message", "delivery_timestamp"] | None: ...

class AckMessageEntry(_Message):
    message_id: str
    receipt_handle: str
    lite_topic: str
    def __init__(
        self, *, message_id: str | None = None, receipt_handle: str | None = None, lite_topic: str | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["lite_topic"]) -> bool: ...
    def ClearField(self, field_name: Literal["message_id", "receipt_handle", "lite_topic"]) -> None: ...

class AckMessageRequest(_Message):
    group: Final[Resource]
    topic: Final[Resource]
    entries: Final[containers.RepeatedCompositeFieldContainer[AckMessageEntry]]
    def __init__(
        self,
        *,
        group: Resource | None = None,
        topic: Resource | None = None,
        entries: Iterable[AckMessageEntry] | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["group", "topic"]) -> bool: ...
    def ClearField(self, field_name: Literal["group", "topic", "entries"]) -> None: ...

class AckMessageResultEntry(_Message):
    message_id: str
    receipt_handle: str
    status: Final[Status]
    def __init__(
        self, *, message_id: str | None = None, receipt_handle: str | None = None, status: Status | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["message_id", "receipt_handle", "status"]) -> None: ...

class AckMessageResponse(_Message):
    status: Final[Status]
    entries: Final[containers.RepeatedCompositeFieldContainer[AckMessageResultEntry]]
    def __init__(
        self, *, status: Status | None = None, entries: Iterable[AckMessageResultEntry] | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "entries"]) -> None: ...

class ForwardMessageToDeadLetterQueueRequest(_Message):
    group: Final[Resource]
    topic: Final[Resource]
    receipt_handle: str
    message_id: str
    delivery_attempt: int
    max_delivery_attempts: int
    lite_topic: str
    def __init__(
        self,
        *,
        group: Resource | None = None,
        topic: Resource | None = None,
        receipt_handle: str | None = None,
        message_id: str | None = None,
        delivery_attempt: int | None = None,
        max_delivery_attempts: int | None = None,
        lite_topic: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["group", "topic", "lite_topic"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "group", "topic", "receipt_handle", "message_id", "delivery_attempt", "max_delivery_attempts", "lite_topic"
        ],
    ) -> None: ...

class ForwardMessageToDeadLetterQueueResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class HeartbeatRequest(_Message):
    group: Final[Resource]
    client_type: int
    def __init__(self, *, group: Resource | None = None, client_type: int | None = None) -> None: ...
    def HasField(self, field_name: Literal["group"]) -> bool: ...
    def ClearField(self, field_name: Literal["group", "client_type"]) -> None: ...

class HeartbeatResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class EndTransactionRequest(_Message):
    topic: Final[Resource]
    message_id: str
    transaction_id: str
    resolution: int
    source: int
    trace_context: str
    def __init__(
        self,
        *,
        topic: Resource | None = None,
        message_id: str | None = None,
        transaction_id: str | None = None,
        resolution: int | None = None,
        source: int | None = None,
        trace_context: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["topic"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["topic", "message_id", "transaction_id", "resolution", "source", "trace_context"]
    ) -> None: ...

class EndTransactionResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class PrintThreadStackTraceCommand(_Message):
    nonce: str
    def __init__(self, *, nonce: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["nonce"]) -> None: ...

class ReconnectEndpointsCommand(_Message):
    nonce: str
    def __init__(self, *, nonce: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["nonce"]) -> None: ...

class ThreadStackTrace(_Message):
    nonce: str
    thread_stack_trace: str
    def __init__(self, *, nonce: str | None = None, thread_stack_trace: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["thread_stack_trace"]) -> bool: ...
    def ClearField(self, field_name: Literal["nonce", "thread_stack_trace"]) -> None: ...

class VerifyMessageCommand(_Message):
    nonce: str
    message: Final[Message]
    def __init__(self, *, nonce: str | None = None, message: Message | None = None) -> None: ...
    def HasField(self, field_name: Literal["message"]) -> bool: ...
    def ClearField(self, field_name: Literal["nonce", "message"]) -> None: ...

class VerifyMessageResult(_Message):
    nonce: str
    def __init__(self, *, nonce: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["nonce"]) -> None: ...

class RecoverOrphanedTransactionCommand(_Message):
    message: Final[Message]
    transaction_id: str
    def __init__(self, *, message: Message | None = None, transaction_id: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["message"]) -> bool: ...
    def ClearField(self, field_name: Literal["message", "transaction_id"]) -> None: ...

class NotifyUnsubscribeLiteCommand(_Message):
    lite_topic: str
    def __init__(self, *, lite_topic: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["lite_topic"]) -> None: ...

class TelemetryCommand(_Message):
    status: Final[Status]
    settings: Final[Settings]
    thread_stack_trace: Final[ThreadStackTrace]
    verify_message_result: Final[VerifyMessageResult]
    recover_orphaned_transaction_command: Final[RecoverOrphanedTransactionCommand]
    print_thread_stack_trace_command: Final[PrintThreadStackTraceCommand]
    verify_message_command: Final[VerifyMessageCommand]
    reconnect_endpoints_command: Final[ReconnectEndpointsCommand]
    notify_unsubscribe_lite_command: Final[NotifyUnsubscribeLiteCommand]
    def __init__(
        self,
        *,
        status: Status | None = None,
        settings: Settings | None = None,
        thread_stack_trace: ThreadStackTrace | None = None,
        verify_message_result: VerifyMessageResult | None = None,
        recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand | None = None,
        print_thread_stack_trace_command: PrintThreadStackTraceCommand | None = None,
        verify_message_command: VerifyMessageCommand | None = None,
        reconnect_endpoints_command: ReconnectEndpointsCommand | None = None,
        notify_unsubscribe_lite_command: NotifyUnsubscribeLiteCommand | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "status",
            "settings",
            "thread_stack_trace",
            "verify_message_result",
            "recover_orphaned_transaction_command",
            "print_thread_stack_trace_command",
            "verify_message_command",
            "reconnect_endpoints_command",
            "notify_unsubscribe_lite_command",
            "command",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "status",
            "settings",
            "thread_stack_trace",
            "verify_message_result",
            "recover_orphaned_transaction_command",
            "print_thread_stack_trace_command",
            "verify_message_command",
            "reconnect_endpoints_command",
            "notify_unsubscribe_lite_command",
            "command",
        ],
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["command"]
    ) -> (
        Literal[
            "settings",
            "thread_stack_trace",
            "verify_message_result",
            "recover_orphaned_transaction_command",
            "print_thread_stack_trace_command",
            "verify_message_command",
            "reconnect_endpoints_command",
            "notify_unsubscribe_lite_command",
        ]
        | None
    ): ...

class NotifyClientTerminationRequest(_Message):
    group: Final[Resource]
    def __init__(self, *, group: Resource | None = None) -> None: ...
    def HasField(self, field_name: Literal["group"]) -> bool: ...
    def ClearField(self, field_name: Literal["group"]) -> None: ...

class NotifyClientTerminationResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class ChangeInvisibleDurationRequest(_Message):
    group: Final[Resource]
    topic: Final[Resource]
    receipt_handle: str
    invisible_duration: Final[Duration]
    message_id: str
    lite_topic: str
    suspend: bool
    def __init__(
        self,
        *,
        group: Resource | None = None,
        topic: Resource | None = None,
        receipt_handle: str | None = None,
        invisible_duration: Duration | None = None,
        message_id: str | None = None,
        lite_topic: str | None = None,
        suspend: bool | None = None,
    ) -> None: ...
    def HasField(
        self, field_name: Literal["group", "topic", "invisible_duration", "lite_topic", "suspend"]
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "group", "topic", "receipt_handle", "invisible_duration", "message_id", "lite_topic", "suspend"
        ],
    ) -> None: ...

class ChangeInvisibleDurationResponse(_Message):
    status: Final[Status]
    receipt_handle: str
    def __init__(self, *, status: Status | None = None, receipt_handle: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "receipt_handle"]) -> None: ...

class PullMessageRequest(_Message):
    group: Final[Resource]
    message_queue: Final[MessageQueue]
    offset: int
    batch_size: int
    filter_expression: Final[FilterExpression]
    long_polling_timeout: Final[Duration]
    def __init__(
        self,
        *,
        group: Resource | None = None,
        message_queue: MessageQueue | None = None,
        offset: int | None = None,
        batch_size: int | None = None,
        filter_expression: FilterExpression | None = None,
        long_polling_timeout: Duration | None = None,
    ) -> None: ...
    def HasField(
        self, field_name: Literal["group", "message_queue", "filter_expression", "long_polling_timeout"]
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "group", "message_queue", "offset", "batch_size", "filter_expression", "long_polling_timeout"
        ],
    ) -> None: ...

class PullMessageResponse(_Message):
    status: Final[Status]
    message: Final[Message]
    next_offset: int
    def __init__(
        self, *, status: Status | None = None, message: Message | None = None, next_offset: int | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["status", "message", "next_offset", "content"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "message", "next_offset", "content"]) -> None: ...
    def WhichOneof(self, oneof_group: Literal["content"]) -> Literal["status", "message", "next_offset"] | None: ...

class UpdateOffsetRequest(_Message):
    group: Final[Resource]
    message_queue: Final[MessageQueue]
    offset: int
    def __init__(
        self, *, group: Resource | None = None, message_queue: MessageQueue | None = None, offset: int | None = None
    ) -> None: ...
    def HasField(self, field_name: Literal["group", "message_queue"]) -> bool: ...
    def ClearField(self, field_name: Literal["group", "message_queue", "offset"]) -> None: ...

class UpdateOffsetResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class GetOffsetRequest(_Message):
    group: Final[Resource]
    message_queue: Final[MessageQueue]
    def __init__(self, *, group: Resource | None = None, message_queue: MessageQueue | None = None) -> None: ...
    def HasField(self, field_name: Literal["group", "message_queue"]) -> bool: ...
    def ClearField(self, field_name: Literal["group", "message_queue"]) -> None: ...

class GetOffsetResponse(_Message):
    status: Final[Status]
    offset: int
    def __init__(self, *, status: Status | None = None, offset: int | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "offset"]) -> None: ...

class QueryOffsetRequest(_Message):
    message_queue: Final[MessageQueue]
    query_offset_policy: int
    timestamp: Final[Timestamp]
    def __init__(
        self,
        *,
        message_queue: MessageQueue | None = None,
        query_offset_policy: int | None = None,
        timestamp: Timestamp | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["message_queue", "timestamp"]) -> bool: ...
    def ClearField(self, field_name: Literal["message_queue", "query_offset_policy", "timestamp"]) -> None: ...

class QueryOffsetResponse(_Message):
    status: Final[Status]
    offset: int
    def __init__(self, *, status: Status | None = None, offset: int | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "offset"]) -> None: ...

class RecallMessageRequest(_Message):
    topic: Final[Resource]
    recall_handle: str
    def __init__(self, *, topic: Resource | None = None, recall_handle: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["topic"]) -> bool: ...
    def ClearField(self, field_name: Literal["topic", "recall_handle"]) -> None: ...

class RecallMessageResponse(_Message):
    status: Final[Status]
    message_id: str
    def __init__(self, *, status: Status | None = None, message_id: str | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status", "message_id"]) -> None: ...

class SyncLiteSubscriptionRequest(_Message):
    action: int
    topic: Final[Resource]
    group: Final[Resource]
    lite_topic_set: Final[containers.RepeatedScalarFieldContainer[str]]
    version: int
    offset_option: Final[OffsetOption]
    def __init__(
        self,
        *,
        action: int | None = None,
        topic: Resource | None = None,
        group: Resource | None = None,
        lite_topic_set: Iterable[str] | None = None,
        version: int | None = None,
        offset_option: OffsetOption | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["topic", "group", "version", "offset_option"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["action", "topic", "group", "lite_topic_set", "version", "offset_option"]
    ) -> None: ...

class SyncLiteSubscriptionResponse(_Message):
    status: Final[Status]
    def __init__(self, *, status: Status | None = None) -> None: ...
    def HasField(self, field_name: Literal["status"]) -> bool: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...
