"""What the queues of a store lack, see ``firearrow.store.reading.undispatched``."""

from __future__ import annotations

from firearrow.store.logtail import LOOK_BYTES
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import walk
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.reading.undispatched import EntriesAhead, dispatched_offset
from firearrow.store.reading.walk import RecordRun


def entries_ahead(view: StoreView) -> EntriesAhead:
    """What the queues of a store lack that was not closed, or whose queues are in RocksDB.

    Of queues in files some may lack what others have, so that more is looked at. Raises DataLost
    where all together is too much.
    """
    queues = view.queues
    if isinstance(queues, RocksQueues):
        start = queues.dispatched_offset
    elif view.clean:
        start = view.log_end
    else:
        start = dispatched_offset(view.checkpoint, iter(queues.values()))
        start = min(start, view.log_end) - LOOK_BYTES
    start = max(start, view.log_start)
    found = EntriesAhead(start, start, view.batch_topics, view.layout.delay_levels)
    for piece in walk(view, start):
        if isinstance(piece, RecordRun):
            found.take(piece.columns)
            found.require_little(view.root, view.log_end)
    return found
