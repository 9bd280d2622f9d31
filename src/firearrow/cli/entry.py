"""Where the `firearrow` command begins: Ctrl-C is one line from here on.

To import the command line takes a tenth of a second, and to import what a command needs takes
longer. An exception won't do meanwhile: class statements and C extensions that are being imported
turn it into another one. A command that has something to end or to stop takes SIGINT itself.
The start of the interpreter, before this module is read, is out of reach.
"""

import os
import signal
import sys

from firearrow.cli import INTERRUPTED, INTERRUPTED_LINE


def mqadmin() -> int:
    """Run the command line of the process as one of `firearrow mqadmin`."""
    return main(["mqadmin", *sys.argv[1:]])


def main(arguments: list[str] | None = None) -> int:
    """Run a command line, by default that of the process, and give its exit code."""
    take_interrupts()
    from firearrow.cli.main import main as run

    return run(arguments)


def take_interrupts() -> None:
    """Have Ctrl-C be one line, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: object) -> None:
    try:  # noqa: SIM105 - nothing is imported before SIGINT is taken
        os.write(2, INTERRUPTED_LINE.encode())
    except OSError:  # nobody may read it
        pass
    os._exit(INTERRUPTED)
