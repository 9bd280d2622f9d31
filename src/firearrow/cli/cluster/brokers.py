"""`firearrow broker`: run a broker, or show the brokers of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from firearrow.cli.cluster.counters import Counter, counter
from firearrow.cli.cluster.disks import COLUMNS as DISKS
from firearrow.cli.cluster.disks import Disk, disk_of, outlook
from firearrow.cli.cluster.masters import OfCluster, masters_in, named
from firearrow.cli.cluster.options import ANY, Broker, ClusterOptions
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.serving.commands import broker as run_broker
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError

LIST: Final = ("cluster", "broker", "brokerNumber", "address", "version", "state")
SHOW: Final = ("broker", "address", "name", "value", *Counter._fields)
STATS: Final = ("broker", "puts", "gets", "putsToday", "getsToday", "putRate", "getRate", "bytesInLog", "diskShare")

RETENTION: Final = ("broker", "address", "level", "rule", "evidence", "cure")
NOT_TOLD: Final = (
    "Brokers do not report the size of their queues, which is 20 bytes a message at least, nor of the index."
)

app: Final = CommandGroup(run_broker)


@app.command("list")
async def list_brokers(*, of_cluster: OfCluster = None, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List brokers and slaves, with their state."""
    async with cluster.admin() as admin:
        info = await admin.cluster()
        servers = servers_in(info, None if of_cluster is None else [of_cluster])
        facts = await concurrently(servers, lambda server: runtime_or_none(admin, server))
    output.show(brokers_table(servers, facts))


def brokers_table(servers: Sequence[RegisteredBroker], facts: Sequence[Mapping[str, str] | None]) -> Table:
    """Give the table of brokers, with the version and state of each."""
    rows = [[*server, *_state(fact)] for server, fact in zip(servers, facts, strict=True)]
    return Table("Brokers", LIST, rows)


def _state(facts: Mapping[str, str] | None) -> list[Cell]:
    return [None, "failed"] if facts is None else [facts.get("brokerVersionDesc"), "ok"]


async def runtime_or_none(admin: Admin, server: RegisteredBroker) -> dict[str, str] | None:
    """Runtime statistics of a broker; None if it does not answer."""
    try:
        return await admin.brokers.runtime(server.address)
    except (OSError, FirearrowError):  # the table shows it as failed
        return None


@app.command("show")
async def show_broker(broker: Broker, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show all runtime statistics of a broker, with the meaning of each."""
    async with cluster.admin() as admin:
        servers = named(await admin.cluster(), broker)
        facts = await concurrently(servers, lambda server: admin.brokers.runtime(server.address))
    rows: list[list[Cell]] = [
        [server.broker, server.address, name, value, *counter(name)]
        for server, counted in zip(servers, facts, strict=True)
        for name, value in sorted(counted.items())
    ]
    output.show(Table("Broker", SHOW, rows))


@app.command("stats")
async def show_stats(*, of_cluster: OfCluster = None, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the counters of each master: stored and delivered messages."""
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster(), of_cluster)
        facts = await concurrently(masters, lambda master: admin.brokers.runtime(master.address))
    rows = [_counted(it.broker, found) for it, found in zip(masters, facts, strict=True)]
    output.show(Table("Brokers", STATS, rows))


def _counted(broker: str, facts: Mapping[str, str]) -> list[Cell]:
    puts, gets = _whole(facts, "msgPutTotalTodayNow"), _whole(facts, "msgGetTotalTodayNow")
    log = _whole(facts, "commitLogMaxOffset"), _whole(facts, "commitLogMinOffset")
    return [
        broker,
        puts,
        gets,
        _difference(puts, _whole(facts, "msgPutTotalTodayMorning")),
        _difference(gets, _whole(facts, "msgGetTotalTodayMorning")),
        rate_of(facts, "putTps"),
        rate_of(facts, "getTransferredTps"),
        _difference(*log),
        _real(facts.get("commitLogDiskRatio", "")),
    ]


def rate_of(facts: Mapping[str, str], name: str) -> float | None:
    """Rate over the last ten seconds, the first of three that a broker gives."""
    return _real(facts.get(name, "").partition(" ")[0])


def _whole(facts: Mapping[str, str], name: str) -> int | None:
    text = facts.get(name, "")
    return int(text) if text.isdecimal() else None


def _real(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # the broker gives none
        return None


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


@app.command("disk")
async def show_disks(*, of_cluster: OfCluster = None, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the disk of each broker: what its log uses, how much room there is, and how fast it grows."""
    output.show(disk_table(await disks_of(cluster, of_cluster)))


@app.command("retention")
async def show_retention(*, of_cluster: OfCluster = None, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> int:
    """Say when retention deletes files or the disk gets full, and why files stay: exit code 1 if it fills."""
    table = retention_table(await disks_of(cluster, of_cluster))
    output.show(table)
    return FAILED if any(level != "ok" for level in table.values("level")) else 0


async def disks_of(cluster: ClusterOptions, of_cluster: str | None = None) -> list[Disk]:
    """Ask the brokers about their disks."""
    now_ms = SystemClock().now_ms()
    async with cluster.admin() as admin:
        servers = servers_in(await admin.cluster(), None if of_cluster is None else [of_cluster])
        return await concurrently(servers, lambda server: disk_of(admin, server, now_ms))


def disk_table(disks: Sequence[Disk]) -> Table:
    """Give the use of disks."""
    return Table("Disks", DISKS, [disk.row() for disk in disks], NOT_TOLD)


def retention_table(disks: Sequence[Disk]) -> Table:
    """Give what will become of disks, in words."""
    rows: list[list[Cell]] = [
        [disk.broker, disk.address, it.level.name.lower(), it.rule, it.evidence, it.cure]
        for disk in disks
        for it in outlook(disk)
    ]
    return Table("Retention", RETENTION, rows)
