"""Settings of clients with the values that the proxy decides."""

from __future__ import annotations

from typing import Any

import pytest

from firearrow.javanumbers import INT_MAX
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Settings
from firearrow.proxy.settings import RETRY_DELAYS_MS, lite_quota, merged, retry_policy
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from tests.proxy.rpcs import settings_of_consumer, settings_of_producer


def group(**fields: Any) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name="g", **fields)


def policy(kind: str, name: str = "", value: Any = None) -> SubscriptionGroupConfig:
    return group(group_retry_policy={"type": kind, name: value})


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"next": None}, {"next": "x"}, {"next": []}])
def test_a_policy_without_times_has_rocketmqs(value: Any) -> None:
    assert retry_policy(policy("CUSTOMIZED", "customizedRetryPolicy", value)) == ("CUSTOMIZED", RETRY_DELAYS_MS)
    assert retry_policy(policy("EXPONENTIAL", "exponentialRetryPolicy", value)) == ("EXPONENTIAL", (5000, 7_200_000, 2))


def test_a_time_that_is_none_has_the_default() -> None:
    times = [10, "x", -1, True, None, 1 << 80, 20]
    found = retry_policy(policy("CUSTOMIZED", "customizedRetryPolicy", {"next": times}))
    assert found == ("CUSTOMIZED", (10, 1000, 1000, 1000, 1000, 1000, 20))
    found = retry_policy(policy("EXPONENTIAL", "exponentialRetryPolicy", {"initial": "x", "max": 7, "multiplier": -1}))
    assert found == ("EXPONENTIAL", (5000, 7, 2))


def test_a_kind_that_is_none_is_customized() -> None:
    assert retry_policy(policy("OTHER")) == ("CUSTOMIZED", RETRY_DELAYS_MS)
    assert retry_policy(group(group_retry_policy={})) == ("CUSTOMIZED", RETRY_DELAYS_MS)


def test_a_long_policy_is_cut() -> None:
    _, times = retry_policy(policy("CUSTOMIZED", "customizedRetryPolicy", {"next": [1] * 100_000}))
    assert len(times) == 1000


@pytest.mark.parametrize(
    ("text", "quota"),
    [("7", 7), ("0", 0), ("", 2000), ("-1", 2000), ("x", 2000), ("٣", 2000), ("9" * 19, INT_MAX), ("9" * 5000, 2000)],
)
def test_the_quota_of_lite_topics(text: str, quota: int) -> None:
    assert lite_quota(group(attributes={"lite.sub.client.quota": text})) == quota


def test_a_group_that_is_not_known_has_the_defaults() -> None:
    given = settings_of_consumer("g", "T")
    assert merged(given, None, ProxyConfig()) == merged(given, group(), ProxyConfig())


@pytest.mark.parametrize("retries", [-1, 0, INT_MAX])
def test_any_count_of_retries_can_be_sent(retries: int) -> None:
    found = merged(settings_of_consumer("g", "T"), group(retry_max_times=retries), ProxyConfig())
    assert found.backoff_policy.max_attempts == min(retries + 1, INT_MAX)


def with_access_point(settings: Settings) -> Settings:
    settings.access_point.addresses.add(host="proxy", port=8081)
    return settings


def test_where_clients_send_their_metrics() -> None:
    given = with_access_point(settings_of_producer("T"))
    given.metric.on = True
    off = merged(given, None, ProxyConfig()).metric
    assert (off.on, off.HasField("endpoints")) == (False, False)
    own = merged(given, None, ProxyConfig(metric_collector_mode="proxy")).metric
    assert (own.on, own.endpoints) == (True, given.access_point)
    config = ProxyConfig(metric_collector_mode="on", metric_collector_address="collector:4317")
    other = merged(given, None, config).metric
    assert [(it.host, it.port) for it in other.endpoints.addresses] == [("collector", 4317)]


def test_the_configuration_decides_about_producers() -> None:
    config = ProxyConfig(
        grpc_client_producer_max_attempts=5,
        grpc_client_producer_backoff_initial_millis=1500,
        grpc_client_producer_backoff_max_millis=2500,
        grpc_client_producer_backoff_multiplier=3,
        enable_topic_message_type_check=False,
        max_message_size=77,
    )
    found = merged(settings_of_producer("T"), None, config)
    backoff = found.backoff_policy.exponential_backoff
    assert (found.backoff_policy.max_attempts, backoff.multiplier) == (5, 3)
    assert (backoff.initial.seconds, backoff.initial.nanos, backoff.max.seconds) == (1, 500_000_000, 2)
    assert (found.publishing.validate_message_type, found.publishing.max_body_size) == (False, 77)
