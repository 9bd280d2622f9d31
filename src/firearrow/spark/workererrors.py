"""Errors of workers as one sentence for the user.

Spark shows the user a worker's traceback, kilobytes of text with the cause in the last line. A fault of a query, a
store or a cluster is one sentence, and the traceback adds nothing. So if such an error leaves Firearrow in a worker,
PySpark leaves the traceback out. The worker ends with that error, so errors of other code are never shortened.
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
def short_errors() -> Iterator[None]:
    """Leave the traceback out of an error that ends a worker."""
    try:
        yield
    except _SENTENCES:
        if _is_worker():
            os.environ[_HIDE] = "1"
        raise


def end_quietly() -> None:
    """End a worker that has no more work and no listener without a message; PySpark would print a traceback when the
    socket closes."""
    if _is_worker():
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - it is open until the end


def _is_worker() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and str(main.name).startswith("pyspark")


def with_short_errors(kind: C) -> C:
    """Leave the traceback out of errors of all public methods of a class, and of the iterators that they return."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _told(method))
    return kind


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        with short_errors():
            found = method(*args, **named)
        return _each(found) if isinstance(found, Iterator) else found

    return call


def _each(found: Iterator[Any]) -> Iterator[Any]:
    with short_errors():
        yield from found
