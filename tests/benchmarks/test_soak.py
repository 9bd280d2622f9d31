"""What the soak counts, and when it says that a limit is broken."""

from dataclasses import replace

import pytest

from benchmarks.soak import LATE_S, Deliveries, Measured, MiB, Size, rows, table


def deliveries() -> Deliveries:
    """Two groups have got a message in queue 0 and one in queue 1."""
    found = Deliveries(groups=2)
    for queue_id in range(2):
        found.sent(queue_id, 0, 10.0)
        for _ in range(2):
            found.got(queue_id, 0, 1, 10.25)
    return found


GOOD = Measured(0.01, 0.05, 100 * MiB, 101 * MiB, deliveries(), 0)


def broken(found: Measured) -> list[str]:
    return [row.name for row in rows(found) if not row.is_kept]


def test_the_full_size_is_that_of_the_limits() -> None:
    size = Size()
    assert (size.connections, size.groups, size.pulls) == (2000, 500, 10_000)
    assert size.queues_of_connection * size.connections == size.pulls
    assert size.queues * size.groups == size.pulls


def test_each_message_is_to_come_to_each_group() -> None:
    found = deliveries()
    assert (found.missing, found.delivered, found.late, found.slowest_s) == (0, 4, 0, 0.25)
    found.sent(0, 1, 20.0)
    assert found.missing == 2
    found.got(0, 1, 2, 20.0 + LATE_S + 1)
    assert (found.missing, found.late, found.slowest_s) == (1, 1, LATE_S + 1)


def test_one_answer_may_have_several_messages() -> None:
    found = Deliveries(groups=1)
    for queue_offset in range(3):
        found.sent(7, queue_offset, 1.0)
    found.got(7, 0, 3, 2.0)
    assert (found.missing, found.delivered) == (0, 3)


def test_a_run_within_all_limits() -> None:
    assert broken(GOOD) == []
    assert "BROKEN" not in table(rows(GOOD))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"idle_cores": 0.03}, "core used while idle"),
        ({"last_bytes": 109 * MiB}, "memory that came to it"),
        ({"deliveries": Deliveries(2, {(0, 0): 1.0})}, "wake-ups lost"),
        ({"deliveries": Deliveries(2)}, "messages sent"),
        ({"deliveries": Deliveries(1, {(0, 0): 1.0}, 1, late=1)}, "wake-ups after 5 s"),
        ({"errors": 1}, "answers that are errors"),
    ],
)
def test_each_limit_can_be_broken(changed: dict[str, object], name: str) -> None:
    found = replace(GOOD, **changed)  # type: ignore[arg-type]
    assert broken(found) == [name]
    assert table(rows(found)).count("BROKEN") == 1


def test_of_much_memory_a_share_may_come_to_it() -> None:
    much = replace(GOOD, first_bytes=1000 * MiB, last_bytes=1050 * MiB)
    assert broken(much) == []
    assert broken(replace(much, last_bytes=1051 * MiB)) == ["memory that came to it"]
