"""Rules about the route of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from firearrow.client.diagnosis.findings import Level
from firearrow.client.diagnosis.routes import RouteFacts, findings
from firearrow.wire.bodies import BrokerData, ClusterInfo, QueueData, Route, TopicConfig
from firearrow.wire.client_bodies import MessageQueue, TopicOffset

BOTH = {"a": {0: "a:1", 1: "a:2"}, "b": {0: "b:1", 1: "b:2"}}


def facts(
    servers: dict[str, dict[int, str]] | None = None,
    *,
    queues: dict[str, QueueData] | None = None,
    configs: dict[str, TopicConfig] | None = None,
    counts: dict[tuple[str, int], int] | None = None,
    **more: Any,
) -> RouteFacts:
    """Route of topic ``T`` on brokers a and b, with four queues on each."""
    servers = BOTH if servers is None else servers
    datas = {name: BrokerData("C", name, addresses) for name, addresses in servers.items()}
    known = {name: QueueData(name, 4, 4, 6) for name in servers} | (queues or {})
    all_known = {name: BrokerData("C", name, addresses) for name, addresses in BOTH.items()} | datas
    info = ClusterInfo(all_known, {"C": sorted(all_known)})
    ends = {MessageQueue("T", *place): TopicOffset(0, count) for place, count in (counts or {}).items()}
    usual = {name: TopicConfig("T", 4, 4) for name in servers}
    return RouteFacts(
        "T",
        info,
        Route(list(known.values()), list(datas.values())),
        usual if configs is None else configs,
        ends,
        **more,
    )


def found(of: RouteFacts) -> list[tuple[str, Level, str]]:
    return [(one.rule, one.level, one.subject) for one in findings(of)]


def test_a_sound_route_has_no_findings() -> None:
    assert found(facts(counts={("a", 0): 900, ("b", 0): 1100})) == []


@pytest.mark.parametrize(
    ("of", "rule", "level", "subject"),
    [
        (facts({"a": BOTH["a"]}), "single-broker", Level.WARNING, "a"),
        (facts({"a": {1: "a:2"}, "b": BOTH["b"]}), "no-master", Level.CRITICAL, "a"),
        (facts({"a": BOTH["a"], "b": {0: "b:1"}}), "missing-slaves", Level.WARNING, "b"),
        (facts(queues={"a": QueueData("a", 4, 4, 4)}), "no-write", Level.WARNING, "a"),
        (facts(queues={"a": QueueData("a", 4, 4, 2)}), "no-read", Level.WARNING, "a"),
        (facts(queues={"a": QueueData("a", 8, 8, 6)}), "unlike-queues", Level.WARNING, "T"),
        (facts(queues={"a": QueueData("a", 2, 4, 6)}), "unread-queues", Level.CRITICAL, "a"),
        (facts(queues={"a": QueueData("a", 8, 4, 6)}), "unread-queues", Level.OK, "a"),
        (facts(counts={("a", 0): 4000, ("a", 1): 100, ("b", 0): 4000}), "unlike-fill", Level.OK, ""),
        (
            facts(counts={("a", 0): 9000, ("b", 0): 10, ("b", 1): 10, ("b", 2): 10}),
            "unlike-fill",
            Level.WARNING,
            "queue 0 of a",
        ),
        (
            facts({"a": BOTH["a"]}, configs={"a": TopicConfig("T", 4, 4), "b": TopicConfig("T", 4, 4)}),
            "unregistered",
            Level.WARNING,
            "b",
        ),
        (facts(untold=["b: no answer"]), "asked", Level.UNKNOWN, "T"),
    ],
)
def test_what_is_wrong_is_found(of: RouteFacts, rule: str, level: Level, subject: str) -> None:
    assert ((rule, level, subject) in found(of)) is bool(subject), findings(of)


def test_a_drained_broker_differs_from_a_forbidden_topic() -> None:
    [drained] = findings(facts(queues={"a": QueueData("a", 4, 4, 4)}))
    assert "undrain a" in drained.cure
    read_only = {"a": TopicConfig("T", 4, 4, 4), "b": TopicConfig("T", 4, 4)}
    [forbidden] = findings(facts(queues={"a": QueueData("a", 4, 4, 4)}, configs=read_only))
    assert "its settings forbid it" in forbidden.evidence
    nobody = {name: QueueData(name, 4, 4, 4) for name in BOTH}
    assert {one.level for one in findings(facts(queues=nobody))} == {Level.CRITICAL}
