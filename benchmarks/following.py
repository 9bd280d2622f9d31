"""How far a slave is behind its master while that takes all that it can.

The master is asked, every few milliseconds, by request 907: it answers how much of its log the
slave has not reported yet. So both numbers are of one moment, and what is on its way to the slave
counts as lag, as does what is reported by then but not read.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import remoting
from benchmarks.errors import BenchmarkError
from benchmarks.generator import Load
from benchmarks.servers import Deployment
from benchmarks.visibility import percentile
from benchmarks.workloads import MEGABYTE, Bench, Metrics, unstable, wait_dispatched

PAUSE_S = 0.01


@dataclass(frozen=True)
class Following:
    """The lag of the slave of the first broker, under load."""

    load: Load

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        """Warm up with the load."""
        warmth = bench.generator.warm_up(self.load, deployment, bench.settings.warm_up)
        wait_dispatched(deployment)
        return unstable(deployment, warmth)

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        """Load for the measured time, and look all the while; then the slave must have it all."""
        del number  # every round is the same
        with looking(deployment) as lags:
            found = bench.generator.measure(self.load, deployment, bench.settings.following_seconds)
        wait_dispatched(deployment)
        missing = messages_missing(deployment, self.load)
        if missing:
            raise BenchmarkError(f"{deployment.side}: its slave lacks {missing} messages")
        return {
            "messages_per_s": found.messages_per_s,
            "lag_mb_p50": percentile(lags, 0.5) / MEGABYTE,
            "lag_mb_p99": percentile(lags, 0.99) / MEGABYTE,
            "lag_mb_max": max(lags) / MEGABYTE,
            "looks": float(len(lags)),
            "cpu_us_per_message": found.server_cpu_us_per_message,
            "server_cores": found.server_cores,
            "generator_cores": found.generator_cores,
            "refused": float(sum(found.refused.values())),
        }


@contextmanager
def looking(deployment: Deployment) -> Iterator[list[float]]:
    """Look at the lag as long as the block runs, in bytes; raises BenchmarkError if the slave is
    gone then."""
    lags: list[float] = []
    done = threading.Event()
    failures: list[str] = []

    def look() -> None:
        address = deployment.brokers[0].address
        try:
            while not done.is_set():
                [lag] = remoting.lags(address)
                lags.append(lag)
                time.sleep(PAUSE_S)
        except (OSError, ValueError) as error:  # there is no slave, or are several
            failures.append(f"{deployment.side}: the lag of its slave can't be had: {error}")

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield lags
    finally:
        done.set()
        looker.join()
    if failures:
        raise BenchmarkError(failures[0])


def messages_missing(deployment: Deployment, load: Load) -> int:
    """Count the messages of a load that brokers have and their slaves have not."""
    pairs = zip(deployment.brokers, deployment.slaves, strict=True)
    return sum(
        remoting.messages_in(broker.address, load.topic, load.queues)
        - remoting.messages_in(slave.address, load.topic, load.queues)
        for broker, slave in pairs
    )
