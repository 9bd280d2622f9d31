"""Access: users and rules of the cluster, and the answer to the question whether a user may do something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from firearrow.cli.parameters import WrongOptions
from firearrow.console.page import Declared, Page, View
from firearrow.console.views import TableView

VERBS: Final = {
    "pub": "publish to",
    "sub": "subscribe to",
    "create": "create or change",
    "update": "update",
    "delete": "delete",
    "get": "look at",
    "list": "list",
}
KINDS: Final = ("Topic", "Group", "Cluster")
ADDRESS: Final = "127.0.0.1"

Actions = list[list[tuple[str, str]]]


async def access(view: View) -> Page:
    """Show users and rules; with a question in the address, its answer."""
    users = (await view.run("user-list")).table
    rules = (await view.run("acl-list")).table
    shown_users, shown_rules = view.table(users, "users-"), view.table(rules, "rules-")
    return Page(
        "access.html",
        "Access",
        {
            "users": shown_users,
            "user_actions": _of_users(view, shown_users),
            "rules": shown_rules,
            "rule_actions": _of_rules(view, shown_rules),
            "names": [str(name) for name in users.values("user")],
            "note": users.note,
            "is_open": not users.rows and users.note.startswith("No broker has users"),
            "verbs": VERBS,
            "kinds": KINDS,
            **await _answer(view),
        },
    )


def _change(view: View, operation: str, **fields: str) -> str:
    return f"{view.href('do', operation)}?{urlencode(fields)}"


def _of_users(view: View, table: TableView) -> Actions:
    """Give the changes of each user."""
    found: Actions = []
    for name, *_ in table.rows:
        user = name.text
        found.append(
            [
                ("Allow", _change(view, "acl-allow", user=user)),
                ("Deny", _change(view, "acl-deny", user=user)),
                ("Change", _change(view, "user-create", name=user)),
                ("Delete", _change(view, "user-delete", name=user)),
            ]
        )
    return found


def _of_rules(view: View, table: TableView) -> Actions:
    """Give the changes of each rule."""
    at = [column.name for column in table.columns].index("resource")
    return [[("Remove", _change(view, "acl-remove", user=row[0].text, resource=row[at].text))] for row in table.rows]


async def _answer(view: View) -> dict[str, Any]:
    """Answer the question of the address: may this user do that?"""
    query = view.query
    asked = {name: query.get(name, "").strip() for name in ("user", "action", "kind", "name", "from")}
    asked["from"] = asked["from"] or ADDRESS
    answers: Sequence[dict[str, Any]] = ()
    fault = ""
    if asked["user"] and asked["name"]:
        kind = asked["kind"] if asked["kind"] in KINDS else KINDS[0]
        action = asked["action"] if asked["action"] in VERBS else "pub"
        try:
            found = await view.run(
                "acl-test", user=asked["user"], action=action, resource=f"{kind}:{asked['name']}", source=asked["from"]
            )
            answers = found.table.objects()
        except WrongOptions as error:
            fault = str(error)
    return {"asked": asked, "answers": answers, "fault": fault}


PAGES: Final = (Declared("/access", access),)
