"""`firearrow cluster`: lists clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from firearrow.cli.app import group
from firearrow.cli.brokers import rate_of, runtime_or_none
from firearrow.cli.clusters import ANY, ClusterOptions
from firearrow.cli.listing import PLAIN, Output
from firearrow.cli.reports import Cell, Table
from firearrow.client.admin.cluster import servers_in
from firearrow.client.admin.many import gathered
from firearrow.client.routequeues import MASTER

COLUMNS: Final = ("cluster", "brokers", "masters", "slaves", "topics", "putRate", "getRate")

app = group("cluster", "list clusters")


@app.command(name="list")
async def list_clusters(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List clusters, and what their masters do now."""
    async with cluster.admin() as admin:
        info = await admin.cluster()
        rows: list[list[Cell]] = []
        for name in sorted(info.cluster_addr_table):
            servers = servers_in(info, [name])
            masters = [server for server in servers if server.number == MASTER]
            facts = await gathered(masters, lambda master: runtime_or_none(admin, master))
            topics = await admin.topics.names_in_cluster(name)
            rows.append(
                [
                    name,
                    len({server.broker for server in servers}),
                    len(masters),
                    len(servers) - len(masters),
                    len(topics),
                    _sum(facts, "putTps"),
                    _sum(facts, "getTransferredTps"),
                ]
            )
    output.show(Table("Clusters", COLUMNS, rows))


def _sum(facts: Iterable[Mapping[str, str] | None], name: str) -> float:
    return sum(rate_of(found, name) or 0.0 for found in facts if found is not None)
