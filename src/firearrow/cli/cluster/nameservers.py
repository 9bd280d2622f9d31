"""`firearrow namesrv`: run a name server, or compare the name servers of a cluster."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import sentence
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import Parameter
from firearrow.cli.serving.commands import namesrv as run_name_server
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.errors import FirearrowError
from firearrow.message.names import ORDER_NAMESPACE
from firearrow.wire.bodies import MASTER_ID

LIST: Final = ("nameServer", "state", "clusters", "masters", "slaves", "reason")
BROKERS: Final = ("cluster", "broker", "brokerNumber", "address", "state", "registeredAt", "missingAt")
KEYS: Final = ("namespace", "key", "value", "state", "nameServers")

app: Final = CommandGroup(run_name_server)


class _Answer(NamedTuple):
    """Brokers that are registered at a name server, or the reason why it does not answer."""

    address: str
    servers: list[RegisteredBroker]
    reason: str = ""


async def _answers(admin: Admin) -> list[_Answer]:
    async def ask(address: str) -> _Answer:
        try:
            return _Answer(address, servers_in(await admin.name_servers.cluster_at(address)))
        except (OSError, FirearrowError) as error:
            return _Answer(address, [], sentence(error))

    return await concurrently(admin.name_servers.addresses, ask)


@app.command("list")
async def list_name_servers(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List name servers with their answers, and the count of brokers that each knows."""
    async with cluster.admin() as admin:
        answers = await _answers(admin)
    output.show(Table("Name servers", LIST, [_listed(it) for it in answers]))


def _listed(it: _Answer) -> list[Cell]:
    if it.reason:
        return [it.address, "failed", None, None, None, it.reason]
    masters = sum(server.number == MASTER_ID for server in it.servers)
    clusters = ", ".join(sorted({server.cluster for server in it.servers}))
    return [it.address, "ok", clusters, masters, len(it.servers) - masters, ""]


@app.command("brokers")
async def list_registrations(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List registered brokers, with the name servers that know each and those that do not."""
    async with cluster.admin() as admin:
        answers = [it for it in await _answers(admin) if not it.reason]
    known: defaultdict[RegisteredBroker, list[str]] = defaultdict(list)
    for it in answers:
        for server in it.servers:
            known[server].append(it.address)
    rows: list[list[Cell]] = []
    for server, at in sorted(known.items()):
        missing = [it.address for it in answers if it.address not in at]
        rows.append([*server, "different" if missing else "ok", ", ".join(at), ", ".join(missing)])
    output.show(Table("Registrations", BROKERS, rows))


@app.command("keys")
async def list_keys(
    namespace: Annotated[str, Parameter(f"namespace of the keys (default: {ORDER_NAMESPACE})")] = ORDER_NAMESPACE,
    /,
    *,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List the key-value configuration in a namespace, with the name servers that have each value."""
    async with cluster.admin() as admin:
        addresses = [it.address for it in await _answers(admin) if not it.reason]
        tables = await concurrently(addresses, lambda address: admin.name_servers.pairs_at(address, namespace))
    known: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for address, pairs in zip(addresses, tables, strict=True):
        for pair in pairs.items():
            known[pair].append(address)
    rows: list[list[Cell]] = [
        [namespace, *pair, "ok" if len(at) == len(addresses) else "different", ", ".join(at)]
        for pair, at in sorted(known.items())
    ]
    output.show(Table("Key-value configuration", KEYS, rows))
