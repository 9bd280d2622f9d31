"""Options of every command that prints a table, and the output in that format.

A table is aligned by default. `--json` prints a list of objects and `--csv` rows with a head. Both use the names of the
columns, which are stable. Only a terminal gets colours, unless ``NO_COLOR`` is set (https://no-color.org).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

from firearrow.cli.output.reports import Cell, Table, plain
from firearrow.cli.output.screen import as_list
from firearrow.cli.output.stream import naming_output
from firearrow.cli.parameters import exclude, options, switch

NO_COLOR: Final = "NO_COLOR"


@options
class Output:
    """Output format of a command."""

    json: Annotated[bool, switch("print a list of JSON objects")] = False
    csv: Annotated[bool, switch("print comma-separated values, with a head")] = False
    table: Annotated[bool, switch("print an aligned table (default)")] = False

    def show(self, table: Table) -> None:
        """Print a table."""
        import json  # a command that fails does not need it
        import shutil

        with naming_output():
            if self.json:
                print(json.dumps(table.objects(), indent=2, ensure_ascii=False))
            elif self.csv:
                self._write_csv([table.columns, *table.rows])
            else:
                width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
                sys.stdout.write(as_list(table, width, colored=has_colors()))
            sys.stdout.flush()

    def show_row(self, columns: Sequence[str], row: Sequence[Cell], line: str, *, first: bool) -> None:
        """Print one row of an endless output: a line, with `--json` an object per line."""
        import json

        with naming_output():
            if self.json:
                table = Table("", columns, [row])
                print(json.dumps(table.objects()[0], ensure_ascii=False))
            elif self.csv:
                self._write_csv([columns, row] if first else [row])
            else:
                print(line)
            sys.stdout.flush()

    def check(self) -> None:
        """Raise WrongOptions for more than one format."""
        exclude(self, "json", "csv", "table")

    def _write_csv(self, rows: Sequence[Sequence[Cell]]) -> None:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([_text(cell) for cell in row] for row in rows)


def _text(cell: Cell) -> object:
    return str(cell).lower() if isinstance(cell, bool) else plain(cell)


PLAIN: Final = Output()
"""Output format without options."""


def has_colors() -> bool:
    """Tell whether standard output may be coloured."""
    return sys.stdout.isatty() and not os.environ.get(NO_COLOR)
