"""Messages found by an id, a key or a time."""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from firearrow.cli.failures import sentence
from firearrow.cli.messages.commands import is_offset_id, message_of
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import WrongOptions
from firearrow.client.admin.calls import SilentServer, concurrently
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.messages import placed
from firearrow.console.views import TableView
from firearrow.errors import FirearrowError, NotFound
from firearrow.message.model import MessageView
from firearrow.wire.codes import BY_KEY, BY_UNIQUE_KEY

FIELDS: Final = ("q", "topic", "id", "key", "since", "until")
FOUND: Final = ("topic", "messageId", "keys", "tag", "storedAt")
SEARCHED_MAX: Final = 50
"""Topics that a search without a topic looks through, those with most messages: each costs two requests."""
COUNT: Final = 8
NAMES_MAX: Final = 1000
"""Names of topics that a field proposes."""


async def find(view: View) -> Page | Response:
    """Lead to the message with an id or to the messages of a time, or list those with a key."""
    given = {name: view.query.get(name, "").strip() for name in FIELDS}
    topic, trouble, status = given["topic"], "", 200
    table: TableView | None = None
    note = ""
    try:
        if given["q"]:
            if is_offset_id(given["q"]):
                return RedirectResponse(view.href("messages", given["q"]))
            listed = await _everywhere(view, given["q"])
            table, note = view.table(listed), listed.note
        elif given["id"]:
            found = await message_of(view.cluster.admin, given["id"], topic or None)
            return RedirectResponse(view.href("topics", found.topic, "messages", given["id"]))
        elif given["key"] or given["since"] or given["until"]:
            if not topic:
                raise WrongOptions("Keys and times are looked for in one topic: give its name.")
            if not given["key"]:
                words = {name: given[name] for name in ("since", "until") if given[name]}
                return RedirectResponse(
                    f"{view.href('topics', topic, 'messages')}?{urlencode(words | {'order': 'oldest'})}"
                )
            listed = (await view.run("message-list", topic=topic, key=given["key"], limit="64")).table
            table, note = view.table(placed(listed), without=["topic", "offsetMessageId"]), listed.note
    except SilentServer:
        raise  # the page is made again, without that broker
    except (FirearrowError, OSError, WrongOptions) as error:
        trouble = str(error) if isinstance(error, WrongOptions) else sentence(error)
        status = 400 if isinstance(error, WrongOptions) else 404
    context = {"given": given, "topics": topics_of(view), "table": table, "note": note, "trouble": trouble}
    return Page("find.html", "Find messages", context, status=status)


async def _everywhere(view: View, words: str) -> Table:
    """Look for a sender's id or a key in the topics with most messages."""
    admin = view.cluster.admin
    known = sorted(view.cluster.sampler.seen.topics.values(), key=lambda row: -row.messages)
    topics = [row.topic for row in known[:SEARCHED_MAX]]

    async def ask(place: tuple[str, str]) -> list[MessageView]:
        with suppress(NotFound):
            return await admin.find(place[0], words, by=place[1], count=COUNT)
        return []

    parts = await concurrently([(topic, by) for topic in topics for by in (BY_UNIQUE_KEY, BY_KEY)], ask)
    found = {message.offset_message_id: message for part in parts for message in part}
    rows: list[list[Cell]] = [
        [it.topic, it.unique_key or key, " ".join(it.keys), it.tags, as_moment(it.store_timestamp_ms)]
        for key, it in found.items()
    ]
    left = len(known) - len(topics)
    note = f"Only the {SEARCHED_MAX} topics with most messages were searched, {left} were not." if left else ""
    return Table("Messages", FOUND, rows, note)


def topics_of(view: View) -> list[str]:
    """Give the names of topics that a field proposes."""
    return sorted(view.cluster.sampler.seen.topics)[:NAMES_MAX]


PAGES: Final = (Declared("/find", find),)
