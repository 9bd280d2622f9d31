"""Lite topics and pops: counts and quotas; on request a lite topic, or the lags, pops and invisible messages of a
group."""

from __future__ import annotations

from typing import Any, Final

from firearrow.cli.failures import sentence
from firearrow.cli.output.reports import Table
from firearrow.console.page import Declared, Page, View
from firearrow.errors import FirearrowError


async def lites(view: View) -> Page:
    """Show lite topics and pops.

    The address asks for more: ``topic`` with ``lite``, ``group`` alone or with ``topic`` and ``client``, ``pops``.
    """
    parents = (await view.run("lite-list")).table
    quotas = (await view.run("lite-quotas")).table
    revive = (await view.run("pop-revive")).table
    query = {name: view.query.get(name, "").strip() for name in ("topic", "lite", "group", "client", "pops")}
    shown: list[dict[str, Any]] = []
    if query["topic"] and query["lite"]:
        title = f"Lite topic {query['lite']} of {query['topic']}"
        shown.append(await _part(view, title, "lite-show", topic=query["topic"], lite_topic=query["lite"]))
    if query["topic"] and query["group"] and query["client"]:
        who = {"topic": query["topic"], "group": query["group"], "client": query["client"]}
        shown.append(await _part(view, f"Lite topics of {query['client']}", "lite-client", **who))
    elif query["group"]:
        shown.append(await _part(view, f"Lag of {query['group']} in lite topics", "lite-lag", group=query["group"]))
    if query["pops"]:
        shown.append(await _part(view, f"Pops of {query['pops']}", "pop-show", group=query["pops"]))
        shown.append(await _part(view, f"Invisible messages of {query['pops']}", "pop-invisible", group=query["pops"]))
    return Page(
        "lites.html",
        "Lite topics and pops",
        {
            "parents": view.table(parents, "parents-"),
            "topics": sorted({str(topic) for topic in parents.values("topic")}),
            "quotas": view.table(quotas, "quotas-"),
            "revive": view.table(revive, "revive-"),
            "asked": query,
            "asked_parts": shown,
        },
    )


async def _part(view: View, title: str, operation: str, **values: str) -> dict[str, Any]:
    """Give a table that the address asks for, or the reason why there is none."""
    try:
        table = (await view.run(operation, **values)).table
    except (OSError, FirearrowError) as error:
        return {"title": title, "table": view.table(Table(title, (), [])), "note": "", "reason": sentence(error)}
    return {"title": title, "table": view.table(table, f"{operation}-"), "note": table.note, "reason": ""}


PAGES: Final = (Declared("/lite", lites),)
