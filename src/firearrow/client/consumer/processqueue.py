"""Messages of one queue that a client has pulled and not yet consumed.

Messages come in the order of the queue. Messages that are consumed in any order leave it one by one
(`ProcessQueue.finish`). The offset to commit is the first one still in the cache: no message is lost, and a later one
may be delivered twice. In order, messages are taken (`ProcessQueue.take`) and then committed or put back.

Source: RocketMQ's ``ProcessQueue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

MiB: Final = 1024 * 1024


class Cacheable(Protocol):
    """Properties that the cache needs of a message."""

    @property
    def queue_offset(self) -> int:
        """Offset in the queue."""

    @property
    def body(self) -> bytes:
        """Body, whose length counts as the message's size."""


M = TypeVar("M", bound=Cacheable)


class Limits(NamedTuple):
    """Limits of a queue's cache, above which the client pulls no more. RocketMQ's defaults."""

    messages: int = 1000
    bytes: int = 100 * MiB
    span: int = 2000
    """Distance of the first message from the last; unused in order."""


class ProcessQueue(Generic[M]):
    """A queue's cache; ``put`` may follow ``take`` or ``finish`` in any order."""

    __slots__ = ("_bytes", "_done", "_order", "_taken", "_waiting", "next_offset")

    def __init__(self) -> None:
        self._order: deque[int] = deque()  # offsets, until all earlier ones are done
        self._done: set[int] = set()
        self._waiting: deque[M] = deque()
        self._taken: dict[int, M] = {}
        self._bytes = 0
        self.next_offset: int = -1
        """Offset after the last message; -1 before the first."""

    def __len__(self) -> int:
        return len(self._order) - len(self._done)

    @property
    def bytes(self) -> int:
        """Sum of the bodies' lengths."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance from the first cached message to the last, in offsets."""
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def first_offset(self) -> int | None:
        """Offset of the first cached message; None without one."""
        return self._order[0] if self._order else None

    @property
    def commit_offset(self) -> int:
        """Offset to commit: the first cached message, or without one the offset after the last that was cached.

        -1 before the first message.
        """
        return self._order[0] if self._order else self.next_offset

    def excess(self, limits: Limits, *, in_order: bool = False) -> str | None:
        """Text about the limit that is reached; None while the client may pull more."""
        if len(self) > limits.messages:
            return f"{len(self)} messages"
        if self._bytes > limits.bytes:
            return f"{self._bytes} bytes"
        if not in_order and self.span > limits.span:
            return f"a span of {self.span} offsets"
        return None

    def put(self, messages: Iterable[M]) -> list[M]:
        """Add pulled messages; returns the new ones."""
        fresh = [message for message in messages if message.queue_offset >= self.next_offset]
        if fresh:
            self._order.extend([message.queue_offset for message in fresh])
            self._bytes += sum([len(message.body) for message in fresh])
            self.next_offset = fresh[-1].queue_offset + 1
        return fresh

    def finish(self, message: M) -> None:
        """Remove a consumed message, in any order."""
        order, done = self._order, self._done
        self._bytes -= len(message.body)
        if order[0] != message.queue_offset:
            done.add(message.queue_offset)
            return
        order.popleft()
        while done and order[0] in done:
            done.remove(order.popleft())

    def is_here(self, queue_offset: int) -> bool:
        """Tell whether a message is in the cache; this searches the whole cache."""
        return queue_offset in self._order and queue_offset not in self._done

    # --- in order ---

    def put_in_order(self, messages: Iterable[M]) -> None:
        """Add pulled messages for `take`."""
        self._waiting += self.put(messages)

    @property
    def waiting(self) -> int:
        """Count of messages to take."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> M:
        """Next message to take; there must be one."""
        return self._waiting[0]

    def take(self, count: int) -> list[M]:
        """Take the next messages, up to a count."""
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        self._taken |= {message.queue_offset: message for message in taken}
        return taken

    def taken_of(self, messages: Iterable[M]) -> list[M]:
        """Messages among some that are taken and neither committed nor put back."""
        return [message for message in messages if message.queue_offset in self._taken]

    def commit(self) -> int:
        """Commit all taken messages; returns the offset to commit, -1 without one."""
        if not self._taken:
            return -1
        for message in self._taken.values():
            self.finish(message)
        last = max(self._taken)
        self._taken.clear()
        return last + 1

    def put_back(self, messages: Sequence[M]) -> None:
        """Put taken messages back, before all others."""
        for message in messages:
            del self._taken[message.queue_offset]
        self._waiting.extendleft(reversed(messages))

    def roll_back(self) -> None:
        """Put all taken messages back."""
        self.put_back([self._taken[queue_offset] for queue_offset in sorted(self._taken)])
