"""When a consumer says how far it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from firearrow.client.consumeroffsets import SAID_AGAIN_SECONDS, BrokerOffsets, FileOffsets
from firearrow.client.groupcalls import GroupCalls
from firearrow.client.localoffsets import LocalOffsets
from firearrow.client.queues import Queue
from firearrow.testing.loop import VirtualClock, run

ONE, TWO = Queue("T", "b", 1), Queue("T", "b", 2)


class Told:
    """Takes commits as a broker, or fails."""

    def __init__(self) -> None:
        self.commits: list[tuple[Queue, int]] = []
        self.fails = False

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        if self.fails:
            raise ConnectionError("gone")
        self.commits.append((queue, queue_offset))

    def taken(self) -> list[tuple[Queue, int]]:
        taken, self.commits = self.commits, []
        return taken


def test_a_broker_is_told_of_changes_and_of_the_rest_once_a_minute() -> None:
    async def main(_: VirtualClock) -> None:
        told = Told()
        offsets = BrokerOffsets(cast(GroupCalls, told))
        await offsets.write_changed({ONE: 1, TWO: 2})
        assert told.taken() == [(ONE, 1), (TWO, 2)]
        await offsets.write_changed({ONE: 1, TWO: 2})
        assert told.taken() == []
        await offsets.write_changed({ONE: 1, TWO: 1})
        assert told.taken() == [(TWO, 1)]
        await offsets.write({ONE: 1})
        assert told.taken() == [(ONE, 1)]
        await asyncio.sleep(SAID_AGAIN_SECONDS)
        await offsets.write_changed({ONE: 1, TWO: 1})
        assert told.taken() == [(ONE, 1), (TWO, 1)]

    run(main)


def test_what_a_broker_was_not_told_it_is_told_the_next_time() -> None:
    async def main(_: VirtualClock) -> None:
        told = Told()
        offsets = BrokerOffsets(cast(GroupCalls, told))
        told.fails = True
        await offsets.write_changed({ONE: 1})
        told.fails = False
        await offsets.write_changed({ONE: 1})
        assert told.taken() == [(ONE, 1)]
        await offsets.write_changed({})  # another client has the queue, for a while
        await offsets.write_changed({ONE: 1})
        assert told.taken() == [(ONE, 1)]

    run(main)


def test_a_file_is_written_if_it_says_anything_else(tmp_path: Path) -> None:
    async def main(_: VirtualClock) -> None:
        file = LocalOffsets(tmp_path, "c", "g")
        offsets = FileOffsets(file)
        await offsets.write_changed({ONE: 1})
        file.path.unlink()
        await offsets.write_changed({ONE: 1})
        assert not file.path.exists()
        await offsets.write_changed({ONE: 2})
        assert await offsets.stored(ONE) == 2

    run(main)
