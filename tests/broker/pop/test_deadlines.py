"""Things that are due at times of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.pop.deadlines import TICK_SECONDS, Deadlines
from tests.broker.fakes import HandClock, HandScheduler


class Stage:
    """What was taken, and when."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.scheduler = HandScheduler(self.clock)
        self.taken: list[tuple[float, list[str]]] = []
        self.due: Deadlines[str] = Deadlines(self.scheduler, self.take)

    def take(self, items: list[str]) -> None:
        self.taken.append((self.clock.seconds - 1000.0, items))


def test_one_timer_takes_all_that_are_due_together() -> None:
    stage = Stage()
    for name in "abc":
        stage.due.add(name, 1.0)
    stage.due.add("d", 3.0)
    assert len(stage.scheduler.timers) == 1
    stage.scheduler.run(10)
    (first, items), (second, others) = stage.taken
    assert (items, others) == (["a", "b", "c"], ["d"])
    assert first == pytest.approx(1.0, abs=TICK_SECONDS)
    assert second == pytest.approx(3.0, abs=TICK_SECONDS)


def test_what_is_discarded_is_not_taken() -> None:
    stage = Stage()
    tick = stage.due.add("a", 1.0)
    stage.due.add("b", 1.0)
    stage.due.discard("a", tick)
    stage.due.discard("a", tick)
    stage.scheduler.run(2)
    assert [items for _, items in stage.taken] == [["b"]]
    stage.due.discard("b", tick)
    stage.due.add("c", 1.0)
    stage.due.clear()
    stage.scheduler.run(2)
    assert len(stage.taken) == 1


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 30), st.booleans()), max_size=40))
def test_each_in_its_time(items: list[tuple[float, float, bool]]) -> None:
    """Added at a time for a later one, some of them discarded at once."""
    stage = Stage()
    wanted: dict[str, float] = {}
    for number, (wait, seconds, is_kept) in enumerate(items):
        stage.scheduler.run(wait)
        name = str(number)
        tick = stage.due.add(name, seconds)
        if is_kept:
            wanted[name] = stage.clock.seconds - 1000.0 + seconds
        else:
            stage.due.discard(name, tick)
    stage.scheduler.run(60)
    taken = {name: at for at, names in stage.taken for name in names}
    assert taken.keys() == wanted.keys()
    for name, at in taken.items():
        assert -1e-4 <= at - wanted[name] <= TICK_SECONDS + 1e-4
