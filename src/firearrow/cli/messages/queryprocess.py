"""The process of one query: DuckDB without files, network or extensions, in bounded memory.

A query is a program of a stranger: a single call such as ``repeat('x', 9999999999)`` takes more time and memory than
DuckDB itself can interrupt or limit. So each query has a process, which its parent kills when its time is over.

It reads a `Question` from standard input, and each table as a stream of Arrow from the file that the question names.
It writes an `Outcome` to standard output.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY: Final = "1GB"
ADDRESS_BYTES_MAX: Final = 6 << 30
"""Memory of the process with all that it maps; DuckDB counts only a part of what it uses."""
RESULT_BYTES_MAX: Final = 64 << 20
FETCHED: Final = 100
INTEGER_MAX: Final = 1 << 63
SETTINGS: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # a table must not be a variable of this program
    "temp_directory": "",  # a query could read its files
    "secret_directory": "",
    "memory_limit": MEMORY,
    "threads": "2",
}


class Input(msgspec.Struct, frozen=True):
    """A table of a query: the number of the file that has it. A stream is read once, when the query wants it."""

    name: str
    file: int
    is_stream: bool


class Question(msgspec.Struct, frozen=True):
    """A query, and its tables; without them, the names of its tables are wanted."""

    query: str
    rows: int = 0
    tables: list[Input] | None = None


class Outcome(msgspec.Struct, frozen=True):
    """Names of tables, or columns and rows, one more than wanted if there are more; or the reason why there are none.

    A time is a list with its text.
    """

    tables: list[str] = []
    columns: list[str] = []
    rows: list[list[Any]] = []
    is_cut: bool = False
    trouble: str = ""


def outcome_of(question: Question) -> Outcome:
    """Answer a question."""
    import duckdb

    connection = _connected()
    try:
        kinds = [statement.type for statement in duckdb.extract_statements(question.query)]
        if kinds != [duckdb.StatementType.SELECT]:
            return Outcome(trouble="the query is not one SELECT")
        if question.tables is None:
            return Outcome(sorted(connection.get_table_names(question.query)))
        for it in question.tables:
            connection.register(it.name, _table(it))
        return _rows(connection, question.query, question.rows)
    except duckdb.Error as error:
        return Outcome(trouble=str(error).partition("\n")[0])


def _connected() -> DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:", config=dict(SETTINGS))
    connection.execute("SET TimeZone='UTC'; SET lock_configuration=true")
    return connection


def _table(it: Input) -> Any:
    import pyarrow as pa

    stream = pa.ipc.open_stream(os.fdopen(it.file, "rb"))
    return stream if it.is_stream else stream.read_all()


def _rows(connection: DuckDBPyConnection, query: str, most: int) -> Outcome:
    found = connection.execute(query)
    columns = [it[0] for it in found.description or ()]
    rows: list[list[Any]] = []
    size, is_cut = 0, False
    while len(rows) <= most and not is_cut and (some := found.fetchmany(min(FETCHED, most + 1 - len(rows)))):
        for row in some:
            cells = [_cell(value) for value in row]
            size += sum(len(cell) for cell in cells if isinstance(cell, str)) + 8 * len(cells)
            if size > RESULT_BYTES_MAX:
                is_cut = True
                break
            rows.append(cells)
    return Outcome([], columns, rows, is_cut)


def _cell(value: Any) -> Any:
    """Give a value of DuckDB as a cell; lists, maps and other values as text."""
    if isinstance(value, datetime):
        return [value.isoformat()]
    if value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < INTEGER_MAX):
        return value
    return str(value)


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer one question."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    question = msgspec.msgpack.decode(source.read(), type=Question)
    import duckdb  # noqa: F401 - the way to it may be relative
    import pyarrow as pa  # noqa: F401

    os.chdir("/")
    os.environ.clear()
    os.environ["HOME"] = "/"  # settings show it
    try:
        outcome = outcome_of(question)
    except MemoryError:
        outcome = Outcome(trouble=f"Out of Memory Error: a query may have {MEMORY}")
    sink.write(msgspec.msgpack.encode(outcome))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
