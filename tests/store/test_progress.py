"""What a long start says, and that a short one says nothing."""

import logging

import pytest

from firearrow.store.progress import Progress
from tests.broker.fakes import HandClock
from tests.loglines import told

MIB = 1 << 20


def test_says_now_and_then_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    progress = Progress("checking", clock.monotonic)
    with caplog.at_level(logging.INFO):
        for step in range(1, 101):
            clock.seconds += 0.5
            progress(step * MIB, 100 * MIB)
    assert len(caplog.messages) == 25
    always = {"event": "start goes on", "work": "checking", "total_bytes": 100 * MIB}
    first = {"done_bytes": 4 * MIB, "done_percent": 4, "left_seconds": 48}
    last = {"done_bytes": 100 * MIB, "done_percent": 100, "left_seconds": 0}
    assert told(caplog)[0] == always | first
    assert told(caplog)[-1] == always | last


def test_says_nothing_when_it_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    progress = Progress("checking", clock.monotonic)
    with caplog.at_level(logging.INFO):
        for step in range(100):
            clock.seconds += 0.01
            progress(step, 100)
        clock.seconds += 10
        progress(0, 0)
    assert caplog.messages == []
