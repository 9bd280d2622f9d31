"""`firearrow sql`: a query over the messages that brokers retain, and over the typed tables of a lake.

A table of the query is a topic: its messages as `COLUMNS`, read from the brokers with the user's rights. With a lake,
the name of a topic stands for its typed table and the messages behind it. `queryprocess` runs the query.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from firearrow.cli.cluster.options import ANY, ClusterOptions, Target
from firearrow.cli.messages.bodyviews import body_of
from firearrow.cli.messages.queryprocess import MEMORY, RESULT_BYTES_MAX, Input, Outcome, Question
from firearrow.cli.messages.reading import places, read, span
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.messagerows import COLUMNS, row_of
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import (
    STANDARD_INPUT,
    Parameter,
    content_of,
    count,
    moment,
    own_files,
    text_or_input,
    valued,
)
from firearrow.client.admin import Admin
from firearrow.errors import ConfigError, require_packages
from firearrow.message.model import MessageView

if TYPE_CHECKING:
    import pyarrow as pa

    Readable: TypeAlias = pa.Table | pa.RecordBatchReader

PROCESS: Final = "firearrow.cli.messages.queryprocess"
MESSAGES: Final = 100_000
ROWS: Final = 1000
BODY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Messages of one query; topics with more are cut."""
READING_SECONDS: Final = 60.0
"""Longest reading of messages, which is cut then."""
SECONDS: Final = 30
"""Longest run of a query."""
FEEDING_SECONDS: Final = 1.0
"""Wait for those who write its tables, after its end."""
QUERIES_MAX: Final = 4
"""Queries of one console at a time."""
_running: set[object] = set()
EMPTY: Final[Mapping[str, Readable]] = {}


