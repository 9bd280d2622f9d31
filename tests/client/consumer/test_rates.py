"""Counts of a consumer: rates of the last minute, failures of the last hour."""

from __future__ import annotations

import pytest

from firearrow.client.consumer.rates import ConsumeRates
from firearrow.wire.client_bodies import ConsumeStatus


def test_rates_are_those_of_the_last_minute() -> None:
    rates = ConsumeRates(1000.0)
    assert rates.status("T", 1000.0) == ConsumeStatus()
    rates.pulled("T", 30, 1000.0, 1000.25)
    rates.pulled("T", 10, 1000.25, 1001.0)
    rates.consumed("T", 30, 1001.0, 1001.5, True)
    rates.consumed("T", 10, 1001.5, 1003.0, False)
    status = rates.status("T", 1020.0)
    assert (status.pull_rt, status.consume_rt) == (500.0, 1000.0)
    assert (status.pull_tps, status.consume_ok_tps, status.consume_failed_tps) == (2, 1.5, 0.5)
    assert rates.status("U", 1020.0) == ConsumeStatus()


def test_a_minute_without_calls_has_the_times_of_the_hour_and_an_hour_ends() -> None:
    rates = ConsumeRates(1000.0)
    rates.consumed("T", 10, 1000.0, 1001.5, False)
    rates.consumed("T", 5, 1001.5, 1002.0, True)
    assert rates.status("T", 1059.9).consume_failed_tps > 0
    status = rates.status("T", 1060.0)
    assert (status.consume_rt, status.consume_failed_msgs) == (1000.0, 10)
    assert status.consume_ok_tps == status.consume_failed_tps == 0
    assert rates.status("T", 4599.9).consume_failed_msgs == 10
    assert rates.status("T", 4600.0) == ConsumeStatus()


@pytest.mark.parametrize("every", [1, 7, 30])
def test_a_steady_rate_is_found_at_any_time(every: int) -> None:
    rates = ConsumeRates(0.0)
    for second in range(every, 8000, every):
        rates.consumed("T", 2 * every, second - 0.001, second, True)
    status = rates.status("T", 8000.0)
    assert status.consume_ok_tps == pytest.approx(2, rel=0.5)
    assert status.consume_rt == pytest.approx(1)
