"""``df.write.format("rocketmq")`` and ``df.writeStream``: rows sent as messages.

``firearrow.spark.outgoing`` says which columns there are. Each task sends its rows in batches and
ends when a broker has acknowledged the last: at least once. Nothing takes back what was sent, so a
task that is repeated sends its rows again. With ``idempotent=true`` it sends them under the same
ids, if Spark gives it the same rows in the same order: the id (``UNIQ_KEY``) is made of the query,
the number of the batch, of the task and of the row, and whoever keeps the ids that were seen can
drop what comes twice. A batch job is such a query as a whole: run once more, it sends again.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from firearrow.client.batchsender import BatchSender, Sent
from firearrow.client.routequeues import Target
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError
from firearrow.message.ids import month_start_ms
from firearrow.spark.access import Cluster
from firearrow.spark.options import Options
from firearrow.spark.outgoing import Ids, Rows, check_columns, rows_of
from firearrow.spark.sendbatches import pieces_of
from firearrow.spark.sentences import told_in_sentences

log = logging.getLogger(__name__)

# How Spark tells the tasks of a stream what they belong to.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_NONE: Final = Sent(0, 0, 0, 0)


@dataclass
class TaskResult(WriterCommitMessage):
    """What one task has sent."""

    sent: Sent


class _Sending:
    """What the writers of batches and of streams have in common."""

    def __init__(self, options: Options, schema: pa.Schema, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('messages can only be appended: use .mode("append")')
        check_columns(schema, options.sink.topic, options.sink.order_key)
        self._options = options
        self._run = uuid.uuid4().hex

    def _send(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Send all rows of a task and wait until brokers have them."""
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
        )
        try:
            for batch in batches:
                rows = rows_of(batch, ids, sink.topic, sink.order_key)
                send_rows(cluster, sender, rows, sink.send_batch)
            return TaskResult(cluster.run(sender.finish()))
        finally:
            cluster.close()

    def _ids(self) -> Ids:
        """The ids of a task's messages: its own, or those that it always has."""
        if not self._options.sink.idempotent:
            now_ms = SystemClock().now_ms()
            return Ids(_prefix(uuid.uuid4().hex), now_ms - month_start_ms(now_ms) << 16)
        context = TaskContext.get()
        if context is None:
            return Ids(_prefix(self._run))
        query = context.getLocalProperty(_QUERY_ID) or self._run
        batch = context.getLocalProperty(_BATCH_ID) or "0"
        return Ids(_prefix(f"{query}/{batch}/{context.partitionId()}"))


@told_in_sentences
class BatchWriter(_Sending, DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send the rows of one task."""
        return self._send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what was sent."""
        log.info("messages are sent", extra=_told(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what was sent nevertheless."""
        log.warning("job has failed: consumers can see what it sent", extra=_told(messages))


@told_in_sentences
class StreamWriter(_Sending, DataSourceStreamArrowWriter):
    """Writes the rows of each step of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send the rows of one task."""
        return self._send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Say what was sent."""
        log.info("messages of a batch are sent", extra={"batch_id": batchId, **_told(messages)})

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Say what was sent nevertheless."""
        log.warning("batch has failed: consumers can see what it sent", extra={"batch_id": batchId, **_told(messages)})


def send_rows(cluster: Cluster, sender: BatchSender, rows: Rows, count_max: int) -> None:
    """Send rows in batches of at most ``count_max`` messages; raises as ``BatchSender.send``."""
    targets: dict[str, list[Target]] = {}
    if rows.queue_id is not None or rows.order_hash is not None:
        targets = {topic: cluster.run(sender.targets_of(topic)) for topic in rows.topics}
    cluster.run(sender.send(pieces_of(rows, targets.__getitem__, count_max)))


def _prefix(name: str) -> str:
    """The first digits of ids, from the name of who makes them."""
    return hashlib.blake2b(name.encode(), digest_size=10).hexdigest().upper()


def _told(messages: Sequence[WriterCommitMessage | None]) -> dict[str, int]:
    """The sum of what tasks have sent, as fields; nobody knows what a failed task had sent."""
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
