"""Medians, ratios and verdicts: what decides whether a claim holds."""

import json
from pathlib import Path

import pytest

from benchmarks.cases import CASES, Case, Compare, Target, at_least, select
from benchmarks.report import UNITS, Report, Result, Verdict, medians, progress_line, ratios, verdicts
from benchmarks.runner import Rounds
from benchmarks.workloads import Metrics, StartUp


def case(*targets: Target) -> Case:
    return Case("key", "title", StartUp(), targets)


def result(ours: list[float], theirs: list[float], *targets: Target) -> Result:
    found: dict[str, list[Metrics]] = {
        "firearrow": [{"messages_per_s": rate} for rate in ours],
        "rocketmq": [{"messages_per_s": rate} for rate in theirs],
    }
    return Result(Rounds(case(*targets), found, ["rocketmq: a note"]))


def test_medians_are_taken_metric_by_metric() -> None:
    rounds = [{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 7.0}, {"a": 100.0, "b": 8.0}]
    assert medians(rounds) == {"a": 3.0, "b": 8.0}
    assert medians([]) == {}


def test_a_ratio_needs_both_sides_and_a_divisor() -> None:
    both = {"firearrow": {"x": 3.0, "refused": 1.0}, "rocketmq": {"x": 2.0, "refused": 0.0}}
    assert ratios(both) == {"x": 1.5}
    assert ratios({"firearrow": {"x": 3.0}}) == {}


@pytest.mark.parametrize(
    ("compare", "bound", "ours", "theirs", "met"),
    [
        (Compare.RATIO_AT_LEAST, 1.3, 130.0, 100.0, True),
        (Compare.RATIO_AT_LEAST, 1.3, 129.0, 100.0, False),
        (Compare.RATIO_AT_MOST, 0.5, 10.0, 20.0, True),
        (Compare.RATIO_AT_MOST, 0.5, 10.1, 20.0, False),
        (Compare.RATIO_BELOW, 1.0, 9.9, 10.0, True),
        (Compare.RATIO_BELOW, 1.0, 10.0, 10.0, False),
        (Compare.AT_MOST, 80.0, 80.0, 5.0, True),
        (Compare.AT_MOST, 80.0, 80.1, 500.0, False),
    ],
)
def test_targets_are_met_or_missed(compare: Compare, bound: float, ours: float, theirs: float, met: bool) -> None:
    target = Target("start_s", compare, bound)
    sides = {"firearrow": {"start_s": ours}, "rocketmq": {"start_s": theirs}}
    (verdict,) = verdicts(case(target), sides)
    assert verdict.met is met
    assert str(verdict).startswith("met" if met else "MISSED")


def test_without_the_original_only_fixed_bounds_are_judged() -> None:
    absolute = Target("idle_resident_mb", Compare.AT_MOST, 80)
    sides = {"firearrow": {"messages_per_s": 1e6, "idle_resident_mb": 60.0}}
    relative, fixed = verdicts(case(at_least(1.3), absolute), sides)
    assert relative == Verdict(at_least(1.3), None)
    assert relative.met is None
    assert "not judged" in str(relative)
    assert fixed.met is True


def test_the_report_is_written_twice_and_never_over_another(tmp_path: Path) -> None:
    finished = result([120.0, 140.0, 130.0], [100.0, 90.0, 110.0], at_least(1.3))
    report = Report("2025-01-31T12:00+00:00", False, {"rounds": 3}, {"cores": 2}, [finished])
    first = report.write(tmp_path, "2025-01-31-all")
    second = report.write(tmp_path, "2025-01-31-all")
    assert [first.name, second.name] == ["2025-01-31-all.md", "2025-01-31-all-2.md"]
    text = first.read_text()
    assert "| messages/s | 130 (120 – 140) | 100 (90 – 110) | 1.30 |" in text
    assert "- met  messages/s: 1.300 (×, at least 1.3)" in text
    assert "- note: rocketmq: a note" in text
    (written,) = json.loads(first.with_suffix(".json").read_text())["cases"]
    assert written["medians"]["firearrow"] == {"messages_per_s": 130.0}
    assert written["targets"][0] == {
        "metric": "messages_per_s",
        "compare": "ratio_at_least",
        "bound": 1.3,
        "value": 1.3,
        "met": True,
    }


def test_a_quick_report_says_that_it_says_nothing() -> None:
    report = Report("2025-01-31T12:00+00:00", True, {}, {}, [])
    assert "Its numbers say nothing." in report.as_markdown()


def test_a_line_names_case_round_side_and_units() -> None:
    line = progress_line(case(), "rocketmq", "2", {"messages_per_s": 81234.4, "refused": 0.0})
    assert line.split() == ["key", "2", "rocketmq", "81,234", "messages/s", "0", "refused"]


def test_every_target_is_of_a_metric_that_has_a_unit() -> None:
    assert {target.metric for one in CASES for target in one.targets} <= UNITS.keys()


def test_cases_are_selected_in_the_declared_order() -> None:
    assert select([]) == CASES
    assert [one.key for one in select(["pull", "send"])] == ["send", "pull"]
    assert len({one.key for one in CASES}) == len(CASES)
