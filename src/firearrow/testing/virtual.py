"""Embedded cluster in virtual time: hours of delays, retries and timeouts take milliseconds.

    with VirtualTime() as time:
        async def scenario() -> None:
            await time.cluster.create_topic("orders")
            ...
            await asyncio.sleep(7200)        # two hours, at once
        time.run(scenario())

Cluster and clients are on one loop (`firearrow.testing.loop`), in one thread, and connections are in memory. So a
client in another process, or with its own sockets or threads, can't connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from firearrow.testing.cluster import EmbeddedCluster
from firearrow.testing.loop import VirtualClock, VirtualLoop
from firearrow.testing.settings import Value

T = TypeVar("T")

# A broker always plans another call, so a test that waits in vain would run forever, though time costs nothing.
# RocketMQ accepts delivery times up to three days ahead.
WITHIN: Final = timedelta(days=3, hours=1)
# Without threads, the loop flushes. No power is lost here, so flushes may be rare: each of these tasks is a third of
# the work of an idle broker.
UNHURRIED: Final[Mapping[str, Value]] = {
    "flushIntervalCommitLog": 60_000,
    "flushIntervalConsumeQueue": 60_000,
    "cleanResourceInterval": 60_000,
}


class VirtualTime:
    """Virtual loop with its clock and a ``cluster`` on it, for one ``with`` block.

    Arguments go to `EmbeddedCluster`.
    """

    def __init__(self, brokers: int = 1, config: Mapping[str, Value] | None = None, **options: Any) -> None:
        self.cluster: Final = EmbeddedCluster(brokers, {**UNHURRIED, **(config or {})}, **options)
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)

    def __enter__(self) -> Self:
        try:
            self.clock: VirtualClock = VirtualClock(self._runner.get_loop())
            self.run(self.cluster.start())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.cluster.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, T], *, within: timedelta = WITHIN) -> T:
        """Run a coroutine on the loop and return its result.

        While it waits, time leaps from one planned call to the next. Raises TimeoutError if it takes longer than
        ``within``, in virtual time.
        """
        return self._runner.run(_limited(coroutine, within))

    def advance(self, by: timedelta | float) -> None:
        """Let time pass, a timedelta or seconds: everything due in that time happens."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self.run(asyncio.sleep(seconds), within=timedelta(seconds=seconds + 1))

    @property
    def now(self) -> datetime:
        """Virtual wall clock, in UTC."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    @property
    def now_ms(self) -> int:
        """Virtual wall clock in ms since 1970, as in the timestamps of messages."""
        return self.clock.now_ms()


async def _limited(coroutine: Coroutine[Any, Any, T], within: timedelta) -> T:
    try:
        async with asyncio.timeout(within.total_seconds()) as limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"the coroutine is not done after {within} of virtual time") from None
