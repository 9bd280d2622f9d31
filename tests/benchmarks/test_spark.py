"""Rates of streams by what was read, rounds that warm up, and lines with their targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.spark import BODIES, SIZES, Measured, Step, best, line, make_store, messages_in, rate_of
from firearrow.store.offline import Layout, verify


@pytest.mark.parametrize(("rounds", "warm_up"), [(3, 1), (1, 0)])
def test_rounds_that_warm_up_are_run_and_not_counted(rounds: int, warm_up: int) -> None:
    runs: list[int] = []
    wall, cpu = best(lambda: runs.append(len(runs)), rounds, warm_up)
    assert len(runs) == rounds + warm_up
    assert wall > 0
    assert cpu >= 0


def test_a_rate_is_of_the_rows_that_were_read() -> None:
    assert rate_of([Step(1000, 0.5), Step(3000, 1.5)], 500.0) == pytest.approx(1.0)
    assert rate_of([Step(1, 1.0)], 2e6) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", BODIES)
def test_a_stores_messages_are_counted_by_its_queues(kind: str, tmp_path: Path) -> None:
    end = make_store(tmp_path / "store", SIZES["300"], 50_000, BODIES[kind])
    assert end >= 50_000
    verdict = verify(Layout(tmp_path / "store"))
    assert [finding.file for finding in verdict.findings] == ["index"]  # it has none
    assert messages_in(tmp_path / "store") == verdict.records > 0


@pytest.mark.parametrize(
    ("measured", "end"),
    [
        (Measured("c", 12.0, 1.5), "12 MB/s in 1.50 s"),
        (Measured("c", 12.0, 1.5, 450, 0.25), "12 MB/s in 1.50 s, CPU 0.25 s  (target: 450)"),
        (Measured("c", 12.0, 1.5, goal="so much"), "12 MB/s in 1.50 s  (target: so much)"),
    ],
)
def test_a_line_says_the_target(measured: Measured, end: str) -> None:
    assert line("760", measured).endswith(end)
