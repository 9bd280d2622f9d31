"""Events: any number of listeners by the class of the event, called in their order."""

from typing import NamedTuple

from firearrow.events import Event, Events


class Rang(NamedTuple):
    times: int


class Fell(NamedTuple):
    depth: int


def test_all_listeners_are_told_in_their_order() -> None:
    events = Events()
    told: list[object] = []
    rang = events.of(Rang)
    assert not rang.listeners
    rang(Rang(0))
    events.listen(Rang, lambda happened: told.append(("first", happened.times)))
    events.listen(Rang, lambda happened: told.append(("second", happened.times)))
    events.listen(Fell, told.append)
    rang(Rang(1))
    assert told == [("first", 1), ("second", 1)]
    assert events.of(Rang) is rang
    events.of(Fell)(Fell(3))
    assert told[2:] == [Fell(3)]


def test_who_listens_within_a_listener_is_told_from_the_next_time_on() -> None:
    event: Event[int] = Event()
    told: list[int] = []
    event.listen(lambda _: event.listen(told.append))
    event(1)
    assert told == []
    event(2)
    assert told == [2]
