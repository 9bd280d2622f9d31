"""How far groups count as being."""

from firearrow.store import Consumed, group_progress


def test_a_queue_without_an_offset_counts_as_unread_and_a_deleted_group_not_at_all() -> None:
    committed = {"T@g": {1: 5, 9: 2}, "U@g": {0: 1}, "T@deleted": {0: 3}}
    counts = {"T": 3}
    found = list(group_progress(committed.items(), "g".__eq__, lambda topic: counts.get(topic, 0)))
    assert found == [
        Consumed("g", "T", 0, 0),
        Consumed("g", "T", 1, 5),
        Consumed("g", "T", 2, 0),
        Consumed("g", "T", 9, 2),
        Consumed("g", "U", 0, 1),
    ]
