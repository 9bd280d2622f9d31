"""From rounds to medians, ratios and verdicts, and their two written forms."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import queues
from benchmarks.cases import Case, Target
from benchmarks.runner import Rounds
from benchmarks.servers import FIREARROW, ROCKETMQ
from benchmarks.workloads import Metrics

FORM_VERSION = 1  # of the JSON; raised when a reader would have to change


@dataclass(frozen=True)
class Unit:
    """How a metric is shown."""

    title: str
    form: str

    def show(self, value: float) -> str:
        """Write a value of it."""
        return format(value, self.form)


UNITS = {
    "messages_per_s": Unit("messages/s", ",.0f"),
    "received_per_s": Unit("received/s", ",.0f"),
    "readable_per_s": Unit("messages/s until all are in their queues", ",.0f"),
    "cpu_us_per_message": Unit("CPU µs/message", ".2f"),
    "round_ms_p50": Unit("p50 ms", ".2f"),
    "round_ms_p99": Unit("p99 ms", ".2f"),
    "server_cores": Unit("server cores", ".2f"),
    "generator_cores": Unit("generator cores", ".2f"),
    "refused": Unit("refused", ",.0f"),
    "lag_mb_p50": Unit("lag p50 MB", ".3f"),
    "lag_mb_p99": Unit("lag p99 MB", ".3f"),
    "lag_mb_max": Unit("largest lag MB", ".3f"),
    "looks": Unit("looks at the lag", ",.0f"),
    "visible_ms_p50": Unit("visible p50 ms", ".2f"),
    "visible_ms_p99": Unit("visible p99 ms", ".2f"),
    "others_ms_p99": Unit("others p99 ms", ".2f"),
    "start_s": Unit("start s", ".3f"),
    "complete_s": Unit("complete s", ".2f"),
    "verify_s": Unit("verified in s", ".2f"),
    "verify_mb_per_s": Unit("MB of log/s", ",.0f"),
    "messages": Unit("messages", ",.0f"),
    "private_mb": Unit("private MB", ",.1f"),
    "clients": Unit("clients", ",.0f"),
    "resident_mb": Unit("resident MB", ",.1f"),
    "core_percent": Unit("% of a core", ".1f"),
    "kb_per_client": Unit("kB/client", ",.1f"),
    "cpu_us_per_heartbeat": Unit("CPU µs/heartbeat", ",.1f"),
    "heartbeats_per_s": Unit("heartbeats/s", ",.0f"),
    "idle_resident_mb": Unit("idle resident MB", ".1f"),
    "idle_private_mb": Unit("idle private MB", ".1f"),
    "loaded_resident_mb": Unit("loaded resident MB", ",.1f"),
    "loaded_private_mb": Unit("loaded private MB", ",.1f"),
    "stored_messages": Unit("stored messages", ",.0f"),
    "private_growth_bytes_per_message": Unit("private bytes/stored message", ".3f"),
}
UNITS |= {
    queues.name_of(metric, count): Unit(f"{count:,} queues: {title}", form)
    for count in queues.COUNTS
    for metric, (title, form) in queues.METRICS.items()
}


@dataclass(frozen=True)
class Verdict:
    """A target with what was found; `value` and `met` are None if a side was not measured."""

    target: Target
    value: float | None

    @property
    def met(self) -> bool | None:
        """Say whether the target holds."""
        if self.value is None:
            return None
        return self.target.compare.holds(self.value, self.target.bound)

    def __str__(self) -> str:
        """Write it as one line."""
        compare = self.target.compare
        claim = f"{UNITS[self.target.metric].title}: {{}} ({compare.words} {self.target.bound:g})"
        if self.value is None:
            return f"not judged  {claim.format('no value')}"
        value = f"{self.value:.3f}" if compare.ratio else f"{self.value:.1f}"
        return f"{'met' if self.met else 'MISSED'}  {claim.format(value)}"


def medians(rounds: Sequence[Metrics]) -> dict[str, float]:
    """Give the median of each metric over the rounds of one side."""
    return {name: median(one[name] for one in rounds) for name in rounds[0]} if rounds else {}


def ratios(sides: Mapping[str, Metrics]) -> dict[str, float]:
    """Give Firearrow's medians divided by RocketMQ's, where both are there and not zero."""
    ours, theirs = sides.get(FIREARROW, {}), sides.get(ROCKETMQ, {})
    return {name: ours[name] / theirs[name] for name in ours if theirs.get(name)}


def verdicts(case: Case, sides: Mapping[str, Metrics]) -> list[Verdict]:
    """Judge each target of a case by the medians of the sides."""
    by_ratio, ours = ratios(sides), sides.get(FIREARROW, {})
    values = ((by_ratio if target.compare.ratio else ours).get(target.metric) for target in case.targets)
    return [Verdict(*pair) for pair in zip(case.targets, values, strict=True)]


@dataclass(frozen=True)
class Result:
    """A finished case."""

    rounds: Rounds

    @property
    def case(self) -> Case:
        """The case that was run."""
        return self.rounds.case

    @property
    def medians(self) -> dict[str, dict[str, float]]:
        """Medians by side and metric."""
        return {side: medians(found) for side, found in self.rounds.found.items()}

    @property
    def verdicts(self) -> list[Verdict]:
        """The case's targets, judged."""
        return verdicts(self.case, self.medians)

    def as_json(self) -> dict[str, object]:
        """Give everything that was found."""
        return {
            "case": self.case.key,
            "title": self.case.title,
            "rounds": {side: [dict(one) for one in found] for side, found in self.rounds.found.items()},
            "medians": self.medians,
            "ratios": ratios(self.medians),
            "targets": [
                {
                    "metric": verdict.target.metric,
                    "compare": verdict.target.compare.name.lower(),
                    "bound": verdict.target.bound,
                    "value": verdict.value,
                    "met": verdict.met,
                }
                for verdict in self.verdicts
            ],
            "notes": self.rounds.notes,
        }


