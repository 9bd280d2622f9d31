"""Take inner batches apart: make a record of each of their messages as if it were stored alone.

A topic with ``queue.type=BatchCQ`` has one record for all messages of a batch send (``firearrow.store.batchqueue``).
Consumers never see it, as clients take it apart. So does the table ``messages``: such a record is written again, once
for each of its messages, with the properties, body and flag of that message and its own other fields. So readers of
records do not have to know about it.

====================  =====================================================================
field                 of a message of an inner batch
====================  =====================================================================
queue offset          the record's, plus the number of the message in it
size, CRC of body     as if it were stored alone
physical offset,      the record's, as in Java's clients
times, hosts, flags
====================  =====================================================================

Source: RocketMQ's ``MessageDecoder#decodeMessage(MessageExt, List)``, ``PullAPIWrapper``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from firearrow.errors import MessageError
from firearrow.message.batch import split_batch
from firearrow.message.hosts import pack_host
from firearrow.message.record import decode_record, encode_record
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from firearrow.spark.columns.messages import UndecodableRows
from firearrow.store.batchqueue import inner_counts
from firearrow.store.scan import Columns, Ints

_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP


def has_inner(columns: Columns) -> bool:
    """Tell whether clients take any of the records apart."""
    return bool((columns.sys_flag & _WRAPPED == _WRAPPED).any())


def unwrapped(columns: Columns, start: Ints, end: Ints) -> Columns:
    """The records with messages in place of inner batches: of each record the messages with queue offsets from
    ``start`` to before ``end``.

    Raises UndecodableRows for bodies that are no batches, or have another number of messages than they say.
    """
    wrapped = columns.sys_flag & _WRAPPED == _WRAPPED
    counts = inner_counts(columns)
    assert counts is not None
    pieces: list[bytes] = []
    rows: list[int] = []  # of each piece
    bad: list[int] = []
    reason = ""
    for row, record in enumerate(columns.slices(columns.position, columns.size)):
        wanted = range(int(start[row]), int(end[row]))
        if not wrapped[row]:
            pieces += [record] if int(columns.queue_offset[row]) in wanted else []
        else:
            try:
                pieces += _members(record, int(counts[row]), wanted)
            except MessageError as error:
                bad.append(row)
                reason = reason or str(error)
        rows += [row] * (len(pieces) - len(rows))
    if bad:
        raise UndecodableRows(bad, reason)
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    buffer = b"".join(pieces)
    found = Columns(buffer, sizes.cumsum() - sizes, len(buffer))
    found.queue_id = columns.queue_id[np.array(rows, np.int64)]
    return found


def _members(record: bytes, count: int, wanted: range) -> list[bytes]:
    """The records of the wanted messages of an inner batch."""
    view = decode_record(record)
    members = split_batch(view.body_decompressed())
    if len(members) != count:
        raise MessageError(f"the batch has {len(members)} messages, but says {count}", "INNER_NUM")
    born_host, store_host = pack_host(view.born_host), pack_host(view.store_host)
    return [
        encode_record(
            view.topic,
            body,
            properties,
            view.queue_id,
            queue_offset,
            view.physical_offset,
            flag,
            view.sys_flag & ~COMPRESSED,
            view.born_timestamp_ms,
            born_host,
            view.store_timestamp_ms,
            store_host,
            view.reconsume_times,
            view.prepared_transaction_offset,
        )
        for queue_offset, (flag, body, properties) in enumerate(members, view.queue_offset)
        if queue_offset in wanted
    ]
