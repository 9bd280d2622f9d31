"""What happens in a server, and who is told of it.

A kind of happening is a class, and what happened is a value of it. Who makes it happen keeps the
`Event` of the kind at hand and calls it; anybody may listen. Listeners are called in the order in
which they came, in the thread that makes it happen, which is that of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

Happening = TypeVar("Happening")


class Event(Generic[Happening]):
    """One kind of happening. Where it happens often, ask ``listeners`` first: it is empty as long
    as nobody wants to know."""

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[Happening], object], ...] = ()

    def listen(self, listener: Callable[[Happening], object]) -> None:
        """Have a function called each time from now on."""
        self.listeners += (listener,)

    def __call__(self, happening: Happening) -> None:
        """Tell all that it has happened."""
        for listener in self.listeners:
            listener(happening)


class Events:
    """All events of a server, by the class of what happens."""

    def __init__(self) -> None:
        self._of_kind: dict[type, Event[Any]] = {}

    def of(self, kind: type[Happening]) -> Event[Happening]:
        """Give the event of a kind, always the same one."""
        return cast(Event[Happening], self._of_kind.setdefault(kind, Event()))

    def listen(self, kind: type[Happening], listener: Callable[[Happening], object]) -> None:
        """Have a function called each time something of a kind happens."""
        self.of(kind).listen(listener)
