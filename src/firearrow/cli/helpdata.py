"""What each command is and takes, read from a file: help needs neither cyclopts nor the commands.

`python -m tools.write_docs` writes `helpdata.json` from the commands, as it writes the pages of
`docs/`, and a test compares them: to import what a command needs takes longer than to read of it.

    {"firearrow topic": [SUMMARY, [OPTION, ...], [[COMMAND, SUMMARY], ...]], ...}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from firearrow.cli.commands import PROGRAM
from firearrow.cli.described import Described, Option

FILE: Final = Path(__file__).with_suffix(".json")
HELP: Final = ("--help", "-h")
END_OF_OPTIONS: Final = "--"


def asks_for_help(words: Sequence[str]) -> bool:
    """Tell whether one of the options is that for help."""
    return any(word in HELP for word in before_end(words))


def before_end(words: Sequence[str]) -> Sequence[str]:
    """Give the words of which some may be options."""
    return words[: words.index(END_OF_OPTIONS)] if END_OF_OPTIONS in words else words


def command_in(words: Sequence[str]) -> Described:
    """Give the command that a command line names, as far as it names one."""
    data: dict[str, list[Any]] = json.loads(FILE.read_bytes())
    name = PROGRAM
    for word in before_end(words):
        if word in HELP:
            continue
        if f"{name} {word}" not in data:
            break
        name = f"{name} {word}"
    summary, options, commands = data[name]
    told = [Option(tuple(names), value, text, is_needed, is_many) for names, value, text, is_needed, is_many in options]
    return Described(name, summary, told, [(command, what) for command, what in commands])


def as_json(commands: Iterable[Described]) -> bytes:
    """Give the file's contents: a line for each command."""
    lines = [f"{json.dumps(one.name)}: {json.dumps([one.summary, one.options, one.commands])}" for one in commands]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
