"""Output of several commands on a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from firearrow.cli.output.reports import in_bytes, plain
from firearrow.cli.output.stream import naming_output

if TYPE_CHECKING:
    from firearrow.message.model import MessageView
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


OF_STORE: Final = (
    "physicalOffset", "storeSize", "bodyCRC", "flag", "sysFlag", "storeHost", "preparedTransactionOffset", "bodyError",
)  # fmt: skip
"""Fields of a record that `firearrow message cat` does not have, by RocketMQ's names."""


def print_messages(messages: Iterable[MessageView], *, stored_body: bool) -> None:
    """Print JSON lines, with the names of `firearrow message cat`."""
    from firearrow.cli.output.messagerows import COLUMNS, row_of
    from firearrow.store.offline import as_row

    with naming_output():
        for message in messages:
            row = as_row(message, stored_body=stored_body)
            cells = map(plain, row_of(message, None, row["body"]))
            only_here = {name: row[name] for name in OF_STORE if name in row}
            named = dict(zip(COLUMNS, cells, strict=True)) | only_here
            sys.stdout.write(f"{json.dumps(named, ensure_ascii=False)}\n")


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
