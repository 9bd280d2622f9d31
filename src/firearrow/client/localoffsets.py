"""Progress of a client that consumes all queues alone (BROADCASTING): a file on its machine.

``<directory>/<client id>/<group>/offsets.json`` is written as RocketMQ's Java client does, which
goes on with it and the reverse: pretty JSON with a queue as key, here with ``→`` for a tab::

    {
    →"offsetTable":{
    →→{
    →→→"brokerName":"b",
    →→→"queueId":3,
    →→→"topic":"T"
    →→}:346
    →}
    }

The content before it is kept as ``offsets.json.bak``, which counts where the file can't be read.
Queues that are not this client's any more stay in it.

Source: upstream ``LocalFileOffsetStore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from firearrow.client.queues import Queue
from firearrow.files import read_newest, replace_atomically
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import MessageQueue, ResetOffsets

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
