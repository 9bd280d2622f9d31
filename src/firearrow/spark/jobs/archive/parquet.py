"""Messages as Parquet files: one for each topic and day, written by the worker that reads them.

Rows are sorted by broker, queue id and queue offset. So statistics tell which file and row group holds an offset, and a
queue is read back in its order. Bodies are compressed with zstd at level 1, which on sorted messages was both the
smallest and the fastest of the measured codecs. A dictionary pays for the topic only. Keys and ids have bloom filters
if pyarrow can write them (from release 24 on); without them, a look-up by key reads the whole columns of keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from socket import gethostname
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.errors import ConfigError, CorruptStore
from firearrow.spark.jobs.archive.delta import DataFile, QueueRows, TableFile, WrittenFiles
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.progress import LogMark
from firearrow.spark.tables import MESSAGES

ROW_GROUP_ROWS: Final = 100_000
FALSE_POSITIVES: Final = 0.01
_LOOKED_UP: Final = ("keys", "msgId")
ORDER: Final = ("topic", "broker", "queueId", "queueOffset")
_DELTA: Final = ("queueOffset", "commitLogOffset", "bornTimestamp", "storeTimestamp")
UNMEASURED: Final = ("body", "properties")  # their statistics would be copies of long values

_WORD_BITS: Final = 63
_LOOKS_AT_ONCE: Final = 16  # at new files: an object store takes some ten milliseconds for each

Ints = npt.NDArray[np.int64]

CAN_BLOOM: Final = "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters


class MessageFiles:
    """Writer of an archive's files."""

    columns: Final = MESSAGES

    def write(self, batches: Iterator[pa.RecordBatch], place: FilePlace, stem: str) -> WrittenFiles:
        """Write messages, each of them once; see ``write_messages``."""
        return write_messages(batches, place, stem)


def there(place: FilePlace, written: Sequence[WrittenFiles]) -> tuple[TableFile, ...]:
    """Return the files of tasks after a look at each of them: its place, its size and its footer.

    Raises ConfigError if a host has written to a separate directory, CorruptStore if a file differs from the one that
    its host has written.
    """
    files = [(file, task.host) for task in written for file in task.files]
    with ThreadPoolExecutor(min(_LOOKS_AT_ONCE, len(files) or 1)) as lookers:
        for _ in lookers.map(lambda one: _require_there(place, *one), files):
            pass
    return tuple(file for file, _ in files)


def _require_there(place: FilePlace, file: TableFile, host: str) -> None:
    name = place.full(file.path)
    if not place.has(file.path):
        raise ConfigError(
            f"{host} has written {name}, but it can't be seen on {gethostname()}: a directory must"
            " be the same for all workers and for the process that starts the job; or use an object store"
        )
    with place.open(file.path) as opened:
        size_bytes = opened.size()
        try:
            rows = pq.read_metadata(opened).num_rows
        except pa.ArrowInvalid:
            rows = -1
    if (size_bytes, rows) != (file.size_bytes, file.rows):
        raise CorruptStore(
            f"{name} has {size_bytes} bytes and {_rows(rows)}, but {host} has written"
            f" {file.size_bytes} bytes and {_rows(file.rows)}"
        )


def _rows(count: int) -> str:
    return "no footer" if count < 0 else f"{count} rows"


def partition_path(topic: str, day: str) -> str:
    """Return the directory of a topic and day; names are escaped as Hive and Spark escape them."""
    return f"topic={quote(topic, safe='')}/dt={day}"


