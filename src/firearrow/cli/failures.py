"""Failure of a command: for any exception one sentence on standard error, and the exit code.

An exception that nobody expected is named with its place in Firearrow, as its traceback is not shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from firearrow.cli.output.reports import visible
from firearrow.cli.output.sentences import first_line, unforeseen, without_number
from firearrow.cli.output.stream import OUTPUT, forget_output, naming_output, output_is_closed
from firearrow.cli.parameters import WrongOptions
from firearrow.errors import FirearrowError, NotFound

FAILED: Final = 1
CANNOT: Final = 2
"""Exit code for a failure, where 1 means that something is damaged or different."""
NOT_FOUND: Final = 3
"""Exit code where the object of a command does not exist."""


class NothingFound(FirearrowError):
    """The object of a command does not exist: a file, a context, a message."""


def exit_code(error: Exception) -> int:
    """Give the exit code for this exception."""
    return NOT_FOUND if isinstance(error, NotFound | NothingFound) else FAILED


def carried_out(command: Callable[[], int], failed: int | Callable[[Exception], int], *, as_json: bool = False) -> int:
    """Run a command and give its exit code: for an exception, ``failed`` or the result of ``failed``.

    An exception is one sentence on standard error. With ``as_json`` it is also an object with the one member ``error``
    on standard output.
    """
    try:
        code = command()
        with naming_output():
            sys.stdout.flush()
    except Exception as error:  # a user gets a sentence for any exception, and no traceback
        if isinstance(error, BrokenPipeError) and output_is_closed():
            raise  # the reader has closed the output, see `firearrow.cli.main`
        if isinstance(error, WrongOptions):
            raise
        tell(error, as_json=as_json)
        return failed if isinstance(failed, int) else failed(error)
    return code


def tell(error: Exception, *, as_json: bool = False) -> None:
    """Print one sentence with the reason of a failure."""
    said = sentence(error)
    if isinstance(error, OSError) and error.filename == OUTPUT:
        forget_output()
    elif as_json:
        try:
            import json  # most failures need no json

            print(json.dumps({"error": said}), flush=True)
        except OSError:  # standard error has the sentence
            forget_output()
    print(f"firearrow: {said}", file=sys.stderr)


def sentence(error: BaseException) -> str:
    """Give an exception as one line that names the cause."""
    if isinstance(error, FirearrowError | WrongOptions):
        said = _line(str(error))
    elif isinstance(error, OSError):
        said = _of_system(error)
    elif any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(error).__mro__):
        from firearrow.cli.pipeline.sparkerrors import of_spark

        said = of_spark(str(error))
        if not said.startswith("["):  # an error with such a class name is complete
            said = of_spark(f"{error}\n{getattr(error, '_stackTrace', '')}")
    elif isinstance(error, MemoryError):
        said = "not enough memory"
    else:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        places = ((frame.filename, frame.lineno) for frame in frames)
        said = unforeseen(type(error).__name__, first_line(str(error)), places)
    return visible(said)


def _of_system(error: OSError) -> str:
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return without_number(_line(str(error))) or type(error).__name__


def _line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
