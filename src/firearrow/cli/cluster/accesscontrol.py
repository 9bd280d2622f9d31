"""Users and policies of a cluster: the state of each broker, changes on all of them, and their undo file.

Each master keeps users and policies for itself. A change is made on all servers of a cluster, as by `mqadmin`. An undo
file may have passwords; like every undo file, only the user may read it. No table has one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from firearrow.cli.cluster.masters import PREVIEW
from firearrow.cli.cluster.undo import Undo, circumstances, forget, write_undo
from firearrow.cli.failures import FAILED, NothingFound, sentence
from firearrow.cli.output.listing import Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.errors import BrokerError, BrokerFailed, FirearrowError, NotSupported
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.bodies import MASTER_ID
from firearrow.wire.codes import ResponseCode

OPEN: Final = "No broker has users: without access control, everybody who reaches a port may do everything."
SUPER: Final = "Super"
"""Type of a user who may do everything."""
CHANGED: Final = ("broker", "address", "user", "change", "state", "reason")


class Told(NamedTuple):
    """Users and policies of a broker; ``reason`` says why they are missing, ``is_open`` that there is no control."""

    server: RegisteredBroker
    users: Sequence[AuthUserInfo] = ()
    acls: Sequence[AuthAcl] = ()
    reason: str = ""
    is_open: bool = False


async def told_by(admin: Admin, servers: Iterable[RegisteredBroker]) -> list[Told]:
    """Ask brokers for their users and policies."""

    async def ask(server: RegisteredBroker) -> Told:
        try:
            users, acls = await admin.auth.users(server.address), await admin.auth.acls(server.address)
        except NotSupported:
            return Told(server, is_open=True)
        except BrokerFailed as error:  # RocketMQ's broker has no other answer without access control
            return Told(server, reason=sentence(error), is_open=await admin.auth.accepts(server.address))
        except (OSError, FirearrowError) as error:
            return Told(server, reason=sentence(error))
        return Told(server, users, acls)

    return await concurrently(servers, ask)


async def masters_told(admin: Admin) -> list[Told]:
    """Ask all masters."""
    return await told_by(admin, [it for it in servers_in(await admin.cluster()) if it.number == MASTER_ID])


def note_of(told: Sequence[Told]) -> str:
    """Give a note on brokers without access control, and on brokers whose answer is missing."""
    if told and all(it.is_open for it in told):
        return OPEN
    notes = [f"{it.server.broker} has no access control." for it in told if it.is_open]
    return " ".join([*notes, *(f"{it.server.broker}: {it.reason}." for it in told if it.reason and not it.is_open)])


def user_in(told: Told, name: str) -> AuthUserInfo | None:
    """Give the user of a name; None if there is none."""
    return next((user for user in told.users if user.username == name), None)


def acl_in(told: Told, name: str) -> AuthAcl | None:
    """Give the policies of a user; None if there are none."""
    return next((acl for acl in told.acls if acl.subject == subject_of(name)), None)


def subject_of(name: str) -> str:
    """Give the subject of a user's policies."""
    return f"User:{name}"


# --- Changes, and the way back ---


class AccessBefore(msgspec.Struct, frozen=True):
    """User and policies of a server before a change; None for missing ones."""

    address: str
    user: AuthUserInfo | None
    acl: AuthAcl | None


class UserUndo(Undo, frozen=True, kw_only=True, tag="user"):
    """The file that undoes a change of a user."""

    user: str
    before: list[AccessBefore]


class AclUndo(UserUndo, frozen=True, kw_only=True, tag="acl"):
    """The file that undoes a change of policies."""


class PlannedChange(NamedTuple):
    """Change of a server: its text for the table, and the function that makes it; None changes nothing."""

    text: str
    make: Callable[[str], Awaitable[None]] | None


