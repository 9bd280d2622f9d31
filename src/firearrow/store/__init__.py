"""The message store: RocketMQ's files, byte for byte.

Callers see ``MessageStore`` and the values that it takes and returns. The layout of the files is private to this
package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from firearrow.errors import DiskFull, require_packages

require_packages("servers and their stores need", "server", "numpy")  # an installation for clients alone has none

if TYPE_CHECKING:
    from firearrow.store.acknowledging import Acknowledging, PutStatus
    from firearrow.store.batch import BatchPart, MemberPlaces, Members, members_alike, members_of, offset_ids
    from firearrow.store.batchqueue import MESSAGES_MAX
    from firearrow.store.commitlog import NewMessage
    from firearrow.store.delays import DelayLevels
    from firearrow.store.engine import MessageStore
    from firearrow.store.events import FlushRefused, MessagesArrived, QueuesDeleted, RecordDamaged
    from firearrow.store.fs import OS_FILES, FileSystem
    from firearrow.store.lmq import MultiDispatch, lmq_names
    from firearrow.store.logtail import committed_halves, delivered_copies, timed_copies
    from firearrow.store.lookup import Boundary, QueueEntry
    from firearrow.store.mending import LogEnd
    from firearrow.store.propertylooks import PropertyFilter
    from firearrow.store.queues import ConsumeQueue, PutCounters, QueueEnd, QueueRange, QueuesLeft
    from firearrow.store.reader import GetResult, GetStatus, Wanted
    from firearrow.store.residency import Fetch, FileRange, fetch
    from firearrow.store.retention import Circumstances, Consumed, committed_offsets, group_progress, reasons_to_stay
    from firearrow.store.scan import Ints
    from firearrow.store.timerfiles import DELETE, NORMAL, ROLL, WHEEL_SLOTS, OnWheel, TimerLog, on_wheel
    from firearrow.store.timerflush import TimerFlush
    from firearrow.store.timers import TimedQueue, TimerStore, ToldProgress, due_ms_of, timed_message, told_progress
    from firearrow.store.timerunits import TimerUnit

__all__ = [
    "DELETE",
    "MESSAGES_MAX",
    "NORMAL",
    "OS_FILES",
    "ROLL",
    "WHEEL_SLOTS",
    "Acknowledging",
    "BatchPart",
    "Boundary",
    "Circumstances",
    "ConsumeQueue",
    "Consumed",
    "DelayLevels",
    "DiskFull",
    "Fetch",
    "FileRange",
    "FileSystem",
    "FlushRefused",
    "GetResult",
    "GetStatus",
    "Ints",
    "LogEnd",
    "MemberPlaces",
    "Members",
    "MessageStore",
    "MessagesArrived",
    "MultiDispatch",
    "NewMessage",
    "OnWheel",
    "PropertyFilter",
    "PutCounters",
    "PutStatus",
    "QueueEnd",
    "QueueEntry",
    "QueueRange",
    "QueuesDeleted",
    "QueuesLeft",
    "RecordDamaged",
    "TimedQueue",
    "TimerFlush",
    "TimerLog",
    "TimerStore",
    "TimerUnit",
    "ToldProgress",
    "Wanted",
    "committed_halves",
    "committed_offsets",
    "delivered_copies",
    "due_ms_of",
    "fetch",
    "group_progress",
    "lmq_names",
    "members_alike",
    "members_of",
    "offset_ids",
    "on_wheel",
    "reasons_to_stay",
    "timed_copies",
    "timed_message",
    "told_progress",
]

_MODULES: Final = (
    "acknowledging",
    "batch",
    "batchqueue",
    "commitlog",
    "delays",
    "engine",
    "events",
    "fs",
    "lmq",
    "logtail",
    "lookup",
    "mending",
    "propertylooks",
    "queues",
    "reader",
    "residency",
    "retention",
    "scan",
    "timerfiles",
    "timerflush",
    "timers",
    "timerunits",
)


if not TYPE_CHECKING:  # a wrong name stays an error of types

    def __getattr__(name: str) -> Any:
        """Import all modules when the first name is needed: code that only reads files works without the engine."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _MODULES:
            there = vars(import_module(f"{__name__}.{module}"))
            globals().update({public: there[public] for public in __all__ if public in there})
        return globals()[name]
