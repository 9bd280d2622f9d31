"""Run the macro benchmark: `python -m benchmarks [--quick] [--case KEY ...] [--rounds N] …`.

Exit codes: 0 all cases ran; 1 with `--strict`, a target was missed; 2 something is missing or a
case could not be run, with one sentence that says what.
"""

import argparse
import os
import signal
import sys
import tempfile
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from types import FrameType

from benchmarks import machine, peers, report, toolchain
from benchmarks.cases import CASES, Case, select
from benchmarks.errors import BenchmarkError
from benchmarks.generator import Generator
from benchmarks.report import Report, Result
from benchmarks.runner import run_case
from benchmarks.servers import FIREARROW, ROCKETMQ, launchers
from benchmarks.workloads import FULL, QUICK, Bench, Metrics, Settings

PEERS = "--peers"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure Firearrow against Apache RocketMQ."
    )
    keys = [case.key for case in CASES]
    parser.add_argument("--case", action="append", default=[], choices=keys, help="run this case")
    parser.add_argument("--rounds", type=positive, help="rounds for each side (5)")
    parser.add_argument(PEERS, action="store_true", help="NATS JetStream and Kafka instead; see --peers --help")
    parser.add_argument("--quick", action="store_true", help="see that it works; no measurement")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--only-firearrow", action="store_true", help="without the original")
    only.add_argument("--only-rocketmq", action="store_true", help="the original alone")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--work-dir", type=Path, help="where stores go (the system's temporary)")
    default = toolchain.HERE / "results"
    parser.add_argument("--results", type=Path, default=default, help="where reports are written")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Read a number from 1 on."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cases and write the report; with ``--peers``, other systems instead of RocketMQ."""
    words = sys.argv[1:] if arguments is None else arguments
    if PEERS in words:
        return peers.main([word for word in words if word != PEERS])
    given = parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(given)
    except BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: interrupted; servers are stopped, stores deleted", file=sys.stderr)
        return 130


def run(given: argparse.Namespace) -> int:
    """Do what `main` does, but raise."""
    settings = QUICK if given.quick else FULL
    if given.rounds:
        settings = replace(settings, rounds=given.rounds)
    cases = _possible(select(given.case), given)
    tools = toolchain.prepare(rocketmq=not given.only_firearrow)
    facts = machine.facts(tools)
    warn(given, facts)
    if given.work_dir:
        given.work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="firearrow-bench-", dir=given.work_dir) as directory:
        bench = Bench(tools, Generator(tools.generator), settings, Path(directory))
        launches = launchers(tools, firearrow=not given.only_rocketmq)
        results: list[Result] = []
        try:
            for case in cases:
                print(f"\n{case.key}: {case.title}", flush=True)
                results.append(Result(run_case(case, launches, bench, show_round)))
                show_result(results[-1])
        finally:  # an interrupted run has cases that are whole
            if results:
                finish(given, settings, facts, results)
    missed = any(verdict.met is False for result in results for verdict in result.verdicts)
    return 1 if given.strict and missed else 0


def show_round(case: Case, side: str, number: int, metrics: Metrics) -> None:
    """Print a round as it ends."""
    print(report.progress_line(case, side, str(number), metrics), flush=True)


def show_result(result: Result) -> None:
    """Print a case's medians and verdicts."""
    for side, medians in result.medians.items():
        print(report.progress_line(result.case, side, "median", medians))
    for line in (*result.verdicts, *(f"note: {note}" for note in result.rounds.notes)):
        print(f"  {line}", flush=True)


def finish(
    given: argparse.Namespace, settings: Settings, facts: dict[str, str | int | float], results: list[Result]
) -> None:
    """Write the report and say where it is."""
    now = datetime.now().astimezone()
    whole = Report(now.isoformat(timespec="minutes"), given.quick, asdict(settings), facts, results)
    path = whole.write(given.results, f"{now:%Y-%m-%d}-{set_name(given)}")
    print(f"\n{path.name} and {path.with_suffix('.json').name} are in {os.path.relpath(path.parent)}")


def set_name(given: argparse.Namespace) -> str:
    """Name a run by what was run, for the report's file name."""
    keys = "+".join(case.key for case in select(given.case)) if given.case else "all"
    side = FIREARROW if given.only_firearrow else ROCKETMQ if given.only_rocketmq else ""
    return "-".join(part for part in (keys, side, "quick" if given.quick else "") if part)


def warn(given: argparse.Namespace, facts: dict[str, str | int | float]) -> None:
    """Say so if the numbers cannot be trusted."""
    if given.quick:
        print("quick: cold servers and short rounds; the numbers and verdicts say nothing")
    if float(facts["load_before"]) > machine.BUSY_LOAD:
        print(f"warning: the machine is busy (load {facts['load_before']}); numbers will be low")


def _possible(cases: tuple[Case, ...], given: argparse.Namespace) -> tuple[Case, ...]:
    """Leave out what needs RocketMQ's client programs if RocketMQ is left out."""
    if not given.only_firearrow:
        return cases
    kept = tuple(case for case in cases if case.key not in ("producer", "consumer"))
    if not kept:
        raise BenchmarkError("producer and consumer are RocketMQ's own programs: they need it")
    return kept


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
