"""The `firearrow` command: arguments in, exit code out.

0 is success, 1 an error that one sentence on standard error explains, 2 a wrong command line, 3 a missing object: a
topic, a group, a file. Only `store` ends with 1 for damage and 2 for an error. A command line imports only the module
of its command, so `--version` and `--help` stay instant.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from firearrow import __version__
from firearrow.cli.output.stream import forget_output, output_is_closed
from firearrow.errors import FirearrowError

if TYPE_CHECKING:
    from inspect import BoundArguments

    from firearrow.cli.parser import CommandParser

VERSION: Final = ("--version", "-V", "version")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (that of the process, if none is given) and give its exit code.

    The reader of the output may close it early, as `head` does. That is no error.
    """
    try:
        try:
            return _run(sys.argv[1:], is_process=True) if arguments is None else _run(list(arguments))
        except (FirearrowError, OSError) as error:
            if isinstance(error, BrokenPipeError) and output_is_closed():
                raise
            from firearrow.cli.failures import tell

            tell(error)
            return 1
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        forget_output()  # the rest has no reader
        return 0


def _run(words: Sequence[str], *, is_process: bool = False) -> int:
    if words and words[0] in VERSION:
        print(f"firearrow {__version__}")
        return 0
    if "_ARGCOMPLETE" in os.environ:
        from firearrow.cli import quickcompletion

        if quickcompletion.complete():
            return 0
        from firearrow.cli.completion import complete

        complete()
    if not words:
        from firearrow.cli.examples import short_help

        sys.stdout.write(short_help())
        return 0
    is_about = words[0] == "help"  # `help topic list` is `topic list --help`
    if "mqadmin" in words and (code := _mqadmin(words)) is not None:
        return code
    from firearrow.cli.parser import HELP, asks_for_help, parser_for

    wants_help = is_about or asks_for_help(words)
    parser, rest = parser_for([word for word in words[is_about:] if word not in HELP] if wants_help else words)
    if wants_help:
        if is_about and rest and parser.has_commands:
            parser.bound(rest)  # refuses a name that no command has
        sys.stdout.write(parser.format_help())
        return 0
    return _run_command(parser, rest, is_process=is_process)


def _mqadmin(words: Sequence[str]) -> int | None:
    """Run a command of mqadmin, whose words are RocketMQ's; None for another command, or for the help on all."""
    if words[0] == "help" and words[1] == "mqadmin" and words[2:]:
        from firearrow.cli.mqadmin.entry import run

        return run(["help", *words[2:]])
    front: list[str] = []
    if words[0].startswith("-"):
        from firearrow.cli.parser import cluster_of, options_in_front

        front, words = options_in_front(words)
    if words[:1] != ["mqadmin"] or words[1:2] in (["--help"], ["-h"]):
        return None
    from firearrow.cli.mqadmin.entry import run

    gc.enable()
    return run(words[1:], cluster_of(front) if front else None)


def _run_command(parser: CommandParser, words: Sequence[str], *, is_process: bool) -> int:
    from firearrow.cli.parameters import WrongOptions

    bound = parser.bound(words)
    assert parser.function, "argparse requires a command of a group"
    if is_process:
        gc.freeze()  # imports stay to the end, where one look for cycles in them is a tenth of a short command
    gc.enable()  # `cli.entry` has disabled it
    try:
        return _carry_out(parser.function, bound)
    except WrongOptions as error:
        parser.error(str(error))


def _carry_out(function: Callable[..., Any], bound: BoundArguments) -> int:
    import inspect

    from firearrow.cli.cluster.options import ClusterOptions
    from firearrow.cli.failures import carried_out, exit_code
    from firearrow.cli.output.listing import Output

    def command() -> int:
        if not inspect.iscoroutinefunction(function):
            return int(function(*bound.args, **bound.kwargs) or 0)
        import asyncio  # a command without a coroutine does not wait for it

        return int(asyncio.run(_limited(function(*bound.args, **bound.kwargs), timeout)) or 0)

    timeout: float | None = None
    as_json: bool | None = None
    for value in bound.arguments.values():
        if isinstance(value, ClusterOptions):
            value.check()
            timeout = value.timeout
        elif isinstance(value, Output):
            value.check()
            as_json = value.is_json
    return command() if as_json is None else carried_out(command, exit_code, as_json=as_json)


async def _limited(work: Awaitable[Any], seconds: float | None) -> Any:
    import asyncio

    try:
        async with asyncio.timeout(seconds) as end:
            return await work
    except TimeoutError:
        if not end.expired():
            raise
        raise FirearrowError(f"gave up after {seconds:g} s, the --timeout") from None
