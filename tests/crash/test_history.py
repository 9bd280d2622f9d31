"""What the checker of histories is for: each of these is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.history import History


def history_of(*bodies: bytes) -> History:
    """Messages that were sent to queue 0, acknowledged there in turn, and read."""
    history = History(2)
    history.sent |= {*bodies}
    for at, body in enumerate(bodies):
        history.acknowledge(0, at, [body])
        history.acknowledged_by("a" if at < 2 else "b", 100 * at)
        history.read(0, at, body)
    return history


def test_what_was_promised_is_there() -> None:
    history = history_of(b"1", b"2", b"3")
    history.sent.add(b"without an answer")
    history.compare([[b"1", b"2", b"3", b"without an answer"], []])
    assert history.kept == [[b"1", b"2", b"3", b"without an answer"], []]
    assert history.compare_epochs([(1, 0), (2, 150)]) == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ([[b"1"], []], "1 acknowledged messages are lost"),
        ([[b"2", b"1"], []], "where a message was acknowledged there is another one"),
        ([[b"1", b"2", b"2"], []], "for the second time"),
        ([[b"1", b"2", b"3"], []], "nobody sent"),
        ([[b"2"], [b"1"]], "where a message was acknowledged there is another one"),
    ],
    ids=["lost", "reordered", "twice", "altered", "elsewhere"],
)
def test_what_is_wrong_with_a_log_is_seen(left: list[list[bytes]], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        history_of(b"1", b"2").compare(left)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda it: it.acknowledge(0, 1, [b"4"]), "two messages are acknowledged at 1"),
        (lambda it: it.acknowledged_by("b", 100), "a and b acknowledge what is at 100"),
        (lambda it: it.read(0, 1, b"4"), "at 1 of queue 0 there are two messages"),
        (lambda it: it.compare_epochs([(1, 0)]), "acknowledged in epoch 1"),
    ],
    ids=["acknowledged", "by two", "read", "two masters"],
)
def test_two_masters_are_seen(mistake: Callable[[History], object], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        mistake(history_of(b"1", b"2", b"3"))


def test_what_was_read_and_is_lost_is_seen() -> None:
    history = history_of(b"1")
    history.read(0, 1, b"unconfirmed")
    with pytest.raises(AssertionError, match="1 messages that were read are lost"):
        history.compare([[b"1"], []])
