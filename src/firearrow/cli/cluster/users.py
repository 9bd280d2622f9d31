"""`firearrow user`: list, create and delete users of a cluster with access control."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated, Final

from firearrow.cli.cluster.accesscontrol import (
    SUPER,
    PlannedChange,
    Told,
    UserUndo,
    change_all,
    masters_told,
    note_of,
    undo_all,
    user_in,
)
from firearrow.cli.cluster.masters import Apply, Pattern, matches
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.cluster.undo import FromFile, UndoFile, read_undo
from firearrow.cli.commands import CommandGroup
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import Parameter, WrongOptions, content_of, either, valued
from firearrow.wire.admin_bodies import AuthUserInfo

LIST: Final = ("user", "isSuper", "isEnabled", "rules", "state", "brokers")
NORMAL, ENABLED, DISABLED = "Normal", "enable", "disable"

User = Annotated[str, Parameter("the user's name")]

app: Final = CommandGroup()


@app.command("list")
async def list_users(pattern: Pattern = None, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List users, with the count of their rules; never their passwords."""
    async with cluster.admin() as admin:
        told = await masters_told(admin)
    found: defaultdict[tuple[str, bool, bool], list[tuple[str, int]]] = defaultdict(list)
    for it in told:
        rules = {acl.subject: sum(len(policy.entries or []) for policy in acl.policies or []) for acl in it.acls}
        for user in it.users:
            if matches(name := user.username or "", pattern):
                key = name, user.user_type == SUPER, user.user_status != DISABLED
                found[key].append((it.server.broker, rules.get(f"User:{name}", 0)))
    count = sum(not (it.reason or it.is_open) for it in told)
    rows: list[list[Cell]] = []
    for (name, is_super, is_enabled), places in sorted(found.items()):
        counts = {number for _, number in places}
        is_same = len(places) == count and len(counts) == 1
        brokers = ", ".join(broker for broker, _ in places)
        rows.append([name, is_super, is_enabled, max(counts), "ok" if is_same else "different", brokers])
    output.show(Table("Users", LIST, rows, note_of(told)))


@app.command("create")
async def create_user(
    name: User,
    /,
    *,
    password: Annotated[str | None, valued("SECRET", "its secret key; a file keeps it off command lines")] = None,
    password_file: Annotated[Path | None, valued("FILE", "file with its secret key; - is standard input")] = None,
    super_user: Annotated[bool | None, either("it may do everything", off="--normal")] = None,
    disabled: Annotated[bool | None, either("its requests are refused for the time being", off="--enabled")] = None,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Create a user on all brokers, or change the given fields of one."""
    if password is not None and password_file is not None:
        raise WrongOptions("argument --password-file: not allowed with argument --password")
    secret = content_of(password_file).decode().rstrip("\r\n") if password_file is not None else password
    kind = None if super_user is None else SUPER if super_user else NORMAL
    status = None if disabled is None else DISABLED if disabled else ENABLED
    wanted = AuthUserInfo(name, secret, kind, status)
    async with cluster.admin() as admin:

        def plan(it: Told) -> PlannedChange:
            had = user_in(it, name)
            if had is None and not secret:
                raise WrongOptions(f"{it.server.broker} has no user {name!r}: a new one needs a password")
            make = admin.auth.create_user if had is None else admin.auth.update_user
            text = _text(had, wanted)
            return PlannedChange(text, (lambda address: make(address, wanted)) if text else None)

        return await change_all(admin, name, plan, UserUndo, output, undo_file, apply=apply)


def _text(had: AuthUserInfo | None, wanted: AuthUserInfo) -> str:
    """Give the change of a user in words, without its password."""
    if had is None:
        kind = "super user" if wanted.user_type == SUPER else "user"
        return f"{kind} is created{', disabled' if wanted.user_status == DISABLED else ''}"
    parts = [
        f"{name} {before} becomes {after}"
        for name, before, after in (
            ("type", had.user_type, wanted.user_type),
            ("status", had.user_status, wanted.user_status),
        )
        if after is not None and before != after
    ]
    if wanted.password is not None and wanted.password != had.password:
        parts.append("gets another password")
    return ", ".join(parts)


@app.command("delete")
async def delete_user(
    name: User,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Delete a user with its rules on all brokers."""
    async with cluster.admin() as admin:

        def plan(it: Told) -> PlannedChange:
            if user_in(it, name) is None:
                return PlannedChange("", None)
            return PlannedChange("is deleted, with its rules", lambda address: admin.auth.delete_user(address, name))

        return await change_all(admin, name, plan, UserUndo, output, undo_file, apply=apply)


@app.command("undo")
async def undo(
    file: FromFile, /, *, apply: Apply = False, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Restore a user and its rules as they were before a change."""
    undone = read_undo(file, UserUndo)
    async with cluster.admin() as admin:
        return await undo_all(admin, undone, output, apply=apply)
