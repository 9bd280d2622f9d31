"""A real broker process that is killed under load, again and again, and what must be left of it.

What must be left after each restart is what `tests.crash.history` says.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from firearrow.message.batch import encode_batch
from firearrow.message.record import iter_records
from firearrow.wire.command import Command, request
from tests.broker.serving import pull_fields, send_fields
from tests.crash.history import History
from tests.net.talker import Talker, talking

READY = re.compile(r"ready namesrv=127\.0\.0\.1:\d+ broker=127\.0\.0\.1:(\d+) grpc=\S+\n")
QUEUES = 4
CONNECTIONS = 3
IN_FLIGHT = 16
ACKNOWLEDGED_MAX = 1500
# Every kind of file rolls within a few rounds.
SIZES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=500",
    "maxIndexNum=3000",
    "flushConsumeQueueThoroughInterval=300",
)


@contextmanager
def serving(store: Path, *settings: str, within: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A broker on a free port; it is gone when the block ends. ``within`` is a command that starts
    another."""
    options = [part for pair in (*SIZES, *settings) for part in ("--set", pair)]
    command = [
        *within, sys.executable, "-m", "firearrow", "serve", "--store", str(store),
        "--namesrv-port", "0", "--broker-port", "0", "--no-console", *options,
    ]  # fmt: skip
    with (store.parent / "broker.log").open("a") as log:
        environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                ready = READY.fullmatch(process.stdout.readline())
                assert ready, (store.parent / "broker.log").read_text()[-3000:]
                yield process, int(ready.group(1))
            finally:
                process.kill()


class Victim:
    """The store of one broker, through many kills."""

    def __init__(self, seed: int, store: Path) -> None:
        self._random = Random(seed)
        self._store = store
        self._numbers = itertools.count()
        self._history = History(QUEUES)

    @property
    def kept(self) -> list[list[bytes]]:
        """What each queue is known to hold."""
        return self._history.kept

    def round(self, *settings: str) -> None:
        """Start, compare, send until some are acknowledged, kill."""
        with serving(self._store, *settings) as (process, port):
            asyncio.run(self._compare_new(port))
            asyncio.run(self._load(port, process.kill))
            process.wait()

    def compare_all(self) -> None:
        """Start once more and read everything from the first message; stop as an operator does."""
        with serving(self._store) as (process, port):
            asyncio.run(self._compare_new(port))
            found = asyncio.run(self._read(port, [0] * QUEUES))
            assert found == self.kept
            process.terminate()
            assert process.wait(30) == 0

    # --- comparing ---

    async def _compare_new(self, port: int) -> None:
        """Read what each queue has got since the last time, and check it."""
        if self._history.sent:
            starts = [len(bodies) for bodies in self.kept]
            self._history.compare(await self._read(port, starts))

    async def _read(self, port: int, starts: list[int]) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        async with talking(port) as talker:
            for queue_id, start in enumerate(starts):
                found.append(await bodies_of_queue(talker, queue_id, start))
        return found

    # --- load ---

    async def _load(self, port: int, strike: Callable[[], object]) -> None:
        """Send on several connections until the broker is killed, which is what ``strike`` does in
        the end; it is called when the number of answers says that it is time."""
        self._left = self._random.randrange(ACKNOWLEDGED_MAX)
        await asyncio.gather(*(self._connection(port, strike) for _ in range(CONNECTIONS)))

    async def _connection(self, port: int, strike: Callable[[], object]) -> None:
        try:
            async with talking(port) as talker:
                waiting: dict[int, tuple[int, list[bytes]]] = {}
                for opaque in itertools.count(1):
                    waiting[opaque] = self._send(talker, opaque)
                    if len(waiting) >= IN_FLIGHT:
                        answer = await self._answer(talker)
                        assert answer.code == 0, answer
                        self._acknowledge(answer.ext, *waiting.pop(answer.opaque))
                        self._left -= 1
                        if self._left < 0:
                            strike()
        except (ConnectionError, asyncio.IncompleteReadError):
            assert self._left < 0, "the broker ended by itself"

    async def _answer(self, talker: Talker) -> Command[Any]:
        return await talker.answer()

    def _send(self, talker: Talker, opaque: int) -> tuple[int, list[bytes]]:
        queue_id = self._random.randrange(QUEUES)
        count = self._random.choice((1, 1, 1, 1, 7))
        bodies = [
            b"%d " % next(self._numbers) + self._random.randbytes(self._random.randrange(600)) for _ in range(count)
        ]
        self._history.sent.update(bodies)
        if count == 1:
            talker.ask(request(310, send_fields("T", queue_id), bodies[0], opaque=opaque))
        else:
            batch = encode_batch([(0, body, b"KEYS\x01k\x02") for body in bodies])
            talker.ask(request(320, send_fields("T", queue_id, m=True), batch, opaque=opaque))
        return queue_id, bodies

    def _acknowledge(self, fields: dict[str, str], queue_id: int, bodies: list[bytes]) -> None:
        self._history.acknowledge(queue_id, int(fields["queueOffset"]), bodies)


async def bodies_of_queue(talker: Talker, queue_id: int, start: int, topic: str = "T") -> list[bytes]:
    """The bodies of a queue from an offset to its end."""
    found: list[bytes] = []
    for opaque in itertools.count(1):
        fields = pull_fields(start + len(found), topic=topic, queueId=queue_id)
        talker.ask(request(11, fields, opaque=opaque))
        answer = await talker.answer()
        if answer.code != 0:
            assert answer.code == 19, answer
            break
        views = iter_records(answer.body)
        for queue_offset, view in enumerate(views, start + len(found)):
            assert view.queue_offset == queue_offset
            found.append(view.body)
    return found
