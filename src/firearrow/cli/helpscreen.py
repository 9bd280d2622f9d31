"""The help of a command on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Final

from firearrow.cli.described import Described, Option
from firearrow.cli.examples import EXAMPLES
from firearrow.cli.summaries import as_sentence

NAMES_COLUMNS: Final = 22
NARROW_COLUMNS: Final = 40

Row = tuple[str, str]


def help_screen(command: Described, columns: int | None = None) -> str:
    """Give the help of a command, as wide as the terminal (or ``columns``)."""
    width = max(columns or shutil.get_terminal_size().columns, NARROW_COLUMNS)
    parts = [f"usage: {command.usage}", textwrap.fill(as_sentence(command.summary), width)]
    parts += _section("commands", command.commands, width)
    places = [_row(option) for option in command.options if not option.names]
    parts += _section("arguments", places, width)
    options = [_row(option) for option in command.options if option.names]
    parts += _section("options", [*options, ("-h, --help", "show this help and exit")], width)
    if examples := EXAMPLES.get(command.name):
        parts.append("\n".join(["examples:", *(f"  {example}" for example in examples)]))
    if command.commands:
        parts.append(f"`{command.name} COMMAND --help` lists the options of a command.")
    return "\n\n".join(parts) + "\n"


def _row(option: Option) -> Row:
    names = ", ".join(option.names)
    return " ".join(filter(None, [names, option.value])), option.help


def _section(title: str, rows: Sequence[Row], width: int) -> list[str]:
    return ["\n".join([f"{title}:", *(_line(row, width) for row in rows)])] if rows else []


def _line(row: Row, width: int) -> str:
    name, text = row
    indent = " " * (NAMES_COLUMNS + 4)
    told = textwrap.wrap(text, width - len(indent), break_on_hyphens=False) or [""]
    if len(name) <= NAMES_COLUMNS:
        told[0] = f"  {name:{NAMES_COLUMNS}}  {told[0]}".rstrip()
        return f"\n{indent}".join(told)
    return f"\n{indent}".join([f"  {name}", *told])
