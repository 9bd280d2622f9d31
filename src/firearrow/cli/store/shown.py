"""Output of several commands on a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from firearrow.cli.output.reports import in_bytes

if TYPE_CHECKING:
    from firearrow.store.offline import Verdict


class ProgressBar:
    """Progress bar on standard error, redrawn after each percent."""

    def __init__(self, title: str, shown: bool | None) -> None:
        self._title = title
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._hundredths = -1

    def __call__(self, done: int, total: int) -> None:
        hundredths = 100 * done // total if total else 100
        if self._shown and hundredths != self._hundredths:
            self._hundredths = hundredths
            bar = "#" * (hundredths // 4)
            text = f"\r{self._title} [{bar:25}] {hundredths:3} % of {in_bytes(total)}"
            print(text, end="\n" if hundredths == 100 else "", file=sys.stderr, flush=True)


def as_time(ms: int) -> str:
    """Give a time in ms since 1970 as text."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z" if ms > 0 else "-"


def print_json(value: Any) -> None:
    """Print one object."""
    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print columns; all but the first are numbers, aligned to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def print_messages(rows: Iterable[dict[str, Any]]) -> None:
    """Print JSON lines."""
    from firearrow.cli.output.stream import naming_output

    with naming_output():
        sys.stdout.writelines(_lines(rows))


def _lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """JSON lines; a binary body is base64 under ``bodyBase64``."""
    from base64 import b64encode

    for row in rows:
        body = row.pop("body")
        try:
            row["body"] = body.decode()
        except UnicodeDecodeError:
            row["bodyBase64"] = b64encode(body).decode()
        yield json.dumps(row, ensure_ascii=False) + "\n"


def print_left_out(queues: Mapping[str, str], what: str) -> None:
    """Print the queues that could not be made, with the reasons."""
    for queue, reason in queues.items():
        print(f"queue {queue} could not be {what}: {reason}")


def print_verdict(verdict: Verdict) -> None:
    """Print the result of a verification."""
    from firearrow.store.offline import INVARIANTS

    state = "sound" if verdict.sound else "damaged"
    print(
        f"{verdict.store} is {state}: {verdict.records} records from {verdict.log_start} to "
        f"{verdict.log_end}, {verdict.queues} queues, {verdict.keys} keys"
    )
    before = None
    for finding in verdict.findings:
        row = INVARIANTS[finding.invariant]
        if finding.invariant != before:
            print(f"\n{finding.severity.value}: {row.id}: {row.broken}")
            print(f"  for whom  {row.affects}")
            print(f"  repair    {row.repair.value}")
        before = finding.invariant
        print(f"  {finding.place()}{finding.what}{finding.others()}")
    if verdict.behind:
        print(f"\n{verdict.behind}")
    for what in verdict.skipped:
        print(f"\nnot looked at: {what}")
