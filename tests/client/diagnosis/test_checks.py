"""Checks for monitoring, and their thresholds."""

from typing import Any

import pytest

from firearrow.client.diagnosis.checks import Thresholds, findings
from firearrow.client.diagnosis.clusterfacts import BrokerFacts, ClusterFacts, Lag, Stock
from firearrow.client.diagnosis.findings import Finding, Level, Threshold, by_gravity, counted, worst
from firearrow.errors import ConfigError

SERVERS = ("ns-1:9876", "ns-2:9876")


def facts(*, counted: dict[str, str] | None = None, error: str = "", **more: Any) -> ClusterFacts:
    broker = BrokerFacts("C", "a", 0, "a:10911", counted or {}, error)
    return ClusterFacts(0, SERVERS, **({"brokers": [broker]} | more))


def found(of: ClusterFacts, limits: Thresholds | None = None) -> list[tuple[str, Level, str]]:
    return [(one.rule, one.level, one.subject) for one in findings(of, limits or Thresholds())]


def test_a_sound_cluster_has_no_findings() -> None:
    counted = {
        "commitLogDiskRatio": "0.74",
        "consumeQueueDiskRatio": "0.10",
        "dispatchBehindBytes": "0",
        "pageCacheLockTimeMills": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "49",
        "timerReadBehind": "0",
        "writesRefused": "",
    }
    lag = Lag("g", "T", "a", 9_999, 299_000)
    sound = facts(counted=counted, lags=[lag], halves={"a": 999})
    assert found(sound) == []
    assert worst(findings(sound, Thresholds())) is Level.OK


@pytest.mark.parametrize(
    ("counted", "rule", "level"),
    [
        ({"commitLogDiskRatio": "0.75"}, "disk", Level.WARNING),
        ({"commitLogDiskRatio": "0.1", "commitLogDiskRatio_/b": "0.9"}, "disk", Level.CRITICAL),
        ({"writesRefused": "the disk is full"}, "disk", Level.CRITICAL),
        ({"dispatchBehindBytes": str(16 << 20)}, "dispatch", Level.WARNING),
        ({"pageCacheLockTimeMills": "1000"}, "page-cache", Level.CRITICAL),
        ({"sendThreadPoolQueueHeadWaitTimeMills": "200"}, "send-pressure", Level.CRITICAL),
        ({"timerReadBehind": "10"}, "timer", Level.WARNING),
    ],
)
def test_what_a_broker_counts_is_held_against_limits(counted: dict[str, str], rule: str, level: Level) -> None:
    assert found(facts(counted=counted)) == [(rule, level, "a")]


@pytest.mark.parametrize(
    ("more", "rule", "level", "subject"),
    [
        ({"lags": [Lag("g", "T", "a", 10_000, 0)]}, "lag", Level.WARNING, "g"),
        ({"lags": [Lag("g", "T", "a", 1, 3_600_000)]}, "lag", Level.CRITICAL, "g"),
        ({"dead": [Stock("%DLQ%g", "a", 1, 0)]}, "dead-letters", Level.WARNING, "g"),
        ({"dead": [Stock("%DLQ%g", "a", 200, 100)]}, "dead-letters", Level.CRITICAL, "g"),
        ({"unconsumed": [Stock("T", "a", 1000)]}, "unconsumed", Level.WARNING, "T"),
        ({"halves": {"a": 100_000}}, "halves", Level.CRITICAL, "a"),
        ({"untold": ["a: no"]}, "asked", Level.UNKNOWN, "cluster"),
        ({"silent": {"ns-1:9876": "refused"}}, "name-servers", Level.CRITICAL, "ns-1:9876"),
        ({"brokers": []}, "brokers", Level.CRITICAL, "cluster"),
    ],
)
def test_what_waits_is_held_against_limits(more: dict[str, Any], rule: str, level: Level, subject: str) -> None:
    assert found(facts(**more)) == [(rule, level, subject)]


def test_a_broker_that_does_not_answer_is_critical() -> None:
    assert found(facts(error="refused")) == [("brokers", Level.CRITICAL, "a")]


def test_brokers_that_are_missing_are_counted() -> None:
    (one,) = findings(facts(), Thresholds()._replace(brokers=2))
    assert one.evidence == "of 2 brokers, 1 is registered"
    [lone] = findings(facts(lags=[Lag("g", "T", "a", 1, 3_600_000)]), Thresholds())
    assert lone.evidence == "has not consumed 1 message of topic T on a, the first is 3,600 s old"


def test_without_a_name_server_nothing_is_known() -> None:
    dark = facts(brokers=[], silent=dict.fromkeys(SERVERS, "refused"))
    assert found(dark) == [("name-servers", Level.UNKNOWN, address) for address in SERVERS]


def test_only_some_checks_can_be_asked_for_but_what_hides_the_rest_is_told() -> None:
    bad = facts(counted={"commitLogDiskRatio": "0.9"}, halves={"a": 100_000})
    assert [one.rule for one in findings(bad, Thresholds(), ["halves"])] == ["halves"]
    gone = facts(error="refused", halves={"a": 100_000})
    assert [one.rule for one in findings(gone, Thresholds(), ["halves"])] == ["brokers", "halves"]
    dark = facts(brokers=[], silent=dict.fromkeys(SERVERS, "refused"))
    assert {one.rule for one in findings(dark, Thresholds(), ["halves"])} == {"name-servers"}


def test_what_is_known_to_be_wrong_outweighs_what_is_not_known() -> None:
    unknown, bad = Finding("r", Level.UNKNOWN, "s", ""), Finding("r", Level.WARNING, "s", "")
    assert worst([unknown, bad]) is Level.WARNING
    assert by_gravity([unknown, bad]) == [bad, unknown]


@pytest.mark.parametrize(
    ("text", "levels"), [("10:20", [0, 1, 2]), ("10:", [0, 1, 1]), (":20", [0, 0, 2]), (":", [0, 0, 0])]
)
def test_a_limit_is_two_numbers(text: str, levels: list[int]) -> None:
    limit = Threshold.parse(text)
    assert [limit.level(value) for value in (9.9, 10, 20)] == levels
    assert str(limit) == text


@pytest.mark.parametrize("text", ["10", "x:1", "1:y", "", "-1:2", "inf:", "20:10", "nan:"])
def test_what_is_no_limit_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="limit"):
        Threshold.parse(text)


def test_a_number_has_its_noun() -> None:
    assert [counted(n, "client") for n in (0, 1, 2, 1200)] == ["0 clients", "1 client", "2 clients", "1,200 clients"]
    assert [counted(n, "send waits", "sends wait") for n in (1, 2)] == ["1 send waits", "2 sends wait"]
