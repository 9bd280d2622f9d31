"""What happened a short while ago, as far as a limit of memory goes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Recent(Generic[Key]):
    """Keys, each with the time until which it counts. It knows the last ``keys_max`` of them, and
    at most twice as many, besides those that were noted with the last one.

    They are kept in two generations, of which the older one is forgotten as a whole: so to note a
    key is one assignment. To take them out one by one, in the order in which they came, takes eight
    times as long.
    """

    __slots__ = ("_before", "_keys_max", "_now")

    def __init__(self, keys_max: int) -> None:
        assert keys_max > 0
        self._keys_max = keys_max
        self._now: dict[Key, float] = {}
        self._before: dict[Key, float] = {}

    def note(self, key: Key, until: float) -> None:
        """Have a key count until then, by whichever clock; what was noted of it before is over."""
        self.note_all({key: until})

    def note_all(self, keys: Mapping[Key, float]) -> None:
        """Note keys, no more than a few hundred at a time, and until when each counts."""
        if len(self._now) >= self._keys_max:
            self._before, self._now = self._now, {}
        self._now.update(keys)

    def has(self, key: Key, now: float) -> bool:
        """Whether a key still counts."""
        until = self._now.get(key)
        if until is None and self._before:
            until = self._before.get(key)
        return until is not None and until > now

    def before_known(self, keys: Collection[Key], now: float) -> int:
        """How many of some keys come before the first that still counts."""
        if self._now.keys().isdisjoint(keys) and self._before.keys().isdisjoint(keys):
            return len(keys)
        return next((n for n, key in enumerate(keys) if self.has(key, now)), len(keys))
