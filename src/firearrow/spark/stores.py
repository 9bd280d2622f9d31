"""One store directory as the file source sees it: its log, its queues, its name.

A broker may be writing to it. What is confirmed is what ConsumeQueues refer to; where a store was
not closed, or is open, nothing behind that is read.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import Any, Final

from firearrow.errors import ConfigError
from firearrow.spark.options import Options
from firearrow.spark.queueentries import LMQ_PREFIX, BatchQueue, FileQueues, QueueKey, Queues
from firearrow.spark.rocksentries import rocks_queues
from firearrow.spark.stateread import TOPICS, state_table
from firearrow.spark.storage import NumberedFile, Storage, numbered_files, open_storage

_MEMBER_TOPIC: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
_PARTS: Final = {"commitlog", "consumequeue", "consumequeue_rocksdb", "config"}


class Store:
    """A store below a path or URI; ``broker`` is its name where that is known."""

    def __init__(self, root: str, broker: str | None = None) -> None:
        self.root = root
        self.storage: Storage = open_storage(root)
        self._broker = broker

    def require(self) -> None:
        """Raise ConfigError unless there is a store."""
        try:
            names = {entry.name for entry in self.storage.entries("")}
        except OSError as error:
            raise ConfigError(f"option path={self.root!r}: {error}") from None
        if not names:
            raise ConfigError(
                f"option path={self.root!r}: the directory does not exist or is empty"
            )
        if not names & _PARTS:
            raise ConfigError(
                f"option path={self.root!r}: not a store, it has neither commitlog nor consumequeue"
            )

    @cached_property
    def broker(self) -> str:
        """The broker's name: as given, else from the configuration, else the directory's."""
        if self._broker is not None:
            return self._broker
        identity = self.text("brokerIdentity").split("#")
        if len(identity) == 3:
            return identity[1]
        for name in self.topics:
            if name.startswith(_MEMBER_TOPIC):
                return name[len(_MEMBER_TOPIC) :]
        return self.root.rstrip("/").rpartition("/")[2] or self.root

    def text(self, path: str) -> str:
        """A small file as text, empty where there is none."""
        try:
            return bytes(self.storage.read(path)).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""

    @cached_property
    def topics(self) -> dict[str, Any]:
        """The configured topics."""
        return state_table(self.storage, TOPICS)

    @cached_property
    def log(self) -> list[NumberedFile]:
        """The files of the CommitLog."""
        return numbered_files(self.storage, "commitlog")

    @property
    def log_start(self) -> int:
        """The lowest physical offset that the log holds."""
        return self.log[0].base if self.log else 0

    def log_file(self, physical_offset: int) -> NumberedFile | None:
        """The file that holds a byte of the log."""
        number = bisect_right(self.log, physical_offset, key=lambda file: file.base) - 1
        if number < 0 or physical_offset >= self.log[number].end:
            return None
        return self.log[number]

    @cached_property
    def queues(self) -> Queues:
        """The ConsumeQueues."""
        return rocks_queues(self.storage) or FileQueues(self.storage)

    def queue_keys(self, options: Options) -> list[QueueKey]:
        """The queues that the options choose.

        Light queues only where they are named: their messages are in other queues, too.
        """
        choice = options.choice
        named = {*choice.subscribe, *(topic for topic, _, _ in choice.assign)}
        return [
            key
            for key in self.queues.keys(named or None)
            if choice.wants_queue(key[0], self.broker, key[1])
            and (not key[0].startswith(LMQ_PREFIX) or key[0] in named)
        ]

    @cached_property
    def is_open(self) -> bool:
        """Whether a broker has the store open, or did not close it."""
        return any(entry.name == "abort" for entry in self.storage.entries(""))

    @cached_property
    def confirmed_offset(self) -> int:
        """The log offset before which all is dispatched, as far as that can be told; else -1."""
        end = self.queues.confirmed_offset
        if end >= 0:
            return end
        for key in self.queues.keys(None):
            queue = self.queues.open(key)
            bound = queue.bound(self.log_start)
            if isinstance(queue, BatchQueue):
                end = max(end, queue.record_end)
            elif bound.latest > bound.earliest:
                last = queue.entries(bound.latest - 1, bound.latest)
                end = max(end, int((last.physical_offset + last.size).max(initial=-1)))
        return end


def open_stores(options: Options) -> list[Store]:
    """The stores that the options name.

    Raises ConfigError where a path has none, and for two of one broker.
    """
    place = options.place
    stores = [Store(path, place.broker_name) for path in place.paths]
    names: dict[str, str] = {}
    for store in stores:
        store.require()
        other = names.setdefault(store.broker, store.root)
        if other != store.root:
            raise ConfigError(
                f"option path: {other} and {store.root} are both of broker {store.broker!r}: "
                "read them one by one, with brokerName to tell them apart"
            )
    return stores
