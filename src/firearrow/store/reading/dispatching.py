"""Dispatch for a reader: the entries that a broker would make, without writing queues or index."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Protocol, cast

from firearrow.events import Event
from firearrow.store.commitlog import CommitLog
from firearrow.store.delays import DelayLevels
from firearrow.store.dispatch import Dispatcher
from firearrow.store.events import MessagesArrived
from firearrow.store.index import Index
from firearrow.store.queues import DispatchedEntries
from firearrow.store.scan import Columns, Ints

_LOG: Final = CommitLog(Path(), 1, b"")  # dispatch gets its records as columns and reads none from this log


class TakesKeys(Protocol):
    """Receiver of index keys, in place of the index."""

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Take the keys of consecutive records."""


class _Queues:
    """Receiver of entries, in place of all queues."""

    def __init__(self, take: Callable[[DispatchedEntries], None], batch_topics: Collection[str]) -> None:
        self._take = take
        self._batch_topics = batch_topics

    def is_batch(self, topic: str) -> bool:
        """Tell whether the queues of a topic are of batches."""
        return topic in self._batch_topics

    def put(self, entries: DispatchedEntries, *, complete: bool = False) -> MessagesArrived:
        """Pass on the entries of one round."""
        self._take(entries)
        return MessagesArrived()


def dispatch_to(
    take: Callable[[DispatchedEntries], None],
    batch_topics: Collection[str],
    delay_levels: str,
    index: TakesKeys | None = None,
) -> Callable[[Columns], None]:
    """Make a function that takes records in the order of the log and passes their entries to ``take``, also the entries
    of LMQs, and their keys to ``index``.
    """
    dispatcher = Dispatcher(
        _LOG, DelayLevels(delay_levels), Event(), _Queues(take, batch_topics), cast(Index | None, index), lmq=True
    )
    return dispatcher.dispatch
