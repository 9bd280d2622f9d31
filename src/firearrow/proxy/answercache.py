"""Answers of servers that calls need again and again: routes, and the configurations of topics and groups.

A known answer costs no task. After the refresh time it is still used, while a task asks again. Only the callers of an
unknown key wait, all of them for one question. An answer without use is forgotten.

"There is none" is an answer, too. It is believed for a second only, and not after a send through this proxy that may
have created the topic: a topic that was just created must be seen soon.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from firearrow.errors import ClientError, FirearrowError
from firearrow.logs import Log
from firearrow.net.replies import Reply
from firearrow.net.tasks import Tasks

log: Final = Log(__name__)

T = TypeVar("T")

NONE_SECONDS: Final = 1.0
"""Time that an answer without a value is believed, and between two questions whose answers fail."""


class CacheLimits(NamedTuple):
    """Limits of a cache: times in seconds, and a count of entries."""

    refresh_seconds: float
    expired_seconds: float
    entries_max: int


class _Entry(Generic[T]):
    """Answer for one key, and the callers that wait for it."""

    __slots__ = ("answer", "ask_again_at", "asked_at", "is_asking", "is_known", "used_at", "waiting")

    def __init__(self, now: float) -> None:
        self.answer: T | None = None
        self.is_known = False
        self.is_asking = False
        self.ask_again_at = self.asked_at = self.used_at = now
        self.waiting: list[Reply[T | None]] = []


class AnswerCache(Generic[T]):
    """Answers by key; ``ask`` gets one in a task, None if there is none. ``what`` names them in the log."""

    def __init__(
        self,
        what: str,
        ask: Callable[[str], Coroutine[Any, Any, T | None]],
        tasks: Tasks,
        monotonic: Callable[[], float],
        limits: CacheLimits,
    ) -> None:
        self._what = what
        self._ask = ask
        self._tasks = tasks
        self._monotonic = monotonic
        self._limits = limits
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()  # the entry that was used last is the last
        self._doubted_at = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def known(self, key: str) -> T | None:
        """Return a known answer without asking; None without one."""
        entry = self._entries.get(key)
        return None if entry is None else entry.answer

    def is_ready(self, key: str) -> bool:
        """Tell whether `get` would return at once, and count that as a use."""
        now = self._monotonic()
        entry = self._entries.get(key)
        if entry is None or not self._is_good(entry, now):
            return False
        entry.used_at = now
        self._entries.move_to_end(key)
        if not entry.is_asking and self._is_old(entry, now):
            self._begin(key, entry)
        return True

    async def get(self, key: str) -> T | None:
        """Return the answer for a key, None if there is none. Raises as ``ask`` if the question fails."""
        if self.is_ready(key):
            return self._entries[key].answer
        entry = self._entries.get(key)
        return await self._next(key, self._enter(key, self._monotonic()) if entry is None else entry)

    async def fresh(self, key: str) -> T | None:
        """Return an answer that is not older than a second; raises as `get`."""
        now = self._monotonic()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._enter(key, now)
        entry.used_at = now
        if entry.is_known and now - entry.asked_at < NONE_SECONDS:
            return entry.answer
        return await self._next(key, entry)

    def refresh(self, key: str) -> None:
        """Ask again for a known answer, at most once in a second."""
        entry = self._entries.get(key)
        if entry is not None and not entry.is_asking and self._monotonic() - entry.asked_at >= NONE_SECONDS:
            self._begin(key, entry)

    def created(self, key: str) -> None:
        """Forget the answer that there is none: now there is one."""
        entry = self._entries.get(key)
        if entry is not None and entry.is_known and entry.answer is None and not entry.is_asking:
            del self._entries[key]

    def doubt(self) -> None:
        """Ask again at the next use of each answer, at most once in a second: the servers have changed."""
        now = self._monotonic()
        if now - self._doubted_at >= NONE_SECONDS:
            self._doubted_at = now

    async def _next(self, key: str, entry: _Entry[T]) -> T | None:
        """Wait for the answer to a new question, or to the one in flight."""
        reply: Reply[T | None] = Reply()
        entry.waiting.append(reply)
        if not entry.is_asking:
            self._begin(key, entry)
        return await reply

    def _is_good(self, entry: _Entry[T], now: float) -> bool:
        if not entry.is_known or now - entry.used_at > self._limits.expired_seconds:
            return False
        return entry.answer is not None or now - entry.asked_at < NONE_SECONDS

    def _is_old(self, entry: _Entry[T], now: float) -> bool:
        return now >= entry.ask_again_at or entry.asked_at < self._doubted_at

    def _enter(self, key: str, now: float) -> _Entry[T]:
        entry = self._entries[key] = _Entry(now)
        while len(self._entries) > 1:
            first = next(iter(self._entries.values()))
            if len(self._entries) <= self._limits.entries_max and now - first.used_at <= self._limits.expired_seconds:
                break
            self._entries.popitem(last=False)
        return entry

    def _begin(self, key: str, entry: _Entry[T]) -> None:
        entry.is_asking = True
        try:
            self._tasks.start(self._take(key, entry), f"{self._what} {key}")
        except ClientError:
            entry.is_asking = False
            for reply in _taken(entry.waiting):
                reply.set_exception(self._stopped(key))

    def _stopped(self, key: str) -> ConnectionError:
        return ConnectionError(f"{self._what} {key}: the proxy stops")

    async def _take(self, key: str, entry: _Entry[T]) -> None:
        """Ask for all callers that wait."""
        failure: Exception = self._stopped(key)
        seconds = NONE_SECONDS
        try:
            entry.answer = await self._ask(key)
            entry.is_known = True
            seconds = self._limits.refresh_seconds
            for reply in _taken(entry.waiting):
                reply.set_result(entry.answer)
        except (OSError, FirearrowError) as error:
            failure = error
            if entry.is_known:
                log.warning("answer is out of date", extra={"what": self._what, "key": key, "error": error})
        finally:
            entry.is_asking = False
            entry.asked_at = self._monotonic()
            entry.ask_again_at = entry.asked_at + seconds
            if not entry.is_known and self._entries.get(key) is entry:
                del self._entries[key]
            for reply in _taken(entry.waiting):
                reply.set_exception(failure)


def _taken(waiting: list[Reply[T]]) -> list[Reply[T]]:
    """Take all elements out of a list."""
    found = waiting.copy()
    waiting.clear()
    return found
