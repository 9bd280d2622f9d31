"""Records of a store by place, queue, key, tag or time.

Where a queue is given, its ConsumeQueue leads to the records, and after its end the log (``undispatched``). There is no
other way to the records of an LMQ. Where a topic and a key are given, the index leads to the records. Otherwise the log
is read, but for the files outside of the time span. All found records are compared with the whole selection, so a wrong
entry leads to no wrong result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, zip_longest
from typing import IO, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from firearrow.errors import ConfigError, MessageError, MissingPackage, StoreError
from firearrow.message.model import MessageView
from firearrow.message.names import is_lmq
from firearrow.message.record import decode_record
from firearrow.store.batchqueue import inner_count
from firearrow.store.logtail import LOOK_BYTES
from firearrow.store.offline.compare import index_rows
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import walk, walk_file
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import Queue
from firearrow.store.reading.filequeues import FileQueue
from firearrow.store.reading.index import key_hash
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.reading.storage import StoreFile
from firearrow.store.reading.undispatched import EntriesAhead, QueuesAndAhead
from firearrow.store.reading.walk import RecordRun
from firearrow.store.recordchecks import fault_of
from firearrow.store.scan import Columns, Ints, scan

_ENTRIES_A_STEP: Final = 8192
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_EVER: Final = (1 << 63) - 1


class Selection(msgspec.Struct, frozen=True):
    """Conditions for records; a record must fulfil all of them.

    Ends are exclusive but for ``until_ms``. ``key`` is a word of KEYS, ``unique_key`` the id that the client gave. An
    inner batch is one record. In a queue of batches the queue offsets of all its messages count, otherwise the fields
    of the record itself.
    """

    topic: str | None = None
    queue_id: int | None = None
    queue_from: int = 0
    queue_to: int = _EVER
    physical_from: int = 0
    physical_to: int = _EVER
    since_ms: int = -_EVER
    until_ms: int = _EVER
    key: str | None = None
    unique_key: str | None = None
    tag: str | None = None

    def holds(self, message: MessageView, messages: int = 1) -> bool:
        """Tell whether a record fulfils all conditions; it takes one queue offset for each of its ``messages``."""
        return (
            self.topic in (None, message.topic)
            and self.queue_id in (None, message.queue_id)
            and message.queue_offset < self.queue_to
            and message.queue_offset + messages > self.queue_from
            and self.physical_from <= message.physical_offset < self.physical_to
            and self.since_ms <= message.store_timestamp_ms <= self.until_ms
            and (self.key is None or self.key in message.keys)
            and self.unique_key in (None, message.unique_key)
            and self.tag in (None, message.tags)
        )


def find(view: StoreView, selection: Selection) -> Iterator[MessageView]:
    """The records of a selection in the order of the log; for an exact queue in the queue's order.

    Raises StoreError where that queue lacks a file between others.
    """
    chosen = selection
    if chosen.topic is not None and is_lmq(chosen.topic):
        # an LMQ leads to messages that name another queue
        lmq = msgspec.structs.replace(chosen, queue_id=chosen.queue_id or 0)
        chosen = msgspec.structs.replace(chosen, topic=None, queue_id=None, queue_from=0, queue_to=_EVER)
        found = _by_queue(view, lmq) or iter(())
    elif chosen.physical_to == chosen.physical_from + 1:
        found = iter((read(view, chosen.physical_from),))
    elif chosen.topic and (chosen.key or chosen.unique_key) and view.index.files:
        places = _by_key(view, chosen.topic, chosen.key or chosen.unique_key or "")
        found = (read(view, place) for place in places)
    elif (of_queue := _by_queue(view, chosen)) is not None:
        found = of_queue
        chosen = msgspec.structs.replace(chosen, queue_id=None)  # the queue id in its record may differ
    else:
        yield from _scanned(view, chosen)
        return
    for message in found:
        if message is not None and chosen.holds(message, _messages_in(view, message)):
            yield message


def _messages_in(view: StoreView, message: MessageView) -> int:
    """Count the queue offsets of a record: one outside of queues of batches, whatever it holds."""
    if message.topic not in view.batch_topics:
        return 1
    return inner_count(message.properties, message.sys_flag)


def read(view: StoreView, physical_offset: int) -> MessageView | None:
    """The record that begins at an offset; None without a sound one."""
    head = view.log_bytes(physical_offset, 8)
    size = int.from_bytes(head[:4], "big", signed=True)
    if len(head) < 8 or not 0 < size <= _RECORD_BYTES_MAX:
        return None
    try:
        found = decode_record(view.log_bytes(physical_offset, size))
    except MessageError:
        return None
    return found if found.physical_offset == physical_offset else None


def _by_key(view: StoreView, topic: str, key: str) -> Iterator[int]:
    hashes = [key_hash(topic, key)]
    found: set[int] = set()
    for file in view.index.files:
        if (rows := index_rows(view, file)) is not None:
            found |= rows.find_in_all(hashes)
    return iter(sorted(found))


def _by_queue(view: StoreView, selection: Selection) -> Iterator[MessageView | None] | None:
    """The records that a queue leads to, also after its end; None where no queue is given or it does not exist."""
    topic, queue_id = selection.topic, selection.queue_id
    if topic is None or queue_id is None:
        return None
    key = topic, queue_id
    queue: Queue | None = view.queues.get(key)
    if queue is None:
        return None
    _require_files(queue, topic, queue_id)
    if selection.queue_to > queue.span[1]:
        queue = QueuesAndAhead(view.queues, entries_ahead(view), view.log_start).open(key)
    entries = _of_queue(view, queue, selection)
    return (_meant(view, entry, lmq=is_lmq(topic)) for entry in entries)


def _meant(view: StoreView, entry: tuple[int, int, int], *, lmq: bool) -> MessageView | None:
    """The record of an entry; None if a broker would not deliver it.

    An LMQ's message holds its place in its topic's queue.
    """
    queue_offset, physical_offset, size = entry
    record = view.log_bytes(physical_offset, size)
    fault = fault_of(record, physical_offset, check_crc=False)
    if fault is not None and not fault.frames:
        return None
    found = decode_record(record)
    return found if lmq or found.queue_offset == queue_offset else None


def _require_files(queue: Queue, topic: str, queue_id: int) -> None:
    """Raise StoreError where a queue lacks a file between others: then no entry is found."""
    if not isinstance(queue, FileQueue | BatchQueue):
        return
    for before, after in pairwise(queue.directory.files):
        if before.end < after.base:
            raise StoreError(
                f"queue {topic}-{queue_id} has no file between {before.path} and "
                f"{after.name}: `firearrow store rebuild` rebuilds it; without the queue, the "
                "log is read"
            )


def entries_ahead(view: StoreView) -> EntriesAhead:
    """The entries that the queues of a store lack if it was not closed, or if its queues are in RocksDB.

    Some queues in files may lack entries that others have, so a part before that is read, too. Raises DataLost where
    there is too much to read.
    """
    queues = view.queues
    if isinstance(queues, RocksQueues):
        start = queues.dispatched_offset
    elif view.clean:
        start = view.log_end
    else:
        start = queues.dispatched_offset
        start = min(start, view.log_end) - LOOK_BYTES
    start = max(start, view.log_start)
    found = EntriesAhead(start, start, view.batch_topics, view.layout.delay_levels)
    for piece in walk(view, start):
        if isinstance(piece, RecordRun):
            found.take(piece.columns)
            found.require_little(view.root, view.log_end)
    return found


def _of_queue(view: StoreView, queue: Queue, selection: Selection) -> Iterator[tuple[int, int, int]]:
    """Queue offset, place and size of each record."""
    low, high = queue.span_from(view.log_start)
    first, end = max(low, selection.queue_from), min(high, selection.queue_to)
    for start in range(first, end, _ENTRIES_A_STEP):
        stop = min(start + _ENTRIES_A_STEP, end)
        if isinstance(queue, BatchQueue):
            found = queue.holding(start, min(stop + 1, high))
        else:
            found = queue.entries(start, min(stop + 1, high))
        chosen = found.counting(stop)
        if start > first:  # a record with messages of both steps was in the previous step
            chosen &= found.queue_offset >= start
        yield from zip(*(column.tolist() for column in found.take(chosen)[:3]), strict=True)


def _scanned(view: StoreView, selection: Selection) -> Iterator[MessageView]:
    for file in _files(view, selection):
        start = _start_in(view, file, selection.physical_from)
        for piece in walk_file(view, file, start):
            if isinstance(piece, RecordRun):
                for row in _rows(piece.columns, selection).tolist():
                    message = _decoded(piece.columns, row)
                    if message is None:
                        continue
                    if selection.holds(message, _messages_in(view, message)):
                        yield message
                if file.base + piece.columns.end >= selection.physical_to:
                    return


def _files(view: StoreView, selection: Selection) -> list[StoreFile]:
    """The files that may have records of the selection, by offsets and first store times."""
    chosen: list[StoreFile] = []
    files = view.log.files
    for file, after in zip_longest(files, files[1:]):
        if file.end <= selection.physical_from or file.base >= selection.physical_to:
            continue
        if after is not None and 0 < _first_ms(view, after) < selection.since_ms:
            continue
        if _first_ms(view, file) > selection.until_ms:
            break
        chosen.append(file)
    return chosen


def _first_ms(view: StoreView, file: StoreFile) -> int:
    buffer = view.maps.of(file)
    columns = scan(buffer, 0, len(buffer), 1)
    return int(columns.store_ms[0]) if len(columns) else 0


def _start_in(view: StoreView, file: StoreFile, physical_from: int) -> int:
    """The position in a file where reading starts: the given offset if a record begins there, otherwise the file's
    begin.
    """
    at = physical_from - file.base
    if at <= 0:
        return 0
    buffer = view.maps.of(file)
    columns = scan(buffer, at, len(buffer), 1)
    return at if len(columns) and int(columns.physical_offset[0]) == physical_from else 0


def _rows(columns: Columns, selection: Selection) -> Ints:
    """The rows that may belong to a selection, by their fixed fields and topic."""
    good: npt.NDArray[np.bool_] = (columns.store_ms >= selection.since_ms) & (columns.store_ms <= selection.until_ms)
    good &= columns.physical_offset >= selection.physical_from
    good &= columns.physical_offset < selection.physical_to
    if selection.queue_id is not None:
        good &= columns.queue_id == selection.queue_id
    if selection.topic is not None:
        topics, number = columns.topics()
        topic = selection.topic.encode()
        good &= number == (topics.index(topic) if topic in topics else -1)
    return np.flatnonzero(good)


def _decoded(columns: Columns, row: int) -> MessageView | None:
    start = int(columns.position[row])
    try:
        return decode_record(columns.buffer, start, start + int(columns.size[row]))
    except MessageError:
        return None


def as_row(message: MessageView, *, stored_body: bool) -> dict[str, Any]:
    """All fields of a record under RocketMQ's names, ``body`` as bytes.

    ``stored_body`` leaves a compressed body as it is. Otherwise ``bodyError`` says why a body could not be decompressed
    and is given as stored.
    """
    body, error = message.body, None
    if not stored_body:
        try:
            body = message.body_decompressed()
        except (MessageError, ConfigError) as fault:  # the body is damaged, or a package is missing
            error = str(fault)
    row: dict[str, Any] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "storeSize": message.store_size,
        "bodyCRC": message.body_crc,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": f"{message.born_host.ip}:{message.born_host.port}",
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": f"{message.store_host.ip}:{message.store_host.port}",
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "offsetMsgId": message.offset_message_id,
        "uniqKey": message.unique_key,
        "properties": message.properties,
        "bodyLength": len(body),
        "body": body,
    }
    return row if error is None else row | {"bodyError": error}


# --- as an Arrow IPC stream; needs the extra ``arrow`` ---


_BATCH_ROWS: Final = 4096
_WIDE: Final = {
    "queueOffset",
    "physicalOffset",
    "bornTimestamp",
    "storeTimestamp",
    "preparedTransactionOffset",
    "bodyCRC",
}
_NUMBERS: Final = {"queueId", "storeSize", "flag", "sysFlag", "reconsumeTimes", "bodyLength"}
_TEXTS: Final = ("topic", "bornHost", "storeHost", "offsetMsgId", "uniqKey", "bodyError")
COLUMNS: Final = (*_TEXTS, *sorted(_NUMBERS), *sorted(_WIDE), "properties", "body")


def write_stream(rows: Iterable[dict[str, Any]], sink: IO[bytes]) -> int:
    """Write rows of ``as_row``; return their number.

    Raises ConfigError where pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # an extra
    except ImportError:
        raise MissingPackage("--format arrow needs", "pyarrow", "arrow") from None
    types: dict[str, Any] = {name: pa.string() for name in _TEXTS}
    types |= {name: pa.int32() for name in _NUMBERS} | {name: pa.int64() for name in _WIDE}
    types |= {"properties": pa.map_(pa.string(), pa.string()), "body": pa.binary()}
    schema = pa.schema([(name, types[name]) for name in COLUMNS])
    count = 0
    rest = iter(rows)
    with pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(islice(rest, _BATCH_ROWS)):
            for row in batch:
                row["properties"] = list(row["properties"].items())
            columns = [[row.get(name) for row in batch] for name in COLUMNS]
            arrays = [pa.array(column, types[name]) for name, column in zip(COLUMNS, columns, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(batch)
    return count
