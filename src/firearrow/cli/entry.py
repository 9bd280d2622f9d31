"""Entry point of the `firearrow` command: from here on, Ctrl-C prints one line.

The import of a command takes a tenth of a second or more. KeyboardInterrupt does not fit there: an import inside a
class statement or a C extension turns it into another exception. A command that must stop something handles SIGINT
itself. The start of the interpreter, before this module is read, is out of reach.
"""

import gc
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
    # Nothing here needs numpy's threads for matrices, one for each core: they make each start cost a third more.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()  # imports leave no garbage to look for, until a command runs
    from firearrow.cli.main import main as run

    return run(arguments)


def take_interrupts() -> None:
    """Let Ctrl-C print one line, unless SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have ignored SIGINT
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: object) -> None:
    try:  # noqa: SIM105 - nothing is imported before SIGINT is taken
        os.write(2, INTERRUPTED_LINE.encode())
    except OSError:  # standard error may be closed
        pass
    os._exit(INTERRUPTED)
