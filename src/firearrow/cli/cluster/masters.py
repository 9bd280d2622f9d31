"""Masters of a cluster, and requests to all of them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Final

from firearrow.cli.failures import NothingFound
from firearrow.cli.output.reports import Cell
from firearrow.cli.parameters import Parameter, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.message.names import is_system_group
from firearrow.wire.bodies import MASTER_ID, PERM_INHERIT, PERM_READ, PERM_WRITE, ClusterInfo

Pattern = Annotated[str | None, Parameter("names that match this, with * and ? (default: all)")]
OfCluster = Annotated[str | None, valued("NAME", "brokers of this cluster (default: all)", name="--cluster")]
Apply = Annotated[bool, switch("carry it out; without it, only show the changes")]
Preview = Annotated[bool, switch("only show the changes")]
PREVIEW: Final = "Nothing is changed yet: --apply does it."


def matches(name: str, pattern: str | None) -> bool:
    """Tell whether a name matches the pattern of a command line."""
    if pattern is None:
        return True
    from fnmatch import fnmatchcase  # most commands list all

    return fnmatchcase(name, pattern)


def masters_in(info: ClusterInfo, cluster: str | None = None) -> list[RegisteredBroker]:
    """Give the masters of a cluster or of all; NothingFound if there are none."""
    servers = servers_in(info, None if cluster is None else [cluster])
    found = [server for server in servers if server.number == MASTER_ID]
    if not found:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        where = f"cluster {cluster!r} has no master" if cluster else "no broker is registered"
        raise NothingFound(f"{where}; the name servers know these clusters: {known}")
    return found


def named(info: ClusterInfo, broker: str) -> list[RegisteredBroker]:
    """Give master and slaves by the name of a broker, or one server by its address."""
    found = [it for it in servers_in(info) if broker in (it.broker, it.address)]
    if not found:
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        raise NothingFound(f"there is no broker {broker!r}; the name servers know: {known}")
    return found


async def ask_masters(
    admin: Admin, what: str, ask: Callable[[RegisteredBroker], Awaitable[list[Cell] | None]]
) -> list[list[Cell]]:
    """Give the rows of the masters that have one; NothingFound if no master has."""
    rows = [row for row in await concurrently(masters_in(await admin.cluster()), ask) if row]
    if not rows:
        raise NothingFound(f"there is no {what}")
    return rows


async def group_names(admin: Admin) -> list[str]:
    """Give the names of all groups in order, without the groups of brokers and tools."""
    masters = masters_in(await admin.cluster())
    tables = await concurrently(masters, lambda master: admin.groups.configs(master.address))
    found = {name for table in tables for name in table.subscription_group_table}
    return sorted(name for name in found if not is_system_group(name))


def addresses_by_broker(info: ClusterInfo) -> Mapping[str, str]:
    """Give the address of each broker's master, by the broker's name."""
    return {it.broker: it.address for it in servers_in(info) if it.number == MASTER_ID}


async def addresses_of(admin: Admin, brokers: Iterable[str]) -> Mapping[str, str]:
    """Give the addresses of the masters of these brokers; NothingFound if one is not registered."""
    found = addresses_by_broker(await admin.cluster())
    wanted = sorted(brokers)
    missing = [broker for broker in wanted if broker not in found]
    if missing:
        raise NothingFound(f"broker {missing[0]!r} is not registered")
    return {broker: found[broker] for broker in wanted}


def perm_text(perm: int) -> str:
    """Give the permissions of a topic as letters: ``rw`` and so on, ``-`` for none."""
    bits = ((PERM_READ, "r"), (PERM_WRITE, "w"), (PERM_INHERIT, "x"))
    return "".join(letter for bit, letter in bits if perm & bit) or "-"