async def change_all(
    admin: Admin,
    name: str,
    plan: Callable[[Told], PlannedChange],
    kind: type[UserUndo],
    output: Output,
    undo_file: Path | None,
    *,
    apply: bool,
) -> int:
    """Change a user or its policies on all servers, or preview that; ``plan`` gives the change of one."""
    told = await told_by(admin, servers_in(await admin.cluster()))
    if told and all(it.is_open for it in told):
        raise NothingFound(OPEN)
    plans = {it.server.address: plan(it) for it in told if not (it.reason or it.is_open)}
    note, path = PREVIEW, None
    if apply:
        before = [AccessBefore(it.server.address, user_in(it, name), acl_in(it, name)) for it in told]
        undo = kind(user=name, before=[it for it in before if it.address in plans], **circumstances(admin))
        path = write_undo(undo_file, name, undo)
        note = f"`firearrow {kind.__struct_config__.tag} undo {path}` sets what was before."
    rows = await concurrently(told, lambda it: _changed(it, name, plans.get(it.server.address), apply=apply))
    if path is not None and not any(row[4] == "changed" for row in rows):
        now = await told_by(admin, (it.server for it in told))
        if [_access(it, name) for it in now] == [_access(it, name) for it in told]:
            forget(path)
            note = ""
    output.show(Table("Access", CHANGED, rows, note))
    return FAILED if any(row[4] == "failed" for row in rows) else 0


def _access(it: Told, name: str) -> tuple[AuthUserInfo | None, AuthAcl | None]:
    return user_in(it, name), acl_in(it, name)


async def _changed(it: Told, name: str, plan: PlannedChange | None, *, apply: bool) -> list[Cell]:
    head: list[Cell] = [it.server.broker, it.server.address, name]
    if plan is None:
        return [*head, None, "failed", it.reason or "it has no access control"]
    if plan.make is None:
        return [*head, plan.text, "the same", ""]
    if not apply:
        return [*head, plan.text, "would be changed", ""]
    try:
        await plan.make(it.server.address)
    except (OSError, FirearrowError) as error:
        return [*head, plan.text, "failed", sentence(error)]
    return [*head, plan.text, "changed", ""]


async def undo_all(admin: Admin, undone: UserUndo, output: Output, *, apply: bool) -> int:
    """Restore a user and its policies on the servers of an undo file, or preview that."""
    had = {it.address: it for it in undone.before}
    servers = [server for server in servers_in(await admin.cluster()) if server.address in had]
    missing = sorted(had.keys() - {server.address for server in servers})
    told = await told_by(admin, servers)
    plans = {it.server.address: _way_back(admin, it, had[it.server.address], undone.user) for it in told}

    async def change(it: Told) -> list[Cell]:
        plan = None if it.reason or it.is_open else plans[it.server.address]
        return await _changed(it, undone.user, plan, apply=apply)

    rows = await concurrently(told, change)
    rows += [[None, address, undone.user, None, "failed", "it is not registered"] for address in missing]
    output.show(Table("Access", CHANGED, rows, "" if apply else PREVIEW))
    return FAILED if any(row[4] == "failed" for row in rows) else 0


def _way_back(admin: Admin, it: Told, had: AccessBefore, name: str) -> PlannedChange:
    user, acl = user_in(it, name), acl_in(it, name)
    if (user, acl) == (had.user, had.acl):
        return PlannedChange("", None)

    async def make(address: str) -> None:
        if had.user is None:
            await admin.auth.delete_user(address, name)
            return
        if user is None and had.user.password is None:
            why = f"the password of user {name!r} is unknown: only a super user may see it"
            raise BrokerError.of(ResponseCode.NO_PERMISSION, why, address)
        await (admin.auth.create_user if user is None else admin.auth.update_user)(address, had.user)
        if acl is not None and acl != had.acl:
            await admin.auth.delete_acl(address, subject_of(name))
        if had.acl is not None and acl != had.acl:
            await admin.auth.create_acl(address, had.acl)

    return PlannedChange("is deleted" if had.user is None else "is as before", make)
