"""`firearrow acl`: list, make and test the rules of users."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from firearrow.auth.model import Acl, Action, Pattern, PolicyEntry, Resource, Subject, check_policies, policies_of
from firearrow.auth.model import Policy as StoredPolicy
from firearrow.auth.rights import AccessVerdict, Rights
from firearrow.cli.cluster.accesscontrol import (
    SUPER,
    AclUndo,
    PlannedChange,
    Told,
    acl_in,
    change_all,
    masters_told,
    note_of,
    subject_of,
    undo_all,
    user_in,
)
from firearrow.cli.cluster.masters import Apply
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.cluster.undo import FromFile, UndoFile, read_undo
from firearrow.cli.commands import CommandGroup
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import WrongOptions, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.errors import BrokerError, FirearrowError
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy

LIST: Final = ("user", "decision", "actions", "resource", "addresses", "kind", "state", "brokers")
TEST: Final = ("broker", "user", "action", "resource", "from", "isAllowed", "reason")
ALLOW, DENY = "Allow", "Deny"
ANYWHERE: Final = "127.0.0.1"
"""Address of a client, where none is given."""

Verb = Literal["pub", "sub", "create", "update", "delete", "get", "list", "all"]
OfUser = Annotated[str, valued("USER", "the user's name")]
RESOURCES: Final = "Topic:NAME, Group:NAME or Cluster:NAME; NAME* is a prefix, * any name"
ResourceName = Annotated[str, valued("RESOURCE", RESOURCES)]
Actions = Annotated[tuple[Verb, ...], valued(None, "an action; may be repeated", name="--action")]
Sources = Annotated[
    tuple[str, ...], valued("ADDRESS", "only from this address or network; may be repeated", name="--from")
]

app: Final = CommandGroup()


@app.command("list")
async def list_rules(
    *,
    user: Annotated[str | None, valued("NAME", "of this user")] = None,
    resource: Annotated[str | None, valued("TEXT", "for resources with this text")] = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List the rules of users."""
    async with cluster.admin() as admin:
        told = await masters_told(admin)
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for it in told:
        for acl in it.acls:
            name = (acl.subject or "").partition(":")[2]
            for policy in acl.policies or []:
                for entry in policy.entries or []:
                    if user in (None, name) and (resource or "") in (entry.resource or ""):
                        found[_cells(name, policy, entry)].append(it.server.broker)
    count = sum(not (it.reason or it.is_open) for it in told)
    rows: list[list[Cell]] = [
        [*key, "ok" if len(brokers) == count else "different", ", ".join(brokers)]
        for key, brokers in sorted(found.items(), key=lambda item: (item[0][0], item[0][3], item[0]))
    ]
    output.show(Table("Rules", LIST, rows, note_of(told)))


def _cells(name: str, policy: AuthPolicy, entry: AuthEntry) -> tuple[str, ...]:
    actions, addresses = ", ".join(entry.actions or []), ", ".join(entry.source_ips or []) or "any"
    return name, entry.decision or "", actions, entry.resource or "", addresses, policy.policy_type or ""


