"""Live tails of topics: the newest messages, read once for all browsers that show the same tail.

A tail pulls as the group of tools, which has no offsets, from the first browser until the last one goes away. It keeps
the newest rows only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from firearrow.cli.failures import sentence
from firearrow.cli.messages.browsing import COLUMNS, MessageRow, Wanted, rows_of
from firearrow.cli.messages.reading import Place, follow
from firearrow.cli.output.reports import Table
from firearrow.client.admin import Admin
from firearrow.errors import FirearrowError

ROWS: Final = 50
TAILS_MAX: Final = 8
QUEUES_MAX: Final = 128
"""Queues of one tail: each has a pull that waits at its broker."""
RATE_MAX: Final = 500
"""Messages per second that a tail reads; at more, it leaves some out."""
PACE_SECONDS: Final = 0.5
"""Shortest time between two pictures of a tail."""


class Subject(NamedTuple):
    """Topic of a tail, its filters, and the brokers that it does not read."""

    topic: str
    wanted: Wanted
    without: tuple[str, ...] = ()


@dataclass(slots=True)
class Tail:
    """Newest rows of a subject, the newest first. ``number`` changes with each picture."""

    rows: deque[MessageRow] = field(default_factory=lambda: deque(maxlen=ROWS))
    read: int = 0
    shown: int = 0
    gaps: int = 0
    trouble: str = ""
    browsers: int = 0
    number: int = 0
    task: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def table(self) -> Table:
        """Rows as a table."""
        return Table("New messages", COLUMNS, [row.cells for row in self.rows])

    async def run(self, admin: Admin, places: Sequence[Place], wanted: Wanted) -> None:
        """Read until cancelled, or until a broker fails."""
        try:
            while True:
                await self._second(admin, places, wanted)
                self.gaps += 1
                await asyncio.sleep(1)
        except (OSError, FirearrowError) as error:
            self.trouble = sentence(error)
            self._tell()

    async def _second(self, admin: Admin, places: Sequence[Place], wanted: Wanted) -> None:
        """Read until more messages arrive within a second than a tail may read."""
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        async with aclosing(follow(admin, places, 0, wanted.tags, wanted.sql)) as messages:
            async for found in messages:
                if loop.time() - began >= 1:
                    began, count = loop.time(), 0
                count += 1
                self.read += 1
                rows = await rows_of([found], wanted)
                self.shown += len(rows)
                self.rows.extendleft(rows)
                self._tell()
                if count >= RATE_MAX:
                    return

    def _tell(self) -> None:
        self.number += 1
        self._news.set()

    async def news(self, number: int) -> int:
        """Wait for a picture after that with a number, and give its number."""
        while self.number == number:
            self._news.clear()
            await self._news.wait()
        return self.number


@dataclass(slots=True)
class Tails:
    """Tails of a cluster by their subjects."""

    _running: dict[Subject, Tail] = field(default_factory=dict)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Give the tasks that read."""
        return [tail.task for tail in self._running.values() if tail.task is not None]

    async def close(self) -> None:
        """End all tails."""
        tasks = self.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def follow(self, admin: Admin, subject: Subject, places: Sequence[Place]) -> AsyncGenerator[Tail, None]:
        """Give the tail again for each picture; FirearrowError if there are too many tails or queues."""
        if len(places) > QUEUES_MAX:
            raise FirearrowError(
                f"A tail reads at most {QUEUES_MAX} queues, and topic {subject.topic!r} has {len(places)}."
            )
        tail = self._running.get(subject)
        if tail is None:
            if len(self._running) >= TAILS_MAX:
                raise FirearrowError(
                    f"{TAILS_MAX} tails of this cluster are open, the most that the console reads at a time: close one."
                )
            tail = self._running[subject] = Tail()
            tail.task = asyncio.create_task(tail.run(admin, places, subject.wanted))
        tail.browsers += 1
        try:
            number = -1
            while True:
                number = await tail.news(number)
                yield tail
                if tail.trouble:
                    return
                await asyncio.sleep(PACE_SECONDS)
        finally:
            tail.browsers -= 1
            if not tail.browsers or tail.trouble:
                if self._running.get(subject) is tail:
                    del self._running[subject]
                assert tail.task is not None
                tail.task.cancel()
