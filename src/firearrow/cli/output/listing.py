"""Options of every command that prints a table, and the output in that format.

A table is aligned by default. `--json` prints a list of objects and `--csv` rows with a head. `--output` and `--format`
have more ways. All use the names of the columns, which are stable. Only a terminal gets colours, unless ``NO_COLOR`` is
set (https://no-color.org).
"""

# Annotations are evaluated here, and not each as a text by the parser: see `cli.cluster.options`.
import os
import re
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from firearrow.cli.output.reports import Cell, Table, as_json, plain, visible
from firearrow.cli.output.stream import naming_output
from firearrow.cli.parameters import Options, WrongOptions, exclude, switch, valued

NO_COLOR: Final = "NO_COLOR"


Form = Literal["json", "jsonl", "csv", "table", "body"]


class Output(Options):
    """Output format of a command."""

    json: Annotated[bool, switch("print a list of JSON objects")] = False
    csv: Annotated[bool, switch("print comma-separated values, with a head")] = False
    table: Annotated[bool, switch("print an aligned table (default)")] = False
    output: Annotated[
        Form | None,
        valued(
            None,
            "print rows like the option of this name, as one JSON object a line, or only the bodies of messages",
            name=("-o", "--output"),
        ),
    ] = None
    format: Annotated[
        str | None, valued("TEXT", "print each row as this text, with columns in braces: '{messageId} {body}'")
    ] = None

    @property
    def form(self) -> str:
        """Chosen format; empty without a choice."""
        if self.format is not None:
            return "format"
        return self.output or next((name for name in ("json", "csv", "table") if getattr(self, name)), "")

    @property
    def is_json(self) -> bool:
        """Tell whether it is JSON, so that an error is one, too."""
        return self.form in ("json", "jsonl")

    def show(self, table: Table) -> None:
        """Print a table."""
        with naming_output():
            match self.form:
                case "json":
                    _print_json(table.objects(), indent=2)
                case "csv":
                    self._write_csv([table.columns, *table.rows])
                case "" | "table":
                    from firearrow.cli.output.screen import as_list  # a command that fails does not need it

                    sys.stdout.write(as_list(table, _width(), colored=has_colors()))
                case _:
                    for row in table.objects():
                        self._print(row)
            sys.stdout.flush()

    def show_row(self, columns: Sequence[str], row: Sequence[Cell], line: str, *, first: bool) -> None:
        """Print one row of an endless output: a line, with `--json` an object per line."""
        with naming_output():
            match self.form:
                case "csv":
                    self._write_csv([columns, row] if first else [row])
                case "" | "table":
                    print(line)
                case _:
                    self._print(Table("", columns, [row]).objects()[0])
            sys.stdout.flush()

    def check(self) -> None:
        """Raise WrongOptions for more than one format."""
        exclude(self, "json", "csv", "table", "output", "format")

    def _print(self, row: Mapping[str, Any]) -> None:
        if self.form == "body":
            print_body(row)
        elif self.format is not None:
            print(_formatted(self.format, row))
        else:
            _print_json(row)

    def _write_csv(self, rows: Sequence[Sequence[Cell]]) -> None:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([_text(cell) for cell in row] for row in rows)


def _width() -> int | None:
    """Give the width of the terminal; None without a terminal."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size  # imports the formats of archives, too

    return get_terminal_size().columns


def _print_json(value: Any, indent: int | None = None) -> None:
    import json  # a command that fails does not need it

    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if sys.stdout.isatty():  # strings may be of any producer
        text = "\n".join(map(visible, text.split("\n")))
    if has_colors():
        from firearrow.cli.output.screen import colored_json

        text = colored_json(text)
    print(text)


def print_body(row: Mapping[str, Any]) -> None:
    """Print the body of a message: its bytes; on a terminal JSON over several lines, and base64 of a binary body."""
    if IS_BASE64 not in row:
        raise WrongOptions("argument --output: these rows have no bodies, as messages have")
    body: str = row["body"]
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write((b64decode(body) if row[IS_BASE64] else body.encode()) + b"\n")
    elif body[:1] in ("{", "[") and (value := _value(body)) is not None:
        _print_json(value, indent=2)
    else:
        print("\n".join(map(visible, body.split("\n"))))


def _value(text: str) -> Any:
    """Give the value of JSON; None for another text."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _formatted(text: str, row: Mapping[str, Any]) -> str:
    """Give a row as a text: ``{column}``, and ``{properties.NAME}`` for one property."""

    def value(found: re.Match[str]) -> str:
        name, _, key = found[1].partition(".")
        name = SHORT_NAMES.get(name, name)
        if name not in row:
            raise WrongOptions(f"argument --format: there is no column {found[0]}; there are {', '.join(row)}")
        cell = row[name]
        if key:
            cell = cell.get(key) if isinstance(cell, Mapping) else None
        return "" if cell is None else str(_text(cell))

    return re.sub(r"\{([^{}]+)\}", value, text.replace("\\n", "\n").replace("\\t", "\t"))


SHORT_NAMES: Final = {"key": "keys", "id": "messageId", "queue": "queueId", "offset": "queueOffset"}
"""Names in a format for the columns of messages."""
IS_BASE64: Final = "bodyIsBase64"


def _text(cell: Cell) -> object:
    if isinstance(cell, Mapping):
        return as_json(cell)
    return str(cell).lower() if isinstance(cell, bool) else plain(cell)


PLAIN: Final = Output()
"""Output format without options."""


def has_colors() -> bool:
    """Tell whether standard output may be coloured."""
    return sys.stdout.isatty() and not os.environ.get(NO_COLOR)


def marked(word: str) -> str:
    """Give a severity in its colour, if standard output may be coloured."""
    if not has_colors():
        return word
    from firearrow.cli.output.screen import SEVERITIES, painted

    return painted(word, SEVERITIES[word.lower()])
