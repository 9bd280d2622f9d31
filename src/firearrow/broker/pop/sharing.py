"""Pops that came together, by several clients of a group, are one pop, whose messages they share.

What a pop costs is the look at the queues, the read and above all the checkpoint, and for pops of
one message that is nearly all. So those of one turn of the loop that ask for the same are given
what one pop finds for all of them, up to `MESSAGES_MAX` messages: that is one checkpoint, and
acknowledgements that come together are one record, too. Each client learns the batch's first offset
(startOffsetInfo) and its own messages (msgOffsetInfo), as if others had been filtered out before
them; so its handles name the checkpoint, and each message is acknowledged, set aside or comes again
by itself, as always.

Rejected: one checkpoint each, written at once. Half of the cost of a checkpoint is to make it, and
the scan, the queue and the index of the log still have a record for each message.

What it costs: of a batch of which one message stays open, all records get on the timer's wheel.
That is the checkpoint and some acknowledgements for up to 32 messages, fewer than by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.broker.pop.popping import Taken, split_records
from firearrow.wire.headers import PopMessage

MESSAGES_MAX: Final = 32  # of one pop, and so of one checkpoint

Alike = tuple[str, str, int, str | None, str | None, int, int, int]
"""What pops have in common that may be one."""


def alike_of(header: PopMessage) -> Alike | None:
    """Give what a pop must have in common with another to share with it; None if it shares with
    none: it is in order, or wants too much."""
    count = header.max_msg_nums
    if header.order or not 0 < count <= MESSAGES_MAX // 2:
        return None
    return (
        header.topic,
        header.consumer_group,
        header.queue_id,
        header.exp,
        header.exp_type,
        header.invisible_time,
        header.init_mode,
        count,
    )


def shares(taken: Sequence[Taken], count: int) -> list[list[Taken]]:
    """Divide what was taken among pops of ``count`` messages each, in order.

    The last may have fewer; there is none without any.
    """
    found: list[list[Taken]] = []
    missing = 0
    for origin, queue_id, start_offset, offsets, records in taken:
        if len(records) != len(offsets):
            records = split_records(b"".join(records))
        assert len(records) == len(offsets), "a record for each message"
        at = 0
        while at < len(offsets):
            if not missing:
                found.append([])
                missing = count
            end = min(at + missing, len(offsets))
            part = Taken(origin, queue_id, start_offset, offsets[at:end], records[at:end])
            found[-1].append(part)
            missing -= end - at
            at = end
    return found
