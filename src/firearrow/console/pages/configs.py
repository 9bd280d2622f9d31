"""Configuration of brokers and name servers: effective values, defaults and meanings, and the name servers' answers."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from firearrow.cli.output.reports import Table
from firearrow.console.changes import DONE, LoggedChange
from firearrow.console.forms import first
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.brokers import servers_of
from firearrow.console.views import TableView
from firearrow.message.names import ORDER_NAMESPACE


async def broker_config(view: View) -> Page:
    """Show the configuration of a broker."""
    name = view.part("broker")
    servers, chosen = await servers_of(view, name)
    explained = (await view.run("config-explain", broker=chosen.address)).table
    trail = [("Brokers", view.href("brokers")), (chosen.name, view.href("brokers", chosen.name))]
    context = {
        "servers": servers,
        "server": chosen.address,
        "change": f"{view.href('do', 'config-set')}?broker={chosen.address}",
        **_config(view, explained),
        "changed": _last_changes(view, "broker", (name, chosen.address)),
    }
    return Page("config.html", "Configuration", context, trail=trail)


def _config(view: View, explained: Table) -> dict[str, Any]:
    """Give the values of a page about the configuration of one server."""
    only = view.query.get("different") == "yes"
    at = explained.columns.index("state")
    different = [row for row in explained.rows if row[at] == "different"]
    table = explained.changed(rows=different) if only else explained
    shown = view.table(table)
    return {
        "table": shown,
        "rows": _rows(shown),
        "only": only,
        "different": len(different),
        "keys": len(explained.rows),
    }


def _rows(table: TableView) -> list[dict[str, str]]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, (cell.text for cell in row), strict=True)) for row in table.rows]


def _last_changes(view: View, field: str, servers: Container[str]) -> dict[str, LoggedChange]:
    """Give the newest change of each key that this console has made to a server, or to all brokers."""
    found: dict[str, LoggedChange] = {}
    log = [it for it in view.changes.newest() if it.cluster == view.cluster.name]
    made = {it.id: it for it in log if it.operation == "config set"}
    for change in log:
        of = made.get(first(change.values, "change")) if change.operation == "config undo" else made.get(change.id)
        if of is None or change.state != DONE:
            continue
        if first(of.values, field) in servers or (field == "broker" and first(of.values, "all_brokers")):
            for pair in of.values.get("pairs", ()):
                found.setdefault(pair.partition("=")[0], change)
    return found


async def name_servers(view: View) -> Page:
    """Compare the name servers: their answers, the brokers that each knows, their key-value configuration."""
    namespace = view.query.get("namespace", "").strip() or ORDER_NAMESPACE
    servers = (await view.run("namesrv-list")).table
    brokers = (await view.run("namesrv-brokers")).table
    keys = (await view.run("namesrv-keys", namespace=namespace)).table
    states = [str(state) for state in (*brokers.values("state"), *keys.values("state"))]
    return Page(
        "nameservers.html",
        "Name servers",
        {
            "silent": sum(state != "ok" for state in servers.values("state")),
            "count": len(servers.rows),
            "servers": view.table(servers, "servers-"),
            "brokers": view.table(brokers, "brokers-"),
            "keys": view.table(keys, "keys-", without=["namespace"]),
            "namespace": namespace,
            "different": sum(state != "ok" for state in states),
        },
        is_live=True,
    )


async def name_server_config(view: View) -> Page:
    """Show the configuration of a name server."""
    explained = (await view.run("config-explain", name_servers="yes")).table
    addresses = list(dict.fromkeys(str(server) for server in explained.values("server")))
    given = view.query.get("server")
    address = given if given in addresses else addresses[0]
    rows = [row for row in explained.rows if row[0] == address]
    context = {
        "servers": [("name server", it, it == address) for it in addresses],
        "server": address,
        "change": f"{view.href('do', 'config-set')}?name_servers=yes",
        **_config(view, explained.changed(rows=rows)),
        "changed": _last_changes(view, "name_servers", ("yes",)),
    }
    trail = [("Name servers", view.href("name-servers"))]
    return Page("config.html", "Configuration", context, trail=trail)


PAGES: Final = (
    Declared("/brokers/{broker}/config", broker_config),
    Declared("/name-servers", name_servers),
    Declared("/name-servers/config", name_server_config),
)
