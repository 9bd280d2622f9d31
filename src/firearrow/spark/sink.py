"""``df.write.format("rocketmq")`` and ``df.writeStream``: rows sent as messages.

``firearrow.spark.sinkrows`` has the columns. Each task sends its rows in batches and ends when a broker has
acknowledged the last batch: at least once. Nothing takes sent messages back, so a repeated task sends its rows again.

With ``idempotent=true`` a repeated task uses the same ids, if Spark gives it the same rows in the same order. The id
(``UNIQ_KEY``) is made of the query and the numbers of the batch, the task and the row. A consumer that stores the ids
of received messages can drop repeated ones. A batch job is one such query as a whole: a second run sends all rows
again.

With ``delivery=exactly-once`` the rows of a stream are half messages, which are committed when their step ends
(``firearrow.spark.exactlyonce``).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from firearrow.client.producer.batchsender import BatchBody, BatchSender, NoteHalf, SendCounts
from firearrow.client.routing.queues import WritableQueue
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, ConfigError, MessageError
from firearrow.logs import Log
from firearrow.message.ids import month_start_ms
from firearrow.message.names import is_retry
from firearrow.spark.access import Cluster
from firearrow.spark.options import Options
from firearrow.spark.sinkrows import Ids, Ints, SinkRows, check_columns, rows_of
from firearrow.spark.workererrors import with_short_errors

log: Final = Log(__name__)

# Spark's properties that name the query and batch of a task.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_NONE: Final = SendCounts(0, 0, 0, 0)


@dataclass
class TaskResult(WriterCommitMessage):
    """Counts of the messages that one task has sent."""

    sent: SendCounts
    halves: pa.Table | None = None  # with delivery=exactly-once


class _Writer:
    """Common part of the writers of batches and of streams."""

    def __init__(self, options: Options, schema: pa.Schema, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('messages can only be appended: use .mode("append")')
        sink = options.sink
        check_columns(schema, sink.topic, sink.order_key, are_halves=sink.is_exactly_once)
        self._options = options
        self._run = uuid.uuid4().hex

    def _send(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Send all rows of a task and wait until brokers have them."""
        if not self._options.sink.is_exactly_once:
            return TaskResult(self._sent(batches))
        from firearrow.spark.exactlyonce import HalfNotes, StepEnd  # 60 ms that other sinks need not wait for

        notes = HalfNotes()
        try:
            sent = self._sent(batches, notes.note)
        except Exception:
            StepEnd(self._options).roll_back(notes.table())
            raise
        return TaskResult(sent, notes.table())

    def _sent(self, batches: Iterable[pa.RecordBatch], note_half: NoteHalf | None = None) -> SendCounts:
        """Send all rows of a task, as half messages if ``note_half`` notes them, and return the counts."""
        options = self._options
        sink = options.sink
        ids = self._ids()
        cluster = Cluster(options.place, options.access)
        sender = BatchSender(
            cluster.client,
            cluster.name_servers,
            sink.producer_group,
            retries=sink.retries,
            broker_name=options.place.broker_name,
            note_half=note_half,
        )
        half_group = None if note_half is None else sink.producer_group
        try:
            for batch in batches:
                rows = rows_of(batch, ids, sink.topic, sink.order_key, half_group)
                send_rows(cluster, sender, rows, sink.send_batch)
            return cluster.run(sender.finish())
        except Exception:
            if note_half is not None:
                with suppress(OSError, BrokerError):  # the first error counts
                    cluster.run(sender.finish())  # to note the halves in flight
            raise
        finally:
            cluster.close()

    def _ids(self) -> Ids:
        """Return the ids of a task's messages: random ones, or the same ones at each attempt."""
        if not self._options.sink.idempotent:
            now_ms = SystemClock().now_ms()
            return Ids(_prefix(uuid.uuid4().hex), now_ms - month_start_ms(now_ms) << 16)
        context = TaskContext.get()
        if context is None:
            return Ids(_prefix(self._run))
        query = context.getLocalProperty(_QUERY_ID) or self._run
        batch = context.getLocalProperty(_BATCH_ID) or "0"
        return Ids(_prefix(f"{query}/{batch}/{context.partitionId()}"))


