"""The commands that cyclopts reads: one command line is read and run.

`firearrow.cli.commands` lists them. A function is a command; its parameters, annotated by
`cyclopts.Parameter`, are what it takes; what it returns is the exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError

from firearrow.cli.commands import COMMANDS, PROGRAM
from firearrow.cli.described import described
from firearrow.cli.failures import carried_out, exit_code
from firearrow.cli.helpdata import HELP, before_end
from firearrow.cli.listing import Output
from firearrow.cli.refusals import WrongCommandLine, reason_of, refuse, without_command


def build_app() -> App:
    """Declare every command; the documentation is tested against it."""
    app = group(PROGRAM, "Apache RocketMQ's message system in Python")
    for row in COMMANDS:
        app.command(f"firearrow.cli.{row.place}", name=row.name, help=row.summary)
    return app


def group(name: str, summary: str) -> App:
    """Make a group of commands; `App.command` adds one."""
    last_counts = Parameter(allow_repeating=True)  # so that scripts may add to what they were given
    return App(name=name, help=summary, help_flags=HELP, version_flags=(), default_parameter=last_counts)


def run_app(words: Sequence[str]) -> int:
    """Run a command line and give its exit code; SystemExit for one that can't be read."""
    app = build_app()
    chain, apps, _ = app.parse_commands(list(before_end(words)))
    named = partial(described, apps[-1], " ".join([PROGRAM, *chain]))  # as far as it is refused
    try:
        function, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        command = named()
        refuse(command, reason_of(error, command))
    if apps[-1].default_command is None:  # but a group of commands
        command = named()
        refuse(command, without_command(command))
    try:
        return _carry_out(function, bound)
    except WrongCommandLine as error:
        refuse(named(), str(error))


def _carry_out(function: Callable[..., Any], bound: inspect.BoundArguments) -> int:
    def command() -> int:
        if not inspect.iscoroutinefunction(function):
            return int(function(*bound.args, **bound.kwargs) or 0)
        import asyncio  # who runs no such command need not wait for it

        return int(asyncio.run(function(*bound.args, **bound.kwargs)) or 0)

    bound.apply_defaults()
    for value in bound.arguments.values():
        if isinstance(value, Output):
            value.check()
            return carried_out(command, exit_code, as_json=value.json)
    return command()
