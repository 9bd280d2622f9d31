"""Messages found by an id, a key or a time."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from firearrow.cli.failures import sentence
from firearrow.cli.messages.commands import message_of
from firearrow.cli.parameters import WrongOptions
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.messages import placed
from firearrow.console.views import TableView
from firearrow.errors import FirearrowError

FIELDS: Final = ("topic", "id", "key", "since", "until")
NAMES_MAX: Final = 1000
"""Names of topics that a field proposes."""


async def find(view: View) -> Page | Response:
    """Lead to the message with an id or to the messages of a time, or list those with a key."""
    given = {name: view.query.get(name, "").strip() for name in FIELDS}
    topic, trouble, status = given["topic"], "", 200
    table: TableView | None = None
    note = ""
    try:
        if given["id"]:
            found = await message_of(view.cluster.admin, given["id"], topic or None)
            return RedirectResponse(view.href("topics", found.topic, "messages", given["id"]))
        if given["key"] or given["since"] or given["until"]:
            if not topic:
                raise WrongOptions("Keys and times are looked for in one topic: give its name.")
            if not given["key"]:
                words = {name: given[name] for name in ("since", "until") if given[name]}
                return RedirectResponse(
                    f"{view.href('topics', topic, 'messages')}?{urlencode(words | {'order': 'oldest'})}"
                )
            listed = (await view.run("message-list", topic=topic, key=given["key"], limit="64")).table
            table, note = view.table(placed(listed), without=["topic", "offsetMessageId"]), listed.note
    except (FirearrowError, OSError, WrongOptions) as error:
        trouble = str(error) if isinstance(error, WrongOptions) else sentence(error)
        status = 400 if isinstance(error, WrongOptions) else 404
    context = {"given": given, "topics": topics_of(view), "table": table, "note": note, "trouble": trouble}
    return Page("find.html", "Find messages", context, status=status)


def topics_of(view: View) -> list[str]:
    """Give the names of topics that a field proposes."""
    return sorted(view.cluster.sampler.seen.topics)[:NAMES_MAX]


PAGES: Final = (Declared("/find", find),)
