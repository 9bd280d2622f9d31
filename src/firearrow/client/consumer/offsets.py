"""Progress of a consumer in its queues, and its offset stores.

The table in memory notes offsets as messages are consumed. Changed offsets are written every few seconds, when a queue
is given up and at the end. The brokers store the offsets of a group; a file stores a broadcasting client's.

Source: RocketMQ's ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.subscription import NONE_STORED
from firearrow.client.queues import Queue
from firearrow.errors import FirearrowError
from firearrow.files import read_newest, replace_atomically
from firearrow.logs import Log
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import MessageQueue, ResetOffsets

log: Final = Log(__name__)

PERSIST_SECONDS: Final = 5.0
PERSIST_FIRST_SECONDS: Final = 10.0
COMMIT_AGAIN_SECONDS: Final = 60.0  # a one-way commit may have been lost


class OffsetTable:
    """Offsets in memory."""

    def __init__(self) -> None:
        self._offsets: dict[Queue, int] = {}
        self._frozen: set[Queue] = set()

    def get(self, queue: Queue) -> int:
        """Progress in a queue; -1 if unknown."""
        return self._offsets.get(queue, NONE_STORED)

    def of_topic(self, topic: str) -> dict[Queue, int]:
        """Progress in all queues of a topic."""
        return {queue: at for queue, at in self._offsets.items() if queue.topic == topic}

    def advance(self, queue: Queue, queue_offset: int) -> None:
        """Note an offset unless a later one is noted."""
        if queue_offset > self._offsets.get(queue, NONE_STORED) and queue not in self._frozen:
            self._offsets[queue] = queue_offset

    def set(self, queue: Queue, queue_offset: int) -> None:
        """Note an offset, which may be before the noted one."""
        if queue not in self._frozen:
            self._offsets[queue] = queue_offset

    def freeze(self, queue: Queue, queue_offset: int) -> None:
        """Note an offset that stays until the queue is forgotten."""
        self._offsets[queue] = queue_offset
        self._frozen.add(queue)

    def forget(self, queue: Queue) -> None:
        """Forget a queue."""
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def known(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Known offsets of some queues."""
        return {queue: self._offsets[queue] for queue in queues if queue in self._offsets}


class OffsetStore(Protocol):
    """Store of offsets."""

    async def stored(self, queue: Queue) -> int:
        """Stored offset, -1 without one. Raises OSError or FirearrowError."""
        ...

    async def write(self, offsets: dict[Queue, int]) -> None:
        """Store offsets. A failure is logged only, since the next write repeats them."""
        ...

    async def write_changed(self, offsets: dict[Queue, int]) -> None:
        """Store all offsets; may leave out those that are stored already."""
        ...


class BrokerOffsets:
    """Stores the offsets of a group at the brokers."""

    def __init__(self, calls: GroupCalls) -> None:
        self._calls = calls
        self._told: dict[Queue, tuple[int, float]] = {}  # each offset, with the time of its commit

    async def stored(self, queue: Queue) -> int:
        """Offset at the queue's broker."""
        return await self._calls.committed(queue)

    async def write(self, offsets: dict[Queue, int]) -> None:
        """Commit to the brokers, one-way."""
        for queue, queue_offset in offsets.items():
            try:
                await self._calls.commit(queue, queue_offset)
            except (OSError, FirearrowError) as error:
                log.warning(
                    "offset is not committed",
                    sentence=f"offset {queue_offset} of {queue.words} is not committed: {error}",
                    extra={**queue.fields, "error": error},
                )
            else:
                self._told[queue] = queue_offset, asyncio.get_running_loop().time()

    async def write_changed(self, offsets: dict[Queue, int]) -> None:
        """Commit the offsets that the brokers did not get in the last minute.

        For a queue without messages, each pull commits, too.
        """
        # Java: RemoteBrokerOffsetStore#persistAll commits all of them each time.
        since = asyncio.get_running_loop().time() - COMMIT_AGAIN_SECONDS
        told = self._told
        self._told = {
            queue: told[queue]
            for queue, queue_offset in offsets.items()
            if queue in told and told[queue][0] == queue_offset and told[queue][1] > since
        }
        await self.write({queue: at for queue, at in offsets.items() if queue not in self._told})


class FileOffsets:
    """Stores the offsets of one client in a file."""

    def __init__(self, file: LocalOffsets) -> None:
        self._file = file
        self._written: dict[Queue, int] | None = None  # content of the last write

    async def stored(self, queue: Queue) -> int:
        """Offset in the file."""
        offsets = await asyncio.to_thread(self._file.read)
        return offsets.get(queue, NONE_STORED)

    async def write(self, offsets: dict[Queue, int]) -> None:
        """Write the file; returns when it is durable."""
        try:
            await asyncio.to_thread(self._file.write, offsets)
        except (OSError, FirearrowError) as error:
            log.warning("offsets are not written", extra={"path": self._file.path, "error": error})
            self._written = None
        else:
            self._written = dict(offsets)

    async def write_changed(self, offsets: dict[Queue, int]) -> None:
        """Write the file if its content changes."""
        if offsets != self._written:
            await self.write(offsets)


# Progress of a broadcasting client, which consumes all queues alone: a file on its machine.
#
# The format of ``<directory>/<client id>/<group>/offsets.json`` is the one of RocketMQ's Java client, so either can go
# on with the other's file: pretty JSON with a queue as key, here with ``→`` for a tab::
#
#     {
#     →"offsetTable":{
#     →→{
#     →→→"brokerName":"b",
#     →→→"queueId":3,
#     →→→"topic":"T"
#     →→}:346
#     →}
#     }
#
# ``offsets.json.bak`` has the content before; it counts if the file can't be read. Queues that this client has given up
# stay in the file.
#
# Source: RocketMQ's ``LocalFileOffsetStore``.


DIRECTORY: Final = ".rocketmq_offsets"
_NAME: Final = "offsets.json"


def default_directory() -> Path:
    """Default directory of RocketMQ's clients."""
    return Path.home() / DIRECTORY


class LocalOffsets:
    """Offsets of one group of one client."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path: Path = directory / client_id / group / _NAME

    def read(self) -> dict[Queue, int]:
        """Offsets of the last write; empty without a file.

        Raises ConfigError if neither the file nor its predecessor can be read.
        """
        found = read_newest(self.path, _parse)
        return {} if found is None else found.value

    def write(self, offsets: Mapping[Queue, int]) -> None:
        """Replace the offsets of some queues; returns when they are durable."""
        if not offsets:
            return
        table = {**self.read(), **offsets}
        body = ResetOffsets({MessageQueue(*queue): at for queue, at in sorted(table.items())})
        replace_atomically(self.path, fastjson.dumps(body, pretty=True))


def _parse(data: bytes) -> dict[Queue, int]:
    table = fastjson.decode(data, ResetOffsets).offset_table
    return {Queue(queue.topic, queue.broker_name, queue.queue_id): offset for queue, offset in table.items()}
