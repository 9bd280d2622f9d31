"""The `firearrow` command: arguments in, exit code out.

0 is success, 1 an error that one sentence on standard error explains, 2 a wrong command line, 3
that what was asked for is not there. Only `store` ends with 1 for damage, 2 for an error.
Commands import what they need when they run, and help is read from a file, so that `--version` and
`--help` stay instant.
"""

import sys
from collections.abc import Sequence

from firearrow import __version__
from firearrow.cli.output import forget_output, output_is_closed
from firearrow.errors import FirearrowError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (that of the process, if none is given) and give its exit code.

    Who reads the output may close it when there is enough, as `head` does: that is no error.
    """
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else list(arguments))
        except FirearrowError as error:
            print(f"firearrow: {error}", file=sys.stderr)
            return 1
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not output_is_closed():
            raise  # it is of a connection
        forget_output()  # what is left
        return 0


def _run(words: Sequence[str]) -> int:
    if words and words[0] == "--version":
        print(f"firearrow {__version__}")
        return 0
    if words[:1] == ["mqadmin"] and words[1:2] not in (["--help"], ["-h"]):
        from firearrow.cli.mqadmin.entry import run  # all other words are upstream's

        return run(words[1:])
    from firearrow.cli.helpdata import asks_for_help, command_in

    if asks_for_help(words):
        from firearrow.cli.helpscreen import help_screen

        sys.stdout.write(help_screen(command_in(words)))
        return 0
    from firearrow.cli.app import run_app

    return run_app(words)
