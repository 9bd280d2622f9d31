"""A sink of streams whose process kills itself (SIGKILL), once, at a chosen point of a step.

`kill_at` writes the point into a file beside the checkpoint, and the pids of processes that shall die, too. The process
that reaches the point removes the file, kills them and itself. By itself this is a program that sends one step and
ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.client.producer import ending
from firearrow.client.producer.transactions import Decision
from firearrow.spark import exactlyonce
from firearrow.spark.exactlyonce import HalfNotes
from firearrow.spark.jobs.resend.sender import SETTLE_SECONDS
from firearrow.spark.options import Options, for_sink
from firearrow.spark.sink import StreamWriter, TaskResult
from firearrow.spark.source.datasource import RocketMQSource

IN_A_TASK = "in a task"
AFTER_THE_TASKS = "after the tasks"
BEFORE_THE_DECISION = "before the decision"
AFTER_THE_DECISION = "after the decision"
BETWEEN_COMMITS = "between two commits"
AFTER_THE_COMMITS = "after the commits"
AFTER_THE_STEP = "after the step"
POINTS = (
    IN_A_TASK,
    AFTER_THE_TASKS,
    BEFORE_THE_DECISION,
    AFTER_THE_DECISION,
    BETWEEN_COMMITS,
    AFTER_THE_COMMITS,
    AFTER_THE_STEP,
)
DECIDED = POINTS[3:]
"""Points behind which the messages of a step are those of its first run."""

ROWS = 600
JVM = 0
"""In place of a pid: the JVM that has started the dying process, by way of a process that forks."""
_HALVES_SENT = 50
_COMMITS_SENT = ending.IN_FLIGHT_MAX + 50  # so at least fifty are answered, and others are in flight


def _kill_file(checkpoint: Path) -> Path:
    return checkpoint.with_name("kill")


def kill_at(checkpoint: Path, point: str, *pids: int) -> None:
    """Have the next process that reaches a point die there, and others with it."""
    _kill_file(checkpoint).write_text(json.dumps([point, pids]))


def has_died(checkpoint: Path) -> bool:
    """Whether a process has reached the point."""
    return not _kill_file(checkpoint).exists()


def die_at(checkpoint: Path, point: str) -> None:
    """Die if this is the point."""
    file = _kill_file(checkpoint)
    if not file.exists():
        return
    chosen, pids = json.loads(file.read_text())
    if chosen == point:
        file.unlink()
        for pid in (*pids, os.getpid()):
            os.kill(_parent(os.getppid()) if pid == JVM else pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def deaths(checkpoint: Path, settle_seconds: float) -> Iterator[None]:
    """Watch for the points within a ``with`` block.

    The next process looks for arrived messages after ``settle_seconds``. Firearrow's broker needs no time for that: it
    commits a half once.
    """

    def watched(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> Any:
        found = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            before(*args)
            done = found(*args, **named)
            after(*args)
            return done

        return patch.object(owner, name, call)

    def at(point: str, number: int = 1) -> Callable[..., None]:
        calls = count(1)

        def reached(*_: Any) -> None:
            if next(calls) == number:
                die_at(checkpoint, point)

        return reached

    def never(*_: Any) -> None:
        pass

    decide = ending.HalfEnds.decide

    async def decided(self: ending.HalfEnds, runs: Any, decision: Decision) -> None:
        await decide(self, runs, decision)
        if decision is Decision.COMMIT:
            die_at(checkpoint, AFTER_THE_COMMITS)

    import deltalake.transaction as delta

    with ExitStack() as stack:
        stack.enter_context(watched(HalfNotes, "note", never, at(IN_A_TASK, _HALVES_SENT)))
        name = "create_table_with_add_actions"
        stack.enter_context(watched(delta, name, at(BEFORE_THE_DECISION), at(AFTER_THE_DECISION)))
        stack.enter_context(watched(ending, "end_fields", at(BETWEEN_COMMITS, _COMMITS_SENT), never))
        stack.enter_context(patch.object(ending.HalfEnds, "decide", decided))
        stack.enter_context(patch.object(exactlyonce, "SETTLE_SECONDS", settle_seconds))
        yield


class DyingWriter(StreamWriter):
    """Sink that dies at the point."""

    settle_seconds = 0.0

    def __init__(self, options: Options, schema: pa.Schema, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        assert options.sink.checkpoint is not None
        self._checkpoint = Path(options.sink.checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send the rows of one task."""
        with deaths(self._checkpoint, self.settle_seconds):
            return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """End a step."""
        with deaths(self._checkpoint, self.settle_seconds):
            die_at(self._checkpoint, AFTER_THE_TASKS)
            super().commit(messages, batchId)
            die_at(self._checkpoint, AFTER_THE_STEP)


class DyingSource(RocketMQSource):
    """The format ``dyingrocketmq``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dyingrocketmq"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the sink that dies."""
        return DyingWriter(for_sink(self.options), to_arrow_schema(schema, timezone="UTC"), overwrite)


def step(name_server: str, topic: str, checkpoint: Path, run: str) -> None:
    """Run a step as Spark would; its messages have a number and the name of the run."""
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").touch()
    batch = pa.RecordBatch.from_pydict({"body": [f"{number}/{run}" for number in range(ROWS)]})
    options = {"nameServer": name_server, "topic": topic, "checkpointLocation": str(checkpoint)}
    writer = DyingWriter(for_sink(options | {"delivery": "exactly-once"}), batch.schema, False)
    writer.settle_seconds = SETTLE_SECONDS
    writer.commit([writer.write(iter([batch]))], 0)


if __name__ == "__main__":
    step(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
