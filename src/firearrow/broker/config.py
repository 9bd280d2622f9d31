"""The broker's configuration: keys of RocketMQ's BrokerConfig and NettyServerConfig."""

import socket
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from firearrow.config.metrics import MetricsKeys
from firearrow.config.table import (
    LIVE,
    AnyInt,
    CountInt,
    CountLong,
    KeyList,
    Name,
    OptionalHost,
    Percent,
    Port,
    PositiveInt,
    PositiveLong,
    ServerList,
)
from firearrow.errors import ConfigError
from firearrow.files import GENERATIONS
from firearrow.javanumbers import INT_MAX
from firearrow.store.config import BATCH_UNIT_BYTES, CONSUME_QUEUE_UNIT_BYTES

MIB: Final = 1024 * 1024

# The groups of RocketMQ's keys that belong to a broker, see `firearrow.config.table.load`.
KEY_GROUPS = ("broker", "store", "server", "client", "auth")

# Configuration for a broker whose store is removed in the end: small files, so that it starts fast and takes little
# disk, and patience with a machine that is busy with tests. A log file has room for the largest message.
THROWAWAY: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(8 * MIB),
    "mappedFileSizeConsumeQueue": str(2_000 * CONSUME_QUEUE_UNIT_BYTES),
    "mapperFileSizeBatchConsumeQueue": str(1_000 * BATCH_UNIT_BYTES),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "mappedFileSizeTimerLog": str(MIB),
    "brokerFastFailureEnable": "false",
}

Permission = Annotated[int, Meta(ge=0, le=7)]
RpcList = Annotated[str, Meta(pattern=r"[\w., ]*", title="request codes or names of gRPC requests, separated by ,")]
ReviveQueues = Annotated[int, Meta(ge=1, le=1024)]  # each is read every second
ErrorPercent = Annotated[int, Meta(ge=1, le=99)]
TopicName = Annotated[str, Meta(pattern="[%|a-zA-Z0-9_-]{1,127}", title="the name of a topic: letters, digits, %|_-")]


