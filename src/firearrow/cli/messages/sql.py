"""`firearrow sql`: a query over the messages that brokers retain, and over the typed tables of a lake.

A table of the query is a topic: its messages as `COLUMNS`, read from the brokers with the user's rights. With a lake,
the name of a topic stands for its typed table and the messages behind it. DuckDB runs the query in memory, without
files, network or extensions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions, Target
from firearrow.cli.messages.reading import places, read, span
from firearrow.cli.messages.resending import COLUMNS, row_of
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Table
from firearrow.cli.parameters import Parameter, count, moment, own_files, valued
from firearrow.client.admin import Admin
from firearrow.errors import ConfigError
from firearrow.message.model import MessageView

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

MESSAGES: Final = 100_000
ROWS: Final = 1000
BODY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bodies of one query; a topic with more is cut."""
SECONDS: Final = 30
MEMORY: Final = "1GB"
SETTINGS: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # a table must not be a variable of this program
    "memory_limit": MEMORY,
    "threads": "2",
}


async def sql(
    query: Annotated[str, Parameter('the query, a SELECT; a topic is a table: "my-topic"')],
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
    connection = _connected()
    try:
        names = _tables_in(connection, query)
        notes: list[str] = []
        async with cluster.admin() as admin:
            for name in sorted(names):
                typed = None if lake is None else _typed(name, lake, cluster.target())
                # one message is read of a typed table's topic, too: the broker says whether the user may
                retained, note = await _messages(admin, name, since, messages if typed is None else 1)
                connection.register(name, retained if typed is None else typed)
                note = note if typed is None else ""
                notes += [note] if note else []
        output.show(await _result(connection, query, rows, notes))
    finally:
        connection.close()


def _connected() -> DuckDBPyConnection:
    try:
        import duckdb
        import pyarrow as pa  # noqa: F401 - DuckDB needs it for tables
    except ModuleNotFoundError as error:
        raise ConfigError(f"queries need {error.name}: pip install 'firearrow[sql]'") from None
    connection = duckdb.connect(":memory:", config=dict(SETTINGS))
    connection.execute("SET TimeZone='UTC'; SET lock_configuration=true")
    return connection


def _tables_in(connection: DuckDBPyConnection, query: str) -> set[str]:
    """Give the names of the tables of a query; ConfigError unless it is one SELECT."""
    import duckdb

    try:
        kinds = [statement.type for statement in duckdb.extract_statements(query)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise ConfigError("the query is not one SELECT")
        return connection.get_table_names(query)
    except duckdb.Error as error:
        raise ConfigError(_said(error)) from None


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def _messages(admin: Admin, topic: str, since: int | None, most: int) -> tuple[pa.Table, str]:
    """Read the newest messages of a topic, as many from each queue; with a note if there are more."""
    queues = await places(admin, topic)
    share, size, is_cut = -(-most // len(queues)), 0, False
    found: list[list[Any]] = []
    for place in queues:
        start, end = await span(admin, place, since)
        is_cut |= end - start > share
        async with aclosing(read(admin, place, max(start, end - share), end)) as several:
            async for it in several:
                size += len(it.message.body)
                if size > BODY_BYTES_MAX:
                    is_cut = True
                    break
                found.append(_row(it.message, it.broker))
    note = f"of topic {topic!r}, only the newest {len(found):,} messages were read" if is_cut else ""
    return _arrow(found), note


def _row(message: MessageView, broker: str) -> list[Any]:
    """Values of a message; a binary body is no text, and properties are a map."""
    row: list[Any] = row_of(message, broker)
    named = dict(zip(COLUMNS, row, strict=True))
    named["body"] = None if named["bodyIsBase64"] else named["body"]
    named["properties"] = list(message.properties.items())
    return list(named.values())


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


async def _result(connection: DuckDBPyConnection, query: str, most: int, notes: list[str]) -> Table:
    """Run the query in a thread, for a limited time; the end of the command ends it, too."""
    import duckdb

    def run() -> tuple[list[str], list[tuple[Any, ...]]]:
        found = connection.execute(query)
        return [it[0] for it in found.description or ()], found.fetchmany(most + 1)

    running = asyncio.ensure_future(asyncio.to_thread(run))
    try:
        columns, rows = await asyncio.wait_for(asyncio.shield(running), SECONDS)
    except TimeoutError:
        raise ConfigError(f"the query takes more than {SECONDS} s") from None
    except duckdb.Error as error:
        raise ConfigError(_said(error)) from None
    finally:
        connection.interrupt()
        await asyncio.wait([running])
    shown = [[_cell(value) for value in row] for row in rows[:most]]
    if len(rows) > most:
        notes = [*notes, f"only the first {most:,} rows are shown"]
    return Table("Rows", columns, shown, "; ".join(notes), more=len(rows) > most)


def _cell(value: Any) -> Any:
    """Give a value of DuckDB as a cell; lists, maps and other values as text."""
    from datetime import datetime

    return value if value is None or isinstance(value, str | int | float | datetime) else str(value)
