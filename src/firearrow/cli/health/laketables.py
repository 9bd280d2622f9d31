"""Typed tables as `firearrow pipeline serve` reports them on its page ``/varz``."""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from firearrow.cli.output.reports import Cell, Table

COLUMNS: Final = ("table", "topic", "lagSeconds", "allowedSeconds", "rows", "undecoded", "note")
ANSWER_SECONDS_MAX: Final = 2.0


class FilledTable(msgspec.Struct, frozen=True):
    """State of a table. ``firearrow.lake`` has a longer record, but this command must work without its extras.

    ``lag`` is the age of its newest complete state in seconds, if there is one.
    """

    name: str
    topic: str
    lag: float | None
    lag_seconds: float
    rows: int
    undecoded: int
    trouble: str

    def cells(self) -> list[Cell]:
        """Give the row of a report."""
        note = self.trouble or ("not filled yet" if self.lag is None else "")
        return [self.name, self.topic, self.lag, self.lag_seconds, self.rows, self.undecoded, note]


async def laketables(addresses: Sequence[str]) -> tuple[Table, list[str]]:
    """Report the tables of services at some addresses, the latest first, and say which services do not answer."""
    answers = await asyncio.gather(*(asyncio.to_thread(_tables, address) for address in addresses))
    found = [each for answer in answers if not isinstance(answer, str) for each in answer]
    found.sort(key=lambda each: (not each.trouble, -(each.lag or 0) / each.lag_seconds, each.name))
    return Table("Tables", COLUMNS, [each.cells() for each in found]), [it for it in answers if isinstance(it, str)]


def _tables(address: str) -> Iterable[FilledTable] | str:
    """Ask a service for its tables; return the reason if it does not answer."""
    url = f"{address if '://' in address else f'http://{address}'}/varz"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            return msgspec.json.decode(answer.read(), type=list[FilledTable])
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"tables at {address}: {error}"