@app.command("allow")
async def allow(
    user: OfUser,
    resource: ResourceName,
    /,
    *,
    action: Actions = (),
    sources: Sources = (),
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Allow a user actions on a resource; a rule for the same resource is replaced."""
    entry = _entry(ALLOW, resource, action, sources)
    async with cluster.admin() as admin:
        return await _put(admin, user, entry, output, undo_file, apply=apply)


@app.command("deny")
async def deny(
    user: OfUser,
    resource: ResourceName,
    /,
    *,
    action: Actions = (),
    sources: Sources = (),
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Deny a user actions on a resource; a rule for the same resource is replaced."""
    entry = _entry(DENY, resource, action, sources)
    async with cluster.admin() as admin:
        return await _put(admin, user, entry, output, undo_file, apply=apply)


def _entry(decision: str, resource: str, actions: Sequence[str], sources: Sequence[str]) -> AuthEntry:
    """Give a rule as requests have it; WrongOptions for one that no broker takes."""
    if not actions:
        raise WrongOptions("the following arguments are required: --action")
    words = [Action[action.upper()].word for action in actions]
    entry = AuthEntry(_resource(resource).text, words, list(sources) or None, decision)
    try:
        check_policies([StoredPolicy(entries=[PolicyEntry.of(entry)])])
    except BrokerError as error:
        raise WrongOptions(error.remark) from None
    return entry


def _resource(text: str) -> Resource:
    found = Resource.of(text)
    if found is None:
        raise WrongOptions(f"{text!r} is no resource: write {RESOURCES}")
    return found


async def _put(
    admin: Admin, user: str, entry: AuthEntry, output: Output, undo_file: Path | None, *, apply: bool
) -> int:
    new = AuthAcl(subject_of(user), [AuthPolicy(None, [entry])])

    def plan(it: Told) -> PlannedChange:
        if user_in(it, user) is None:
            raise WrongOptions(f"{it.server.broker} has no user {user!r}")
        acl = acl_in(it, user)
        text = _in_words(entry)
        old = next((one for one in _entries(acl) if one.resource == entry.resource), None)
        if old == entry:
            return PlannedChange(text, None)
        make = admin.auth.create_acl if acl is None else admin.auth.update_acl
        replaced = f", instead of {_in_words(old)}" if old is not None else ""
        return PlannedChange(f"{text}{replaced}", lambda address: make(address, new))

    return await change_all(admin, user, plan, AclUndo, output, undo_file, apply=apply)


def _entries(acl: AuthAcl | None) -> list[AuthEntry]:
    return [one for policy in (acl.policies if acl is not None else None) or [] for one in policy.entries or []]


def _in_words(entry: AuthEntry) -> str:
    sources = f" from {', '.join(entry.source_ips)}" if entry.source_ips else ""
    return f"{entry.decision} {', '.join(entry.actions or [])} on {entry.resource}{sources}"


@app.command("remove")
async def remove(
    user: OfUser,
    resource: ResourceName,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Remove the rules of a user for exactly this resource."""
    wanted = _resource(resource).text
    async with cluster.admin() as admin:

        def plan(it: Told) -> PlannedChange:
            old = [one for one in _entries(acl_in(it, user)) if one.resource == wanted]
            if not old:
                return PlannedChange("", None)
            text = f"no longer: {'; '.join(map(_in_words, old))}"
            return PlannedChange(text, lambda address: admin.auth.delete_acl(address, subject_of(user), wanted))

        return await change_all(admin, user, plan, AclUndo, output, undo_file, apply=apply)


@app.command("undo")
async def undo(
    file: FromFile, /, *, apply: Apply = False, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Restore the rules of a user as they were before a change."""
    undone = read_undo(file, AclUndo)
    async with cluster.admin() as admin:
        return await undo_all(admin, undone, output, apply=apply)


# --- Tests: may a user do that? ---


@app.command("test")
async def try_rules(
    user: OfUser,
    action: Annotated[Verb, valued(None, "the action")],
    resource: ResourceName,
    /,
    *,
    source: Annotated[str, valued("ADDRESS", "address of the client", name="--from")] = ANYWHERE,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Say whether a user may do an action on one topic, group or cluster, and which rule decides."""
    wanted = _resource(resource)
    if wanted.resource_pattern != Pattern.LITERAL:
        raise WrongOptions(f"{resource!r} is not one resource: write Topic:NAME, Group:NAME or Cluster:NAME")
    async with cluster.admin() as admin:
        told = await masters_told(admin)
        configs = await concurrently(told, lambda it: config_of(admin, it))
    rows: list[list[Cell]] = []
    for it, config in zip(told, configs, strict=True):
        allowed, reason = verdict_of(it, config, user, Action[action.upper()], wanted, source)
        rows.append([it.server.broker, user, action, wanted.text, source, allowed, reason])
    output.show(Table("Test", TEST, rows))


async def config_of(admin: Admin, it: Told) -> dict[str, str]:
    """Give the configuration of a broker; nothing if the user must not see it."""
    try:
        return await admin.brokers.config(it.server.address)
    except (OSError, FirearrowError):  # the user may see less; then its control counts as on
        return {}


def verdict_of(
    it: Told, config: Mapping[str, str], user: str, action: Action, resource: Resource, source: str
) -> tuple[bool | None, str]:
    """Answer by the rules of a broker: allowed, refused, or (None) unknown, and the reason in words."""
    if it.reason:
        return None, it.reason
    if it.is_open or config.get("authenticationEnabled", "true") != "true":
        return True, "the broker has no access control: everybody may do everything"
    known = user_in(it, user)
    if known is None:
        return False, f"there is no user {user!r}"
    if known.user_status == "disable":
        return False, f"user {user!r} is disabled"
    if known.user_type == SUPER:
        return True, "it is a super user, who may do everything"
    if config.get("authorizationEnabled", "true") != "true":
        return (True, "the broker checks signatures alone: its users may do all but change users and rules")
    acl, subject = acl_in(it, user), Subject.of(subject_of(user))
    assert subject is not None, "a user is a subject"
    rights = Rights(Acl(subject=subject, policies=policies_of(acl)) if acl is not None else None)
    assert resource.resource_type is not None, "a resource in words has a kind"
    place = resource.resource_type, resource.resource_name or "", (action,), source
    verdict, rule = rights.verdict(*place), rights.deciding(*place)
    if verdict is AccessVerdict.UNMATCHED:
        return False, "no rule fits, and what no rule allows is denied"
    return verdict is AccessVerdict.ALLOWED, f"the rule that decides: {rule}"
