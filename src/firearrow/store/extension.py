"""The extension of a ConsumeQueue: RocketMQ's data about messages that does not fit into an entry.

With ``enableConsumeQueueExt`` an entry of ``consumequeue/TOPIC/QUEUE_ID/`` has an address in place of its tag code, and
``consumequeue_ext/TOPIC/QUEUE_ID/`` has a unit at that address. Only RocketMQ writes such units. Firearrow reads them,
and deletes them with the entries that refer to them. Where a unit is missing, the tag is read from the record. A unit,
big-endian:

====== ==== ==============================================================
offset size field
====== ==== ==============================================================
0      2    size of the unit: 20 + n; -1: the next unit begins the next file
2      8    tag code
10     8    store time, ms
18     2    n
20     n    bits of the SQL filters that the message passes
====== ==== ==============================================================

An address is the byte offset of the unit plus -2**63, so it is below every tag code, which is a 32-bit number. Files
are named by the byte offset of their first unit.

Worked example, the first unit of a queue, a message with tag ``Tag2`` (2598904): address 8000000000000000, unit ``0014
000000000027a7f8 000001a1fcd01f37 0000``.

Source: RocketMQ's ``ConsumeQueueExt``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from firearrow.javanumbers import INT_MIN, LONG_MIN
from firearrow.message import properties
from firearrow.message.names import SCHEDULE_TOPIC, tag_code
from firearrow.store.segments import NAME_DIGITS

if TYPE_CHECKING:
    from firearrow.store.commitlog import CommitLog
    from firearrow.store.queues import ConsumeQueue

DIRECTORY: Final = "consumequeue_ext"
ADDRESS_MAX: Final = INT_MIN - 1
"""Largest value that is an address when it stands in place of a tag code. Java: isExtAddr."""
_FIRST_ADDRESS: Final = LONG_MIN
_UNIT: Final = struct.Struct(">hqqh")
assert _UNIT.size == 20
_tags: Final = properties.finder(properties.TAGS)


def place_of(address: int) -> int:
    """Byte offset of the unit at an address."""
    return address - _FIRST_ADDRESS


def tag_code_in(data: bytes | memoryview, at: int) -> int | None:
    """Tag code of the unit that begins at a byte; None if none does."""
    if len(data) < at + _UNIT.size:
        return None
    size, code, _, bits = _UNIT.unpack_from(data, at)
    return int(code) if size == _UNIT.size + bits and bits >= 0 else None


class Extension:
    """The extension files of one queue; their list is read at the first use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def _files(self) -> list[tuple[int, Path]]:
        names = self._directory.glob("[0-9]" * NAME_DIGITS)
        return sorted((int(path.name), path) for path in names)

    @property
    def is_there(self) -> bool:
        """Tell whether there are any files."""
        return bool(self._files)

    def tag_code(self, address: int) -> int | None:
        """The tag code at an address; None where there is no unit."""
        at = place_of(address)
        number = bisect_right(self._files, at, key=lambda file: file[0]) - 1
        if number < 0:
            return None
        base, path = self._files[number]
        try:
            with path.open("rb") as file:
                file.seek(at - base)
                data = file.read(_UNIT.size)
        except OSError:  # deleted meanwhile
            return None
        return tag_code_in(data, 0)

    def before(self, address: int | None) -> list[Path]:
        """Take out the files that have only units before an address; without an address, all files."""
        files = self._files
        count = len(files)
        if address is not None:
            at = place_of(address)
            count = sum(end <= at for _, (end, _) in pairwise(files))
        gone = [path for _, path in files[:count]]
        del files[:count]
        return gone


def tag_code_behind(queue: ConsumeQueue, log: CommitLog, address: int, physical_offset: int) -> int | None:
    """Tag code of a message whose entry has an address in its place: from the extension, or from the record if the
    extension lacks it. None if neither has it: the entry of a delayed message has its due time instead.
    """
    found = queue.extended_tag_code(address)
    if found is not None or queue.topic == SCHEDULE_TOPIC:
        return found
    for content in log.contents_at((physical_offset,)):
        tags = _tags(content.properties)
        return tag_code(None if tags is None else tags.decode("utf-8", "replace"))
    return None
