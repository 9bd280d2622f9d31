"""The files of one store directory, as offline tools and Spark's readers share them.

``firearrow.store.offline.view.StoreView`` adds the tools' own queues and maps.
``firearrow.spark.planning.stores.Store`` adds the options of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Generic, TypeVar

from firearrow.store.checkpoint import Checkpoint
from firearrow.store.reading.index import index_files
from firearrow.store.reading.queues import read_checkpoint
from firearrow.store.reading.storage import Directory, Storage, list_files

AnyStorage = TypeVar("AnyStorage", bound=Storage)


class StoreFiles(Generic[AnyStorage]):
    """The files of a store below the root of a storage, as they are at their first use."""

    def __init__(self, storage: AnyStorage, log_directories: Sequence[str] = ("commitlog",)) -> None:
        self.storage = storage
        self._log_directories = log_directories

    @cached_property
    def log(self) -> Directory:
        """The files of the CommitLog."""
        return list_files(self.storage, *self._log_directories)

    @property
    def log_start(self) -> int:
        """The lowest physical offset in the log."""
        return self.log.start

    @property
    def log_end(self) -> int:
        """The physical offset after the last file of the log."""
        return self.log.end

    @cached_property
    def index(self) -> Directory:
        """The IndexFiles, oldest first; ``base`` is the time in their name."""
        return index_files(self.storage)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint's fields, all zero without one."""
        return read_checkpoint(self.storage)

    @cached_property
    def is_open(self) -> bool:
        """Tell whether a broker has the store open, or did not close it."""
        return any(entry.name == "abort" for entry in self.storage.entries(""))
