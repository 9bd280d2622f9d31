"""What a broker tells of itself by HTTP.

============  =====================================================================================
``/healthz``  200: the process runs and its event loop comes round
``/readyz``   200 if clients are served; 503 with what is in the way, a line for each reason
``/metrics``  all metrics, for Prometheus (``metrics.families``)
``/varz``     JSON: who the broker is, what it has done and how busy it is
``/connz``    JSON: connections; ``?offset=0&limit=1000``
``/storez``   JSON: log, queues, timer and disk
============  =====================================================================================

Whoever can connect may ask: nothing here can be changed, and what is told is what everybody is told
who connects to the broker itself.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from firearrow import __version__
from firearrow.broker.metrics.exposition import CONTENT_TYPE, pieces
from firearrow.broker.metrics.families import Sources, common_labels, samples_of
from firearrow.broker.metrics.lags import lags_of
from firearrow.broker.processors.admin_broker import traffic_of
from firearrow.broker.registration import addresses_of
from firearrow.net.http import JSON, Answer, HttpServer, Request, plain
from firearrow.net.server import Server
from firearrow.services import Service

log = logging.getLogger(__name__)

CONNECTIONS_LISTED_MAX: Final = 1000
LAGS_IN_TURN: Final = 20  # groups and topics; each has some queues to look at
REGISTRATION: Final = "registration"  # the service of that name


class Told(NamedTuple):
    """What pages are made of, of a broker that has been opened."""

    sources: Callable[[], Sources]
    address: str
    troubles: Callable[[], dict[str, str]]
    not_registered_with: Callable[[], list[str]]
    server: Server
    is_started: Callable[[], bool]


class Operations(Service):
    """Answers at the port that it has bound; ``told`` gives what it answers from."""

    def __init__(self, told: Callable[[], Told]) -> None:
        super().__init__("operations")
        self._told = told
        self._http = HttpServer(self._answer)
        self.port = 0

    async def bind(self, host: str, port: int) -> None:
        """Take the port; CannotListen without it."""
        self.port = await self._http.bind(host, port)
        log.info("metrics are at hand", extra={"host": host, "port": self.port})

    async def start(self) -> None:
        """Answer from now on."""
        await self._http.serve()

    async def stop(self) -> None:
        """End all connections."""
        self.close()

    def close(self) -> None:
        """The same, at once; nothing happens if nothing was bound."""
        self._http.close()

    def _answer(self, request: Request) -> Answer:
        page = _PAGES.get(request.path)
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, f"there are {', '.join(_PAGES)}")
        return page(self._told(), request)


def _health(_: Told, __: Request) -> Answer:
    return plain(HTTPStatus.OK, "ok")


def reasons_against(told: Told) -> list[str]:
    """Say why clients are not served as they should be; nothing if they are."""
    found: list[str] = []
    if not told.is_started():
        found.append("start: it is not complete")
    context = told.sources().context
    refused = context.store.refused
    if refused is not None:
        found.append(f"store: writes are refused: {refused}")
    names = addresses_of(context.settings.broker.namesrv_addr)
    missing = told.not_registered_with()
    if missing and len(missing) >= len(names):
        found.append(f"{REGISTRATION}: no name server knows the broker: {', '.join(missing)}")
    troubles = told.troubles()
    found += [f"{name}: {text}" for name, text in troubles.items() if name != REGISTRATION]
    return found


def _ready(told: Told, _: Request) -> Answer:
    reasons = reasons_against(told)
    if reasons:
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(reasons))
    return plain(HTTPStatus.OK, "ok")


def _metrics(told: Told, _: Request) -> Answer:
    return Answer(HTTPStatus.OK, _scrape(told), CONTENT_TYPE)


def _scrape(told: Told) -> Iterator[bytes]:
    sources = told.sources()
    found = lags_of(sources.context, sources.books)
    while some := list(islice(found, LAGS_IN_TURN)):
        sources.lags.extend(some)
        yield b""
    config = sources.context.settings.broker
    common = common_labels(
        config.broker_cluster_name,
        config.broker_name,
        config.metrics_label,
        in_delta=config.metrics_in_delta,
    )
    yield from pieces(samples_of(sources), common)


def _various(told: Told, _: Request) -> Answer:
    sources = told.sources()
    context = sources.context
    config, stats = context.settings.broker, context.stats
    used = resource.getrusage(resource.RUSAGE_SELF)
    return _json(
        {
            "version": __version__,
            "brokerName": config.broker_name,
            "clusterName": config.broker_cluster_name,
            "address": told.address,
            "pid": os.getpid(),
            "startedAt": stats.boot_ms,
            "runsForSeconds": max(0, context.clock.now_ms() - stats.boot_ms) // 1000,
            "notReady": reasons_against(told),
            "troubles": told.troubles(),
            "notRegisteredWith": told.not_registered_with(),
            "topics": len(context.topics.table),
            "groups": len(context.groups.table),
            "connections": len(told.server.peers),
            "connectionsMax": told.server.connections_max,
            "waitingRequests": sources.flow.waiting,
            "traffic": traffic_of(stats),
            "cpuSeconds": round(used.ru_utime + used.ru_stime, 3),
            "memoryPeakBytes": used.ru_maxrss * 1024,
        }
    )


def _connections(told: Told, request: Request) -> Answer:
    try:
        offset = max(0, int(request.query.get("offset", "0")))
        limit = int(request.query.get("limit", str(CONNECTIONS_LISTED_MAX)))
    except ValueError:
        return plain(HTTPStatus.BAD_REQUEST, "offset and limit are whole numbers")
    limit = max(0, min(limit, CONNECTIONS_LISTED_MAX))
    peers = sorted(told.server.peers, key=lambda peer: peer.address)
    clients = told.sources().context.clients
    listed = [
        {
            "address": peer.address,
            "groups": clients.groups_of(peer),
            "unfinishedBytes": peer.unfinished_bytes,
            "unreadBytes": peer.unread_bytes,
            "reads": peer.reads,
            "waits": peer.waits,
        }
        for peer in peers[offset : offset + limit]
    ]
    return _json({"total": len(peers), "offset": offset, "connections": listed})


def _store(told: Told, _: Request) -> Answer:
    context = told.sources().context
    store, timers = context.store, context.timers
    disk = os.statvfs(store.root)
    return _json(
        {
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
    )


def _json(value: Any) -> Answer:
    return Answer(HTTPStatus.OK, _lines(value), JSON)


def _lines(value: Any) -> Iterable[bytes]:
    yield msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


_PAGES: Final[dict[str, Callable[[Told, Request], Answer]]] = {
    "/healthz": _health,
    "/readyz": _ready,
    "/metrics": _metrics,
    "/varz": _various,
    "/connz": _connections,
    "/storez": _store,
}
