"""What a command of cyclopts takes, as its help, its usage and the documentation say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # who only reads of commands need not wait for it
    from cyclopts import App
    from cyclopts.argument import Argument


class Option(NamedTuple):
    """An option, or an argument in its place; ``names`` are empty for the latter."""

    names: tuple[str, ...]
    value: str
    help: str
    is_needed: bool
    is_many: bool

    @property
    def text(self) -> str:
        """It, as it is written: by its first name, with its value."""
        return " ".join(filter(None, [*self.names[:1], self.value]))


class Described(NamedTuple):
    """A command, or a group of them; ``name`` is all of it: ``firearrow topic list``."""

    name: str
    summary: str
    options: list[Option]
    commands: list[tuple[str, str]]
    """The names and summaries of its subcommands."""

    @property
    def usage(self) -> str:
        """How it is used, in one line without the options that may be left out."""
        words = [self.name]
        if self.options:
            words.append("[options]")
        words += [_usage(option) for option in self.options if option.is_needed or not option.names]
        if not self.options and self.commands:
            words.append("COMMAND")
        return " ".join(words)

    def option_names(self) -> Iterator[str]:
        """Give every name of every option."""
        for option in self.options:
            yield from option.names


def described(app: App, name: str) -> Described:
    """Give what a command is and takes."""
    takes = app.default_command is not None
    return Described(
        name,
        _as_summary(app.help),
        [_option(argument) for argument in app.assemble_argument_collection() if argument.show] if takes else [],
        [(command, summary(app, command)) for command in subcommands(app)],
    )


def subcommands(app: App) -> list[str]:
    """Give the names of an app's commands; none for what is asked for by a flag."""
    return [name for name in app if not name.startswith("-")]


def summary(app: App, command: str) -> str:
    """Give what a subcommand does, without importing what it needs."""
    found = app._commands[command]
    return _as_summary(found.help or "")


def _as_summary(help_text: str) -> str:
    """The first line of a docstring as a summary is written in a list."""
    line = help_text.strip().partition("\n")[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def _option(argument: Argument) -> Option:
    is_positional = argument.index is not None
    names = () if is_positional else tuple(sorted(argument.names, key=_short_first))
    parameter = argument.parameter
    choices = argument.get_choices()
    is_flag = argument.token_count()[0] == 0
    value = "" if is_flag else parameter.metavar or "|".join(choices or ())
    if not value and not is_flag:
        value = argument.name.lstrip("-").upper().replace("-", "_")
    return Option(names, value, parameter.help or "", argument.required, argument.token_count()[1])


def _short_first(name: str) -> tuple[bool, bool]:
    return name.startswith("--"), name.startswith("--no-")


def _usage(option: Option) -> str:
    text = f"{option.text} ..." if option.is_many and not option.names else option.text
    return text if option.is_needed else f"[{text}]"
