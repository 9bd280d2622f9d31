"""What is known of topics is kept, but not of topics without end."""

import pytest

from firearrow.store import bytopic
from firearrow.store.bytopic import ByTopic


def test_all_is_forgotten_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytopic, "_KEPT_MAX", 3)
    asked: list[bytes] = []

    def length(topic: bytes) -> int:
        asked.append(topic)
        return len(topic)

    known = ByTopic(length)
    topics = [b"a", b"bb", b"ccc", b"dddd", b"eeeee"]
    for topic in topics:
        assert known[topic] == known[topic] == len(topic)
        assert len(known) <= 3
    assert asked == topics
    assert list(known) == [b"dddd", b"eeeee"]
    assert known[b"a"] == 1
    assert asked == [*topics, b"a"]
