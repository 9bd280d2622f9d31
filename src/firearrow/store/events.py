"""The events of a store (``firearrow.events``)."""

from __future__ import annotations

from typing import NamedTuple


class MessagesArrived(list[tuple[str, int, int, int]]):
    """Queues have new messages: topic, queue id, first new offset and max offset of each. A queue may occur more than
    once.
    """


class QueuesDeleted(NamedTuple):
    """The queues of a topic are deleted, or one (``queue_id``). Code that keeps one must get it again."""

    topic: str
    queue_id: int | None = None


class FlushRefused(NamedTuple):
    """The disk has refused the log: from now on nothing more is confirmed."""

    error: OSError


class RecordDamaged(NamedTuple):
    """A read has met a damaged record; ``size`` is from its entry, or from the record itself."""

    physical_offset: int
    size: int