class BrokerConfig(MetricsKeys, frozen=True):
    """Configuration of a broker: its names, its addresses, and the requests that it allows."""

    # --- identity ---
    # fmt: off
    broker_name: Annotated[Name, "name of the broker, shared by a master and its slaves"] = field(default_factory=socket.gethostname)
    broker_cluster_name: Annotated[Name, "name of the cluster"] = "DefaultCluster"
    broker_id: Annotated[CountLong, "number of the broker under its name: 0 for the master, above 0 for a slave"] = 0
    broker_ip1: Annotated[OptionalHost, "address or name that clients use; messages store its IPv4 address; empty: the host it listens on"] = ""
    broker_ip2: Annotated[OptionalHost, "address that slaves use; empty: brokerIP1"] = ""
    region_id: Annotated[Name, "region that is written into each message and answer"] = "DefaultRegion"

    # --- connections ---
    namesrv_addr: Annotated[ServerList, "name servers to register with, `host:port` separated by `;`"] = ""
    listen_port: Annotated[Port, "port to listen on; 0 takes a free one"] = 10911
    enable_grpc: Annotated[bool, "whether the broker serves clients of RocketMQ 5 at `grpcServerPort`, as a proxy in local mode does (not in RocketMQ)"] = True
    register_name_server_period: Annotated[PositiveInt, "ms between registrations, held between 10 and 60 s"] = 30_000
    register_broker_timeout_mills: Annotated[PositiveInt, "ms that a name server has to answer a registration"] = 24_000
    compressed_register: Annotated[bool, "whether registrations are sent compressed"] = False

    # --- controllers ---
    enable_controller_mode: Annotated[bool, "whether controllers elect the master of the broker name; then they set brokerId and brokerRole"] = False
    controller_addr: Annotated[ServerList, "controllers, `host:port` separated by `;`"] = ""
    fetch_controller_addr_by_dns_lookup: Annotated[bool, "whether controllerAddr is one DNS name and port, and each address of the name is a controller"] = False
    controller_heart_beat_timeout_mills: Annotated[PositiveLong, "ms without a heartbeat after which controllers take the broker for lost"] = 10_000
    sync_broker_metadata_period: Annotated[PositiveLong, "ms between requests for the present master, beside the notices of controllers"] = 5000
    sync_controller_metadata_period: Annotated[PositiveLong, "ms between requests for the leader of the controllers"] = 10_000
    check_sync_state_set_period: Annotated[PositiveLong, "ms between a master's checks for slaves that fell out of sync"] = 5000
    broker_election_priority: Annotated[AnyInt, "priority in an election between brokers with the same messages; the smallest number becomes master"] = INT_MAX
    # --- slaves that act for their master ---
    enable_slave_acting_master: Annotated[bool, "whether the slave with the smallest number acts for an absent master; all brokers of a name must set it, and their name servers `supportActingMaster`"] = False
    enable_remote_escape: Annotated[bool, "whether such a slave forwards new messages (for example delayed ones that are due) to another master of the cluster; otherwise they wait for their own master"] = False
    skip_pre_online: Annotated[bool, "whether a broker registers without first contacting the others of its name"] = False
    broker_heartbeat_interval: Annotated[PositiveInt, "ms between heartbeats, to name servers or to controllers"] = 1000
    broker_not_active_timeout_millis: Annotated[PositiveLong, "ms without a heartbeat after which name servers remove the broker"] = 10_000
    send_heartbeat_timeout_millis: Annotated[PositiveInt, "ms that a name server has to take a heartbeat"] = 1000
    sync_broker_member_group_period: Annotated[PositiveInt, "ms between requests for the other brokers of the name"] = 1000
    lock_in_strict_mode: Annotated[bool, "whether a lock of queues needs a majority of the totalReplicas brokers of a name", LIVE] = False

    # --- topics and groups ---
    broker_permission: Annotated[Permission, "permissions of clients: 2 write, 4 read, 6 both", LIVE] = 6
    auto_create_topic_enable: Annotated[bool, "whether a send to an unknown topic creates it", LIVE] = True
    auto_create_topic_on_all: Annotated[bool, "whether a topic that a send creates is created on all masters of the cluster (not in RocketMQ)", LIVE] = False
    auto_create_subscription_group: Annotated[bool, "whether an unknown consumer group is created at first use", LIVE] = True
    enable_create_sys_group: Annotated[bool, "whether system groups (`CID_RMQ_SYS_...`) are created at first use, also if others are not", LIVE] = True
    enable_mixed_message_type: Annotated[bool, "whether a topic may have `message.type=MIXED`", LIVE] = False
    clear_retry_topic_when_delete_topic: Annotated[bool, "whether the deletion of a topic deletes the POP retry topics of its groups", LIVE] = True
    default_topic_queue_nums: Annotated[PositiveInt, "queues of a topic that is created by a send"] = 8
    cluster_topic_enable: Annotated[bool, "whether a topic with the name of the cluster exists"] = True
    broker_topic_enable: Annotated[bool, "whether a topic with the name of the broker exists"] = True
    trace_topic_enable: Annotated[bool, "whether the topic for message traces exists"] = False
    msg_trace_topic_name: Annotated[TopicName, "name of the topic for message traces"] = "RMQ_SYS_TRACE_TOPIC"
    trace_on: Annotated[bool, "whether answers and messages ask clients to send traces"] = True
    validate_system_topic_when_update_topic: Annotated[bool, "whether changes of system topics are refused", LIVE] = True

    # --- sending ---
    start_accept_send_request_time_stamp: Annotated[CountLong, "ms since 1970 before which sends are refused", LIVE] = 0
    store_reply_message_enable: Annotated[bool, "whether replies to requests are stored as well as forwarded", LIVE] = True

    # --- recalling ---
    recall_message_enable: Annotated[bool, "whether a message with a delivery time can be recalled", LIVE] = False
    allow_recall_when_broker_not_writeable: Annotated[bool, "whether a message can be recalled while brokerPermission forbids sends", LIVE] = True

    # --- transactions ---
    reject_transaction_message: Annotated[bool, "whether transactional messages are refused", LIVE] = False
    transaction_time_out: Annotated[PositiveLong, "ms after which the broker checks an open transaction with its producer", LIVE] = 6000
    transaction_check_interval: Annotated[PositiveLong, "ms between rounds of transaction checks", LIVE] = 30_000
    transaction_check_max: Annotated[PositiveInt, "checks of a transaction before its message goes to TRANS_CHECK_MAX_TIME_TOPIC", LIVE] = 15
    transaction_op_batch_interval: Annotated[PositiveInt, "ms that decisions on transactions are gathered before they are written to the op queue", LIVE] = 3000
    transaction_op_msg_max_size: Annotated[PositiveInt, "bytes of a record in the op queue that make the next one begin", LIVE] = 4096
    transaction_metric_flush_interval: Annotated[PositiveLong, "ms between writes of the counts of open transactions"] = 10_000

    # --- request modes ---
    default_message_request_mode: Annotated[Literal["PULL", "POP"], "how a group consumes a topic without a request mode (code 401)", LIVE] = "PULL"
    default_pop_share_queue_num: Annotated[AnyInt, "further clients that pop from each client's queues, for groups without a request mode; 0 or less: all clients pop from all queues", LIVE] = -1
    server_load_balancer_enable: Annotated[bool, "whether a client that asks for its queues gets its share; otherwise it gets all queues", LIVE] = True
    load_balance_poll_name_server_interval: Annotated[PositiveLong, "ms after which the cached route of a topic is requested again", LIVE] = 30_000

    # --- lite topics ---
    max_lite_subscription_count: Annotated[PositiveInt, "subscriptions of all clients to lite topics; more are refused with 2018", LIVE] = 100_000
    lite_subscription_check_interval: Annotated[PositiveLong, "ms between checks for clients of lite topics that are gone"] = 120_000
    lite_subscription_check_timeout_mills: Annotated[PositiveLong, "ms without a request after which a client's subscriptions to lite topics are removed", LIVE] = 180_000

    min_lite_ttl: Annotated[PositiveLong, "ms that a lite topic lives after its last message, whatever `lite.topic.expiration` of its parent says", LIVE] = field(name="minLiteTTl", default=900_000)
    lite_ttl_check_interval: Annotated[PositiveLong, "ms between checks for lite topics that have expired", LIVE] = 120_000

    # --- pulling ---
    long_polling_enable: Annotated[bool, "whether a pull waits for messages for the time that its client allows", LIVE] = True
    short_polling_time_mills: Annotated[PositiveLong, "ms that a pull waits if long polling is off", LIVE] = 1000
    lite_pull_message_enable: Annotated[bool, "whether lite pull consumers (code 361) are served", LIVE] = True
    slave_read_enable: Annotated[bool, "whether a slave serves pulls, and a master refers consumers to it that are far behind", LIVE] = False
    reject_pull_consumer_enable: Annotated[bool, "whether pulls of groups without a push consumer are refused", LIVE] = False

    # --- POP ---
    revive_queue_num: Annotated[ReviveQueues, "queues of the revive topic, which has the records of pops"] = 8
    pop_from_retry_probability: Annotated[Percent, "percent of pops that read retried messages first; the others read them last", LIVE] = 20
    pop_from_retry_probability_for_priority: Annotated[Percent, "the same percentage, of pops that read queues in the order of their priority", LIVE] = 0
    priority_order_asc: Annotated[bool, "whether the priority of a queue grows with its number", LIVE] = True
    init_pop_offset_by_check_msg_in_mem: Annotated[bool, "whether a new group that starts at the last message starts at the first if that is recent", LIVE] = True
    enable_retry_topic_v2: Annotated[bool, "whether retry topics of pops are named `%RETRY%group+topic` instead of the ambiguous `%RETRY%group_topic`; with authorizationEnabled they always are", LIVE] = False
    retrieve_message_from_pop_retry_topic_v1: Annotated[bool, "whether pops also read retry topics with the other form of the name", LIVE] = True
    pop_response_return_actual_retry_topic: Annotated[bool, "whether popped retries carry the name of their retry topic", LIVE] = False
    enable_pop_message_threshold: Annotated[bool, "whether a group gets no more messages of a queue while it has too many of them in flight", LIVE] = False
    pop_inflight_message_threshold: Annotated[CountLong, "limit of a group's messages in flight in a queue", LIVE] = 10_000
    use_separate_retry_queue: Annotated[bool, "whether retry topics of pops have as many queues as the topic, and messages keep theirs", LIVE] = False
    enable_pop_buffer_merge: Annotated[bool, "whether pops are kept in memory for some seconds: messages that are acknowledged in this time are not recorded", LIVE] = False
    pop_ck_stay_buffer_time: Annotated[PositiveInt, "ms that pops are kept in memory only", LIVE] = 10_000
    pop_ck_stay_buffer_time_out: Annotated[CountInt, "ms before messages become visible again, when their pops leave the memory", LIVE] = 3000
    pop_ck_max_buffer_size: Annotated[CountInt, "limit of pops in memory", LIVE] = 200_000
    pop_ck_offset_max_queue_size: Annotated[CountInt, "limit of a group's pops in memory for a queue", LIVE] = 20_000
    skip_when_ck_re_put_reach_max_times: Annotated[bool, "whether a popped message that can't be put into its retry topic is dropped after 17 attempts", LIVE] = False

    # --- POP records in RocksDB ---
    pop_consumer_kv_service_init: Annotated[bool, "whether `kvStore/` is opened, which needs the package rocksdict (extra rocksdb); an existing one is always opened"] = field(name="popConsumerKVServiceInit", default=False)
    pop_consumer_kv_service_enable: Annotated[bool, "whether records of pops are in `kvStore/`, not in the revive topic; needs popConsumerKVServiceInit", LIVE] = field(name="popConsumerKVServiceEnable", default=False)
    pop_revive_max_return_size_per_read: Annotated[PositiveInt, "due records that are read from `kvStore/` at once", LIVE] = 16384
    pop_revive_concurrency: Annotated[PositiveInt, "messages that are redelivered in one turn of the event loop", LIVE] = 32
    pop_revive_max_attempt_times: Annotated[CountInt, "attempts to put a message into its retry topic before it is dropped", LIVE] = 16
    pop_revive_skip_if_group_absent: Annotated[bool, "whether messages of a deleted group are not redelivered", LIVE] = True
    pop_consumer_kv_service_log: Annotated[bool, "whether each pop, acknowledgement and redelivery of a message is logged", LIVE] = field(name="popConsumerKVServiceLog", default=False)

    # --- waiting pops ---
    pop_polling_size: Annotated[PositiveInt, "pops that may wait for one queue of a group; one more is answered with 209", LIVE] = 1024
    max_pop_polling_size: Annotated[PositiveLong, "pops that may wait in all; notifications are counted separately, here and below", LIVE] = 100_000
    pop_polling_map_size: Annotated[PositiveInt, "queues of all groups that pops may wait for", LIVE] = 100_000
    pop_long_polling_force_notify_interval: Annotated[
        CountLong, "each message whose offset this divides wakes a waiting pop even if it does not match; 0: none does", LIVE
    ] = 800
    use_message_filter_for_notification: Annotated[bool, "whether a notification with an expression is only for messages of its tags", LIVE] = True
    max_message_filter_num_for_notification: Annotated[CountInt, "count of new messages; at it or above, a notification is sent without a look at their tags", LIVE] = 64
    enable_notify_after_pop_order_lock_release: Annotated[bool, "whether a waiting pop is answered when an ordered queue is free again", LIVE] = True

    # --- filters by SQL ---
    enable_property_filter: Annotated[bool, "whether consumers may filter messages by SQL92 expressions", LIVE] = False
    filter_support_retry: Annotated[bool, "whether retried messages are filtered again, for groups that subscribe to retry topics by SQL92", LIVE] = False
    filter_data_clean_time_span: Annotated[CountLong, "ms before an unused expression is forgotten", LIVE] = 86_400_000
    expect_consumer_num_use_filter: Annotated[PositiveInt, "count of consumer groups that determines the size of the Bloom filter in `consumerFilter.json`"] = 32
    max_error_rate_of_bloom_filter: Annotated[ErrorPercent, "percentage of errors that determines the size of this Bloom filter"] = 20

    # --- clients and offsets ---
    channel_expired_timeout: Annotated[PositiveLong, "ms without a heartbeat after which a client is removed", LIVE] = 120_000
    notify_consumer_ids_changed_enable: Annotated[bool, "whether the members of a group are notified when it changes", LIVE] = True
    use_server_side_reset_offset: Annotated[
        bool, "whether the broker resets offsets at once; otherwise the consumers that are online carry the reset out", LIVE
    ] = True
    config_generations: Annotated[PositiveInt, "count of contents of each file in `config/` that are kept in `config/.history/`"] = GENERATIONS
    flush_consumer_offset_interval: Annotated[PositiveInt, "ms between writes of the consumer offsets"] = 5000
    consumer_offset_update_version_step: Annotated[PositiveLong, "commits after which the offsets get a new data version"] = 500

    # --- access control ---
    authentication_enabled: Annotated[bool, "whether clients must sign their requests; all of access control needs the package rocksdict (extra rocksdb)"] = False
    authorization_enabled: Annotated[bool, "whether requests need permissions; needs authenticationEnabled"] = False
    authentication_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"], "class that checks signatures; there is one"] = ""
    authentication_metadata_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"], "class that keeps users, in `config/users`, also if it is empty; if it is set, the broker serves users before access control is enabled"] = ""
    authentication_strategy: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.strategy.StatelessAuthenticationStrategy", "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"], "whether every signature is checked (stateless, also if it is empty), or one for each user on a connection from time to time"] = ""
    authentication_whitelist: Annotated[RpcList, "request codes, and names such as `apache.rocketmq.v2.QueryRouteRequest` for gRPC, joined by `,`: they are exempt from signatures, if also from permissions or if authorizationEnabled is off"] = ""
    ha_allow_unauthenticated: Annotated[bool, "where access control or `tls.server.mode=enforcing` is on: whether brokers without proof and encryption, as RocketMQ's, may be slave or master of this one (not in RocketMQ)"] = False
    init_authentication_user: Annotated[str, 'the first super user, as `{"username":"...","password":"..."}`; a start creates it if it is missing'] = ""
    inner_client_authentication_credentials: Annotated[str, 'credentials for requests of the broker, as `{"accessKey":"...","secretKey":"..."}`; a start makes their user a super user'] = ""
    authorization_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider"], "class that decides by permissions; there is one"] = ""
    authorization_metadata_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"], "class that keeps permissions, in `config/acls`, also if it is empty"] = ""
    authorization_strategy: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.strategy.StatelessAuthorizationStrategy", "org.apache.rocketmq.auth.authorization.strategy.StatefulAuthorizationStrategy"], "strategy of authorization; both remember allowed requests until a user or a permission changes"] = ""
    authorization_whitelist: Annotated[RpcList, "request codes, and names for gRPC, joined by `,`, that are exempt from permissions"] = ""
    migrate_auth_from_v1_enabled: Annotated[bool, "whether a start imports the users of RocketMQ 4, from `conf/plain_acl.yml` and `conf/acl/` below ROCKETMQ_HOME; needs the package PyYAML (extra yaml)"] = False
    stateful_authentication_cache_max_num: Annotated[PositiveInt, "users on connections that the stateful strategy remembers; one more makes all sign again"] = 10_000
    stateful_authentication_cache_expired_second: Annotated[PositiveInt, "seconds that the stateful strategy remembers a user on a connection"] = 60

    # --- overload ---
    broker_fast_failure_enable: Annotated[bool, "whether a request that has waited for too long is refused with code 2", LIVE] = True
    wait_time_mills_in_send_queue: Annotated[PositiveLong, "ms that a send may wait before it is handled", LIVE] = 200
    wait_time_mills_in_pull_queue: Annotated[PositiveLong, "ms that a pull may wait before it is handled", LIVE] = 5000
    wait_time_mills_in_lite_pull_queue: Annotated[PositiveLong, "ms that a pull of a lite pull consumer (code 361) may wait", LIVE] = 5000
    wait_time_mills_in_heartbeat_queue: Annotated[PositiveLong, "ms that a heartbeat may wait before it is handled", LIVE] = 31_000
    wait_time_mills_in_transaction_queue: Annotated[PositiveLong, "ms that the end of a transaction may wait before it is handled", LIVE] = 3000
    wait_time_mills_in_admin_broker_queue: Annotated[PositiveLong, "ms that a request of an administrator may wait before it is handled", LIVE] = 5000
    send_thread_pool_queue_capacity: Annotated[PositiveInt, "sends that may wait for their turn, of all connections; more are refused with code 2", LIVE] = 10_000
    pull_thread_pool_queue_capacity: Annotated[PositiveInt, "pulls that may wait for their turn", LIVE] = 100_000
    lite_pull_thread_pool_queue_capacity: Annotated[PositiveInt, "pulls by code 361 that may wait for their turn", LIVE] = 100_000
    reply_thread_pool_queue_capacity: Annotated[PositiveInt, "replies that may wait for their turn", LIVE] = 10_000
    query_thread_pool_queue_capacity: Annotated[PositiveInt, "queries by key or id that may wait for their turn", LIVE] = 20_000
    client_manager_thread_pool_queue_capacity: Annotated[PositiveInt, "unregistrations of clients (code 35) and checks of filters (46) that may wait for their turn", LIVE] = 1_000_000
    heartbeat_thread_pool_queue_capacity: Annotated[PositiveInt, "heartbeats that may wait for their turn", LIVE] = 50_000
    consumer_manager_thread_pool_queue_capacity: Annotated[PositiveInt, "requests for members and offsets of groups, and commits, that may wait for their turn", LIVE] = 1_000_000
    end_transaction_pool_queue_capacity: Annotated[PositiveInt, "ends of transactions that may wait for their turn", LIVE] = 100_000
    admin_broker_thread_pool_queue_capacity: Annotated[PositiveInt, "all other requests that may wait for their turn", LIVE] = 10_000

    # --- administration ---
    config_black_list: Annotated[KeyList, "keys that no client may change, separated by `;`"] = "configBlackList;brokerConfigPath"
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse impossible combinations. Java: PopMessageProcessor then fails at each pop."""
        super().__post_init__()
        if self.pop_consumer_kv_service_enable and not self.pop_consumer_kv_service_init:
            raise ConfigError(
                "popConsumerKVServiceEnable=true needs popConsumerKVServiceInit=true: write it "
                "into the server's file and restart the server"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: otherwise any client could "
                "pretend to be any user"
            )
        if self.enable_controller_mode and not self.controller_addr:
            raise ConfigError("enableControllerMode=true needs controllerAddr")

    @property
    def has_users(self) -> bool:
        """Tell whether there are users, if only in preparation for access control."""
        return bool(
            self.authentication_enabled
            or self.authentication_metadata_provider
            or self.authorization_metadata_provider
            or self.init_authentication_user
            or self.migrate_auth_from_v1_enabled
        )

    @property
    def has_retries_apart(self) -> bool:
        """Tell whether the name of a pop's retry topic is unambiguous (the second form)."""
        return self.enable_retry_topic_v2 or self.authorization_enabled

    @property
    def is_stateful(self) -> bool:
        """Tell whether a user is remembered for a while on a connection."""
        return self.authentication_strategy.endswith(".StatefulAuthenticationStrategy")
