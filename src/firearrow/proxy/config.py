"""The proxy's configuration: keys of RocketMQ's ProxyConfig and AuthConfig, from the JSON of `rmq-proxy.json`.

A value has the type of its key, or is a text: ``8081`` and ``"8081"`` are the same, as for RocketMQ's reader::

    load(b'{"grpcServerPort": 9081, "grpcThreadPoolNums": 8}')  ->  a config, and no note
    load(b'{"grpcServerPort": "many"}')  ->  ConfigError: grpcServerPort=many: allowed is a whole number
                                             from 0 to 65535

RocketMQ's keys without effect here, most of them sizes of thread pools, are taken silently. A key that RocketMQ does not
know gets a note.

Source: RocketMQ's ``ProxyConfig``, ``AuthConfig``, ``Configuration``.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from firearrow.config.demands import refuse, refuse_of_jvm, shown
from firearrow.config.metrics import MetricsKeys
from firearrow.config.table import (
    AnyInt,
    CountInt,
    CountLong,
    Name,
    Note,
    OptionalHost,
    OptionalName,
    OptionalPath,
    Port,
    PositiveInt,
    PositiveLong,
    ServerList,
    keys,
    review,
    take,
)
from firearrow.config.tls import with_tls
from firearrow.errors import ConfigError, MessageError
from firearrow.javanumbers import INT_MAX, LONG_MAX, LONG_MIN
from firearrow.net.proxyheaders import networks_of
from firearrow.wire import fastjson

KEY_GROUPS: Final = ("auth", "client")
"""The groups of RocketMQ's keys that belong to a proxy, besides its own, see `firearrow.config.table.load`."""

FILE_NAME: Final = "rmq-proxy.json"
HOMES: Final = ("RMQ_PROXY_HOME", "ROCKETMQ_HOME")
"""Variables with the directory of RocketMQ's files, the first before the second; the file is in its ``conf``."""

MIB: Final = 1024 * 1024
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

AnyLong = Annotated[int, Meta(ge=LONG_MIN, le=LONG_MAX)]
RpcList = Annotated[str, Meta(pattern=r"[\w., ]*", title="names of requests or request codes, separated by ,")]
TopicName = Annotated[str, Meta(pattern="[%|a-zA-Z0-9_-]{1,127}", title="the name of a topic: letters, digits, %|_-")]
DelayLevels = Annotated[str, Meta(pattern=r"\d{1,9}[smhd]( +\d{1,9}[smhd])*", title="numbers followed by s, m, h or d")]
Networks = Annotated[str, Meta(pattern=r"[0-9a-fA-F.:/,; ]*", title="addresses and networks, separated by ,")]
CollectorAddress = Annotated[
    str, Meta(pattern=r"((\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]+):\d{1,5})?", title="host:port, or nothing")
]

_ANY_CASE: Final = frozenset({"proxyMode", "metricCollectorMode"})
_OBJECTS: Final = frozenset({"innerClientAuthenticationCredentials"})  # RocketMQ's reader takes an object for a text


