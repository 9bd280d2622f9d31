"""Read a command line of `mqadmin` as RocketMQ does, and write the usage of a command.

A wrong command line ends with 1, its fault on standard error and the usage on standard output. Like RocketMQ,
argparse accepts a long name after one hyphen, and the beginning of a name.

    usage: mqadmin topicRoute [-h] [-l] [-n <arg>] -t <arg>
     -h,--help                print this help
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Final, NoReturn

from firearrow.cli.mqadmin.table import ROWS, Option, Row, help_of

WIDTH: Final = 110
NAME_WIDTH: Final = 35

Values = dict[str, str | bool]
"""Values of a command line by the names of the options."""


class WrongCommandLine(Exception):
    """A command line that can't be read; its text names the fault."""


class _OptionParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongCommandLine(message)


def values_in(row: Row, words: Sequence[str]) -> Values:
    """Read the words after the name of a command; WrongCommandLine if they are wrong.

    With ``-h`` no option is mandatory.
    """
    options = row.options()
    parser = _OptionParser(prog=f"mqadmin {row.name}", add_help=False, argument_default=None)
    for option in options:
        short = [f"-{option.short}"] if option.short else []
        # RocketMQ accepts a long name after one hyphen, too.
        names = [*short, f"--{option.long}", f"-{option.long}"]
        action = "store" if option.takes_value else "store_true"
        parser.add_argument(*names, dest=option.name, action=action, default=None)
    found = vars(parser.parse_args(words))
    values: Values = {name: value for name, value in found.items() if value is not None}
    if "h" not in values:
        _check_needed(options, values)
    return values


def _check_needed(options: Sequence[Option], values: Values) -> None:
    missing = [option.name for option in options if option.needed and option.name not in values]
    groups = dict.fromkeys(option.group for option in options if option.group)
    for group in groups:
        own = [option for option in options if option.group == group]
        given = [option.name for option in own if option.name in values]
        if len(given) > 1:
            raise WrongCommandLine(
                f"The option '{given[1]}' was specified but an option from this group "
                f"has already been selected: '{given[0]}'"
            )
        if not given:
            shown = ", ".join(f"-{option.short} {option.long}" for option in own)
            missing.append(f"[{shown}]")
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise WrongCommandLine(f"Missing required option{plural}: {', '.join(missing)}")


def usage(row: Row) -> str:
    """Write the usage of a command."""
    options = sorted(row.options(), key=lambda option: option.name.lower())
    head = f"usage: mqadmin {row.name} {' '.join(_short_usage(options))}"
    lines = textwrap.wrap(head, WIDTH, subsequent_indent="       ", break_long_words=False)
    names = [_named(option) for option in options]
    width = max(map(len, names))
    for option, name in zip(options, names, strict=True):
        indent = " " * (width + 3)
        text = textwrap.wrap(help_of(row.name, option.long), WIDTH - len(indent))
        lines.append(f"{name.ljust(width)}   {text[0]}")
        lines += [indent + more for more in text[1:]]
    return "\n".join(lines) + "\n"


def _short_usage(options: Sequence[Option]) -> list[str]:
    parts: list[str] = []
    done: set[str] = set()
    for option in options:
        if not option.group:
            text = _with_value(option)
            parts.append(text if option.needed else f"[{text}]")
        elif option.group not in done:
            done.add(option.group)
            own = [_with_value(one) for one in options if one.group == option.group]
            parts.append(" | ".join(own))
    return parts


def _with_value(option: Option) -> str:
    name = f"-{option.short}" if option.short else f"--{option.long}"
    return f"{name} <arg>" if option.takes_value else name


def _named(option: Option) -> str:
    name = f" -{option.short},--{option.long}" if option.short else f"    --{option.long}"
    return f"{name} <arg>" if option.takes_value else name


def overview() -> str:
    """List all commands, one a line."""
    lines = ["The most commonly used mqadmin commands are:"]
    for row in ROWS:
        summary = row.summary if row.is_supported else f"not supported: {row.summary}"
        lines.append(f"   {row.name.ljust(NAME_WIDTH)} {summary}")
    lines += ["", "See 'mqadmin help <command>' for more information on a specific command.", ""]
    return "\n".join(lines)