def write_messages(
    batches: Iterator[pa.RecordBatch], place: FilePlace, stem: str, *, unique: bool = True
) -> WrittenFiles:
    """Write messages to files of an archive. Each file is whole and on the disk on return.

    ``stem`` is the name of the files without ``.parquet``, the same in every directory, and unique to the run. Raises
    CorruptStore if a queue offset occurs twice and ``unique`` forbids it (a topic that was deleted and created again
    repeats offsets).
    """
    table = pa.Table.from_batches(batches, MESSAGES)
    if table.num_rows == 0:
        return WrittenFiles()
    table = sorted_messages(table)
    queues = tuple(queue_rows(table))
    if unique:
        require_unique(table)
    files: list[DataFile] = []
    with ThreadPoolExecutor(1) as saver:  # a file goes to the disk while the next one is made
        saved: list[Future[None]] = []
        for topic, day, part in _partitions(table):
            path = f"{partition_path(topic, day)}/{stem}.parquet"
            size_bytes = _write(part, place, path)
            files.append(_described(part, path, topic, day, size_bytes))
            saved.append(saver.submit(place.sync, [path]))
        for each in saved:
            each.result()
    return WrittenFiles(tuple(files), queues, tuple(log_marks(table)), gethostname())


def _described(part: pa.Table, path: str, topic: str, day: str, size_bytes: int) -> DataFile:
    """Return the description of a file."""
    columns = ("broker", "queueId", "queueOffset")
    brokers, queues, found = (pc.min_max(part.column(name)).as_py() for name in columns)
    stored = pc.min_max(part.column("storeTimestamp").cast(pa.int64())).as_py()
    return DataFile(
        path=path,
        topic=topic,
        day=day,
        rows=part.num_rows,
        size_bytes=size_bytes,
        broker_min=brokers["min"],
        broker_max=brokers["max"],
        queue_min=queues["min"],
        queue_max=queues["max"],
        offset_min=found["min"],
        offset_max=found["max"],
        stored_min_ms=stored["min"] // 1000,
        stored_max_ms=stored["max"] // 1000,
    )


def sorted_messages(table: pa.Table) -> pa.Table:
    """Order rows by queue and queue offset, and cut them into chunks of one."""
    table = table.combine_chunks()
    numbers = (table.column(name).to_numpy() for name in ("queueId", "queueOffset"))
    ranks = (_ranks(table.column(name)) for name in ("topic", "broker"))
    order = _order([*ranks, *numbers])
    if (order[1:] > order[:-1]).all():
        return table
    return table.take(pa.array(order))


def _order(keys: Sequence[Ints]) -> Ints:
    """Return the rows in the order of the keys, first key first; rows with equal keys stay in order.

    If the keys and the row's number fit into one word, words are sorted.
    """
    rows = np.arange(len(keys[0]))
    word = np.zeros(len(rows), np.int64)
    bits = 0
    for key in (*keys, rows):
        low, high = int(key.min()), int(key.max())
        width = (high - low).bit_length()
        bits += width
        if bits > _WORD_BITS:
            return np.lexsort(keys[::-1])
        word <<= width
        word |= key.astype(np.int64) - low
    word.sort()
    return word & ((1 << width) - 1)


def _ranks(texts: pa.ChunkedArray) -> Ints:
    """Return numbers in the order of the texts; only a few texts differ."""
    coded = texts.combine_chunks().dictionary_encode()
    known = coded.dictionary.to_pylist()
    ranks = np.empty(len(known), np.int64)
    ranks[sorted(range(len(known)), key=known.__getitem__)] = np.arange(len(known))
    found: Ints = ranks[coded.indices.to_numpy()]
    return found


def _key(table: pa.Table, at: int) -> tuple[Any, ...]:
    return tuple(table.column(name)[at].as_py() for name in ORDER[:3])