@dataclass(frozen=True)
class Report:
    """A whole run."""

    date: str
    quick: bool
    settings: Mapping[str, object]
    machine: Mapping[str, str | int | float]
    results: Sequence[Result]

    def write(self, directory: Path, name: str) -> Path:
        """Write NAME.json and NAME.md, with a number added rather than over older ones."""
        directory.mkdir(parents=True, exist_ok=True)
        path, number = directory / f"{name}.json", 1
        while path.exists():
            number += 1
            path = directory / f"{name}-{number}.json"
        path.write_text(json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n")
        path.with_suffix(".md").write_text(self.as_markdown())
        return path.with_suffix(".md")

    def as_json(self) -> dict[str, object]:
        """Give everything, rounds included."""
        return {
            "version": FORM_VERSION,
            "date": self.date,
            "quick": self.quick,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "cases": [result.as_json() for result in self.results],
        }

    def as_markdown(self) -> str:
        """Give medians and verdicts as tables."""
        parts = [f"# Benchmark of {self.date}"]
        if self.quick:
            parts.append("A quick run: cold servers, short rounds. Its numbers say nothing.")
        parts.append(table(("machine", ""), [(name, str(fact)) for name, fact in self.machine.items()]))
        parts += [markdown_case(result) for result in self.results]
        return "\n\n".join(parts) + "\n"


def markdown_case(result: Result) -> str:
    """Give one case: medians and spread of each side, the ratio, then the verdicts."""
    sides, by_ratio = result.medians, ratios(result.medians)
    names = [name for name in UNITS if any(name in found for found in sides.values())]
    rows = []
    for name in names:
        values = [spread(name, result.rounds.found[side]) for side in sides]
        rows.append((UNITS[name].title, *values, f"{by_ratio[name]:.2f}" if name in by_ratio else ""))
    parts = [
        f"## {result.case.key}: {result.case.title}",
        table(("median (lowest – highest)", *sides, "ratio"), rows),
        "\n".join(f"- {verdict}" for verdict in result.verdicts),
    ]
    if result.rounds.notes:
        parts.append("\n".join(f"- note: {note}" for note in result.rounds.notes))
    return "\n\n".join(parts)


def spread(name: str, rounds: Sequence[Metrics]) -> str:
    """Write the median of a metric and, of several rounds, its lowest and highest value."""
    values = [one[name] for one in rounds if name in one]
    if not values:
        return ""
    show = UNITS[name].show
    middle = show(median(values))
    return middle if len(values) == 1 else f"{middle} ({show(min(values))} – {show(max(values))})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def progress_line(case: Case, side: str, label: str, metrics: Metrics) -> str:
    """Write one round, or the medians of all, as a line for the terminal."""
    values = "  ".join(f"{UNITS[name].show(value)} {UNITS[name].title}" for name, value in metrics.items())
    return f"{case.key:<10}  {label:<6}  {side:<9}  {values}"