class ProxyConfig(MetricsKeys, frozen=True):
    """Configuration of a proxy: its addresses, the limits of requests, and the behaviour of its clients."""

    # --- identity ---
    # fmt: off
    rocketmq_cluster_name: Annotated[Name, "name of the cluster of the brokers"] = field(name="rocketMQClusterName", default="DefaultCluster")
    proxy_cluster_name: Annotated[Name, "name of the cluster of the proxies, a label of their metrics"] = "DefaultCluster"
    proxy_name: Annotated[Name, "name of the proxy"] = field(default_factory=socket.gethostname)
    proxy_mode: Annotated[Literal["cluster", "local"], "cluster: the proxy serves the brokers of a cluster; local: it has its own broker in the same process. Case does not matter"] = "cluster"
    broker_config_path: Annotated[OptionalPath, "local: file of that broker; empty: `conf/broker.conf` below RMQ_PROXY_HOME"] = ""
    region_id: Annotated[OptionalName, "region that answers to remoting clients name"] = ""
    trace_on: Annotated[bool, "whether answers ask remoting clients to send traces"] = False

    # --- addresses ---
    grpc_server_port: Annotated[Port, "port for gRPC; 0 takes a free one"] = 8081
    remoting_listen_port: Annotated[Port, "port for remoting clients; 0 takes a free one"] = 8080
    enable_remoting_local_proxy_grpc: Annotated[bool, "whether a broker's ports for remoting serve gRPC, too"] = True
    local_serve_addr: Annotated[OptionalHost, "address of the proxy for other proxies; empty: the first address of the machine"] = ""
    remoting_access_addr: Annotated[OptionalHost, "address of the proxy that remoting clients get in place of a broker's; empty: localServeAddr"] = ""
    proxy_protocol_trusted_networks: Annotated[Networks, "addresses and networks of the load balancers whose PROXY header (version 1 or 2) names the client of a connection: `10.1.0.0/16, 192.0.2.7`. A header from elsewhere is read, and the connection keeps its own address. RocketMQ believes everybody"] = ""
    use_endpoint_port_from_request: Annotated[bool, "local: whether routes contain the host and port that the client has reached; otherwise they contain the broker's host and grpcServerPort, which a client behind a mapped port can't reach. cluster: they always do, unless routePort is set"] = False
    route_port: Annotated[Port, "port of the proxy in the routes that contain the host that the client has reached; 0: the port that it has reached"] = 0
    namesrv_addr: Annotated[ServerList, "name servers, `host:port` separated by `;`; empty: the servers of NAMESRV_ADDR"] = ""

    # --- certificate: RocketMQ's proxy has its own names for these keys ---
    tls_test_mode_enable: Annotated[bool, "whether a proxy without `tlsCertPath` makes itself a certificate for this run, which nobody can verify; RocketMQ ignores tlsCertPath then"] = True
    tls_server_cert_path: Annotated[OptionalPath, "file with the proxy's certificate and those it rests on (PEM), read again when it changes; if it is empty and tlsTestModeEnable is off: `conf/tls/rocketmq.crt` below RMQ_PROXY_HOME"] = field(name="tlsCertPath", default="")
    tls_server_key_path: Annotated[OptionalPath, "file with its key (PEM); empty: it is in the same file, or `rocketmq.key` beside `rocketmq.crt`"] = field(name="tlsKeyPath", default="")
    tls_server_key_password: Annotated[str, "the password of that key, if it has one"] = field(name="tlsKeyPassword", default="")

    # --- connections of gRPC clients ---
    grpc_max_inbound_message_size: Annotated[PositiveInt, "bytes of the largest request with messages; other requests have 1 MiB"] = 130 * MIB
    grpc_max_concurrent_calls_per_connection: Annotated[PositiveInt, "calls of one connection that may be pending; there are 4096 at most"] = INT_MAX
    grpc_client_idle_time_mills: Annotated[PositiveLong, "ms without a call after which a connection is closed; a telemetry stream is a call"] = 120_000
    grpc_shutdown_time_seconds: Annotated[CountLong, "seconds that pending calls have to end when the proxy stops; waits for messages end at once"] = 30
    channel_expired_timeout: Annotated[PositiveLong, "ms without a heartbeat after which a client is forgotten"] = 120_000
    grpc_proxy_relay_request_timeout_in_seconds: Annotated[PositiveLong, "seconds that a client has to answer a request of an administrator"] = 5
    grpc_route_thread_queue_capacity: Annotated[PositiveInt, "queries of routes and assignments that may be pending; more are refused with code 42900"] = 10_000
    grpc_producer_thread_queue_capacity: Annotated[PositiveInt, "sends and recalls that may be pending"] = 10_000
    grpc_consumer_thread_queue_capacity: Annotated[PositiveInt, "calls of consumers that may be pending, without waits for messages"] = 10_000
    grpc_client_manager_thread_queue_capacity: Annotated[PositiveInt, "heartbeats, settings and terminations of clients that may be pending"] = 10_000
    grpc_transaction_thread_queue_capacity: Annotated[PositiveInt, "ends of transactions that may be pending"] = 10_000

    # --- messages to send ---
    max_message_size: Annotated[AnyInt, "bytes of the largest body; 0 or less: no limit"] = 4 * MIB
    enable_message_body_empty_check: Annotated[bool, "whether a message must have a body"] = True
    max_user_property_size: Annotated[AnyInt, "bytes of a message's own properties, tag and keys together; 0 or less: no limit"] = 16 * 1024
    user_property_max_num: Annotated[CountInt, "limit of a message's own properties"] = 128
    max_message_group_size: Annotated[AnyInt, "bytes that the name of a message group must stay below; 0 or less: no limit"] = 64
    max_lite_topic_size: Annotated[CountInt, "bytes of the longest name of a lite topic"] = 64
    max_delay_time_mills: Annotated[AnyLong, "ms from now to the latest delivery time; 0 or less: no limit"] = 24 * HOUR_MS
    max_transaction_recovery_second: Annotated[AnyLong, "seconds to the latest first check of a transaction; 0 or less: no limit"] = 3600
    enable_topic_message_type_check: Annotated[bool, "whether a message must be of its topic's type (`message.type`)"] = True
    use_delay_level: Annotated[bool, "whether a delivery time becomes a delay level as well"] = False
    message_delay_level: Annotated[DelayLevels, "delays of the levels, level 1 first"] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    # --- settings of clients ---
    grpc_client_producer_max_attempts: Annotated[PositiveInt, "attempts of a producer to send a message"] = 3
    grpc_client_producer_backoff_initial_millis: Annotated[CountLong, "ms before a producer's second attempt"] = 10
    grpc_client_producer_backoff_max_millis: Annotated[CountLong, "ms at most between its attempts"] = 1000
    grpc_client_producer_backoff_multiplier: Annotated[PositiveInt, "factor from one pause between its attempts to the next"] = 2
    grpc_client_consumer_min_long_polling_timeout_millis: Annotated[CountLong, "ms that a receive waits for messages at least"] = 5000
    grpc_client_consumer_max_long_polling_timeout_millis: Annotated[PositiveLong, "ms that it waits at most"] = 20_000
    grpc_client_consumer_long_polling_batch_size: Annotated[PositiveInt, "messages that a push consumer receives at once"] = 32
    metric_collector_mode: Annotated[Literal["off", "on", "proxy"], "whether clients send their metrics, to metricCollectorAddress (on) or to the proxy's own address (proxy). Case does not matter"] = "off"
    metric_collector_address: Annotated[CollectorAddress, "on: the collector of clients' metrics"] = ""

    # --- invisible times, and their renewal ---
    default_invisible_time_mills: Annotated[PositiveLong, "ms that a received message stays invisible if the proxy renews that"] = MINUTE_MS
    min_invisible_time_mills_for_recv: Annotated[CountLong, "ms that a receive may ask for at least"] = 10_000
    max_invisible_time_mills: Annotated[AnyLong, "ms that a receive or change may ask for at most; 0 or less: no limit"] = 12 * HOUR_MS
    enable_proxy_auto_renew: Annotated[bool, "whether the proxy renews the invisible times of messages in the hands of push consumers"] = True
    renew_schedule_period_millis: Annotated[PositiveLong, "ms between looks for invisible times that end soon"] = 5000
    renew_ahead_time_millis: Annotated[PositiveLong, "ms before its end that an invisible time is renewed"] = 10_000
    renew_max_time_millis: Annotated[PositiveLong, "ms after its reception that a message is no longer renewed"] = 3 * HOUR_MS
    max_renew_retry_times: Annotated[CountInt, "retries of a failed renewal"] = 3
    lock_timeout_ms_in_handle_group: Annotated[PositiveLong, "ms that an acknowledgement or a change of the invisible time waits for a renewal of its message"] = 3000
    invisible_time_millis_when_clear: Annotated[CountLong, "ms after which messages of a lost client become visible"] = 1000
    enable_batch_ack: Annotated[bool, "whether acknowledgements of one call go to a broker in one request, unless they are of lite topics or in order"] = False

    # --- lite topics ---
    max_lite_renew_num_per_channel: Annotated[CountInt, "messages of lite topics that a client may hold without an acknowledgement"] = 100
    max_sync_lite_subscription_rate: Annotated[CountInt, "additions to lite subscriptions in a second, of all clients"] = 5000

    # --- caches ---
    topic_route_service_cache_expired_seconds: Annotated[PositiveInt, "seconds without use after which a route is forgotten"] = 300
    topic_route_service_cache_refresh_seconds: Annotated[PositiveInt, "seconds after which a route is asked for again"] = 20
    topic_route_service_cache_max_num: Annotated[PositiveInt, "limit of routes"] = 20_000
    topic_config_cache_expired_seconds: Annotated[PositiveInt, "seconds without use after which a topic's type is forgotten"] = 300
    topic_config_cache_refresh_seconds: Annotated[PositiveInt, "seconds after which it is asked for again"] = 20
    topic_config_cache_max_num: Annotated[PositiveInt, "limit of topics with a known type"] = 20_000
    subscription_group_config_cache_expired_seconds: Annotated[PositiveInt, "seconds without use after which the configuration of a group is forgotten"] = 300
    subscription_group_config_cache_refresh_seconds: Annotated[PositiveInt, "seconds after which it is asked for again"] = 20
    subscription_group_config_cache_max_num: Annotated[PositiveInt, "limit of groups with a known configuration"] = 20_000
    user_cache_expired_seconds: Annotated[PositiveInt, "seconds without use after which a user is forgotten"] = 300
    user_cache_refresh_seconds: Annotated[PositiveInt, "seconds after which a user is asked for again"] = 20
    user_cache_max_num: Annotated[PositiveInt, "limit of known users"] = 20_000
    acl_cache_expired_seconds: Annotated[PositiveInt, "seconds without use after which permissions of a user are forgotten"] = 300
    acl_cache_refresh_seconds: Annotated[PositiveInt, "seconds after which permissions are asked for again"] = 20
    acl_cache_max_num: Annotated[PositiveInt, "limit of users with known permissions"] = 20_000

    # --- other proxies ---
    heartbeat_syncer_topic_name: Annotated[TopicName, "topic through which proxies learn each other's consumers"] = "DefaultHeartBeatSyncerTopic"
    heartbeat_syncer_topic_cluster_name: Annotated[OptionalName, "cluster of that topic; empty: rocketMQClusterName"] = ""

    # --- access control; users and permissions are those of the brokers ---
    authentication_enabled: Annotated[bool, "whether clients must sign their requests"] = False
    authorization_enabled: Annotated[bool, "whether requests need permissions; needs authenticationEnabled"] = False
    authentication_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"], "class that checks signatures; there is one"] = ""
    authentication_metadata_provider: Annotated[Literal["", "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider", "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"], "class that knows users: by questions to a broker, or local, which needs proxyMode=local; empty: as proxyMode needs it"] = ""
    authentication_strategy: Annotated[Literal["", "org.apache.rocketmq.auth.authentication.strategy.StatelessAuthenticationStrategy", "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"], "whether every signature is checked (stateless, also if it is empty), or one for each user on a connection from time to time"] = ""
    authentication_whitelist: Annotated[RpcList, "requests, joined by `,`, such as `apache.rocketmq.v2.QueryRouteRequest`: they are exempt from signatures, if also from permissions or if authorizationEnabled is off"] = ""
    inner_client_authentication_credentials: Annotated[str, 'credentials for the proxy\'s own requests to brokers, as `{"accessKey":"...","secretKey":"..."}`'] = ""
    authorization_provider: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider"], "class that decides by permissions; there is one"] = ""
    authorization_metadata_provider: Annotated[Literal["", "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider", "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"], "class that knows permissions, by the same rule as users"] = ""
    authorization_strategy: Annotated[Literal["", "org.apache.rocketmq.auth.authorization.strategy.StatelessAuthorizationStrategy", "org.apache.rocketmq.auth.authorization.strategy.StatefulAuthorizationStrategy"], "strategy of authorization; both remember allowed requests until a user or a permission changes"] = ""
    authorization_whitelist: Annotated[RpcList, "requests, joined by `,`, that are exempt from permissions"] = ""
    stateful_authentication_cache_max_num: Annotated[PositiveInt, "users on connections that the stateful strategy remembers; one more makes all sign again"] = 10_000
    stateful_authentication_cache_expired_second: Annotated[PositiveInt, "seconds that the stateful strategy remembers a user on a connection"] = 60
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse permissions of users that could be anybody, and waits that can't be."""
        if self.tls_server_mode == "enforcing" and not (self.tls_server_cert_path or self.tls_test_mode_enable):
            raise ConfigError("tls.server.mode=enforcing needs tlsCertPath (or, for trials, tlsTestModeEnable=true)")
        super().__post_init__()
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: otherwise any client could "
                "pretend to be any user"
            )
        networks_of(self.proxy_protocol_trusted_networks)
        if self.metric_collector_mode == "on" and not self.metric_collector_address:
            raise ConfigError("metricCollectorMode=on needs metricCollectorAddress")
        least = self.grpc_client_consumer_min_long_polling_timeout_millis
        if least > self.grpc_client_consumer_max_long_polling_timeout_millis:
            raise ConfigError(
                f"grpcClientConsumerMinLongPollingTimeoutMillis={least} is above "
                "grpcClientConsumerMaxLongPollingTimeoutMillis"
            )


