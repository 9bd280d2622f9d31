"""What a long start says, and that a short one says nothing."""

import logging

import pytest

from firearrow.store.progress import Progress
from tests.broker.fakes import HandClock

MIB = 1 << 20


def test_says_now_and_then_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    progress = Progress("checking", clock.monotonic)
    with caplog.at_level(logging.INFO):
        for step in range(1, 101):
            clock.seconds += 0.5
            progress(step * MIB, 100 * MIB)
    assert len(caplog.messages) == 25
    assert caplog.messages[0] == "checking: 4 of 100 MiB (4 %), about 48 s left"
    assert caplog.messages[-1] == "checking: 100 of 100 MiB (100 %), about 0 s left"


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
