"""The messages of one queue that a client has pulled and not yet consumed.

Messages come in the order of the queue. Those that are consumed in any order leave it one by one
(`ProcessQueue.finish`), and the offset to commit is the first that is still here: so nothing is
lost, and a message behind it may come twice. In order, messages are taken (`ProcessQueue.take`)
and then committed or put back.

Source: upstream ``ProcessQueue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

MiB: Final = 1024 * 1024


class Cacheable(Protocol):
    """State of a message in the cache."""

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""

    @property
    def body(self) -> bytes:
        """Its body, which counts as its size."""


M = TypeVar("M", bound=Cacheable)


class Limits(NamedTuple):
    """Limits of a queue's cache, beyond which no more is pulled. RocketMQ's defaults."""

    messages: int = 1000
    bytes: int = 100 * MiB
    span: int = 2000
    """How far the first message may be behind the last; in order, it never is."""


class ProcessQueue(Generic[M]):
    """A queue's cache; ``put`` may follow ``take`` or ``finish`` in any order."""

    __slots__ = ("_bytes", "_done", "_order", "_taken", "_waiting", "next_offset")

    def __init__(self) -> None:
        self._order: deque[int] = deque()  # offsets, until all before them are done
        self._done: set[int] = set()
        self._waiting: deque[M] = deque()
        self._taken: dict[int, M] = {}
        self._bytes = 0
        self.next_offset = -1
        """Behind the last message that came; -1 before the first."""

    def __len__(self) -> int:
        return len(self._order) - len(self._done)

    @property
    def bytes(self) -> int:
        """The bytes of the bodies."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance from the first cached message to the last, in offsets."""
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def first_offset(self) -> int | None:
        """The first message that is here."""
        return self._order[0] if self._order else None

    @property
    def commit_offset(self) -> int:
        """Offset to commit: the first cached message, else the offset behind the last that was.

        -1 while there was none.
        """
        return self._order[0] if self._order else self.next_offset

    def excess(self, limits: Limits, *, in_order: bool = False) -> str | None:
        """Say which limit is reached, None while more may be pulled."""
        if len(self) > limits.messages:
            return f"{len(self)} messages"
        if self._bytes > limits.bytes:
            return f"{self._bytes} bytes"
        if not in_order and self.span > limits.span:
            return f"a span of {self.span} offsets"
        return None

    def put(self, messages: Iterable[M]) -> list[M]:
        """Add what was pulled; gives those that were not here before."""
        fresh = [message for message in messages if message.queue_offset >= self.next_offset]
        if fresh:
            self._order.extend([message.queue_offset for message in fresh])
            self._bytes += sum([len(message.body) for message in fresh])
            self.next_offset = fresh[-1].queue_offset + 1
        return fresh

    def finish(self, message: M) -> None:
        """Take note that a message is consumed, in whatever order."""
        order, done = self._order, self._done
        self._bytes -= len(message.body)
        if order[0] != message.queue_offset:
            done.add(message.queue_offset)
            return
        order.popleft()
        while done and order[0] in done:
            done.remove(order.popleft())

    def is_here(self, queue_offset: int) -> bool:
        """Tell whether a message has come and is not consumed; goes through what is here."""
        return queue_offset in self._order and queue_offset not in self._done

    # --- in order ---

    def put_in_order(self, messages: Iterable[M]) -> None:
        """Add what was pulled, to be taken."""
        self._waiting += self.put(messages)

    @property
    def waiting(self) -> int:
        """Number of messages that can be taken."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> M:
        """The message that is taken next; there must be one."""
        return self._waiting[0]

    def take(self, count: int) -> list[M]:
        """Take the next messages, at most so many."""
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        self._taken |= {message.queue_offset: message for message in taken}
        return taken

    def taken_of(self, messages: Iterable[M]) -> list[M]:
        """Those of some messages that are taken, and neither committed nor put back."""
        return [message for message in messages if message.queue_offset in self._taken]

    def commit(self) -> int:
        """Take note that all that is taken is consumed; gives the offset to commit, -1 for none."""
        if not self._taken:
            return -1
        for message in self._taken.values():
            self.finish(message)
        last = max(self._taken)
        self._taken.clear()
        return last + 1

    def put_back(self, messages: Sequence[M]) -> None:
        """Have messages that were taken be taken again, before all others."""
        for message in messages:
            del self._taken[message.queue_offset]
        self._waiting.extendleft(reversed(messages))

    def roll_back(self) -> None:
        """Have all that is taken be taken again."""
        self.put_back([self._taken[queue_offset] for queue_offset in sorted(self._taken)])
