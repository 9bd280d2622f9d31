"""Counters and rates: their values over time, and totals that lose nothing."""

import pytest

from firearrow.broker.events import GroupDeleted
from firearrow.broker.metrics.stats import BrokerStats
from firearrow.wire.client_bodies import StatsSnapshot
from tests.broker.fakes import HandClock, count_puts


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def stats(clock: HandClock) -> BrokerStats:
    return BrokerStats(clock, "C")


def pass_time(clock: HandClock, stats: BrokerStats, seconds: int) -> None:
    for _ in range(seconds // 10):
        clock.seconds += 10
        stats.sample()


def test_rates_are_over_the_time_that_was_sampled(clock: HandClock, stats: BrokerStats) -> None:
    count_puts(stats, "T", 30, 3000)
    assert stats.topic_put_tps("T") == 0.0
    pass_time(clock, stats, 10)
    assert stats.topic_put_tps("T") == 3.0
    assert stats.puts.rates() == (3.0, 3.0, 3.0)
    pass_time(clock, stats, 50)
    assert stats.topic_put_tps("T") == 0.5
    assert stats.puts.rates() == (0.0, 0.5, 0.5)
    pass_time(clock, stats, 60)
    assert stats.topic_put_tps("T") == 0.0
    assert stats.puts.rates() == (0.0, 0.0, 0.25)


def test_a_view_has_a_minute_an_hour_and_a_day(clock: HandClock, stats: BrokerStats) -> None:
    pass_time(clock, stats, 3600)
    count_puts(stats, "T", 2, 600)
    pass_time(clock, stats, 60)
    view = stats.view("TOPIC_PUT_SIZE", "T")
    assert view is not None
    assert view.stats_minute == StatsSnapshot(600, 10.0, 300.0)
    assert view.stats_hour == StatsSnapshot()
    pass_time(clock, stats, 3600)
    view = stats.view("TOPIC_PUT_NUMS", "T")
    assert view is not None
    assert view.stats_minute == StatsSnapshot()
    assert view.stats_hour.sum == 2
    assert view.stats_day.sum == 2


def test_counters_have_upstream_names(clock: HandClock, stats: BrokerStats) -> None:
    count_puts(stats, "T", 2, 600)
    stats.got("g", "T", 3, 900)
    for _ in range(4):
        stats.sent_back("g", "T")
    pass_time(clock, stats, 10)
    sums = {
        (name, key): view.stats_minute.sum
        for name, key in [
            ("TOPIC_PUT_NUMS", "T"),
            ("TOPIC_PUT_SIZE", "T"),
            ("GROUP_GET_NUMS", "T@g"),
            ("GROUP_GET_SIZE", "T@g"),
            ("SNDBCK_PUT_NUMS", "T@g"),
            ("BROKER_PUT_NUMS", "C"),
            ("BROKER_GET_NUMS", "C"),
        ]
        if (view := stats.view(name, key)) is not None
    }
    assert list(sums.values()) == [2, 600, 3, 900, 4, 2, 3]
    assert stats.view("TOPIC_PUT_NUMS", "U") is None
    for absent in ("NO_SUCH_NUMS", "GROUP_GET_LATENCY", "TOPIC_PUT_LATENCY"):
        assert stats.view(absent, "T@g") is None
    assert stats.group_get_tps("g", "T") == 0.3
    assert stats.group_get_tps("h", "T") == 0.0


def test_counters_kept_at_hand_are_the_same(stats: BrokerStats) -> None:
    counters = stats.topic("T")
    count_puts(stats, "T", 1, 7)
    assert stats.topic("T") is counters
    assert stats.put_sum() == (1, 7)


def test_deleting_keeps_the_totals(clock: HandClock, stats: BrokerStats) -> None:
    count_puts(stats, "T", 2, 600)
    stats.got("g", "T", 3, 900)
    stats.got("g", "U", 1, 100)
    stats.sent_back("g", "T")
    stats.sent_back("g", "U")
    stats.delete_topic("T")
    stats.delete_topic("never seen")
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        assert stats.view(name, "T@g") is None
        assert stats.view(name, "U@g") is not None
    stats.group_gone(GroupDeleted("g"))
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        assert stats.view(name, "U@g") is None
    pass_time(clock, stats, 10)
    assert stats.put_sum() == (2, 600)
    assert stats.get_totals().now == 4


def test_a_group_that_rests_for_a_day_is_forgotten(clock: HandClock, stats: BrokerStats) -> None:
    stats.got("g", "T", 1, 1)
    stats.sent_back("g", "T")
    pass_time(clock, stats, 86_400)
    stats.got("h", "T", 1, 1)
    stats.sent_back("h", "T")
    names = ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS")
    assert all(stats.view(name, "T@g") is not None for name in names)
    pass_time(clock, stats, 3600)
    assert all(stats.view(name, "T@g") is None for name in names)
    assert all(stats.view(name, "T@h") is not None for name in names)
    assert stats.get_totals().now == 2


def test_totals_turn_with_the_day(clock: HandClock, stats: BrokerStats) -> None:
    count_puts(stats, "T", 5, 5)
    pass_time(clock, stats, 86_400)
    count_puts(stats, "T", 2, 2)
    assert stats.put_totals() == (0, 5, 7)
    pass_time(clock, stats, 86_400)
    stats.got("g", "T", 1, 1)
    assert stats.put_totals() == (5, 7, 7)
    assert stats.get_totals() == (0, 0, 1)


def test_a_sample_of_very_many_counters_is_taken_in_steps(clock: HandClock, stats: BrokerStats) -> None:
    for number in range(5000):
        count_puts(stats, f"T{number}", 10, 100)
    clock.seconds += 10
    waits = [stats.sample_step() for _ in range(2)]
    stats.delete_topic("T4999")
    while not waits[-1]:
        waits.append(stats.sample_step())
    assert waits == [0.0, 0.0, 10.0]
    assert {stats.topic_put_tps(f"T{number}") for number in range(4999)} == {1.0}
    assert stats.sample_step() == 0.0


def test_the_brokers_own_topics_do_not_count_in_totals(clock: HandClock, stats: BrokerStats) -> None:
    own = "RMQ_SYS_TRANS_HALF_TOPIC"
    names = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")

    def sums(suffix: str = "") -> list[int]:
        views = [stats.view(name + suffix, "C") for name in names]
        return [view.stats_minute.sum for view in views if view is not None]

    for topic, count in (("T", 2), (own, 5)):
        count_puts(stats, topic, count, 600)
        stats.got("g", topic, count + 1, 900)
    pass_time(clock, stats, 10)
    assert sums() == [7, 9]
    assert sums("_WITHOUT_SYSTEM_TOPIC") == [2, 3]
    assert (stats.put_totals().now, stats.get_totals().now) == (2, 3)
    for topic in ("T", own):
        stats.delete_topic(topic)
    assert (stats.put_totals().now, stats.get_totals().now) == (2, 3)
    assert stats.put_sum()[0] == 7
    pass_time(clock, stats, 10)
    assert sums("_WITHOUT_SYSTEM_TOPIC") == [2, 3]