# fmt: off
WITHOUT_EFFECT: Final = frozenset(
    {
        "channelExpiredInSeconds", "consumerProcessorThreadPoolNums", "consumerProcessorThreadPoolQueueCapacity",
        "contextExpiredInSeconds", "detectInterval", "detectTimeout", "enableAclRpcHookForClusterMode",
        "enableGrpcEpoll", "enablePrintJstack", "grpcBossLoopNum", "grpcClientManagerThreadPoolNums",
        "grpcConsumerThreadPoolNums", "grpcProducerThreadPoolNums", "grpcRouteThreadPoolNums", "grpcThreadPoolNums",
        "grpcThreadPoolQueueCapacity", "grpcTransactionThreadPoolNums", "grpcWorkerLoopNum",
        "heartbeatSyncerThreadPoolNums", "heartbeatSyncerThreadPoolQueueCapacity", "localProxyConnectTimeoutMs",
        "longPollingReserveTimeInMillis", "metadataThreadPoolNums", "metadataThreadPoolQueueCapacity",
        "namesrvDomain", "namesrvDomainSubgroup", "printJstackInMillis", "printThreadPoolStatusInMillis",
        "producerProcessorThreadPoolNums", "producerProcessorThreadPoolQueueCapacity",
        "remotingDefaultThreadPoolNums", "remotingDefaultThreadPoolQueueCapacity", "remotingHeartbeatThreadPoolNums",
        "remotingHeartbeatThreadPoolQueueCapacity", "remotingPullMessageThreadPoolNums",
        "remotingPullThreadPoolQueueCapacity", "remotingSendMessageThreadPoolNums",
        "remotingSendThreadPoolQueueCapacity", "remotingTopicRouteThreadPoolNums",
        "remotingTopicRouteThreadPoolQueueCapacity", "remotingUpdateOffsetThreadPoolNums",
        "remotingUpdateOffsetThreadPoolQueueCapacity", "remotingWaitTimeMillsInDefaultQueue",
        "remotingWaitTimeMillsInHeartbeatQueue", "remotingWaitTimeMillsInPullQueue",
        "remotingWaitTimeMillsInSendQueue", "remotingWaitTimeMillsInTopicRouteQueue",
        "remotingWaitTimeMillsInUpdateOffsetQueue", "renewMaxThreadPoolNums", "renewThreadPoolNums",
        "renewThreadPoolQueueCapacity", "returnHandleGroupThreadPoolNums", "rocketmqMQClientNum", "sendLatencyEnable",
        "startDetectorEnable", "tlsCertWatchIntervalMs", "topicRouteServiceThreadPoolNums",
        "topicRouteServiceThreadPoolQueueCapacity", "transactionDataExpireMillis",
        "transactionDataExpireScanPeriodMillis", "transactionDataMaxNum", "transactionDataMaxWaitClearMillis",
        "transactionHeartbeatBatchNum", "transactionHeartbeatPeriodSecond", "transactionHeartbeatThreadPoolNums",
        "transactionHeartbeatThreadPoolQueueCapacity",
    }
)
# fmt: on
"""Keys of RocketMQ's proxy that change nothing here. It has no thread pools, and looks at certificates in short periods.
Requests do not wait in queues, and a transaction's id has the place of its message. A broker that fails is left out of
routes; sends do not avoid one that is slow."""


