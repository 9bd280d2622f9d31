"""The message store: RocketMQ's files, byte for byte.

Callers see ``MessageStore`` and the values that it takes and gives; what the files look like is
nobody else's business.
"""

from firearrow.errors import DiskFull
from firearrow.store.batch import (
    Appended,
    Part,
    members_alike,
    members_of,
    offset_ids,
)
from firearrow.store.batchqueue import MESSAGES_MAX
from firearrow.store.engine import MessageStore
from firearrow.store.events import FlushRefused, MessagesArrived, QueuesDeleted
from firearrow.store.light import Together, light_names
from firearrow.store.lookup import Boundary, QueueEntry
from firearrow.store.queues import ConsumeQueue, PutCounters, QueueEnd, QueueRange, QueuesLeft
from firearrow.store.reader import GetResult, GetStatus
from firearrow.store.retention import Consumed, committed_offsets, standing
from firearrow.store.scan import Ints
from firearrow.store.timerfiles import OnWheel, TimerLog, on_wheel

__all__ = [
    "MESSAGES_MAX",
    "Appended",
    "Boundary",
    "ConsumeQueue",
    "Consumed",
    "DiskFull",
    "FlushRefused",
    "GetResult",
    "GetStatus",
    "Ints",
    "MessageStore",
    "MessagesArrived",
    "OnWheel",
    "Part",
    "PutCounters",
    "QueueEnd",
    "QueueEntry",
    "QueueRange",
    "QueuesDeleted",
    "QueuesLeft",
    "TimerLog",
    "Together",
    "committed_offsets",
    "light_names",
    "members_alike",
    "members_of",
    "offset_ids",
    "on_wheel",
    "standing",
]
