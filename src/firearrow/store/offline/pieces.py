"""Pieces of work on a store, and the workers that do them.

A tool that reads a whole log is a function of a view and a piece, and a function that joins the results. The pieces are
independent, and pieces and results can be pickled. So the same tool runs in this process, in several processes, or on a
cluster that sees the store's files: all of them are ``Workers``.

Log files are large and few. So a piece is a stretch of a file, and begins anywhere. Its first record is the first place
where a record says that it belongs there. The code that joins the results checks that each begins where the previous
one ended.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from multiprocessing import get_context
from socket import gethostname
from typing import Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

from firearrow.errors import StoreError
from firearrow.store.offline.view import Layout, StoreView

STRETCH_BYTES: Final = 64 * 1024 * 1024
_AHEAD: Final = 4  # pieces in flight for each process: limits the results that wait for their turn
_PARALLEL_FROM_BYTES: Final = 256 * 1024 * 1024  # below, a process costs more than it saves
_HEAD_BYTES: Final = 64  # of a record: they hold its place in the log and its store time
_looks = count()

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are done and the total of bytes."""
P = TypeVar("P")
R = TypeVar("R")


class Stretch(NamedTuple):
    """The records of the log file at ``base`` that begin between two positions in it.

    ``known`` says that a record begins at ``start``; otherwise it is looked for.
    """

    base: int
    start: int
    end: int
    known: bool


def stretches(view: StoreView, stretch_bytes: int = STRETCH_BYTES) -> list[Stretch]:
    """The whole log in pieces, in order; an empty file is one piece, too."""
    assert stretch_bytes > 0, "otherwise the log has no pieces"
    return [
        Stretch(file.base, start, min(start + stretch_bytes, file.size_bytes), not start)
        for file in view.log.files
        for start in range(0, max(file.size_bytes, 1), stretch_bytes)
    ]


class StretchResult(Protocol):
    """Fields of a stretch's result that show whether the next one follows."""

    @property
    def base(self) -> int:
        """Begin of the file in the log."""

    @property
    def end(self) -> int:
        """The end of the stretch, a position in the file."""

    @property
    def begin(self) -> int | None:
        """The position of the first record, None without one."""

    @property
    def reached(self) -> int:
        """The position after the last record, or after the damage there."""

    @property
    def over(self) -> bool:
        """Tell whether no record can follow in the file."""


Some = TypeVar("Some", bound=StretchResult)


def side_by_side(parts: Iterable[Some], again: Callable[[Stretch], Some | None]) -> Iterator[Some]:
    """The parts of the log that follow each other.

    A stretch that does not begin where the previous one ended is read ``again`` from there on. This happens after the
    last record of a file that is not full, and where bytes look like a record. Parts after the end of a file's records
    are left out.
    """
    before: Some | None = None
    for part in parts:
        assert before is None or before.base <= part.base, "parts come in the order of the log"
        found: Some | None = part
        if before is not None and before.base == part.base:
            if before.over or before.reached >= part.end:  # a record may reach over a stretch
                continue
            if part.begin != before.reached:
                found = again(Stretch(part.base, before.reached, part.end, known=True))
            assert found is None or found.begin == before.reached, "a part begins where the one before it ended"
            assert found is None or found.end == part.end, "a part that is read again ends where it ended"
        if found is not None:
            before = found
            yield found


class Workers(Protocol):
    """Workers for pieces of work."""

    def work(self, view: StoreView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Give the results of a function of the store and a piece, in the order of the pieces."""


class ThisProcess:
    """Worker that does one piece after the other."""

    def work(self, view: StoreView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Do each piece when its result is read."""
        for piece in pieces:
            yield function(view, piece)


class Processes(NamedTuple):
    """Workers in a ``number`` of other processes."""

    number: int

    def work(self, view: StoreView, function: Callable[[StoreView, P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Do some pieces ahead of the results that are read, so that no process waits."""
        shared = SharedView.of(view)
        rest = iter(pieces)
        # A forked process would inherit the threads' locks of a program that embeds this.
        with ProcessPoolExecutor(self.number, mp_context=get_context("spawn")) as pool:
            under_way: deque[Future[R]] = deque()
            try:
                while True:
                    for piece in rest:
                        with _interrupts_held():  # a new process inherits this
                            under_way.append(pool.submit(work_on, shared, function, piece))
                        if len(under_way) > _AHEAD * self.number:
                            break
                    if not under_way:
                        return
                    yield under_way.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back, and for good in the processes that start in the meantime.

    This process ends them, and their tracebacks would say nothing.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def workers_for(view: StoreView, jobs: int | None) -> Workers:
    """Workers in ``jobs`` processes; by default in one for each core, if the log is large enough."""
    total = sum(file.size_bytes for file in view.log.files)
    if jobs is None:
        jobs = (os.cpu_count() or 1) if total > _PARALLEL_FROM_BYTES else 1
    return Processes(jobs) if jobs > 1 else ThisProcess()


class SharedView(NamedTuple):
    """Everything that gives another process the same view.

    ``holder`` has the store open according to the first process. ``look`` is a name of this view, as files change
    between two views. ``head`` is the begin of a log file, which identifies the store to another host.
    """

    layout: Layout
    holder: int | None
    look: str
    head: tuple[int, int] | None

    def __hash__(self) -> int:
        """Hash the name of the view: configurations, which a layout may have, have no hash."""
        return hash(self.look)

    @staticmethod
    def of(view: StoreView) -> SharedView:
        """The data to send along with pieces."""
        bases = (file.base for file in reversed(view.log.files))
        heads = ((base, view.log_bytes(base, _HEAD_BYTES)) for base in bases)
        head = next(((base, crc32(head)) for base, head in heads if any(head)), None)
        return SharedView(view.layout, view.holder, f"{os.getpid()}-{next(_looks)}", head)


def work_on(shared: SharedView, function: Callable[[StoreView, P], R], piece: P) -> R:
    """Do a piece in a process that has no view yet."""
    return function(_view(shared), piece)


@lru_cache(maxsize=1)
def _view(shared: SharedView) -> StoreView:
    """The process's view, for all pieces of one name: listing many queues takes a while."""
    try:
        view = StoreView(shared.layout, owned=True)
    except StoreError as error:
        raise StoreError(f"{error}, on {gethostname()}") from None
    view.holder = shared.holder
    base, head = shared.head or (0, 0)
    if shared.head and crc32(view.log_bytes(base, _HEAD_BYTES)) != head:
        raise StoreError(
            f"{shared.layout.root} on {gethostname()} is not the store to read: all hosts must see the same files"
        )
    return view
