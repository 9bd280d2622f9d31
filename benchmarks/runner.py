"""Rounds that alternate between the sides, so that both meet the same weather.

The side that is not measured is paused (SIGSTOP): on a machine of few cores even an idle JVM takes
from the other's share. Before a round, what the other side wrote is on disk (`sync`), the side runs
again for a second, and its brokers are known to its name server again.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from benchmarks.cases import Case
from benchmarks.certificate import make_certificate
from benchmarks.errors import BenchmarkError
from benchmarks.servers import Deployment, Launch
from benchmarks.workloads import Bench, Fresh, Metrics, Paired

SETTLE_S = 1
IDLE_WINDOW_S = 2
STORE_BYTES_WARN = 30 * 10**9
FREE_BYTES_MIN = 25 * 10**9  # the batch case stores about 10 GB on each side
DISK_USED_MAX = 0.8  # from 0.85 RocketMQ deletes old files at once, from 0.9 it refuses sends


@dataclass
class Rounds:
    """What a case's rounds found, by side, in the order in which they ran."""

    case: Case
    found: dict[str, list[Metrics]]
    notes: list[str] = field(default_factory=list)


Progress = Callable[[Case, str, int, Metrics], None]
"""Is told the case, side, round (from 1) and result of each round as it ends."""


def run_case(case: Case, launches: dict[str, Launch], bench: Bench, progress: Progress) -> Rounds:
    """Run all rounds of a case; raises BenchmarkError if a number cannot be had."""
    check_disk(bench)
    rounds = Rounds(case, {side: [] for side in launches})

    def keep(side: str, metrics: Metrics) -> None:
        rounds.found[side].append(metrics)
        progress(case, side, len(rounds.found[side]), metrics)

    if isinstance(case.workload, Fresh):
        for side in order(list(launches), bench.settings.rounds):
            os.sync()
            keep(side, case.workload.measure_fresh(bench, launches[side]))
    else:
        run_paired(case, case.workload, launches, bench, rounds, keep)
    return rounds


def run_paired(
    case: Case,
    workload: Paired,
    launches: dict[str, Launch],
    bench: Bench,
    rounds: Rounds,
    keep: Callable[[str, Metrics], None],
) -> None:
    """Start and prepare every side, then alternate."""
    with ExitStack() as stack:
        deployments: dict[str, Deployment] = {}
        shape = case.shape
        if case.encrypted:
            shape = replace(shape, certificate=make_certificate(bench.directory))
        for side, launch in launches.items():
            deployment = stack.enter_context(bench.start(launch, shape, dict(case.keys)))
            deployment.wait_ready()
            rounds.notes += workload.prepare(bench, deployment)
            cores = deployment.idle_cores(IDLE_WINDOW_S)
            rounds.notes.append(f"{side}: {cores:.3f} cores when idle after the warm-up")
            deployment.pause()
            deployments[side] = deployment
        for number, side in enumerate(order(list(launches), bench.settings.rounds)):
            deployment = deployments[side]
            wake(deployment)
            keep(side, workload.measure(bench, deployment, number))
            deployment.pause()
        rounds.notes += warn_stored(deployments)


def order(sides: list[str], rounds: int) -> list[str]:
    """Give the sides in turn: A B, B A, A B … so that a drift of the machine hits both alike."""
    turns = (sides if number % 2 == 0 else sides[::-1] for number in range(rounds))
    return [side for turn in turns for side in turn]


def wake(deployment: Deployment) -> None:
    """Let a paused side run, and wait until it is as it was."""
    os.sync()
    deployment.resume()
    time.sleep(SETTLE_S)
    deployment.wait_ready()


def check_disk(bench: Bench) -> None:
    """Raise BenchmarkError if the stores would not fit, or the original would refuse to write."""
    usage = shutil.disk_usage(bench.directory)
    if usage.free < FREE_BYTES_MIN:
        wanted = FREE_BYTES_MIN // 10**9
        raise BenchmarkError(f"{usage.free / 1e9:.0f} GB free for the stores; {wanted} are needed")
    used = usage.used / (usage.used + usage.free)  # as it counts: what is reserved is no part
    if used > DISK_USED_MAX:
        raise BenchmarkError(f"the disk is {used:.0%} full; above 85 % RocketMQ deletes and refuses")


def warn_stored(deployments: dict[str, Deployment]) -> list[str]:
    """Give a note if the stores took more disk than they should."""
    stored = sum(deployment.stored_bytes() for deployment in deployments.values())
    return [f"the stores took {stored / 1e9:.0f} GB"] if stored > STORE_BYTES_WARN else []
