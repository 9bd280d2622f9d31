"""Commands about users and their permissions, on brokers with access control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import shown
from firearrow.errors import ConfigError
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo

_USER: Final = "{:<16}  {:<22}  {:<22}  {:<22}"
_ACL: Final = "{:<16}  {:<10}  {:<22}  {:<20}  {:<24}  {:<10}"


async def _everywhere(run: Invocation, said: str, change: Callable[[str], Awaitable[None]]) -> None:
    """Change a broker, or all masters and slaves of a cluster; print ``said`` with each address."""
    address = run.get("b")
    for one in [address] if address else await run.all_brokers(run.text("c")):
        await change(one)
        run.line(f"{said} to {one} success.")


async def _places(run: Invocation) -> list[str]:
    """List the broker of ``-b``, or the masters of a cluster."""
    if address := run.get("b"):
        return [address]
    masters = await run.masters(run.text("c"))
    if not masters:
        raise ConfigError(f"cluster {run.text('c')!r} has no master")
    return masters


def _user(run: Invocation) -> AuthUserInfo:
    return AuthUserInfo(run.text("u"), run.get("p"), run.get("t"), run.get("s"))


async def create_user(run: Invocation) -> None:
    """Create a user."""
    user = _user(run)
    await _everywhere(run, "create user", lambda one: run.admin.auth.create_user(one, user))


async def update_user(run: Invocation) -> None:
    """Change a user."""
    user = _user(run)
    await _everywhere(run, "update user", lambda one: run.admin.auth.update_user(one, user))


async def delete_user(run: Invocation) -> None:
    """Delete a user."""
    name = run.text("u")
    await _everywhere(run, "delete user", lambda one: run.admin.auth.delete_user(one, name))


async def get_user(run: Invocation) -> None:
    """Show a user."""
    for address in await _places(run):
        user = await run.admin.auth.user(address, run.get("u") or "")
        if user is not None:
            _print_users(run, [user])
            return


async def list_users(run: Invocation) -> None:
    """List the users of the first master that has any."""
    for address in await _places(run):
        users = await run.admin.auth.users(address, run.get("f"))
        if users:
            _print_users(run, users)
            if not run.has("b"):
                run.line(f"get user from {address} success.")
            return


def _print_users(run: Invocation, users: Sequence[AuthUserInfo]) -> None:
    run.line(_USER.format("#UserName", "#Password", "#UserType", "#UserStatus"))
    for user in users:
        fields = user.username, user.password, user.user_type, user.user_status
        run.line(_USER.format(*map(shown, fields)))


async def copy_users(run: Invocation) -> None:
    """Copy all users of a broker, or some, to another broker."""
    source, target = run.text("f"), run.text("t")
    auth = run.admin.auth
    if names := run.get("u"):
        found = [await auth.user(source, name) for name in names.split(",") if name]
        users = [user for user in found if user is not None]
    else:
        users = await auth.users(source)
    for user in users:
        if user.password is None:
            raise ConfigError(
                f"{source} gives passwords to super users only: sign as a super user to copy {user.username!r}"
            )
        known = await auth.user(target, user.username or "")
        await (auth.create_user if known is None else auth.update_user)(target, user)
        run.line(f"copy user of {user.username} from {source} to {target} success.")


def _acl(run: Invocation) -> AuthAcl:
    resources, actions = _words(run.text("r")), _words(run.text("a"))
    addresses = _words(run.text("i")) if run.get("i") else None
    entries = [AuthEntry(resource, actions, addresses, run.text("d")) for resource in resources]
    return AuthAcl(run.text("s"), [AuthPolicy(None, entries)])


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part]


async def create_acl(run: Invocation) -> None:
    """Set the permissions of a subject."""
    acl = _acl(run)
    await _everywhere(run, "create acl", lambda one: run.admin.auth.create_acl(one, acl))


async def update_acl(run: Invocation) -> None:
    """Change the permissions of a subject."""
    acl = _acl(run)
    await _everywhere(run, "update acl", lambda one: run.admin.auth.update_acl(one, acl))


async def delete_acl(run: Invocation) -> None:
    """Delete the permissions of a subject."""
    subject, resource = run.text("s"), run.get("r")
    auth = run.admin.auth
    await _everywhere(run, "delete acl", lambda one: auth.delete_acl(one, subject, resource))


async def get_acl(run: Invocation) -> None:
    """Show the permissions of a subject."""
    for address in await _places(run):
        acl = await run.admin.auth.acl(address, run.get("s") or "")
        if acl is not None:
            _print_acls(run, [acl])


async def list_acls(run: Invocation) -> None:
    """List the permissions of subjects."""
    for address in await _places(run):
        acls = await run.admin.auth.acls(address, run.get("s"), run.get("r"))
        if acls:
            _print_acls(run, acls)


def _print_acls(run: Invocation, acls: Sequence[AuthAcl]) -> None:
    run.line(_ACL.format("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"))
    for acl in acls:
        for policy in acl.policies or []:
            for entry in policy.entries or []:
                fields = (policy.policy_type, entry.resource, entry.actions, entry.source_ips)
                texts = map(shown, (acl.subject, *fields, entry.decision))
                run.line(_ACL.format(*texts))
        if not acl.policies:
            run.line(_ACL.format(shown(acl.subject), "", "", "", "", ""))


async def copy_acls(run: Invocation) -> None:
    """Copy the permissions of all subjects of a broker, or of some, to another broker."""
    source, target = run.text("f"), run.text("t")
    auth = run.admin.auth
    if subjects := run.get("s"):
        found = [await auth.acl(source, subject) for subject in subjects.split(",") if subject]
        acls = [acl for acl in found if acl is not None]
    else:
        acls = await auth.acls(source)
    for acl in acls:
        known = await auth.acl(target, acl.subject or "")
        await (auth.create_acl if known is None else auth.update_acl)(target, acl)
        run.line(f"copy acl of {acl.subject} from {source} to {target} success.")