def load(text: bytes, environment: Mapping[str, str] | None = None) -> tuple[ProxyConfig, list[Note]]:
    """Build the configuration from the bytes of a file; return it and a note on each unknown key.

    ``environment`` holds variables: ``NAMESRV_ADDR``, a JVM's variables with TLS keys, and RocketMQ's home. Raises
    ConfigError for text that is no JSON object, and for a value that its key does not accept or this version does not
    have.
    """
    environment = environment or {}
    refuse_of_jvm(environment)
    pairs = with_tls(pairs_of(text), environment)
    refuse(pairs)
    for key in _ANY_CASE & pairs.keys():
        pairs[key] = pairs[key].lower()
    home = _home(environment)
    config, rest = take(ProxyConfig, pairs | _defaults_of(environment, home, pairs))
    notes = review({key: rest[key] for key in rest if key not in WITHOUT_EFFECT}, ProxyConfig, servers=KEY_GROUPS)
    return msgspec.structs.replace(config, extra=rest), notes


def pairs_of(text: bytes) -> dict[str, str]:
    """Return the pairs of a file's JSON object as texts; a null counts as a missing key.

    The text may be in fastjson's dialect, with comments for example. Raises ConfigError for any other text.
    """
    try:
        found = fastjson.loads(text)
    except MessageError as error:
        raise ConfigError(f"{FILE_NAME} can't be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{FILE_NAME} must be one JSON object")
    return {str(key): _text_of(str(key), value) for key, value in found.items() if value is not None}