async def sql(
    query: Annotated[
        str | None,
        Parameter('the query, a SELECT; a topic is a table: "my-topic"; - is standard input', read=text_or_input),
    ],
    /,
    *,
    since: Annotated[int | None, valued("TIME", "only messages stored at this time or later", moment)] = None,
    messages: Annotated[
        int, valued("N", f"newest messages of each topic to read at most (default: {MESSAGES:,})", count)
    ] = MESSAGES,
    rows: Annotated[int, valued("N", f"largest number of rows to show (default: {ROWS:,})", count)] = ROWS,
    lake: Annotated[
        str | None, valued("ROOT", "directory or URI of typed tables, see `firearrow pipeline tables`", own_files)
    ] = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Run a query over the messages of topics, or over their typed tables."""
    require_packages("queries need", "sql", "duckdb", "pyarrow")
    with _in_turn():
        text = content_of(Path(STANDARD_INPUT)).decode() if query is None else query
        output.show(await _asked(text, since, messages, rows, lake, cluster))


@contextmanager
def _in_turn() -> Iterator[None]:
    """Count a query while it runs; ConfigError if too many run."""
    if len(_running) >= QUERIES_MAX:
        raise ConfigError(f"{QUERIES_MAX} queries run already, the most at a time: try again")
    mark = object()
    _running.add(mark)
    try:
        yield
    finally:
        _running.remove(mark)


async def _asked(
    query: str, since: int | None, messages: int, rows: int, lake: str | None, cluster: ClusterOptions
) -> Table:
    names = (await _answered(Question(query))).tables
    notes: list[str] = []
    tables: dict[str, Readable] = {}
    async with cluster.admin() as admin:
        reading = _Reading(admin, since)
        for name in names:
            typed = None if lake is None else _typed(name, lake, cluster.target())
            # one message is read of a typed table's topic, too: the broker says whether the user may
            retained, note = await reading.messages(name, messages if typed is None else 1)
            tables[name] = retained if typed is None else typed
            notes += [note] if note and typed is None else []
    return _result(await _answered(Question(query, rows, []), tables), rows, notes)


async def _answered(question: Question, tables: Mapping[str, Readable] = EMPTY) -> Outcome:
    """Ask a process of the query, which is killed when its time is over, or when nobody waits for it any more."""
    pipes = {name: os.pipe() for name in tables}
    if question.tables is not None:
        inputs = [Input(name, end, not _is_whole(tables[name])) for name, (end, _) in pipes.items()]
        question = replace(question, tables=inputs)
    ends = tuple(end for end, _ in pipes.values())
    try:
        process = await create_subprocess_exec(
            sys.executable, "-m", PROCESS, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, pass_fds=ends
        )
    finally:
        for end in ends:
            os.close(end)
    feeding = [asyncio.create_task(asyncio.to_thread(_feed, tables[name], end)) for name, (_, end) in pipes.items()]
    try:
        async with asyncio.timeout(SECONDS):
            said, _ = await process.communicate(msgspec.msgpack.encode(question))
    except TimeoutError:
        raise ConfigError(f"the query takes more than {SECONDS} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if feeding:  # without readers, they end soon
            await asyncio.wait(feeding, timeout=FEEDING_SECONDS)
    for it in feeding:
        if it.done():
            it.result()
    if process.returncode or not said:
        raise ConfigError(f"the query needs more memory than a query may have, {MEMORY}")
    outcome = msgspec.msgpack.decode(said, type=Outcome)
    if outcome.trouble:
        raise ConfigError(outcome.trouble)
    return outcome


def _is_whole(table: Readable) -> bool:
    import pyarrow as pa

    return isinstance(table, pa.Table)


def _feed(table: Readable, end: int) -> None:
    """Write a table for the process, which may end before it has read the whole table."""
    import pyarrow as pa

    batches = table.to_batches() if _is_whole(table) else table
    with suppress(BrokenPipeError), open(end, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


class _Reading:
    """Messages of the topics of one query, within its limits of bytes and time."""

    def __init__(self, admin: Admin, since: int | None) -> None:
        self._admin = admin
        self._since = since
        self._left = BODY_BYTES_MAX
        self._until = asyncio.get_running_loop().time() + READING_SECONDS

    async def messages(self, topic: str, most: int) -> tuple[pa.Table, str]:
        """Read the newest messages of a topic, as many from each queue; with a note if there are more."""
        queues = await places(self._admin, topic)
        share, is_cut = -(-most // len(queues)), False
        found: list[list[Any]] = []
        for place in queues:
            start, end = await span(self._admin, place, self._since)
            is_cut |= end - start > share
            async with aclosing(read(self._admin, place, max(start, end - share), end)) as several:
                async for it in several:
                    row, size = _row(it.message, it.broker)
                    self._left -= size
                    if self._left < 0 or asyncio.get_running_loop().time() > self._until:
                        is_cut = True
                        break
                    found.append(row)
        note = f"of topic {topic!r}, only the newest {len(found):,} messages were read" if is_cut else ""
        return _arrow(found), note


def _row(message: MessageView, broker: str) -> tuple[list[Any], int]:
    """Values of a message, and their size; a body that is binary or damaged is no text, and properties are a map."""
    body, trouble = body_of(message)
    row: list[Any] = row_of(message, broker, body)
    named = dict(zip(COLUMNS, row, strict=True))
    named["body"] = None if named["bodyIsBase64"] or trouble else named["body"]
    named["properties"] = list(message.properties.items())
    return list(named.values()), len(body) + message.store_size


def _arrow(rows: list[list[Any]]) -> pa.Table:
    import pyarrow as pa

    text, whole, time = pa.string(), pa.int64(), pa.timestamp("ms", "UTC")
    kinds = {"storedAt": time, "bornAt": time, "bodyIsBase64": pa.bool_(), "properties": pa.map_(text, text)}
    kinds |= dict.fromkeys(("queueId", "queueOffset", "reconsumeTimes", "bodyBytes"), whole)
    schema = pa.schema([(name, kinds.get(name, text)) for name in COLUMNS])
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _typed(topic: str, root: str, target: Target) -> pa.RecordBatchReader | None:
    """Give the typed table of a topic with the messages behind it; None without such a table."""
    from firearrow.lake.reading import table
    from firearrow.lake.spec import table_name
    from firearrow.spark.jobs.archive.delta import Archive

    if Archive(f"{root.rstrip('/')}/{table_name(topic)}").load().table is None:
        return None
    live = {"nameServer": ";".join(target.name_servers)}
    if target.credentials is not None:
        live |= {"accessKey": target.credentials.access_key, "secretKey": target.credentials.secret_key}
    return table(topic, root, live)


def _result(outcome: Outcome, most: int, notes: list[str]) -> Table:
    rows = [[_cell(value) for value in row] for row in outcome.rows[:most]]
    more = outcome.is_cut or len(outcome.rows) > most
    if more:
        why = f", which have {RESULT_BYTES_MAX >> 20} MiB" if outcome.is_cut else ""
        notes = [*notes, f"only the first {len(rows):,} rows are shown{why}"]
    return Table("Rows", _distinct(outcome.columns), rows, "; ".join(notes), more=more, is_exact=True)


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that come again, as DuckDB does in a query within a query: ``a``, ``a_1``."""
    found: dict[str, None] = {}
    for name in names:
        new, number = name, 0
        while new in found:
            number += 1
            new = f"{name}_{number}"
        found[new] = None
    return list(found)


def _cell(value: Any) -> Cell:
    """Give a value of the process as a cell."""
    found: Cell = datetime.fromisoformat(value[0]) if isinstance(value, list) else value
    return found
