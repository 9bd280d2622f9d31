"""SIGTERM and SIGINT of a program whose consumers run in its main thread.

The first signal stops all of these consumers. The second one ends the process by the signal's default action, since a
handler that hangs in a thread would hold up any other end.

These are plain signal handlers instead of ``loop.add_signal_handler``: they serve the blocking client too, and a loop
does not tell its earlier handlers, which must be there again afterwards.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_stops: Final[list[Callable[[], None]]] = []
_before: Final[dict[int, Any]] = {}
"""Handlers of the program, while a consumer takes its signals."""


@contextmanager
def stopped_by_signals(stop: Callable[[], None], *, wanted: bool) -> Iterator[None]:
    """Call ``stop`` at the first signal while the block runs, if it is ``wanted`` and this is the main thread.

    A signal that the program ignores stays ignored.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    _stops.append(stop)
    if len(_stops) == 1:
        taken = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        _before.update({number: signal.signal(number, _stop_all) for number in taken})
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _stop_all(_: int, __: FrameType | None) -> None:
    for other in _before:
        signal.signal(other, _end_now)
    for stop in _stops:
        stop()


def _end_now(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _restore() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler or signal.SIG_DFL)
    _before.clear()


def _forget() -> None:
    """Give a fork the program's own handlers: the consumers run in its parent."""
    _restore()
    _stops.clear()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget)