def _begins(table: pa.Table) -> list[int]:
    """Return the first row of each queue."""
    changes = np.zeros(table.num_rows, np.bool_)
    changes[0] = True
    for name in ORDER[:3]:
        column = table.column(name)
        changes[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    return [int(at) for at in np.flatnonzero(changes)]


def queues_in(table: pa.Table) -> list[QueueRows]:
    """Return the rows of each queue in a table; it needs only the columns ``ORDER``."""
    return [*queue_rows(sorted_messages(table))] if table.num_rows else []


def queue_rows(table: pa.Table) -> Iterator[QueueRows]:
    """Yield the rows of each queue in a sorted table."""
    begins = _begins(table)
    offsets = table.column("queueOffset").to_numpy()
    for begin, end in zip(begins, [*begins[1:], table.num_rows], strict=True):
        topic, broker, queue_id = _key(table, begin)
        first, last = int(offsets[begin]), int(offsets[end - 1])
        rows = QueueRows(topic, broker, queue_id, first, last, end - begin)
        if "storeTimestamp" in table.column_names:
            place = table.column("commitLogOffset")[end - 1].as_py()
            last_ms = _stored_ms(table, end - 1)
            rows = msgspec.structs.replace(rows, last_place=place, last_ms=last_ms)
        yield rows


def log_marks(table: pa.Table) -> Iterator[LogMark]:
    """Yield the message of each broker that is furthest on in its log."""
    furthest = table.group_by("broker").aggregate([("commitLogOffset", "max")])
    for row in furthest.to_pylist():
        broker, offset = row["broker"], row["commitLogOffset_max"]
        is_it = pc.and_(pc.equal(table.column("commitLogOffset"), offset), pc.equal(table.column("broker"), broker))
        at = pc.index(is_it, True).as_py()
        yield LogMark(broker, offset, _stored_ms(table, at))


def _stored_ms(table: pa.Table, at: int) -> int:
    microseconds: int = table.column("storeTimestamp")[at].cast(pa.int64()).as_py()
    return microseconds // 1000


def require_unique(table: pa.Table) -> None:
    """Raise CorruptStore if a sorted table has a message twice."""
    same = np.diff(table.column("queueOffset").to_numpy()) == 0
    same[np.array(_begins(table)[1:], np.int64) - 1] = False
    if same.any():
        at = int(np.argmax(same))
        topic, broker, queue_id = _key(table, at)
        raise CorruptStore(
            f"queue {queue_id} of topic {topic!r} on {broker}: offset {table.column('queueOffset')[at]} occurs twice"
        )


def _partitions(table: pa.Table) -> Iterator[tuple[str, str, pa.Table]]:
    """Cut a sorted table by topic and day; the order stays."""
    days = pc.floor_temporal(table.column("storeTimestamp"), unit="day").cast(pa.int64())
    days = days.to_numpy() // 86_400_000_000
    topics = table.column("topic")
    bounds = [at for at in _begins(table) if at == 0 or topics[at].as_py() != topics[at - 1].as_py()]
    for begin, end in zip(bounds, [*bounds[1:], table.num_rows], strict=True):
        of_topic, topic_days = table.slice(begin, end - begin), days[begin:end]
        for day in np.unique(topic_days):
            part = of_topic
            if topic_days.min() != topic_days.max():
                part = of_topic.take(pa.array(np.flatnonzero(topic_days == day)))
            yield topics[begin].as_py(), str(np.datetime64(int(day), "D")), part


def _write(table: pa.Table, place: FilePlace, path: str) -> int:
    """Write one file; return its size."""
    with place.create(path) as file, pq.ParquetWriter(file, table.schema, **_settings(table)) as writer:
        writer.write_table(table, ROW_GROUP_ROWS)
        writer.close()
        size_bytes: int = file.tell()
    return size_bytes


def _settings(table: pa.Table) -> dict[str, Any]:
    names = table.schema.names
    settings: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["topic"],
        "column_encoding": dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        "write_statistics": [name for name in names if name not in UNMEASURED],
        "write_page_index": True,
        "sorting_columns": [pq.SortingColumn(names.index(name)) for name in ORDER[1:]],
    }
    if CAN_BLOOM:
        rows = min(table.num_rows, ROW_GROUP_ROWS)
        bloom = {"ndv": rows, "fpp": FALSE_POSITIVES}
        settings["bloom_filter_options"] = dict.fromkeys(_LOOKED_UP, bloom)
    return settings
