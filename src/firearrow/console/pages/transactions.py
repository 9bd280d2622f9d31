"""Transactions: open ones and parked ones, with new checks of those that are chosen."""

from __future__ import annotations

from typing import Final

from firearrow.cli.messages.transactions import OPEN, PARKED
from firearrow.cli.output.reports import in_time
from firearrow.console.page import Declared, Page, View

LIMIT: Final = 1000


async def transactions(view: View) -> Page:
    """List transactions that nobody has decided."""
    topic, parked = view.query.get("topic", "").strip(), view.query.get("parked", "")
    found = (await view.run("transaction-list", topic=topic, parked=parked, limit=str(LIMIT))).table
    states = found.values("state")
    ages = [float(str(row)) for row, state in zip(found.values("ageSeconds"), states, strict=True) if state == OPEN]
    table = view.table(found)
    id_at, name_at = ([it.name for it in table.columns].index(name) for name in ("offsetMessageId", "messageId"))
    for row in table.rows:
        assert isinstance(row, list), "a page of a table has its own rows"
        row[name_at] = row[name_at]._replace(href=view.href("messages", row[id_at].text))
    return Page(
        "transactions.html",
        "Transactions",
        {
            "topic": topic,
            "parked": parked,
            "table": table,
            "id_at": id_at,
            "total": len(found.rows),
            "open": states.count(OPEN),
            "stopped": states.count(PARKED),
            "oldest": in_time(max(ages)) if ages else "–",
            "notes": [found.note] if found.note else [],
        },
    )


PAGES: Final = (Declared("/transactions", transactions),)
