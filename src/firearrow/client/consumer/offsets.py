"""Progress of a consumer in its queues, and the stores of it.

Offsets are noted in memory as messages are consumed, and written every few seconds if they have
changed, when a queue is given up and in the end: by a group to the brokers, by a client for itself
to a file.

Source: upstream ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.subscription import NONE_STORED
from firearrow.client.queues import Queue
from firearrow.errors import FirearrowError
from firearrow.files import read_newest, replace_atomically
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import MessageQueue, ResetOffsets

log = logging.getLogger(__name__)

PERSIST_SECONDS: Final = 5.0
PERSIST_FIRST_SECONDS: Final = 10.0
SAID_AGAIN_SECONDS: Final = 60.0  # what a broker was told may have been lost on its way


class OffsetTable:
    """The offsets in memory."""

    def __init__(self) -> None:
        self._offsets: dict[Queue, int] = {}
        self._frozen: set[Queue] = set()

    def get(self, queue: Queue) -> int:
        """Give the consumer's progress; -1 if that is not known."""
        return self._offsets.get(queue, NONE_STORED)

    def of_topic(self, topic: str) -> dict[Queue, int]:
        """Give the progress in all queues of a topic."""
        return {queue: at for queue, at in self._offsets.items() if queue.topic == topic}

    def advance(self, queue: Queue, queue_offset: int) -> None:
        """Note an offset unless one behind it is noted."""
        if queue_offset > self._offsets.get(queue, NONE_STORED) and queue not in self._frozen:
            self._offsets[queue] = queue_offset

    def set(self, queue: Queue, queue_offset: int) -> None:
        """Note an offset, which may be before the one that is noted."""
        if queue not in self._frozen:
            self._offsets[queue] = queue_offset

    def freeze(self, queue: Queue, queue_offset: int) -> None:
        """Note an offset that stays until the queue is forgotten."""
        self._offsets[queue] = queue_offset
        self._frozen.add(queue)

    def forget(self, queue: Queue) -> None:
        """Know nothing of a queue."""
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def known(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offsets of those queues of which there are any."""
        return {queue: self._offsets[queue] for queue in queues if queue in self._offsets}


class OffsetStore(Protocol):
    """A store of offsets."""

    async def stored(self, queue: Queue) -> int:
        """The offset that is kept, -1 if there is none; raises OSError or FirearrowError."""
        ...

    async def write(self, offsets: dict[Queue, int]) -> None:
        """Keep offsets; what can't be written is logged, as the next time repeats it."""
        ...

    async def write_changed(self, offsets: dict[Queue, int]) -> None:
        """The same, of all offsets there are: those that are kept already may be left out."""
        ...


class BrokerOffsets:
    """Keeps the offsets of a group at the brokers."""

    def __init__(self, calls: GroupCalls) -> None:
        self._calls = calls
        self._told: dict[Queue, tuple[int, float]] = {}  # an offset, and when a broker heard of it

    async def stored(self, queue: Queue) -> int:
        """The offset that the queue's broker has."""
        return await self._calls.committed(queue)

    async def write(self, offsets: dict[Queue, int]) -> None:
        """Tell the brokers, without an answer."""
        for queue, queue_offset in offsets.items():
            try:
                await self._calls.commit(queue, queue_offset)
            except (OSError, FirearrowError) as error:
                log.warning("offset is not committed", extra={**queue.fields, "error": error})
            else:
                self._told[queue] = queue_offset, asyncio.get_running_loop().time()

    async def write_changed(self, offsets: dict[Queue, int]) -> None:
        """Tell the brokers what they have not been told in the last minute.

        Of a queue without messages each pull tells it, too.
        """
        # Java: RemoteBrokerOffsetStore#persistAll tells all of them each time.
        since = asyncio.get_running_loop().time() - SAID_AGAIN_SECONDS
        told = self._told
        self._told = {
            queue: told[queue]
            for queue, queue_offset in offsets.items()
            if queue in told and told[queue][0] == queue_offset and told[queue][1] > since
        }
        await self.write({queue: at for queue, at in offsets.items() if queue not in self._told})


class FileOffsets:
    """Keeps the offsets of one client in a file."""

    def __init__(self, file: LocalOffsets) -> None:
        self._file = file
        self._written: dict[Queue, int] | None = None  # by the last write

    async def stored(self, queue: Queue) -> int:
        """The offset in the file."""
        offsets = await asyncio.to_thread(self._file.read)
        return offsets.get(queue, NONE_STORED)

    async def write(self, offsets: dict[Queue, int]) -> None:
        """Write the file; returns when it is on the disk."""
        try:
            await asyncio.to_thread(self._file.write, offsets)
        except (OSError, FirearrowError) as error:
            log.warning("offsets are not written", extra={"path": self._file.path, "error": error})
            self._written = None
        else:
            self._written = dict(offsets)

    async def write_changed(self, offsets: dict[Queue, int]) -> None:
        """Write the file if it says anything else."""
        if offsets != self._written:
            await self.write(offsets)


# Progress of a client that consumes all queues alone (BROADCASTING): a file on its machine.
#
# ``<directory>/<client id>/<group>/offsets.json`` is written as RocketMQ's Java client does, which
# goes on with it and the reverse: pretty JSON with a queue as key, here with ``→`` for a tab::
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
# The content before it is kept as ``offsets.json.bak``, which counts where the file can't be read.
# Queues that are not this client's any more stay in it.
#
# Source: upstream ``LocalFileOffsetStore``.


DIRECTORY: Final = ".rocketmq_offsets"
_NAME: Final = "offsets.json"


def default_directory() -> Path:
    """Give the directory that Java's clients use unless they are told of another."""
    return Path.home() / DIRECTORY


class LocalOffsets:
    """The offsets of one group of one client."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / _NAME

    def read(self) -> dict[Queue, int]:
        """Give the offsets that were written last; nothing where there is no file.

        Raises ConfigError when neither the file nor the one before it can be read.
        """
        found = read_newest(self.path, _parse)
        return {} if found is None else found.value

    def write(self, offsets: Mapping[Queue, int]) -> None:
        """Replace the offsets of some queues; returns when they are on the disk."""
        if not offsets:
            return
        table = {**self.read(), **offsets}
        body = ResetOffsets({MessageQueue(*queue): at for queue, at in sorted(table.items())})
        replace_atomically(self.path, fastjson.dumps(body, pretty=True))


def _parse(data: bytes) -> dict[Queue, int]:
    table = fastjson.decode(data, ResetOffsets).offset_table
    return {Queue(queue.topic, queue.broker_name, queue.queue_id): offset for queue, offset in table.items()}
