"""Live tail of a topic: new messages as they arrive, the newest at the top."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from firearrow.cli.messages.commands import Filters
from firearrow.cli.messages.reading import places
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.messages import placed
from firearrow.console.tails import ROWS, Subject, Tail

FILTERS: Final = ("tags", "sql", "having", "containing")


async def tail(view: View) -> Page:
    """Show the frame of a tail; its rows come by the stream."""
    await places(view.cluster.admin, view.part("topic"))  # the page of a topic that is not there says so
    return _page(view, None)


async def follow(view: View) -> AsyncGenerator[Page, None]:
    """Give the tail again when messages have arrived."""
    topic, cluster = view.part("topic"), view.cluster
    given = {name: view.query.get(name, "").strip() for name in FILTERS}
    wanted = Filters(
        tags=given["tags"], sql=given["sql"], having=given["having"], containing=given["containing"]
    ).wanted()
    queues = await places(cluster.partial, topic)
    silent = {it.queue.broker for it in await places(cluster.admin, topic)} - {it.queue.broker for it in queues}
    subject = Subject(topic, wanted, tuple(sorted(silent)))
    missing = [f"{broker} has not answered for some time: this tail reads the others." for broker in subject.without]
    async with aclosing(cluster.tails.follow(cluster.admin, subject, queues)) as pictures:
        async for picture in pictures:
            yield replace(_page(view, picture), missing=missing)


def _page(view: View, picture: Tail | None) -> Page:
    topic = view.part("topic")
    return Page(
        "tail.html",
        "New messages",
        {
            "topic": topic,
            "given": {name: view.query.get(name, "") for name in FILTERS},
            "tail": picture,
            "rows_max": ROWS,
            "table": view.table(placed(picture.table), without=["topic", "offsetMessageId"]) if picture else None,
        },
        trail=[("Topics", view.href("topics")), (topic, view.href("topics", topic))],
        is_live=True,
    )


PAGES: Final = (Declared("/topics/{topic}/tail", tail, follow=follow),)
