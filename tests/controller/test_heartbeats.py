"""Which brokers live, and what they have."""

from __future__ import annotations

import pytest

from firearrow.controller.election import Standing
from firearrow.controller.heartbeats import Heartbeats, Identity
from firearrow.errors import BrokerError
from firearrow.wire.headers import BrokerHeartbeat
from tests.namesrv.strategies import ManualClock

ONE = Identity("C", "a", 1)


def beat(heartbeats: Heartbeats, channel: object = "channel", broker_id: int = 1, **fields: int) -> None:
    heartbeats.beat(BrokerHeartbeat("C", "h:1", "a", broker_id, **fields), channel)


def test_a_broker_lives_for_as_long_as_it_says() -> None:
    clock = ManualClock()
    heartbeats = Heartbeats(clock)
    assert not heartbeats.is_alive(*ONE)
    beat(heartbeats, heartbeat_timeout_millis=3000)
    clock.seconds += 3
    assert heartbeats.is_alive(*ONE)
    assert heartbeats.expire() == []
    clock.seconds += 0.5
    assert not heartbeats.is_alive(*ONE)
    assert heartbeats.expire() == [(ONE, "channel")]
    assert heartbeats.expire() == []
    beat(heartbeats)
    clock.seconds += 9
    assert heartbeats.is_alive(*ONE)


def test_what_a_broker_has_does_not_become_less() -> None:
    heartbeats = Heartbeats(ManualClock())
    beat(heartbeats)
    assert heartbeats.standing(*ONE) == Standing(-1, -1, 2**31 - 1)
    for epoch, offset, priority, expected in (
        (2, 50, 4, (2, 50, 4)),
        (1, 90, 3, (2, 50, 3)),
        (2, 40, 2, (2, 50, 2)),
        (2, 60, 1, (2, 60, 1)),
        (3, 10, 1, (3, 10, 1)),
    ):
        beat(heartbeats, epoch=epoch, max_offset=offset, election_priority=priority)
        assert heartbeats.standing(*ONE) == expected


def test_a_broker_is_lost_with_its_last_connection() -> None:
    heartbeats = Heartbeats(ManualClock())
    beat(heartbeats, "old")
    beat(heartbeats, "new")
    beat(heartbeats, "new", broker_id=2)
    assert heartbeats.close("old") == []
    assert heartbeats.close("new") == [ONE, Identity("C", "a", 2)]
    assert not heartbeats.is_alive(*ONE)


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.controller.heartbeats.BROKERS_MAX", 1)
    heartbeats = Heartbeats(ManualClock())
    beat(heartbeats)
    beat(heartbeats)
    with pytest.raises(BrokerError, match="too many"):
        beat(heartbeats, broker_id=2)
