"""Status pages of a broker, by HTTP.

============  =====================================================================================
``/healthz``  200: the process runs and its event loop comes round
``/readyz``   200 if clients are served; 503 with a line for each reason against it
``/metrics``  all metrics, for Prometheus (``metrics.families``)
``/varz``     JSON: the broker's identity, activity and load
``/connz``    JSON: connections; ``?offset=0&limit=1000``
``/storez``   JSON: log, queues, timer and disk
============  =====================================================================================

Any client that can connect may read the pages. They change nothing, and show only facts that any client of the broker
can read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from firearrow.broker.administration.processor import traffic_of
from firearrow.broker.metrics.families import Sources, metrics_of
from firearrow.broker.registering.registration import addresses_of
from firearrow.net.operations import Page, json_of, pages_of_server
from firearrow.net.server import Server

REGISTRATION: Final = "registration"  # name of the service


class StatusSources(NamedTuple):
    """Sources of the status pages of an open broker."""

    sources: Callable[[], Sources]
    address: str
    troubles: Callable[[], dict[str, str]]
    not_registered_with: Callable[[], list[str]]
    is_started: Callable[[], bool]


def reasons_against(told: StatusSources) -> list[str]:
    """Return the reasons why clients are not served properly; empty if they are."""
    found: list[str] = []
    if not told.is_started():
        found.append("start: it is not complete")
    context = told.sources().context
    full = context.store.without_room  # a slave that follows its master serves reads
    if full is not None:
        found.append(f"store: writes are refused: {full}")
    names = addresses_of(context.settings.broker.namesrv_addr)
    missing = told.not_registered_with()
    if missing and len(missing) >= len(names):
        found.append(f"{REGISTRATION}: no name server knows the broker: {', '.join(missing)}")
    troubles = told.troubles()
    found += [f"{name}: {text}" for name, text in troubles.items() if name != REGISTRATION]
    return found


def _facts(told: StatusSources) -> dict[str, object]:
    sources = told.sources()
    context = sources.context
    config, stats = context.settings.broker, context.stats
    return {
        "brokerName": config.broker_name,
        "clusterName": config.broker_cluster_name,
        "address": told.address,
        "startedAt": stats.boot_ms,
        "runsForSeconds": max(0, context.clock.now_ms() - stats.boot_ms) // 1000,
        "troubles": told.troubles(),
        "notRegisteredWith": told.not_registered_with(),
        "topics": len(context.topics.table),
        "groups": len(context.groups.table),
        "waitingRequests": sources.flow.waiting,
        "traffic": traffic_of(stats),
    }


def _store(told: StatusSources) -> dict[str, object]:
    sources = told.sources()
    store, timers = sources.context.store, sources.timers
    disk = os.statvfs(store.root)
    return {
        "root": str(store.root),
        "logStart": store.log_start_offset,
        "logEnd": store.log_end_offset,
        "flushed": store.flushed_offset,
        "notDispatchedBytes": store.behind_bytes,
        "writesRefused": store.refused,
        "earliestMessageAt": store.earliest_store_ms,
        "diskBytes": disk.f_blocks * disk.f_frsize,
        "diskFreeBytes": disk.f_bavail * disk.f_frsize,
        "timedMessages": sum(timers.pending.values()),
        "facts": store.runtime_facts(),
    }


def pages_of(told: Callable[[], StatusSources], server: Server) -> dict[str, Page]:
    """Return the pages of a broker at its port for monitoring."""

    return {
        **pages_of_server(
            server,
            lambda: reasons_against(told()),
            lambda: _facts(told()),
            lambda: metrics_of(told().sources()),
            lambda peer: {"groups": told().sources().context.clients.groups_of(peer)},
        ),
        "/storez": lambda _: json_of(_store(told())),
    }
