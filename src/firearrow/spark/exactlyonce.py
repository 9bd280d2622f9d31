"""Steps of a stream whose messages consumers see exactly once (``delivery=exactly-once``).

::

    <checkpoint>/firearrow-sink/
      17/<name>.parquet                         the half messages of step 17, one row each
      17/_delta_log/00000000000000000000.json   the name of the file that counts

Tasks send half messages, which no consumer sees, and give their places in the brokers' logs to the driver. The driver
ends a step in four parts:

1. It notes the end of each target queue.
2. It records the halves of the step and these ends: the *decision*. A step has one decision for good. A step that runs
   again uses the existing one, even if its tasks have sent other halves meanwhile.
3. It commits all halves of the decision.
4. It rolls back all other halves that it knows.

Kills. Without a decision, no half was committed, and the step begins again. With one, the messages after the noted ends
show the committed halves: the message of a half names the half's place in the log (``preparedTransactionOffset``). Only
the rest is committed. So it does not matter whether the step's rows are the same when it runs again.

Brokers. A commit is never repeated without this look at the queues: RocketMQ's broker delivers a half again each time
(Firearrow's does not). A commit in flight when its driver died may arrive late, so the look is ``SETTLE_SECONDS``
later, which is RocketMQ's time-out of a waiting commit. The broker must have dispatched it before the look: no request
tells how far the broker has dispatched a queue. Halves of killed tasks, which no driver knows any more, stay open. The
sink joins no producer group, so brokers get no answer to their checks, and give such halves up after
``transactionCheckMax`` checks. To answer them could only do harm: RocketMQ's broker also checks halves that were
committed just before it was killed, and would deliver them again.

One driver. Spark runs one driver for a checkpoint. If a second one starts too early, both have the same decision: a
decision is a Delta table, and the object store or file system lets only one of them create its first commit. (When
several processes create a table at once, the library may add the commit of a late one as version 1. So only version 0
counts.) Firearrow's broker then delivers each message once. RocketMQ's can deliver those twice that both drivers commit
after their look at the queues.
"""

from __future__ import annotations

import re
import threading
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from firearrow.client.producer.batchsender import BatchBody
from firearrow.client.producer.ending import HalfPlace, HalfRun
from firearrow.client.producer.transactions import Decision
from firearrow.client.queues import Queue, Span
from firearrow.client.routing.queues import WritableQueue
from firearrow.client.session.answers import read_number
from firearrow.errors import MAY_PASS, BrokerError, ConfigError, CorruptStore, DataLost, FirearrowError
from firearrow.logs import Log
from firearrow.message.ids import decode_offset_id
from firearrow.message.sysflag import TRANSACTION_COMMIT, transaction_type
from firearrow.spark.jobs.archive.fileplace import FilePlace, one_line
from firearrow.spark.jobs.resend.sender import ATTEMPTS_MAX, SETTLE_SECONDS
from firearrow.spark.jobs.resend.targets import ClusterMasters
from firearrow.spark.options import Options
from firearrow.spark.sinkrows import Ints
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

T = TypeVar("T")

KEPT: Final = 10  # earlier decisions: after a loss of power Spark may have lost its latest notes, too
_DIRECTORY: Final = "firearrow-sink"
_POWER: Final = " (if power was lost when it was recorded, remove this directory: nothing was committed)"
_FIRST_COMMIT: Final = "_delta_log/00000000000000000000.json"
_SPARKS_FILE: Final = "metadata"  # Spark writes it into each checkpoint before the first step

HALVES: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("queueId", pa.int32(), nullable=False),
        pa.field("inOrder", pa.bool_(), nullable=False),
        pa.field("halfOffset", pa.int64(), nullable=False),
        pa.field("physicalOffset", pa.int64(), nullable=False),
    ]
)
"""Half messages: their targets, whether messages of the target queue keep the order of rows, and the place of each."""

DECISION: Final = HALVES.append(pa.field("targetOffset", pa.int64(), nullable=False))
"""Half messages of a decision, each with the end of its target queue before the first commit."""


class HalfNotes:
    """The half messages that a task has sent."""

    def __init__(self) -> None:
        self._row_numbers = array("q")
        self._targets: dict[tuple[str, str, int, bool], int] = {}  # with their numbers
        self._target_numbers = array("q")
        self._half_offsets = array("q")
        self._physical_offsets = array("q")

    def note(self, number: int, piece: BatchBody, target: WritableQueue, answer: AnyCommand) -> None:
        """Note the half message of a row that a broker has stored."""
        key = piece.topic, target.broker_name, target.queue_id, piece.target is not None
        place = decode_offset_id(answer.ext.get("msgId", ""))
        self._row_numbers.append(number)
        self._half_offsets.append(read_number(answer, "queueOffset", target.address))
        self._physical_offsets.append(place.physical_offset)
        self._target_numbers.append(self._targets.setdefault(key, len(self._targets)))

    def table(self) -> pa.Table:
        """Return all half messages, in the order of their rows."""
        if not self._targets:
            return HALVES.empty_table()
        targets = pa.table([pa.array(values) for values in zip(*self._targets, strict=True)], list(HALVES.names[:4]))
        rows = targets.take(pa.array(np.frombuffer(self._target_numbers, np.int64)))
        for name, offsets in (("halfOffset", self._half_offsets), ("physicalOffset", self._physical_offsets)):
            rows = rows.append_column(name, pa.array(np.frombuffer(offsets, np.int64)))
        order = np.frombuffer(self._row_numbers, np.int64).argsort()
        return rows.take(pa.array(order)).cast(HALVES)


