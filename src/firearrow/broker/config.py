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

# What suits a broker whose store is thrown away in the end: files so small that it starts fast and
# takes little disk, and patience with a machine that is busy with tests. A log file has room for
# the largest message.
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
CodeList = Annotated[str, Meta(pattern=r"[\d, ]*", title="request codes, separated by ,")]
ReviveQueues = Annotated[int, Meta(ge=1, le=1024)]  # each is looked at every second
ErrorPercent = Annotated[int, Meta(ge=1, le=99)]
TopicName = Annotated[str, Meta(pattern="[%|a-zA-Z0-9_-]{1,127}", title="the name of a topic: letters, digits, %|_-")]


class BrokerConfig(MetricsKeys, frozen=True):
    """Configuration of a broker: its names, its addresses, and the requests that it allows."""

    # --- who it is ---
    # fmt: off
    broker_name: Annotated[Name, "name of the broker, shared by a master and its slaves"] = field(default_factory=socket.gethostname)
    broker_cluster_name: Annotated[Name, "name of the cluster"] = "DefaultCluster"
    broker_id: Annotated[CountLong, "number of the broker under its name: 0 for the master, above 0 for a slave"] = 0
    broker_ip1: Annotated[OptionalHost, "address that clients use; empty: the host it listens on"] = ""
    broker_ip2: Annotated[OptionalHost, "address that slaves use; empty: brokerIP1"] = ""
    region_id: Annotated[Name, "region that is written into each message and answer"] = "DefaultRegion"

    # --- connections ---
    namesrv_addr: Annotated[ServerList, "name servers to register with, `host:port` separated by `;`"] = ""
    listen_port: Annotated[Port, "port to listen on; 0 takes a free one"] = 10911
    register_name_server_period: Annotated[PositiveInt, "ms between registrations, held between 10 and 60 s"] = 30_000
    register_broker_timeout_mills: Annotated[PositiveInt, "ms that a name server has to answer a registration"] = 24_000
    compressed_register: Annotated[bool, "whether registrations are sent compressed"] = False

    # --- controllers ---
    enable_controller_mode: Annotated[bool, "whether controllers decide who of this name is master; brokerId and brokerRole are theirs then"] = False
    controller_addr: Annotated[ServerList, "controllers, `host:port` separated by `;`"] = ""
    fetch_controller_addr_by_dns_lookup: Annotated[bool, "whether controllerAddr is one name and port, and each address of that name is a controller"] = False
    controller_heart_beat_timeout_mills: Annotated[PositiveLong, "ms without one after which they take it for lost"] = 10_000
    sync_broker_metadata_period: Annotated[PositiveLong, "ms between questions for who is master, beside what controllers say by themselves"] = 5000
    sync_controller_metadata_period: Annotated[PositiveLong, "ms between questions for who leads the controllers"] = 10_000
    check_sync_state_set_period: Annotated[PositiveLong, "ms between looks of a master for slaves that are not in sync any more"] = 5000
    broker_election_priority: Annotated[AnyInt, "who has the smallest becomes master, of those with the same messages"] = INT_MAX
    # --- slaves that act for their master ---
    enable_slave_acting_master: Annotated[bool, "whether the slave with the smallest number acts for a master that is away; all brokers of a name and their name servers (`supportActingMaster`) must want it"] = False
    enable_remote_escape: Annotated[bool, "whether messages that such a slave would put (those that are due, for example) go to another master of the cluster; else they wait for their own"] = False
    skip_pre_online: Annotated[bool, "whether a broker registers without meeting the others of its name first"] = False
    broker_heartbeat_interval: Annotated[PositiveInt, "ms between heartbeats, to name servers or to controllers"] = 1000
    broker_not_active_timeout_millis: Annotated[PositiveLong, "ms without one after which name servers forget the broker"] = 10_000
    send_heartbeat_timeout_millis: Annotated[PositiveInt, "ms that a name server has to take one"] = 1000
    sync_broker_member_group_period: Annotated[PositiveInt, "ms between looks who else is there"] = 1000
    lock_in_strict_mode: Annotated[bool, "whether queues are locked for a consumer by most of the totalReplicas brokers of a name", LIVE] = False

    # --- topics and groups ---
    broker_permission: Annotated[Permission, "what clients may do: 2 write, 4 read, 6 both", LIVE] = 6
    auto_create_topic_enable: Annotated[bool, "whether a send to an unknown topic creates it", LIVE] = True
    auto_create_topic_on_all: Annotated[bool, "whether a topic that a send creates is created on all masters of the cluster, so that it spreads over them (not in RocketMQ)", LIVE] = False
    auto_create_subscription_group: Annotated[bool, "whether an unknown consumer group is created at first use", LIVE] = True
    enable_create_sys_group: Annotated[bool, "whether groups of RocketMQ's own (`CID_RMQ_SYS_...`) are created at first use, also if others are not", LIVE] = True
    enable_mixed_message_type: Annotated[bool, "whether a topic may have `message.type=MIXED`", LIVE] = False
    clear_retry_topic_when_delete_topic: Annotated[bool, "whether a deleted topic takes the POP retry topics of its groups with it", LIVE] = True
    default_topic_queue_nums: Annotated[PositiveInt, "queues of a topic that is created by a send"] = 8
    cluster_topic_enable: Annotated[bool, "whether a topic with the name of the cluster exists"] = True
    broker_topic_enable: Annotated[bool, "whether a topic with the name of the broker exists"] = True
    trace_topic_enable: Annotated[bool, "whether the topic for message traces exists"] = False
    msg_trace_topic_name: Annotated[TopicName, "name of the topic for message traces"] = "RMQ_SYS_TRACE_TOPIC"
    trace_on: Annotated[bool, "whether answers and messages ask clients to send traces"] = True
    validate_system_topic_when_update_topic: Annotated[bool, "whether changes of system topics are refused", LIVE] = True

    # --- sending ---
    start_accept_send_request_time_stamp: Annotated[CountLong, "ms since 1970 before which sends are refused", LIVE] = 0
    store_reply_message_enable: Annotated[bool, "whether replies to requests are stored besides being passed on", LIVE] = True

    # --- recalling ---
    recall_message_enable: Annotated[bool, "whether a message with a delivery time can be recalled", LIVE] = False
    allow_recall_when_broker_not_writeable: Annotated[bool, "whether it can be while brokerPermission forbids sends", LIVE] = True

    # --- transactions ---
    reject_transaction_message: Annotated[bool, "whether transactional messages are refused", LIVE] = False
    transaction_time_out: Annotated[PositiveLong, "ms after which a producer is asked what became of its transaction", LIVE] = 6000
    transaction_check_interval: Annotated[PositiveLong, "ms between rounds in which producers are asked", LIVE] = 30_000
    transaction_check_max: Annotated[PositiveInt, "times that a producer is asked before its message goes to TRANS_CHECK_MAX_TIME_TOPIC", LIVE] = 15
    transaction_op_batch_interval: Annotated[PositiveInt, "ms for which decisions are gathered before they are written to the op queue", LIVE] = 3000
    transaction_op_msg_max_size: Annotated[PositiveInt, "bytes of such a record from which on the next one begins", LIVE] = 4096
    transaction_metric_flush_interval: Annotated[PositiveLong, "ms between writes of the counts of open transactions"] = 10_000

    # --- who consumes what, and how ---
    default_message_request_mode: Annotated[Literal["PULL", "POP"], "how a group consumes a topic of which nothing else was said (code 401)", LIVE] = "PULL"
    default_pop_share_queue_num: Annotated[AnyInt, "further clients that pop from the queues of each, for those groups; 0 or less: all clients from all queues", LIVE] = -1
    server_load_balancer_enable: Annotated[bool, "whether a client that asks for its queues gets a part; else all", LIVE] = True
    load_balance_poll_name_server_interval: Annotated[PositiveLong, "ms after which name servers are asked again where the queues of a topic are", LIVE] = 30_000

    # --- lite topics ---
    max_lite_subscription_count: Annotated[PositiveInt, "subscriptions of all clients to lite topics; more are refused with 2018", LIVE] = 100_000
    lite_subscription_check_interval: Annotated[PositiveLong, "ms between looks for clients that are gone"] = 120_000
    lite_subscription_check_timeout_mills: Annotated[PositiveLong, "ms without a word after which a client's subscriptions to lite topics are forgotten", LIVE] = 180_000

    min_lite_ttl: Annotated[PositiveLong, "ms that a lite topic lives after its last message, whatever `lite.topic.expiration` of its parent says", LIVE] = field(name="minLiteTTl", default=900_000)
    lite_ttl_check_interval: Annotated[PositiveLong, "ms between looks for lite topics whose time is over", LIVE] = 120_000

    # --- pulling ---
    long_polling_enable: Annotated[bool, "whether a pull waits for messages as long as its client allows", LIVE] = True
    short_polling_time_mills: Annotated[PositiveLong, "ms that a pull waits if long polling is off", LIVE] = 1000
    lite_pull_message_enable: Annotated[bool, "whether lite pull consumers (code 361) are served", LIVE] = True
    slave_read_enable: Annotated[bool, "whether a slave serves pulls, and a master sends consumers there that are far behind", LIVE] = False
    reject_pull_consumer_enable: Annotated[bool, "whether pulls of groups without a push consumer are refused", LIVE] = False

    # --- POP ---
    revive_queue_num: Annotated[ReviveQueues, "queues that the revive topic is made with, and that pops are noted in"] = 8
    pop_from_retry_probability: Annotated[Percent, "percent of pops that look at retried messages first; the others do last", LIVE] = 20
    pop_from_retry_probability_for_priority: Annotated[Percent, "the same, of pops that look at queues in the order of their priority", LIVE] = 0
    priority_order_asc: Annotated[bool, "whether the priority of a queue grows with its number", LIVE] = True
    init_pop_offset_by_check_msg_in_mem: Annotated[bool, "whether a group that begins at the last message begins at the first if that is recent", LIVE] = True
    enable_retry_topic_v2: Annotated[bool, "whether retry topics of pops are named `%RETRY%group+topic` instead of `%RETRY%group_topic`, which may be the same for two groups; with authorizationEnabled they always are", LIVE] = False
    retrieve_message_from_pop_retry_topic_v1: Annotated[bool, "whether those of the other name are popped from, too", LIVE] = True
    pop_response_return_actual_retry_topic: Annotated[bool, "whether retried messages are given with the name of their retry topic", LIVE] = False
    enable_pop_message_threshold: Annotated[bool, "whether a group gets no more of a queue while it has too many messages of it in hand", LIVE] = False
    pop_inflight_message_threshold: Annotated[CountLong, "how many are too many", LIVE] = 10_000
    use_separate_retry_queue: Annotated[bool, "whether retry topics of pops have as many queues as the topic, and messages keep theirs", LIVE] = False
    enable_pop_buffer_merge: Annotated[bool, "whether what was popped is noted in memory for some seconds: what is consumed by then needs no record", LIVE] = False
    pop_ck_stay_buffer_time: Annotated[PositiveInt, "ms for which that is noted in memory only", LIVE] = 10_000
    pop_ck_stay_buffer_time_out: Annotated[CountInt, "ms before messages are visible again when it is no longer", LIVE] = 3000
    pop_ck_max_buffer_size: Annotated[CountInt, "pops that are noted in memory", LIVE] = 200_000
    pop_ck_offset_max_queue_size: Annotated[CountInt, "the same of a group in a queue", LIVE] = 20_000
    skip_when_ck_re_put_reach_max_times: Annotated[bool, "whether a popped message that can't be put into its retry topic is given up after 17 times", LIVE] = False

    # --- POP, noted in RocksDB ---
    pop_consumer_kv_service_init: Annotated[bool, "whether `kvStore/` is opened, which takes the package rocksdict (extra rocksdb); it is anyway if there is one"] = field(name="popConsumerKVServiceInit", default=False)
    pop_consumer_kv_service_enable: Annotated[bool, "whether what is popped is noted there, and not in the revive topic; needs popConsumerKVServiceInit", LIVE] = field(name="popConsumerKVServiceEnable", default=False)
    pop_revive_max_return_size_per_read: Annotated[PositiveInt, "records that are read from there at once, of those that are due", LIVE] = 16384
    pop_revive_concurrency: Annotated[PositiveInt, "messages of them that come again in one turn of the event loop", LIVE] = 32
    pop_revive_max_attempt_times: Annotated[CountInt, "times that one is tried again which can't be put into its retry topic, before it is given up", LIVE] = 16
    pop_revive_skip_if_group_absent: Annotated[bool, "whether messages of a group that is gone come again no more", LIVE] = True
    pop_consumer_kv_service_log: Annotated[bool, "whether each message that is popped, acknowledged or comes again is logged", LIVE] = field(name="popConsumerKVServiceLog", default=False)

    # --- pops that wait ---
    pop_polling_size: Annotated[PositiveInt, "pops that may wait for one queue of a group; one more is answered with 209", LIVE] = 1024
    max_pop_polling_size: Annotated[PositiveLong, "pops that may wait in all; notifications are counted by themselves, here and below", LIVE] = 100_000
    pop_polling_map_size: Annotated[PositiveInt, "queues of all groups that pops may wait for", LIVE] = 100_000
    pop_long_polling_force_notify_interval: Annotated[
        CountLong, "each message whose offset this divides wakes a pop even if it is not for that; 0: none does", LIVE
    ] = 800
    use_message_filter_for_notification: Annotated[bool, "whether a notification with an expression is only for messages of its tags", LIVE] = True
    max_message_filter_num_for_notification: Annotated[CountInt, "messages from which on their tags are not looked at for that", LIVE] = 64
    enable_notify_after_pop_order_lock_release: Annotated[bool, "whether a pop that waits is woken when a queue in order is free again", LIVE] = True

    # --- filters by SQL ---
    enable_property_filter: Annotated[bool, "whether consumers may choose messages by SQL92 expressions", LIVE] = False
    filter_support_retry: Annotated[bool, "whether what is retried is filtered again, for those that subscribe to retry topics by SQL92", LIVE] = False
    filter_data_clean_time_span: Annotated[CountLong, "ms for which an expression that nobody uses is kept", LIVE] = 86_400_000
    expect_consumer_num_use_filter: Annotated[PositiveInt, "consumer groups that the Bloom filter in `consumerFilter.json` is made for"] = 32
    max_error_rate_of_bloom_filter: Annotated[ErrorPercent, "percent of errors that it is made for"] = 20

    # --- clients and offsets ---
    channel_expired_timeout: Annotated[PositiveLong, "ms without a heartbeat after which a client is forgotten", LIVE] = 120_000
    notify_consumer_ids_changed_enable: Annotated[bool, "whether the members of a group are notified when it changes", LIVE] = True
    use_server_side_reset_offset: Annotated[
        bool, "whether a reset of offsets counts at once; else consumers that are online are told to carry it out", LIVE
    ] = True
    config_generations: Annotated[PositiveInt, "contents of each file in `config/` that are kept in `config/.history/`"] = GENERATIONS
    flush_consumer_offset_interval: Annotated[PositiveInt, "ms between writes of the consumer offsets"] = 5000
    consumer_offset_update_version_step: Annotated[PositiveLong, "commits after which the offsets get a new data version"] = 500

    # --- access control ---
    authentication_enabled: Annotated[bool, "whether clients must sign their requests; takes the package rocksdict (extra rocksdb), as all of access control"] = False
    authorization_enabled: Annotated[bool, "whether they need a permission for what they ask; needs authenticationEnabled"] = False
    authentication_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"], "what checks signatures; there is one way"] = ""
    authentication_metadata_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"], "where users are kept: in `config/users`, also if it is not named; to name it before access control is enabled has users served by then"] = ""
    authentication_strategy: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.strategy.StatelessAuthenticationStrategy", "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"], "whether every signature is looked at (stateless, also if it is empty), or one for each user on a connection from time to time"] = ""
    authentication_whitelist: Annotated[CodeList, "request codes, joined by `,`, that need no signature; where authorization is asked for, they need it nevertheless"] = ""
    ha_allow_unauthenticated: Annotated[bool, "where access control or `tls.server.mode=enforcing` is on: whether brokers that prove nothing and don't encrypt, as RocketMQ's, may be slave or master of this one (not in RocketMQ)"] = False
    init_authentication_user: Annotated[str, 'the first super user, as `{"username":"...","password":"..."}`; made by a start if it is not there'] = ""
    inner_client_authentication_credentials: Annotated[str, 'with which the broker signs its own requests, as `{"accessKey":"...","secretKey":"..."}`; made a super user by a start if it is none'] = ""
    authorization_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider"], "what decides by permissions; there is one way"] = ""
    authorization_metadata_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"], "where permissions are kept: in `config/acls`, also if it is not named"] = ""
    authorization_strategy: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.strategy.StatelessAuthorizationStrategy", "org.apache.rocketmq.auth.authorization.strategy.StatefulAuthorizationStrategy"], "what was allowed is remembered by either, until a user or a permission changes"] = ""
    authorization_whitelist: Annotated[CodeList, "request codes, joined by `,`, that need no permission"] = ""
    migrate_auth_from_v1_enabled: Annotated[bool, "whether a start makes users of those of RocketMQ 4, in `conf/plain_acl.yml` and `conf/acl/` below ROCKETMQ_HOME; takes the package PyYAML (extra yaml)"] = False
    stateful_authentication_cache_max_num: Annotated[PositiveInt, "users on connections that are believed so; with one more all sign again"] = 10_000
    stateful_authentication_cache_expired_second: Annotated[PositiveInt, "seconds for which they are"] = 60

    # --- when it is busy ---
    broker_fast_failure_enable: Annotated[bool, "whether a request that has waited for too long is refused with code 2", LIVE] = True
    wait_time_mills_in_send_queue: Annotated[PositiveLong, "ms that a send may wait before it is handled", LIVE] = 200
    wait_time_mills_in_pull_queue: Annotated[PositiveLong, "ms that a pull may", LIVE] = 5000
    wait_time_mills_in_lite_pull_queue: Annotated[PositiveLong, "ms that a pull of a lite pull consumer (code 361) may", LIVE] = 5000
    wait_time_mills_in_heartbeat_queue: Annotated[PositiveLong, "ms that a heartbeat may", LIVE] = 31_000
    wait_time_mills_in_transaction_queue: Annotated[PositiveLong, "ms that the end of a transaction may", LIVE] = 3000
    wait_time_mills_in_admin_broker_queue: Annotated[PositiveLong, "ms that a request of an administrator may", LIVE] = 5000
    send_thread_pool_queue_capacity: Annotated[PositiveInt, "sends that were read and wait, of all connections; more are refused with code 2", LIVE] = 10_000
    pull_thread_pool_queue_capacity: Annotated[PositiveInt, "the same of pulls", LIVE] = 100_000
    lite_pull_thread_pool_queue_capacity: Annotated[PositiveInt, "of pulls by code 361", LIVE] = 100_000
    reply_thread_pool_queue_capacity: Annotated[PositiveInt, "of replies", LIVE] = 10_000
    query_thread_pool_queue_capacity: Annotated[PositiveInt, "of queries by key or id", LIVE] = 20_000
    client_manager_thread_pool_queue_capacity: Annotated[PositiveInt, "of clients that leave (code 35) or have a filter checked (46)", LIVE] = 1_000_000
    heartbeat_thread_pool_queue_capacity: Annotated[PositiveInt, "of heartbeats", LIVE] = 50_000
    consumer_manager_thread_pool_queue_capacity: Annotated[PositiveInt, "of questions for members and offsets of groups, and commits", LIVE] = 1_000_000
    end_transaction_pool_queue_capacity: Annotated[PositiveInt, "of ends of transactions", LIVE] = 100_000
    admin_broker_thread_pool_queue_capacity: Annotated[PositiveInt, "of all other requests", LIVE] = 10_000

    # --- administration ---
    config_black_list: Annotated[KeyList, "keys that no client may change, separated by `;`"] = "configBlackList;brokerConfigPath"
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse what no broker can do. Java: PopMessageProcessor then fails at each pop."""
        super().__post_init__()
        if self.pop_consumer_kv_service_enable and not self.pop_consumer_kv_service_init:
            raise ConfigError(
                "popConsumerKVServiceEnable=true needs popConsumerKVServiceInit=true: write that "
                "into the server's file and restart the server"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: else everybody could "
                "say that they are somebody else"
            )
        if self.enable_controller_mode and not self.controller_addr:
            raise ConfigError("enableControllerMode=true needs controllerAddr")

    @property
    def has_users(self) -> bool:
        """Tell whether there are users, if only to be made ready for access control."""
        return bool(
            self.authentication_enabled
            or self.authentication_metadata_provider
            or self.authorization_metadata_provider
            or self.init_authentication_user
            or self.migrate_auth_from_v1_enabled
        )

    @property
    def has_retries_apart(self) -> bool:
        """Tell whether the name of a pop's retry topic says whose it is (the second form)."""
        return self.enable_retry_topic_v2 or self.authorization_enabled

    @property
    def is_stateful(self) -> bool:
        """Tell whether a user is believed for a while on a connection."""
        return self.authentication_strategy.endswith(".StatefulAuthenticationStrategy")
