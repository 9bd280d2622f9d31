"""Who joined and left groups lately, within limits."""

from __future__ import annotations

from firearrow.broker.groups.memberlog import CHANGES_MAX, GROUPS_MAX, MemberLog
from firearrow.wire.client_bodies import MemberChange
from tests.broker.fakes import HandClock


def test_changes_are_kept_in_their_order_and_the_first_are_forgotten() -> None:
    clock = HandClock()
    log = MemberLog(clock)
    for number in range(CHANGES_MAX + 2):
        log.note("g", f"c{number}", joined=number % 2 == 0)
    changes = log.of("g")
    assert len(changes) == CHANGES_MAX
    assert changes[0] == MemberChange(clock.now_ms(), "c2", True)
    assert changes[-1] == MemberChange(clock.now_ms(), f"c{CHANGES_MAX + 1}", False)
    assert log.of("other") == []


def test_the_groups_that_changed_last_are_kept() -> None:
    log = MemberLog(HandClock())
    for number in range(GROUPS_MAX):
        log.note(f"g{number}", "c", joined=True)
    log.note("g0", "c", joined=False)
    log.note("new", "c", joined=True)
    assert len(log.of("g0")) == 2
    assert log.of("g1") == []
    assert len(log.of("g2")) == len(log.of("new")) == 1
