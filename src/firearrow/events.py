"""Events in a server, and their listeners.

Each kind of event is a class, and an event is a value of it. The part of the server that causes the events keeps the
`Event` of their class and calls it; any part may listen. Listeners are called in the order of their registration, in
the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

Happening = TypeVar("Happening")


class Event(Generic[Happening]):
    """One kind of event. On a hot path, look at ``listeners`` first: it is empty without listeners."""

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[Happening], object], ...] = ()

    def listen(self, listener: Callable[[Happening], object]) -> None:
        """Register a function that is called for each event from now on."""
        self.listeners += (listener,)

    def __call__(self, happening: Happening) -> None:
        """Call all listeners."""
        for listener in self.listeners:
            listener(happening)


class Events:
    """All events of a server, by the class of what happens."""

    def __init__(self) -> None:
        self._of_kind: dict[type, Event[Any]] = {}

    def of(self, kind: type[Happening]) -> Event[Happening]:
        """Return the event of a kind, always the same one."""
        return cast(Event[Happening], self._of_kind.setdefault(kind, Event()))

    def listen(self, kind: type[Happening], listener: Callable[[Happening], object]) -> None:
        """Register a function that is called for each event of a kind."""
        self.of(kind).listen(listener)

    def silence(self) -> None:
        """Remove all present listeners."""
        for event in self._of_kind.values():
            event.listeners = ()
