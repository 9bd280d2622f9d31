"""Disks: what uses them, how fast they grow, what retention will do, and why files stay."""

from __future__ import annotations

from typing import Any, Final

from firearrow.cli.cluster.brokers import disk_table, disks_of, retention_table
from firearrow.cli.cluster.disks import Disk, outlook
from firearrow.console.page import Declared, Page, View
from firearrow.console.sampler import Sampler

MINUTES_MIN: Final = 2
"""Length of the history below which its growth says nothing."""


async def disks(view: View) -> Page:
    """Show the disk of each broker."""
    sampler = view.cluster.sampler
    asked = await disks_of(view.cluster.options)
    usage, retention = disk_table(asked), retention_table(asked).objects()
    brokers: list[dict[str, Any]] = []
    for disk in asked:
        mine = [it for it in retention if it["address"] == disk.address]
        columns = sampler.history.columns((f"disk {disk.address}",))
        lately = grown(sampler, disk.address)
        brokers.append(
            {"disk": disk, "findings": mine, "columns": columns, "lately": lately, "pace": pace(disk, lately)}
        )
    return Page(
        "disks.html", "Disk", {"table": view.table(usage), "note": usage.note, "brokers": brokers}, is_live=True
    )


def pace(disk: Disk, lately: tuple[float, float] | None) -> str:
    """Say what becomes of a disk at the growth of the last hour; empty text where that is unknown, or no growth."""
    if lately is None or lately[0] <= 0:
        return ""
    return next((it.evidence for it in outlook(disk, lately[0]) if it.rule == "growth"), "")


def grown(sampler: Sampler, address: str) -> tuple[float, float] | None:
    """Give a log's growth in the last hour, in bytes an hour, and the seconds of this hour that samples cover."""
    points = sampler.history.points(f"log {address}")
    if len(points) < 2:
        return None
    (first, before), (last, now) = points[0], points[-1]
    seconds = last - first
    return ((now - before) / seconds * 3600, seconds) if seconds >= 60 * MINUTES_MIN else None


PAGES: Final = (Declared("/disk", disks),)
