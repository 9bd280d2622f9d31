"""Queue locks: one owner at a time, for a minute at a time."""

from firearrow.broker.groups.locks import LEASE_SECONDS, QueueLocks
from firearrow.wire.client_bodies import MessageQueue
from tests.broker.fakes import HandClock

Q = [MessageQueue("T", "b", queue_id) for queue_id in range(4)]


def test_a_queue_has_one_owner() -> None:
    locks = QueueLocks(HandClock())
    assert locks.lock("g", Q[:2], "one") == Q[:2]
    assert locks.lock("g", Q[1:3], "two") == [Q[2]]
    assert locks.lock("h", Q[:2], "two") == Q[:2]


def test_only_the_owner_gives_a_queue_back() -> None:
    locks = QueueLocks(HandClock())
    locks.lock("g", Q[:2], "one")
    locks.unlock("g", Q[:2], "two")
    assert locks.lock("g", Q[:2], "two") == []
    locks.unlock("g", Q[:1], "one")
    assert locks.lock("g", Q[:2], "two") == [Q[0]]
    locks.unlock("nobody", Q, "one")


def test_a_lease_that_is_not_renewed_lapses() -> None:
    clock = HandClock()
    locks = QueueLocks(clock)
    locks.lock("g", Q[:2], "one")
    clock.seconds += LEASE_SECONDS / 2
    locks.lock("g", Q[:1], "one")
    clock.seconds += LEASE_SECONDS / 2
    assert locks.lock("g", Q[:2], "two") == [Q[1]]


def test_only_leases_that_have_ended_are_forgotten() -> None:
    clock = HandClock()
    locks = QueueLocks(clock)
    locks.expire()
    locks.lock("g", Q[:1], "one")
    locks.expire()
    assert locks.lock("g", Q[:1], "two") == []
    clock.seconds += LEASE_SECONDS
    locks.expire()
    assert locks.lock("g", Q[:1], "two") == Q[:1]
    locks.unlock("g", Q[:1], "two")
    assert locks.lock("g", Q[:1], "one") == Q[:1]


def test_a_group_holds_queues_until_its_last_lease_has_ended() -> None:
    clock = HandClock()
    locks = QueueLocks(clock)
    assert not locks.holds_any("g")
    locks.lock("g", Q[:1], "one")
    clock.seconds += LEASE_SECONDS / 2
    locks.lock("g", Q[1:2], "two")
    assert locks.holds_any("g")
    assert not locks.holds_any("h")
    clock.seconds += LEASE_SECONDS / 2
    assert locks.holds_any("g")
    locks.unlock("g", Q[1:2], "two")
    assert not locks.holds_any("g")