def path_of(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the file below RocketMQ's home, None without a home."""
    home = _home(environment)
    return None if home is None else home / "conf" / FILE_NAME


def _text_of(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    text = fastjson.dumps(value).decode()
    if isinstance(value, dict | list) and key in keys(ProxyConfig) and key not in _OBJECTS:
        raise ConfigError(f"{shown(key, text)}: allowed is {keys(ProxyConfig)[key].allowed}, no object or list")
    return text


def _home(environment: Mapping[str, str]) -> Path | None:
    return next((Path(environment[name]) for name in HOMES if environment.get(name)), None)


def _defaults_of(environment: Mapping[str, str], home: Path | None, pairs: Mapping[str, str]) -> dict[str, str]:
    """Return pairs that the environment adds: name servers, and files at their usual place that are needed."""
    found = {}
    if not pairs.get("namesrvAddr") and environment.get("NAMESRV_ADDR"):
        found["namesrvAddr"] = environment["NAMESRV_ADDR"]
    if home is None:
        return found
    if pairs.get("proxyMode", "").strip() == "local" and not pairs.get("brokerConfigPath"):
        found["brokerConfigPath"] = str(home / "conf" / "broker.conf")
    if pairs.get("tlsTestModeEnable", "").strip().lower() == "false" and not pairs.get("tlsCertPath"):
        found["tlsCertPath"] = str(home / "conf" / "tls" / "rocketmq.crt")
        found["tlsKeyPath"] = pairs.get("tlsKeyPath") or str(home / "conf" / "tls" / "rocketmq.key")
    return found
