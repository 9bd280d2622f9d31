"""`firearrow config`: show and change the configuration of brokers and name servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from firearrow.cli.cluster.masters import PREVIEW, Apply, matches, named
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.cluster.undo import FromFile, Undo, UndoFile, circumstances, forget, read_undo, refusable, write_undo
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import Parameter, WrongOptions, pair, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import servers_in
from firearrow.config.demands import is_secret
from firearrow.config.table import keys, rocketmq_defaults

GET: Final = ("server", "key", "value")
SET: Final = ("server", "key", "before", "after", "state")

EXPLAIN: Final = ("server", "key", "value", "default", "state", "changes", "allowed", "meaning")
USUAL, OTHER, OPEN = "default", "different", "unknown"
"""States of a key: its default, another value, or a default that Firearrow does not know."""

OfBroker = Annotated[str | None, valued("NAME", "this broker: its name, or its address", name="--broker")]
OfNameServers = Annotated[bool, switch("all name servers", name="--name-servers")]


class KeyChange(msgspec.Struct, frozen=True):
    """A key of a server, and its value before and after."""

    server: str
    key: str
    before: str
    after: str


class ConfigUndo(Undo, frozen=True, kw_only=True, tag="config"):
    """The file that undoes a change."""

    of_name_servers: bool
    keys: list[KeyChange]


app: Final = CommandGroup()


@app.command("get")
async def get_config(
    pattern: Annotated[str | None, Parameter("keys that match this, with * and ? (default: all)")] = None,
    /,
    *,
    broker: OfBroker = None,
    name_servers: OfNameServers = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the effective configuration; of all brokers, unless options name servers."""
    rows: list[list[Cell]] = [[*found] for found in await _matching(cluster, pattern, broker, name_servers)]
    output.show(Table("Configuration", GET, rows))


