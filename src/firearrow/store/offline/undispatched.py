"""What the queues of a store lack, see ``firearrow.store.snapshot.undispatched``."""

from __future__ import annotations

from collections.abc import Iterator

from firearrow.errors import StoreError
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import RecordRun, walk_file
from firearrow.store.scan import Columns
from firearrow.store.snapshot.entries import entry_at
from firearrow.store.snapshot.rocksrows import RocksQueues
from firearrow.store.snapshot.undispatched import UNDISPATCHED_BYTES_MAX, EntriesAhead, too_much


def entries_ahead(view: StoreView) -> EntriesAhead:
    """What the queues of a store lack that was not closed, or whose queues are in RocksDB.

    Raises StoreError where that is too much.
    """
    found = EntriesAhead(view.batch_topics, view.layout.delay_levels)
    queues = view.queues
    if isinstance(queues, RocksQueues):
        start = max(queues.dispatched_offset, view.log_start)
    elif view.clean:
        return found
    else:
        start = max(_dispatched_end(view), view.log_start)
    for columns in _records(view, start):
        if int(columns.physical_offset[-1]) - start > UNDISPATCHED_BYTES_MAX:
            raise StoreError(too_much(view.root, start, view.log.files[-1].end))
        found.take(columns)
    return found


def _dispatched_end(view: StoreView) -> int:
    """Where the last record begins that a queue in files has; those before are dispatched."""
    queues = view.queues.values()
    return max((entry_at(queue, queue.span[1] - 1)[0] for queue in queues), default=0)


def _records(view: StoreView, start: int) -> Iterator[Columns]:
    for file in view.log.files:
        if file.end <= start:
            continue
        for part in walk_file(view, file, max(start - file.base, 0)):
            if isinstance(part, RecordRun):
                yield part.columns
