"""Why a command failed: for any exception one sentence on standard error, and the exit code.

What Spark raises is a page of text: tracebacks of a worker and of the JVM, in which the cause is
one line. What nobody foresaw is named with its place in Firearrow, as its traceback is not shown.
"""

from __future__ import annotations

import builtins
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from firearrow.cli.output import OUTPUT, forget_output, naming_output, output_is_closed
from firearrow.cli.refusals import WrongCommandLine
from firearrow.cli.reports import visible
from firearrow.errors import FirearrowError, NotFound

FAILED: Final = 1
CANNOT: Final = 2
"""It failed, where 1 says that something is damaged or different."""
NOT_FOUND: Final = 3
"""What a command is about is not there."""


class NothingFound(FirearrowError):
    """What a command is about is not there: a file, a name of the user's own, a message."""


def exit_code(error: Exception) -> int:
    """Give the exit code of a command that failed so."""
    return NOT_FOUND if isinstance(error, NotFound | NothingFound) else FAILED


# A traceback's frames are indented, code that they quote too; the exception is not.
_RAISED: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?P<frames>(?:[ \t].*\n)*)"
    r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<what>.*))?"
)
_OURS: Final = re.compile(
    r"^(?:.*: )?(?:firearrow\.[\w.]+|\w*(?:Connection|Pipe|Timeout)\w*Error): (.+)$", re.MULTILINE
)
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_STACK: Final = re.compile(r"\n\s*at [\w.$/]+\(|\n+JVM stacktrace:")
_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+: .+)$", re.MULTILINE)
_STATE: Final = re.compile(r"\s*SQLSTATE: .*")
_PACKAGE: Final = re.compile(r"\b(?:[a-z]\w*\.)+(?=[A-Z]\w*: )")
_AROUND: Final = re.compile(
    r"An error occurred while calling \S+\n: "
    r"|\[STREAM_FAILED\] .*? terminated with exception: "
    r"|Job aborted due to stage failure: .*?\(TID \d+\) \(.*?\): "
    r"|Exception in thread \S+ |\d\d/\d\d/\d\d [\d:]+ ERROR \w+: |Error: "
    r"|(?:org\.apache\.spark\.[\w.]+|java\.io\.IOException): "
)
_CHATTER: Final = re.compile(
    r"WARNING: |Using Spark's |Setting .*log level |To adjust logging level "
    r"|\d\d/\d\d/\d\d [\d:]+ (?:WARN|INFO) |\s*$"
)
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] (?:(.+): '(.+)'$)?")


def carried_out(command: Callable[[], int], failed: int | Callable[[Exception], int], *, as_json: bool = False) -> int:
    """Do what a command line asks, and give the exit code: ``failed`` for any exception, or what
    it gives for one.

    An exception is one sentence on standard error, and with ``as_json`` an object with the one
    member ``error`` on standard output.
    """
    try:
        code = command()
        with naming_output():
            sys.stdout.flush()
    except Exception as error:  # whatever it is, a user gets a sentence and not a traceback
        if isinstance(error, BrokenPipeError) and output_is_closed():
            raise  # who reads it has enough, see `firearrow.cli.main`
        if isinstance(error, WrongCommandLine):
            raise
        tell(error, as_json=as_json)
        return failed if isinstance(failed, int) else failed(error)
    return code


def tell(error: Exception, *, as_json: bool = False) -> None:
    """Say in one sentence why a command failed."""
    said = sentence(error)
    if isinstance(error, OSError) and error.filename == OUTPUT:
        forget_output()
    elif as_json:
        try:
            print(json.dumps({"error": said}), flush=True)
        except OSError:  # it is said on standard error
            forget_output()
    print(f"firearrow: {said}", file=sys.stderr)


def sentence(error: BaseException) -> str:
    """Give an exception as one line that names the cause."""
    if isinstance(error, FirearrowError):
        said = _line(str(error))
    elif isinstance(error, OSError):
        said = _of_system(error)
    elif any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(error).__mro__):
        said = of_spark(str(error))
        if not said.startswith("["):  # what has such a name tells all
            said = of_spark(f"{error}\n{getattr(error, '_stackTrace', '')}")
    elif isinstance(error, MemoryError):
        said = "not enough memory"
    else:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        places = ((frame.filename, frame.lineno) for frame in frames)
        said = _unforeseen(type(error).__name__, _first_line(str(error)), places)
    return visible(said)


def _of_system(error: OSError) -> str:
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return _without_number(_line(str(error))) or type(error).__name__


def _without_number(text: str) -> str:
    """``[Errno 2] No such file: 'x'`` as ``x: No such file``."""
    return _ERRNO.sub(lambda found: f"{found[2]}: {found[1]}" if found[1] else "", text, count=1)


def of_spark(text: str) -> str:
    """Give the cause in what Spark says: the error of a worker, else that of the JVM."""
    raised = list(_RAISED.finditer(text))
    if raised:
        return _of_worker(raised[-1])
    if ours := _OURS.findall(text):  # without a traceback, see `firearrow.spark.workererrors`
        return _without_number(_STATE.sub("", ours[-1]).strip())
    head = _peeled(_STACK.split(text, maxsplit=1)[0])
    causes = _CAUSE.findall(text)
    cause = _peeled(causes[-1]) if causes else ""
    if cause in head:
        return head or "Spark failed and does not say why"
    return f"{head.rstrip('.:')}: {cause}"


def of_log(text: str) -> str:
    """Give the first error of Spark's log; nothing where there is none."""
    lines = text.splitlines()
    at = next((n for n, line in enumerate(lines) if not _CHATTER.match(line)), len(lines))
    return of_spark("\n".join(lines[at:])) if lines[at:] else ""


def _peeled(text: str) -> str:
    text = text.strip()
    while around := _AROUND.match(text):
        text = text[around.end() :]
    return _PACKAGE.sub("", _STATE.sub("", _first_line(text)))


def _of_worker(raised: re.Match[str]) -> str:
    name, what = raised["name"], (raised["what"] or "").strip()
    package, _, name = name.rpartition(".")
    kind = getattr(builtins, name, None) if not package else None
    known = isinstance(kind, type) and issubclass(kind, OSError)
    if what and (known or package.startswith("firearrow.") or what.startswith("[")):
        return _STATE.sub("", _without_number(what))
    places = ((path, int(line)) for path, line in _FRAME.findall(raised["frames"]))
    return _unforeseen(name, what, places)


def _unforeseen(name: str, what: str, places: Iterable[tuple[str, int | None]]) -> str:
    said = f"{name}: {what}" if what else name
    ours = [
        f" (at line {line} of firearrow/{path.rpartition('/firearrow/')[2]})"
        for path, line in places
        if "/firearrow/" in Path(path).as_posix()
    ]
    return said + (ours[-1] if ours else "")


def _line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