@app.command("explain")
async def explain_config(
    pattern: Annotated[str | None, Parameter("keys that match this, with * and ? (default: all)")] = None,
    /,
    *,
    different: Annotated[bool, switch("only keys whose value is not the default")] = False,
    broker: OfBroker = None,
    name_servers: OfNameServers = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the effective configuration with defaults and meanings, and which keys change while a server runs."""
    explained = _explained(NAMESRV) if name_servers else _explained(BROKER)
    rows: list[list[Cell]] = [
        [server, *_meant(key, value, explained.get(key))]
        for server, key, value in await _matching(cluster, pattern, broker, name_servers)
    ]
    at = EXPLAIN.index("state")
    output.show(Table("Configuration", EXPLAIN, [row for row in rows if row[at] == OTHER or not different]))


async def _matching(
    cluster: ClusterOptions, pattern: str | None, broker: str | None, name_servers: bool
) -> list[tuple[str, str, str]]:
    """Give the servers, keys and values of all keys that match. Raises NothingFound if no key does."""
    async with cluster.admin() as admin:
        servers = await _servers(admin, broker, name_servers)
        configs = [(it, await _config(admin, it, name_servers)) for it in servers]
    found = [
        (server, key, value)
        for server, config in configs
        for key, value in sorted(config.items())
        if matches(key, pattern)
    ]
    if not found:
        raise NothingFound(f"no key of the configuration matches {pattern!r}")
    return found


BROKER: Final = "broker"
NAMESRV: Final = "namesrv"


class _Explained(NamedTuple):
    """Default of a key as text (None if it depends on the machine), its change, allowed values and meaning."""

    default: str | None
    changes: str
    allowed: str = ""
    meaning: str = ""


@cache
def _explained(server: str) -> Mapping[str, _Explained]:
    """Give all keys that Firearrow knows, and RocketMQ's others."""
    from firearrow.broker.config import KEY_GROUPS, BrokerConfig
    from firearrow.namesrv.config import KEY_GROUPS as NAMESRV_GROUPS
    from firearrow.namesrv.config import NamesrvConfig
    from firearrow.store.config import StoreConfig

    structs = {BROKER: (BrokerConfig, StoreConfig), NAMESRV: (NamesrvConfig,)}[server]
    groups = {BROKER: KEY_GROUPS, NAMESRV: NAMESRV_GROUPS}[server]
    others = {name: text for group in groups for name, text in rocketmq_defaults(group).items()}
    found = {name: _Explained(None if text.startswith(("<", "$")) else text, "") for name, text in others.items()}
    for struct in structs:
        for key in keys(struct).values():
            default = None if key.default is None else _as_text(key.default)
            changes = "at once" if key.is_live else "at the start"
            found[key.name] = _Explained(default, changes, key.allowed, key.description)
    return found


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meant(key: str, value: str, it: _Explained | None) -> list[Cell]:
    """Give the cells of a key. A secret is not shown."""
    if is_secret(key, value):
        value = "(secret)"
    if it is None:
        return [key, value, None, OPEN, None, None, None]
    state = OPEN if it.default is None else USUAL if it.default == value else OTHER
    return [key, value, it.default, state, it.changes or None, it.allowed or None, it.meaning or None]


@app.command("set")
async def set_config(
    *pairs: Annotated[tuple[str, str], valued("KEY=VALUE", "keys to set", pair, names_of="keys")],
    broker: OfBroker = None,
    all_brokers: Annotated[bool, switch("all brokers")] = False,
    name_servers: OfNameServers = False,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Change keys of the configuration; shows the value of each before and after."""
    if (broker is not None) + all_brokers + name_servers != 1:
        raise WrongOptions("one of --broker, --all-brokers and --name-servers is required")
    changes = dict(pairs)
    if not changes:
        raise WrongOptions("the following arguments are required: KEY=VALUE")
    async with cluster.admin() as admin:
        servers = await _servers(admin, broker, name_servers)
        wanted = dict.fromkeys(servers, changes)
        return await _change(admin, wanted, name_servers, apply, undo_file, output)


@app.command("undo")
async def undo(
    file: FromFile,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Set the keys of a change to their former values."""
    undone = read_undo(file, ConfigUndo)
    wanted: dict[str, dict[str, str]] = defaultdict(dict)
    for it in undone.keys:
        wanted[it.server][it.key] = it.before
    async with cluster.admin() as admin:
        return await _change(admin, wanted, undone.of_name_servers, apply, undo_file, output)


async def _change(
    admin: Admin,
    wanted: Mapping[str, Mapping[str, str]],
    name_servers: bool,
    apply: bool,
    undo_file: Path | None,
    output: Output,
) -> int:
    """Change keys of servers, or preview the change."""
    before = {it: await _config(admin, it, name_servers) for it in wanted}
    unknown = [(it, key) for it, keys in wanted.items() for key in keys if key not in before[it]]
    if unknown:
        raise NothingFound(f"{unknown[0][0]} has no key {unknown[0][1]!r} to change")
    keys = [
        KeyChange(server, key, before[server][key], value)
        for server, changes in wanted.items()
        for key, value in changes.items()
    ]
    after, note = before, PREVIEW
    if apply:
        note = await _carry_out(admin, keys, name_servers, undo_file)
        after = {it: await _config(admin, it, name_servers) for it in wanted}
    rows: list[list[Cell]] = []
    for it in keys:
        now = after[it.server][it.key] if apply else it.after
        rows.append([it.server, it.key, it.before, now, _state(it, now, apply=apply)])
    output.show(Table("Configuration", SET, rows, note=note))
    return FAILED if any(row[-1] == "failed" for row in rows) else 0


async def _carry_out(admin: Admin, keys: Sequence[KeyChange], name_servers: bool, undo_file: Path | None) -> str:
    """Change the keys that differ; give the line that names the undo file."""
    others = [it for it in keys if it.before != it.after]
    if not others:
        return ""
    undo = ConfigUndo(of_name_servers=name_servers, keys=others, **circumstances(admin))
    path = write_undo(undo_file, "config", undo)
    part = admin.name_servers if name_servers else admin.brokers

    async def is_as_before() -> bool:
        now = {it.server: await part.config(it.server) for it in others}
        return all(now[it.server].get(it.key) == it.before for it in others)

    async with refusable(path, is_as_before):
        for server in dict.fromkeys(it.server for it in others):
            await part.update_config(server, {it.key: it.after for it in others if it.server == server})
    if await is_as_before():
        forget(path)
        return ""
    return f"`firearrow config undo {path}` sets what was before."


def _state(key: KeyChange, now: str, *, apply: bool) -> str:
    if key.before == key.after:
        return "the same"
    if not apply:
        return "would be changed"
    return "changed" if now != key.before else "failed"


async def _servers(admin: Admin, broker: str | None, name_servers: bool) -> list[str]:
    if name_servers:
        return list(admin.name_servers.addresses)
    info = await admin.cluster()
    servers = servers_in(info) if broker is None else named(info, broker)
    return [server.address for server in servers]


async def _config(admin: Admin, address: str, name_servers: bool) -> Mapping[str, str]:
    part = admin.name_servers if name_servers else admin.brokers
    return await part.config(address)
