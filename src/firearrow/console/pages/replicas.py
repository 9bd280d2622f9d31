"""Replicas: masters and slaves with their lag, the replicas in sync, and the controllers."""

from __future__ import annotations

from typing import Final

from firearrow.cli.cluster.replicas import replication
from firearrow.console.page import Declared, Page, View


async def replicas(view: View) -> Page:
    """Show replicas and controllers."""
    listed, sets, controllers = await replication(view.cluster.admin)
    facts = listed.objects()
    slaves = [it for it in facts if it["role"] == "slave"]
    masters = {str(it["address"]) for it in facts if it["role"] == "master"}
    in_sync = {part for text in sets.values("inSync") for part in str(text).split(", ") if part}
    return Page(
        "replicas.html",
        "Replicas",
        {
            "replicas": view.table(listed, "replicas-"),
            "sets": view.table(sets, "sets-"),
            "controllers": view.table(controllers, "controllers-"),
            "slave_count": len(slaves),
            "behind": max((it["behindBytes"] or 0 for it in slaves), default=0),
            "lost": sum(it["isInSync"] is False or it["state"] == "failed" for it in slaves),
            "alone": sorted({str(it["broker"]) for it in facts} - {str(it["broker"]) for it in slaves}),
            "without_master": sorted({str(it["broker"]) for it in slaves if it["state"] == "unknown"}),
            "candidates": sorted(in_sync - masters),
            "leader": next((it["leader"] for it in controllers.objects() if it["leader"]), None),
        },
        is_live=True,
    )


PAGES: Final = (Declared("/replicas", replicas),)
