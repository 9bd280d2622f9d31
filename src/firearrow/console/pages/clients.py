"""Clients: a member of a group by its report about itself, and the producers of the cluster."""

from __future__ import annotations

from typing import Final

from firearrow.cli.cluster.clients import client_table, find_client, queues_table, stacks_table, topics_table
from firearrow.console.page import Declared, Page, View
from firearrow.console.views import escaped

KNOWN: Final = ("language", "version", "access", "addresses", "started")
"""Facts that have a figure, or their own words, on the page."""


async def client(view: View) -> Page:
    """Show a client of a group; with ``stacks=yes`` also the stacks of its threads."""
    group, client_id = view.part("group"), view.part("client")
    wants_stacks = view.query.get("stacks") == "yes"
    known = await find_client(view.cluster.admin, group, client_id, stacks=wants_stacks)
    facts = client_table(known)
    pairs = {str(row[2]): row[3] for row in facts.rows}
    settings = [row for row in facts.rows if row[2] not in KNOWN]
    return Page(
        "client.html",
        escaped(client_id),
        {
            "group": group,
            "id": client_id,
            "facts": pairs,
            "reason": known.reason,
            "topics": view.table(topics_table(known), "topics-", without=["group"]),
            "queues": view.table(queues_table(known), "queues-", without=["group"]),
            "settings": view.table(facts.changed(rows=settings), "settings-", without=["group", "clientId"]),
            "stacks": [str(row[0]) for row in stacks_table(known).rows] if wants_stacks else None,
            "topic_names": [it.topic for it in known.subscriptions if not it.topic.startswith("%")],
        },
        trail=[("Groups", view.href("groups")), (group, view.href("groups", group))],
        is_live=not wants_stacks,
    )


async def producers(view: View) -> Page:
    """List the producers that are online."""
    table = (await view.run("producer-list")).table
    context = {"table": view.table(table), "note": table.note}
    return Page("producers.html", "Producers", context, trail=[("Topics", view.href("topics"))], is_live=True)


PAGES: Final = (Declared("/groups/{group}/clients/{client:path}", client), Declared("/producers", producers))
