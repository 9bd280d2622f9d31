"""Rules for the reasons of slow sends."""

from typing import Any

import pytest

from firearrow.client.diagnosis import sends
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.client.diagnosis.findings import Level
from firearrow.client.diagnosis.sends import SendFacts
from firearrow.wire.admin_bodies import HaConnection, HaStatus
from firearrow.wire.bodies import QueueData, Route


def facts(*, error: str = "", counted: dict[str, str] | None = None, **more: Any) -> SendFacts:
    config = more.pop("config", {})
    broker = BrokerFacts("C", "a", 0, "a:10911", counted or {}, error)
    return SendFacts([broker], {"a": config}, **more)


SYNC = {"brokerRole": "SYNC_MASTER"}
LATE = HaStatus(True, ha_connection_info=[HaConnection("s:1", diff=16 << 20)])
POOL = {"transientStorePoolEnable": "true"}

CASES: list[tuple[SendFacts, str, str, Level]] = [
    (facts(error="refused"), "unreachable", "a:10911 does not answer: refused", Level(2)),
    (facts(topic="T"), "no-route", "no broker has registered it", Level(2)),
    (
        facts(topic="T", route=Route([QueueData("a", 4, 4, 4)])),
        "no-route",
        "perm=4 on a makes the topic unwritable",
        Level(2),
    ),
    (facts(topic="SCHEDULE_TOPIC_XXXX", route=Route()), "no-route", "it is a system topic", Level(2)),
    (facts(counted={"writesRefused": "disk full"}), "refused", "disk full", Level(2)),
    (facts(counted={"commitLogDiskRatio": "0.86"}), "refused", "86 % of the disk", Level(1)),
    (
        facts(round_trips_ms={"a": [25.0, 20.0, 400.0]}),
        "far-away",
        "a small request takes 25 ms (the fastest 20 ms)",
        Level(1),
    ),
    (
        facts(counted={"sendThreadPoolQueueSize": "812", "sendThreadPoolQueueHeadWaitTimeMills": "180"}),
        "send-queue",
        "812 sends wait, the first for 180 ms",
        Level(1),
    ),
    (facts(counted={"pageCacheLockTimeMills": "300"}), "page-cache", "for 300 ms", Level(2)),
    (
        facts(counted={"remainTransientStoreBufferNumbs": "0"}, config=POOL),
        "page-cache",
        "no buffer of transientStorePool is free",
        Level(2),
    ),
    (facts(config={"flushDiskType": "SYNC_FLUSH"}), "each-on-disk", "waits for the disk", Level(0)),
    (facts(config=SYNC, replicas={"a": HaStatus(True)}), "replication", "no slave is connected", Level(2)),
    (facts(config=SYNC, replicas={"a": LATE}), "replication", "bytes behind", Level(1)),
    (facts(counted={"dispatchBehindBytes": str(16 << 20)}), "dispatch", "bytes behind", Level(1)),
    (facts(counted={"putMessageFailedTimes": "3"}), "failed-puts", "3 messages", Level(1)),
    (facts(untold=["a: refused"]), "asked", "a: refused", Level(3)),
]


@pytest.mark.parametrize(("given", "rule", "says", "level"), CASES)
def test_a_rule_finds_what_it_is_for(given: SendFacts, rule: str, says: str, level: Level) -> None:
    (found,) = sends.findings(given)
    assert (found.rule, found.level) == (rule, level)
    assert says in found.evidence


def test_a_sound_broker_has_no_findings() -> None:
    counted = {"remainTransientStoreBufferNumbs": "2147483647", "commitLogDiskRatio": "0.5"}
    route = Route([QueueData("a", 4, 4, 6)])
    times = {"a": [1.0, 400.0, 2.0]}
    assert sends.findings(facts(counted=counted, topic="T", route=route, round_trips_ms=times)) == []
