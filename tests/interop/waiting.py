"""Wait for a condition of another process, which cannot tell us when it comes true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from firearrow.client.admin import Admin
from firearrow.client.diagnosis import clusterfacts
from firearrow.client.diagnosis.checks import Thresholds, findings
from firearrow.client.diagnosis.findings import Finding, Threshold
from firearrow.clock import SystemClock

T = TypeVar("T")

POLL_INTERVAL_S = 0.02
POLL_INTERVAL_MAX_S = 0.1  # some probes cost ten milliseconds of a core


def wait_until(probe: Callable[[], T | None], within_s: float, what: str) -> T:
    """Return the first true result of ``probe``, or raise ``TimeoutError`` that names ``what``."""
    deadline_s = time.monotonic() + within_s
    interval_s = POLL_INTERVAL_S
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {within_s:g} s (last seen: {result!r})")
        time.sleep(interval_s)
        interval_s = min(1.1 * interval_s, POLL_INTERVAL_MAX_S)


OF_BROKERS = (
    *("name-servers", "brokers", "disk", "dispatch", "page-cache", "send-pressure", "timer"),
    *("halves", "asked"),
)
"""The checks of brokers: what groups have left to consume is the test's own affair."""


def wait_until_healthy(namesrv: str, within_s: float = 60) -> None:
    """Wait until `firearrow check` finds nothing wrong with brokers; their disk may be full."""
    limits = Thresholds(disk_percent=Threshold(101, 102))

    async def found() -> list[Finding]:
        async with Admin.of([namesrv]) as admin:
            facts = await clusterfacts.collect(admin, SystemClock().now_ms())
            assert len(facts.brokers) > 0
            return findings(facts, limits, OF_BROKERS)

    seen: list[Finding] = []

    def healthy() -> bool:
        seen[:] = asyncio.run(found())
        return not seen

    try:
        wait_until(healthy, within_s, "healthy brokers")
    except TimeoutError:
        raise TimeoutError(f"not healthy within {within_s:g} s: {seen}") from None
