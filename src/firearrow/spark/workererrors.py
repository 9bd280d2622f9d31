"""Errors of workers as one sentence, for whoever asked Spark for the work.

Spark hands a worker's traceback to the user, kilobytes of it, with the cause in the last line. What
is wrong with a query, a store or a cluster is a sentence, and the traceback says nothing more. So
where such an error leaves Firearrow in a worker, PySpark is told to leave the traceback out. The
worker ends with that error, so nobody else's errors are shortened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, TypeVar

from firearrow.errors import FirearrowError

_SENTENCES: Final = (FirearrowError, ConnectionError, TimeoutError)
_HIDE: Final = "SPARK_HIDE_TRACEBACK"

C = TypeVar("C", bound=type)


@contextmanager
def in_a_sentence() -> Iterator[None]:
    """Have an error that ends a worker told without its traceback."""
    try:
        yield
    except _SENTENCES:
        if _is_worker():
            os.environ[_HIDE] = "1"
        raise


def end_quietly() -> None:
    """Have a worker that has nothing more to do, and that nobody listens to, end without a word:
    PySpark prints a traceback where the socket is closed."""
    if _is_worker():
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - it is open until the end


def _is_worker() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and str(main.name).startswith("pyspark")


def told_in_sentences(kind: C) -> C:
    """Have errors of all public methods of a class told so, and those of iterators they give."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _told(method))
    return kind


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        with in_a_sentence():
            found = method(*args, **named)
        return _each(found) if isinstance(found, Iterator) else found

    return call


def _each(found: Iterator[Any]) -> Iterator[Any]:
    with in_a_sentence():
        yield from found
