"""Handle each message once, even if it is redelivered: a store remembers its key.

RocketMQ delivers at least once. A message is delivered twice when its consumer ends between its work and its commit,
when a queue moves to another consumer, or when the producer retried its send. A store remembers the keys of finished
work, and the claims on keys in work. Another consumer that gets the same message meanwhile retries it later. A claim
expires, in case its worker has died.

The work of the handler and the write of the store are separate: after a crash between them, the message is handled once
more. If the work is a transaction of a database, keep the keys in that database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import closing
from enum import Enum, auto
from functools import wraps
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, overload

from firearrow.client.arguments import Duration, ms_of
from firearrow.client.message import Message
from firearrow.clock import Clock, SystemClock
from firearrow.errors import ConsumeFailed
from firearrow.javanumbers import LONG_MAX
from firearrow.wire.codes import ResponseCode

T = TypeVar("T")
M = TypeVar("M", bound=Message)

CLAIM_SECONDS: Final = 900.0  # the limit of a handler call: consumeTimeout
KEYS_MAX: Final = 100_000  # about 20 MB
SQLITE_WAIT_SECONDS: Final = 5.0
_FOR_EVER: Final = LONG_MAX

Work = Callable[[T], Awaitable[None]]


class Claim(Enum):
    """Answer of a store to a claim."""

    GRANTED = auto()
    BUSY = auto()
    DONE = auto()


class KeyStore(Protocol):
    """Store of keys."""

    async def claim(self, key: str) -> Claim:
        """Claim a key for a time, unless it is done or claimed."""
        ...

    async def done(self, key: str) -> None:
        """Remember that a key is done."""
        ...

    async def release(self, key: str) -> None:
        """Release a claim after a failure."""
        ...


class OnceDecorator(Protocol):
    """Decorator of a handler that gets messages."""

    def __call__(self, handler: Work[M], /) -> Work[M]:
        """Wrap the handler."""
        ...


@overload
def once(store: KeyStore, key: Callable[[Message], str | None]) -> OnceDecorator: ...


@overload
def once(store: KeyStore, key: Callable[[T], str | None]) -> Callable[[Work[T]], Work[T]]: ...


def once(store: KeyStore, key: Callable[[Any], str | None]) -> Any:
    """Wrap a handler so that it handles each key once.

    ``key`` returns the key of the handler's argument, or None to handle it at every delivery. A message whose key is
    done counts as consumed. A message whose key another consumer works on is retried.
    """

    def decorate(handler: Work[T]) -> Work[T]:
        @wraps(handler)
        async def handle(message: T) -> None:
            name = key(message)
            if name is None:
                await handler(message)
                return
            claim = await store.claim(name)
            if claim is Claim.BUSY:
                raise ConsumeFailed(ResponseCode.SYSTEM_ERROR, f"another consumer works on key {name!r}")
            if claim is Claim.GRANTED:
                await _work(handler, message, store, name)

        return handle

    return decorate


async def _work(handler: Work[T], message: T, store: KeyStore, key: str) -> None:
    try:
        await handler(message)
    except BaseException:
        await store.release(key)
        raise
    await store.done(key)


class MemoryKeys:
    """Keys in memory: the last used ones, for this process alone."""

    def __init__(
        self, keys_max: int = KEYS_MAX, claim_seconds: Duration = CLAIM_SECONDS, clock: Clock | None = None
    ) -> None:
        self._keys: OrderedDict[str, float] = OrderedDict()  # expiry of each claim; infinite for done keys
        self._keys_max = keys_max
        self._claim_ms = ms_of(claim_seconds, "claim_seconds")
        self._clock = clock or SystemClock()

    async def claim(self, key: str) -> Claim:
        """Claim a key; the store may have forgotten an earlier result."""
        until, now_ms = self._keys.get(key), self._clock.now_ms()
        if until is not None:
            self._keys.move_to_end(key)
            if until == _FOR_EVER:
                return Claim.DONE
            if until > now_ms:
                return Claim.BUSY
        self._remember(key, now_ms + self._claim_ms)
        return Claim.GRANTED

    async def done(self, key: str) -> None:
        """Remember that a key is done."""
        self._remember(key, _FOR_EVER)

    async def release(self, key: str) -> None:
        """Release a claim."""
        self._keys.pop(key, None)

    def _remember(self, key: str, until: float) -> None:
        self._keys[key] = until
        self._keys.move_to_end(key)
        while len(self._keys) > self._keys_max:
            self._keys.popitem(last=False)


class SqliteKeys:
    """Keys in a file that the consumers of a machine share."""

    def __init__(self, path: Path | str, claim_seconds: Duration = CLAIM_SECONDS, clock: Clock | None = None) -> None:
        self._claim_ms = ms_of(claim_seconds, "claim_seconds")
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            path, timeout=SQLITE_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, until_ms INTEGER NOT NULL, "
            "at_ms INTEGER NOT NULL) WITHOUT ROWID"
        )

    async def claim(self, key: str) -> Claim:
        """Claim a key; returns when the claim is in the file."""
        return await asyncio.to_thread(self._claim, key)

    async def done(self, key: str) -> None:
        """Remember that a key is done; returns when this is in the file."""
        await asyncio.to_thread(self._put, key, _FOR_EVER)

    async def release(self, key: str) -> None:
        """Release a claim."""
        await asyncio.to_thread(self._execute, "DELETE FROM keys WHERE key = ?", key)

    async def forget(self, older_than_seconds: Duration) -> None:
        """Remove keys whose claim or completion is older than ``older_than_seconds``."""
        before = self._clock.now_ms() - ms_of(older_than_seconds, "older_than_seconds")
        await asyncio.to_thread(self._execute, "DELETE FROM keys WHERE at_ms < ?", before)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _claim(self, key: str) -> Claim:
        now_ms = self._clock.now_ms()
        with self._lock, closing(self._database.cursor()) as cursor:
            # One statement: of two processes, only one gets the claim.
            cursor.execute(
                "INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
                "SET until_ms = excluded.until_ms, at_ms = excluded.at_ms WHERE until_ms <= ?",
                (key, now_ms + self._claim_ms, now_ms, now_ms),
            )
            if cursor.rowcount > 0:
                return Claim.GRANTED
            row = cursor.execute("SELECT until_ms FROM keys WHERE key = ?", (key,)).fetchone()
            return Claim.DONE if row is not None and row[0] == _FOR_EVER else Claim.BUSY

    def _put(self, key: str, until_ms: int) -> None:
        now_ms = self._clock.now_ms()
        self._execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?)", key, until_ms, now_ms)

    def _execute(self, statement: str, *values: object) -> None:
        with self._lock:
            self._database.execute(statement, values).close()