class Decisions:
    """The decisions of a stream, in its checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self._place = FilePlace(re.sub("^file:/+", "/", checkpoint), "checkpoint")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the checkpoint in errors of its file system."""
        try:
            yield
        except OSError as error:
            raise FirearrowError(f"checkpoint {self._place}: {one_line(error)}") from None

    def require_checkpoint(self) -> None:
        """Raise ConfigError unless Spark's checkpoint is here: decisions elsewhere would be lost with this machine."""
        with self._named():
            is_there = self._place.has(_SPARKS_FILE)
        if not is_there:
            raise ConfigError(
                f"option checkpointLocation: Spark has no checkpoint at {self._place}; name it with its scheme, "
                "such as hdfs://host:port/path"
            )

    def of(self, step: int) -> pa.Table | None:
        """Return the decision of a step, if there is one.

        Raises CorruptStore if it is damaged, FirearrowError if the file system does not answer.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        path = f"{_DIRECTORY}/{step}"
        place = self._place.full(path)
        try:
            with self._named():
                table = DeltaTable(place, version=0, storage_options=self._place.delta_options or None)
                [name] = pa.table(table.get_add_actions())["path"].to_pylist()
                with self._place.open(f"{path}/{unquote(name)}") as file:
                    return pq.read_table(file, schema=DECISION)
        except TableNotFoundError:
            return None
        except (DeltaError, ValueError) as error:
            raise CorruptStore(f"{place}: the decision on the step can't be read: {one_line(error)}{_POWER}") from None

    def settle(self, step: int, proposed: pa.Table) -> tuple[pa.Table, bool]:
        """Return the decision of a step, and whether it is the proposed one; it is on the disk."""
        from deltalake import CommitProperties, Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, create_table_with_add_actions

        path, name = f"{_DIRECTORY}/{step}", f"{uuid.uuid4().hex}.parquet"
        with self._named(), self._place.create(f"{path}/{name}") as file:
            pq.write_table(proposed, file, compression="zstd")
            size_bytes = file.tell()
        self._place.sync([f"{path}/{name}"])
        self._place.sync_names([f"{path}/{name}"])
        fault = "it has disappeared"
        try:
            create_table_with_add_actions(
                self._place.full(path),
                Schema.from_arrow(DECISION),
                [AddAction(name, size_bytes, {}, 0, True, "{}")],
                storage_options=self._place.delta_options or None,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:  # another driver has decided, or an answer was lost
            fault = one_line(error)
        decided = self.of(step)
        if decided is None:
            raise FirearrowError(f"{self._place.full(path)}: no decision can be recorded: {fault}")
        self._place.sync([f"{path}/{_FIRST_COMMIT}"])
        self._place.sync_names([f"{path}/{_FIRST_COMMIT}"])
        return decided, decided.equals(proposed)

    def forget_before(self, step: int) -> None:
        """Remove the decisions of earlier steps."""
        selector = pafs.FileSelector(_DIRECTORY, allow_not_found=True)
        with self._named():
            for info in self._place.files.get_file_info(selector):
                name = PurePosixPath(info.path).name
                if name.isdecimal() and int(name) < step:
                    self._place.files.delete_dir(info.path)


class StepEnd:
    """End of the steps of a stream: its messages are delivered, once, or dropped."""

    def __init__(self, options: Options, sleep: Callable[[float], object] | None = None) -> None:
        self._options = options
        self._sleep = sleep or threading.Event().wait

    def commit(self, step: int, sent: pa.Table) -> None:
        """Deliver the messages of a step: the halves that its tasks have sent, or the halves of an earlier decision.

        Raises OSError or BrokerError if a broker does not answer, or refuses a commit; the step can be repeated. Raises
        DataLost if retention has deleted messages that tell which halves are committed.
        """
        assert self._options.sink.checkpoint is not None
        decisions = Decisions(self._options.sink.checkpoint)
        decisions.require_checkpoint()
        decided, is_new = decisions.of(step), False
        if decided is None:
            if not len(sent):
                return
            decided, is_new = decisions.settle(step, self._persistent(lambda _: self._with_ends(sent)))
        self._deliver(step, decided, is_new=is_new)
        if not is_new:
            self.roll_back(_without(sent, decided))
        decisions.forget_before(step - KEPT)

    def roll_back(self, halves: pa.Table) -> None:
        """Drop halves that do not count. Those of a broker that does not answer stay open until it gives them up."""
        if not len(halves):
            return
        try:
            self._end(halves, Decision.ROLLBACK)
        except (OSError, BrokerError) as error:
            log.warning("half messages are left to their brokers", extra={"messages": len(halves), "error": error})

    def _with_ends(self, sent: pa.Table) -> pa.Table:
        """Return halves with the ends of their target queues."""
        ends = np.zeros(len(sent), np.int64)
        brokers = ClusterMasters(self._options)
        try:
            for queue, rows in _by_queue(sent):
                ends[rows] = brokers.queue(queue).end()
        finally:
            brokers.close()
        return sent.append_column(DECISION.field("targetOffset"), pa.array(ends))

    def _deliver(self, step: int, decided: pa.Table, *, is_new: bool) -> None:
        """Commit the halves of a decision that are not committed yet; a new decision has no others."""
        if not is_new:
            self._sleep(SETTLE_SECONDS)

        def deliver(attempt: int) -> None:
            is_first = is_new and attempt == 1
            self._end(decided if is_first else self._uncommitted(step, decided), Decision.COMMIT)

        self._persistent(deliver)

    def _persistent(self, work: Callable[[int], T]) -> T:
        """Do some work with brokers, by the number of the attempt, and again if that may help."""
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                return work(attempt)
            except MAY_PASS as error:
                log.info("the end of a step is tried again", extra={"attempt": attempt, "error": error})
                self._sleep(SETTLE_SECONDS)
        return work(ATTEMPTS_MAX)

    def _end(self, halves: pa.Table, decision: Decision) -> None:
        brokers = ClusterMasters(self._options)
        try:
            brokers.end_halves(self._options.sink.producer_group, _runs(halves), decision)
        finally:
            brokers.close()

    def _uncommitted(self, step: int, decided: pa.Table) -> pa.Table:
        """Return the halves whose messages are not in their target queues."""
        places, starts = _numbers(decided, "physicalOffset"), _numbers(decided, "targetOffset")
        is_pending = np.ones(len(decided), np.bool_)
        brokers = ClusterMasters(self._options)
        try:
            for queue, rows in _by_queue(decided):
                target = brokers.queue(queue)
                span = Span(int(starts[rows[0]]), target.end())
                if span.end < span.start:
                    raise DataLost(f"step {step}: {queue} ends at {span.end}, and ended at {span.start} before")
                committed = [
                    view.prepared_transaction_offset
                    for view in target.views(span)
                    if transaction_type(view.sys_flag) == TRANSACTION_COMMIT
                ]
                is_pending[rows] = ~np.isin(places[rows], committed)
        except DataLost as error:
            reason = str(error).partition(" (")[0]
            raise DataLost(f"step {step}: it can't be known which messages have arrived: {reason}") from None
        finally:
            brokers.close()
        return decided.filter(pa.array(is_pending))


def _without(sent: pa.Table, decided: pa.Table) -> pa.Table:
    """Return halves that a decision does not have."""
    chosen = set(zip(decided["broker"].to_pylist(), decided["physicalOffset"].to_pylist(), strict=True))
    mine = zip(sent["broker"].to_pylist(), sent["physicalOffset"].to_pylist(), strict=True)
    return sent.filter(pa.array([place not in chosen for place in mine], pa.bool_()))


def _runs(halves: pa.Table) -> Iterator[HalfRun]:
    """Cut halves into runs that can be decided side by side."""
    in_order = halves["inOrder"].to_numpy()
    half_offsets, physical_offsets = _numbers(halves, "halfOffset"), _numbers(halves, "physicalOffset")
    queue_ids = np.where(in_order, _numbers(halves, "queueId"), -1)
    for queue, rows in _grouped(halves, queue_ids):
        places = map(HalfPlace, half_offsets[rows].tolist(), physical_offsets[rows].tolist())
        yield HalfRun(queue.topic, queue.broker, queue.queue_id >= 0, places)


def _by_queue(halves: pa.Table) -> Iterator[tuple[Queue, Ints]]:
    """Yield each target queue with the numbers of its rows, in order."""
    return _grouped(halves, _numbers(halves, "queueId"))


def _grouped(halves: pa.Table, queue_ids: Ints) -> Iterator[tuple[Queue, Ints]]:
    if not len(halves):
        return
    topics, topic_numbers = _encoded(halves, "topic")
    brokers, broker_numbers = _encoded(halves, "broker")
    groups = (topic_numbers * len(brokers) + broker_numbers << 32) + queue_ids + 1
    order = groups.argsort(kind="stable")
    ends = np.nonzero(np.diff(groups[order]))[0] + 1
    for rows in np.split(order, ends):
        first = rows[0]
        yield Queue(topics[topic_numbers[first]], brokers[broker_numbers[first]], int(queue_ids[first])), rows


def _encoded(halves: pa.Table, name: str) -> tuple[list[Any], Ints]:
    column = halves[name].combine_chunks().dictionary_encode()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)


def _numbers(halves: pa.Table, name: str) -> Ints:
    numbers: Ints = halves[name].to_numpy().astype(np.int64)
    return numbers
