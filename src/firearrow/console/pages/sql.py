"""SQL over the messages that brokers retain, and over the typed tables of a lake."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from firearrow.cli.failures import sentence
from firearrow.cli.output.reports import Table
from firearrow.cli.parameters import WrongOptions
from firearrow.console.operations import OPERATIONS, Ran, run
from firearrow.console.page import Declared, Page, View
from firearrow.errors import FirearrowError

LOOK_SECONDS: Final = 0.5
"""Pace of the look at a browser that waits: a query ends when the browser does not."""
TOPICS_MAX: Final = 12
COLUMNS: Final[Sequence[str]] = (
    "storedAt", "topic", "broker", "queueId", "queueOffset", "messageId", "tag", "keys", "bornAt", "bornHost",
    "reconsumeTimes", "bodyBytes", "body", "properties",
)  # fmt: skip


class Gone(FirearrowError):
    """The browser has left before the end of the query."""


async def query(view: View) -> Page:
    """Show the form of a query, and its rows."""
    text, since = view.query.get("query", ""), view.query.get("since", "")
    seen = view.cluster.sampler.seen
    topics = sorted(seen.topics.values(), key=lambda row: -row.messages)[:TOPICS_MAX]
    table, trouble = Table("Rows", (), []), ""
    if text.strip():
        try:
            table = (await _until_gone(view, {"query": [text], "since": [since]})).table
        except (WrongOptions, FirearrowError, OSError) as error:
            trouble = sentence(error)
    context = {
        "query": text,
        "since": since,
        "topics": [row.topic for row in topics],
        "columns": COLUMNS,
        "has_lake": view.cluster.lake is not None,
        "trouble": trouble,
        "note": table.note,
        "rows": view.table(table),
    }
    return Page("sql.html", "SQL", context, status=400 if trouble else 200)


async def _until_gone(view: View, values: dict[str, list[str]]) -> Ran:
    task = asyncio.create_task(run(OPERATIONS["sql"], values, view.cluster.options))
    try:
        while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
            if await view.request.is_disconnected():
                raise Gone("the browser has left")
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


PAGES: Final = (Declared("/sql", query),)