@with_short_errors
class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def __init__(self, options: Options, schema: pa.Schema, overwrite: bool) -> None:
        if options.sink.is_exactly_once:
            raise ConfigError(
                "option delivery='exactly-once': only a stream has it, since a batch that is killed is not continued"
            )
        super().__init__(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send the rows of one task."""
        return self._send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of sent messages."""
        log.info("messages are sent", extra=_told(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of the messages that were sent nevertheless."""
        log.warning("job has failed: consumers can see the messages that it sent", extra=_told(messages))


@with_short_errors
class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of each step of a stream."""

    def __init__(self, options: Options, schema: pa.Schema, overwrite: bool) -> None:
        if options.sink.is_exactly_once and options.sink.checkpoint is None:
            raise ConfigError(
                "option checkpointLocation is missing: delivery='exactly-once' needs it as an option of the stream, "
                "not as a setting of the session"
            )
        super().__init__(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send the rows of one task."""
        return self._send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Deliver the messages of a step that must come exactly once; log the counts of sent messages."""
        if self._options.sink.is_exactly_once:
            from firearrow.spark.exactlyonce import StepEnd

            StepEnd(self._options).commit(batchId, _halves(messages))
        log.info("messages of a batch are sent", extra={"batch_id": batchId, **_told(messages)})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of the messages that were sent nevertheless.

        Spark also aborts a step whose commit has failed. All of its tasks have ended, and a decision may have their
        halves. So halves are dropped only if a task is missing: then no commit has begun.
        """
        if self._options.sink.is_exactly_once:
            from firearrow.spark.exactlyonce import StepEnd

            if None in messages:
                StepEnd(self._options).roll_back(_halves(messages))
            log.warning("batch has failed: its next run delivers what is missing", extra={"batch_id": batchId})
            return
        log.warning(
            "batch has failed: consumers can see the messages that it sent",
            extra={"batch_id": batchId, **_told(messages)},
        )


def send_rows(cluster: Cluster, sender: BatchSender, rows: SinkRows, count_max: int) -> None:
    """Send rows in batches of at most ``count_max`` messages; raises as ``BatchSender.send``."""
    targets: dict[str, list[WritableQueue]] = {}
    if rows.queue_id is not None or rows.order_hash is not None:
        targets = {topic: cluster.run(sender.targets_of(topic)) for topic in rows.topics}
    cluster.run(sender.send(pieces_of(rows, targets.__getitem__, count_max)))


def _prefix(name: str) -> str:
    """Return the first digits of ids, derived from the name of the sender."""
    return hashlib.blake2b(name.encode(), digest_size=10).hexdigest().upper()


def _halves(messages: Sequence[WriterCommitMessage | None]) -> pa.Table:
    """Return the half messages of the tasks that have ended."""
    from firearrow.spark.exactlyonce import HALVES

    parts = [message.halves for message in messages if isinstance(message, TaskResult)]
    return pa.concat_tables([HALVES.empty_table(), *(part for part in parts if part is not None)])


def _told(messages: Sequence[WriterCommitMessage | None]) -> dict[str, int]:
    """Return the sum of the tasks' counts as fields; the counts of a failed task are unknown."""
    written = [message.sent for message in messages if isinstance(message, TaskResult)]
    total = sum(written, _NONE)
    return {
        "messages": total.messages,
        "requests": total.batches,
        "retries": total.retries,
        "not_durable": total.not_durable,
        "tasks": len(written),
        "failed_tasks": len(messages) - len(written),
    }


# --- batches: rows of one topic, and of one queue if rows name it, in order ---


# RocketMQ's limit of a request's body is 4 MiB; a quarter keeps a broker's answer times even.
BATCH_BYTES_MAX: Final = 1024 * 1024
_PLACE_BITS: Final = 30  # a group of rows is numbered by its topic, its queue, and whether its rows go alone


def pieces_of(
    rows: SinkRows, targets_of: Callable[[str], Sequence[WritableQueue]], count_max: int
) -> Iterator[BatchBody]:
    """Cut rows into batches of at most ``count_max`` messages.

    ``targets_of`` gives the queues of a topic. It is called only if rows have a queue or an order key. Raises
    MessageError for a queue that a topic lacks.
    """
    if not len(rows):
        return
    pinned = rows.queue_id is not None or rows.order_hash is not None
    targets = [targets_of(topic) for topic in rows.topics] if pinned else []
    members, groups = rows.members, rows.topic_number << (_PLACE_BITS + 1)
    places = _places(rows, targets)
    if places is not None:
        groups = groups + ((places + 1) << 1)
    alone = _alone(rows)
    if alone is not None:
        groups = groups + alone
    if not (groups == groups[0]).all():
        order = groups.argsort(kind="stable")
        members, groups = members.take(order), groups[order]
    ends = np.append(np.nonzero(groups[1:] != groups[:-1])[0] + 1, len(groups))
    data = memoryview(members.buffers()[2])
    offsets: Ints = np.frombuffer(members.buffers()[1], np.int32).astype(np.int64)
    offsets = offsets[members.offset : members.offset + len(members) + 1]
    start = 0
    for end in ends.tolist():
        number, place, is_alone = _parts(int(groups[start]))
        target = targets[number][place] if place >= 0 else None
        for first, last in _cuts(offsets, start, end, 1 if is_alone else count_max):
            body = bytes(data[offsets[first] : offsets[last]])
            yield BatchBody(rows.topics[number], body, last - first, is_alone, target)
        start = end


def _parts(group: int) -> tuple[int, int, bool]:
    """Yield the number of a group's topic, that of its queue (or -1), and True if its rows go alone."""
    return group >> (_PLACE_BITS + 1), (group >> 1 & (1 << _PLACE_BITS) - 1) - 1, bool(group & 1)


def _cuts(offsets: Ints, start: int, end: int, count_max: int) -> Iterator[tuple[int, int]]:
    while start < end:
        fitting = int(offsets.searchsorted(int(offsets[start]) + BATCH_BYTES_MAX, side="right")) - 1
        stop = min(end, start + count_max, max(fitting, start + 1))
        yield start, stop
        start = stop


def _alone(rows: SinkRows) -> Ints | None:
    """Return 1 for each row that cannot be in a batch; None if all rows can."""
    alone = None if rows.alone is None else rows.alone.astype(np.int64)
    retry = [is_retry(topic) for topic in rows.topics]
    if any(retry):  # brokers take no batches for these
        of_topic = np.array(retry, np.int64)[rows.topic_number]
        alone = of_topic if alone is None else alone | of_topic
    return alone


def _places(rows: SinkRows, targets: Sequence[Sequence[WritableQueue]]) -> Ints | None:
    """Return the number of each row's target among its topic's targets, -1 for any; None if all rows are for any."""
    if rows.queue_id is None and rows.order_hash is None:
        return None
    places = np.full(len(rows), -1, np.int64)
    if rows.order_hash is not None:
        counts = np.array([len(queues) for queues in targets], np.int64)[rows.topic_number]
        places = np.where(rows.order_hash >= 0, rows.order_hash % counts, -1)
    if rows.queue_id is not None:
        named = rows.queue_id >= 0
        for number, queues in enumerate(targets):
            chosen = named & (rows.topic_number == number)
            if chosen.any():
                places[chosen] = _named(rows.queue_id[chosen], rows.topics[number], queues)
    return places


def _named(queue_ids: Ints, topic: str, queues: Sequence[WritableQueue]) -> Ints:
    """Return the places of queues by their numbers.

    If several brokers have a queue of that number, the number chooses the broker too, so rows of one number stay
    together.
    """
    by_id: dict[int, list[int]] = {}
    for place, target in enumerate(queues):
        by_id.setdefault(target.queue_id, []).append(place)
    table = np.full(max(by_id) + 2, -1, np.int64)
    for queue_id, found in by_id.items():
        table[queue_id] = found[queue_id % len(found)]
    places: Ints = table[np.minimum(queue_ids, len(table) - 1)]
    if (places < 0).any():
        wrong = int(queue_ids[int(np.argmin(places))])
        raise MessageError(f"topic {topic!r} has no queue {wrong} to write to, but 0 to {max(by_id)}", "column queueId")
    return places
