"""Settings of a client, which it sends when it begins, with the values that the proxy decides.

Source: RocketMQ's ``GrpcClientSettingsManager``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from firearrow.javanumbers import INT_MAX
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code, CustomizedBackoff, ExponentialBackoff, Settings
from firearrow.proxy.statuses import ProxyError
from firearrow.proxy.times import duration_of
from firearrow.wire.client_bodies import SubscriptionGroupConfig

RETRY_DELAYS_MS: Final = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""Times between redeliveries, unless a group has its own (RocketMQ's ``CustomizedRetryPolicy``)."""

EXPONENTIAL_MS: Final = 5_000, 7_200_000, 2
"""First and longest time, and factor (RocketMQ's ``ExponentialRetryPolicy``)."""

DELAYS_MAX: Final = 1000
"""Limit of the times of a policy that a client gets."""

LITE_QUOTA_DEFAULT: Final = 2000
LITE_QUOTA: Final = "lite.sub.client.quota"
LITE_BIND_TOPIC: Final = "lite.bind.topic"


def merged(settings: Settings, group: SubscriptionGroupConfig | None, config: ProxyConfig) -> Settings:
    """Return the settings for a client: its own, with the proxy's values in their places.

    ``group`` is the configuration of a consumer's group, None if there is none yet.
    """
    found = Settings()
    found.CopyFrom(settings)
    if found.HasField("publishing"):
        _merge_publishing(found, config)
    elif found.HasField("subscription"):
        _merge_subscription(found, group or SubscriptionGroupConfig(), config)
    _merge_metric(found, config)
    return found


def _merge_publishing(settings: Settings, config: ProxyConfig) -> None:
    policy = settings.backoff_policy
    policy.max_attempts = config.grpc_client_producer_max_attempts
    policy.exponential_backoff.CopyFrom(
        _exponential(
            config.grpc_client_producer_backoff_initial_millis,
            config.grpc_client_producer_backoff_max_millis,
            config.grpc_client_producer_backoff_multiplier,
        )
    )
    settings.publishing.validate_message_type = config.enable_topic_message_type_check
    settings.publishing.max_body_size = config.max_message_size


def _merge_subscription(settings: Settings, group: SubscriptionGroupConfig, config: ProxyConfig) -> None:
    subscription = settings.subscription
    subscription.receive_batch_size = config.grpc_client_consumer_long_polling_batch_size
    subscription.long_polling_timeout.CopyFrom(duration_of(config.grpc_client_consumer_max_long_polling_timeout_millis))
    subscription.fifo = group.consume_message_orderly
    subscription.lite_subscription_quota = lite_quota(group)
    subscription.max_lite_topic_size = config.max_lite_topic_size
    policy = settings.backoff_policy
    policy.max_attempts = min(group.retry_max_times, INT_MAX - 1) + 1
    kind, values = retry_policy(group)
    if kind == "EXPONENTIAL":
        policy.exponential_backoff.CopyFrom(_exponential(*values))
    else:
        policy.customized_backoff.CopyFrom(CustomizedBackoff(next=map(duration_of, values)))


def _merge_metric(settings: Settings, config: ProxyConfig) -> None:
    mode = config.metric_collector_mode
    settings.metric.Clear()
    settings.metric.on = mode != "off"
    if mode == "proxy":
        settings.metric.endpoints.CopyFrom(settings.access_point)
    elif mode == "on":
        host, _, port = config.metric_collector_address.rpartition(":")
        settings.metric.endpoints.addresses.add(host=host, port=int(port or 0))


def retry_policy(group: SubscriptionGroupConfig) -> tuple[str, Sequence[int]]:
    """Return the kind of a group's retry policy and its values: times in ms, or first, longest time and factor.

    A value that is none is RocketMQ's default: a broker stores any.
    """
    policy = group.group_retry_policy
    if policy.get("type") == "EXPONENTIAL":
        found = _dict_of(policy.get("exponentialRetryPolicy"))
        values = zip(("initial", "max", "multiplier"), EXPONENTIAL_MS, strict=True)
        return "EXPONENTIAL", tuple(_number_of(found.get(name), default) for name, default in values)
    delays = _dict_of(policy.get("customizedRetryPolicy")).get("next")
    if not isinstance(delays, list) or not delays:
        return "CUSTOMIZED", RETRY_DELAYS_MS
    return "CUSTOMIZED", tuple(_number_of(delay, RETRY_DELAYS_MS[0]) for delay in delays[:DELAYS_MAX])


def _dict_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number_of(value: Any, default: int) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT_MAX
    return value if is_number else default


def lite_quota(group: SubscriptionGroupConfig) -> int:
    """Return the count of lite topics that a client of a group may subscribe to."""
    text = group.attributes.get(LITE_QUOTA, "")
    return min(int(text), INT_MAX) if text.isascii() and text.isdigit() and len(text) < 20 else LITE_QUOTA_DEFAULT


def check_bound(group: str, parent: str, topic: str) -> None:
    """Check that the lite topics of a group belong to a topic: `Code.ILLEGAL_TOPIC` if not."""
    if parent != topic:
        raise ProxyError(
            Code.ILLEGAL_TOPIC, f"lite group {group} is expected to bind topic {parent}, but actual is {topic}"
        )


def _exponential(initial_ms: int, longest_ms: int, factor: int) -> ExponentialBackoff:
    return ExponentialBackoff(initial=duration_of(initial_ms), max=duration_of(longest_ms), multiplier=factor)
