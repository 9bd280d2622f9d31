"""What happened a short while ago."""

from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.sending.recent import Recent

notes = st.tuples(st.sampled_from("abcdef"), st.integers(0, 5))


@given(st.lists(notes, max_size=30), st.integers(1, 4), st.integers(0, 5))
def test_the_last_keys_are_known(noted: list[tuple[str, int]], keys_max: int, now: int) -> None:
    recent: Recent[str] = Recent(keys_max)
    for key, until in noted:
        recent.note(key, until)
    latest = dict(noted)
    for place, (key, until) in enumerate(noted):
        if key not in dict(noted[place + 1 :]) and len(noted) - place <= keys_max:
            assert recent.has(key, now) == (until > now)
    assert sum(recent.has(key, now) for key in "abcdef") <= 2 * keys_max
    assert not any(recent.has(key, now) for key in "abcdef" if latest.get(key, 0) <= now)


def test_many_are_noted_at_once() -> None:
    recent: Recent[str] = Recent(2)
    recent.note("a", 9)
    recent.note_all({"b": 5, "c": 6, "a": 1})
    recent.note_all({"d": 5})
    assert [recent.has(key, 5) for key in "abcd"] == [False, False, True, False]
    recent.note_all({"e": 7, "f": 7})
    recent.note_all({"g": 7})
    assert [recent.has(key, 5) for key in "cdefg"] == [False, False, True, True, True]


@given(st.lists(notes, max_size=30), st.lists(st.sampled_from("abcdefgh"), max_size=8))
def test_what_comes_before_the_first_known_key(noted: list[tuple[str, int]], asked: str) -> None:
    recent: Recent[str] = Recent(2)
    for key, until in noted:
        recent.note(key, until)
    expected = 0
    while expected < len(asked) and not recent.has(asked[expected], 3):
        expected += 1
    assert recent.before_known(asked, 3) == expected
