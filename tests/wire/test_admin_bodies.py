"""What bodies for administrators say."""

import pytest

from firearrow.wire.admin_bodies import QueueTimeSpan
from firearrow.wire.client_bodies import MessageQueue

NOW, FIRST, LAST = 1_795_676_376_000, 1_795_676_300_000, 1_795_676_370_000


@pytest.mark.parametrize(
    ("delay", "age"),
    [
        pytest.param(6000, 6000, id="the next message"),
        pytest.param(0, 0, id="nothing left"),
        pytest.param(NOW + 1, NOW - FIRST, id="not begun"),
    ],
)
def test_the_age_of_what_is_consumed_next(delay: int, age: int) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    assert QueueTimeSpan(queue, FIRST, LAST, -1, delay).age_ms == age


def test_an_empty_queue_has_nothing_of_an_age() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    assert QueueTimeSpan(queue, -1, -1, -1, 0).age_ms == 0
