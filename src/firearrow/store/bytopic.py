"""What is known of topics, kept for the next batch of records.

A broker has few topics and meets each again and again. Clients that make up names without end must
not fill the memory with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

_KEPT_MAX: Final = 65_536

V = TypeVar("V")


class ByTopic(dict[bytes, V]):
    """What ``of`` gives for each topic asked for, by the bytes that records have of it.

    Forgets all of them when they are too many.
    """

    def __init__(self, of: Callable[[bytes], V]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, topic: bytes) -> V:
        if len(self) >= _KEPT_MAX:
            self.clear()
        self[topic] = found = self._of(topic)
        return found
