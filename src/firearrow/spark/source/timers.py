"""Delayed messages that wait for their time, in the timer's log and in the queues of delay levels.

``firearrow.store.timerfiles`` has the formats of the timer's files. A delay level's queue of ``SCHEDULE_TOPIC_XXXX``
holds the time of delivery in place of a tag code, and ``delayOffset.json`` has the next entry of each level.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import CorruptStore, DataLost
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.spark.columns.messages import MessageColumns, timestamps
from firearrow.spark.options import ReadOptions
from firearrow.spark.planning.stores import Store
from firearrow.state import DELAYS, stored_state, table_of
from firearrow.store.extension import ADDRESS_MAX, DIRECTORY, place_of, tag_code_in
from firearrow.store.reading.entries import QueueKey
from firearrow.store.reading.storage import list_files
from firearrow.store.scan import Columns, Ints
from firearrow.store.timerfiles import CHECK, DELETE, UNIT

_BATCH_ROWS: Final = 4096

Rows = dict[str, Any]


def waiting(store: Store, reading: ReadOptions) -> Iterator[Rows]:
    """Yield the rows of the table ``timer``.

    Raises DataLost for messages whose records are in no file, and CorruptStore for places without a record, unless the
    options skip them.
    """
    yield from _on_the_wheel(store, reading)
    yield from _on_levels(store, reading)


def _on_the_wheel(store: Store, reading: ReadOptions) -> Iterator[Rows]:
    try:
        read_ms, *_ = CHECK.unpack_from(store.storage.read("config/timercheck"))
    except FileNotFoundError:
        return
    for file in list_files(store.storage, "timerlog").files:
        buffer = store.storage.read(file.path)
        units = np.frombuffer(buffer, UNIT, len(buffer) // UNIT.itemsize)
        sound = (units["size"] == UNIT.itemsize) & (units["magic"] & ~0b111 == 0)
        units = units if sound.all() else units[: int(sound.argmin())]
        due_ms = units["written_ms"].astype(np.int64) + units["delay_ms"]
        chosen = due_ms > read_ms
        if np.count_nonzero(chosen):
            units = units[chosen]
            yield from _rows(
                store,
                reading,
                units["physical_offset"].astype(np.int64),
                units["record_size"].astype(np.int64),
                due_ms[chosen],
                units["magic"] & DELETE != 0,
            )


def _on_levels(store: Store, reading: ReadOptions) -> Iterator[Rows]:
    delivered = table_of(stored_state(store.config, DELAYS), "offsetTable")
    next_offsets = {int(level): int(offset) for level, offset in delivered.items()}
    for key in store.queues.keys_of([SCHEDULE_TOPIC]):
        queue = store.queues.open(key)
        first, end = queue.span_from(store.log_start)
        entries = queue.entries(max(first, next_offsets.get(key[1] + 1, 0)), end)
        if len(entries.size):
            none = np.zeros(len(entries.size), np.bool_)
            yield from _rows(
                store,
                reading,
                entries.physical_offset,
                entries.size,
                _due_ms(store, key, entries.tag_code.astype(np.int64)),
                none,
            )


def _due_ms(store: Store, key: QueueKey, codes: Ints) -> Ints:
    """Return the due times of a level's messages, also if tag codes are in an extension."""
    addressed = (codes <= ADDRESS_MAX).nonzero()[0]
    if not len(addressed):
        return codes
    topic, queue_id = key
    for file in list_files(store.storage, f"{DIRECTORY}/{topic}/{queue_id}").files:
        units = store.storage.read(file.path)
        for number in addressed.tolist():
            at = place_of(int(codes[number])) - file.base
            if 0 <= at < file.size_bytes:
                codes[number] = tag_code_in(units, at) or codes[number]
    return codes


def _rows(store: Store, reading: ReadOptions, places: Ints, sizes: Ints, due_ms: Ints, deleted: Any) -> Iterator[Rows]:
    order = places.argsort(kind="stable")
    is_there = np.zeros(len(places), np.bool_)
    for file in store.log.files:
        here = order[(places[order] >= file.base) & (places[order] + sizes[order] <= file.end)]
        is_there[here] = True
        for at in range(0, len(here), _BATCH_ROWS):
            some = here[at : at + _BATCH_ROWS]
            some = some[np.append(True, places[some][1:] > places[some][:-1])]
            first, end = int(places[some[0]]), int((places + sizes)[some].max())
            buffer = store.storage.window(file.path, first - file.base, end - file.base)
            columns = Columns(buffer, places[some] - first, len(buffer))
            good = columns.valid & (columns.physical_offset == places[some])
            if reading.on_corrupt == "fail" and not good.all():
                place = places[some][int(good.argmin())]
                raise CorruptStore(
                    f"{store.root}: a delayed message should be at {place} of the log, where "
                    "there is no record (onCorrupt=skip skips it)"
                )
            columns = Columns(buffer, columns.position[good], len(buffer))
            if len(columns):
                due = due_ms[some[good]]
                due = np.where(due < 0, columns.store_ms, due)  # the store time, if the extension is missing
                yield _described(MessageColumns(columns, ""), due, deleted[some[good]])
    if reading.fail_on_data_loss and not is_there.all():
        lost = np.count_nonzero(~is_there)
        raise DataLost(
            f"{store.root}: {lost} delayed messages have no record in the files of the log, the "
            f"first at {places[~is_there].min()} (failOnDataLoss=false skips them)"
        )


def _described(messages: MessageColumns, due_ms: Ints, deleted: Any) -> Rows:
    columns = messages.columns
    properties = messages.properties
    out_ms = properties.values("TIMER_OUT_MS")
    asked = [_number(text) for text in out_ms.to_pylist()]
    due = np.array([now if ms is None else ms for ms, now in zip(asked, due_ms.tolist(), strict=True)])
    queue_ids = [_number(text) for text in properties.values("REAL_QID").to_pylist()]
    return {
        "topic": pc.coalesce(properties.values("REAL_TOPIC"), messages.topic),
        "queueId": pa.array(queue_ids, pa.int32()),
        "deliveryTimestamp": timestamps(due),
        "commitLogOffset": pa.array(columns.physical_offset),
        "size": pa.array(columns.size),
        "deleted": pa.array(deleted),
        "msgId": messages.column("msgId", pa.string()),
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
