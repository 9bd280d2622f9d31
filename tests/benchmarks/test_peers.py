"""The rates that the tools of other systems print."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers import OF_CONSUMER, OF_NATS, OF_PRODUCER, last_rate

NATS = """
  [1] 781 msgs/sec ~ 98 KiB/sec ~ min: 60.58us ~ avg: 1,278.74us
 NATS JetStream synchronous publisher aggregated stats: 12,193 msgs/sec ~ 1.5 MiB/sec
 message rates min 762 | avg 769 | max 781 | stddev 5 msgs
"""
PRODUCER = """
119415 records sent, 23878.2 records/sec (2.91 MB/sec), 2126.5 ms avg latency, 2507.0 ms max latency.
300000 records sent, 25229.2 records/sec (3.08 MB/sec), 2116.28 ms avg latency, 2805.00 ms max latency, 2231 ms 50th.
"""
CONSUMER = """
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-11-30 06:46:23:090, 2026-11-30 06:46:29:665, 36.6211, 5.5697, 300000, 45627.3764, 5065, 1510, 24.2524, 198675.4967
"""


@pytest.mark.parametrize(
    ("text", "pattern", "rate"),
    [(NATS, OF_NATS, 12_193), (PRODUCER, OF_PRODUCER, 25_229.2), (CONSUMER, OF_CONSUMER, 198_675.4967)],
    ids=["nats", "producer", "consumer"],
)
def test_the_rate_of_all_clients_is_read(text: str, pattern: re.Pattern[str], rate: float) -> None:
    assert last_rate(text, pattern) == rate
