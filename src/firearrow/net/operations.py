"""A server's port for monitoring, and the pages that all servers have there.

============  =====================================================================================
``/healthz``  200: the process runs and its event loop comes round
``/readyz``   200 if clients are served; 503 with a line for each reason against it
``/metrics``  all metrics, for Prometheus (``net.exposition``)
``/varz``     JSON: the server's identity, activity and load
``/connz``    JSON: connections; ``?offset=0&limit=1000``
============  =====================================================================================
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from firearrow import __version__
from firearrow.config.metrics import MetricsKeys
from firearrow.logs import Log
from firearrow.net.exporting import Exporting, in_deltas, log_them, otlp_sender
from firearrow.net.exposition import CONTENT_TYPE, Metrics, pieces
from firearrow.net.http import JSON, Answer, HttpServer, Request, plain
from firearrow.net.server import Peer, Server
from firearrow.services import Service

log: Final = Log(__name__)

CONNECTIONS_LISTED_MAX: Final = 1000

Page = Callable[[Request], Answer]
Facts = Callable[[], Mapping[str, object]]


class Operations(Service):
    """Publishes metrics as the configuration says: pages at a port, by their paths, or exports."""

    def __init__(self, keys: MetricsKeys, pages: Mapping[str, Page], metrics: Callable[[], Metrics]) -> None:
        super().__init__("operations")
        self._keys = keys
        self._pages = pages
        self._http = HttpServer(self._answer)
        self._exporting = _exporting(keys, metrics)
        self.port: int = 0

    async def bind(self, host: str) -> None:
        """Listen on the port, if the configuration has one, on ``host`` unless it names another; CannotListen if that
        fails.
        """
        if self._keys.metrics_exporter_type == "PROM":
            at = self._keys.metrics_prom_exporter_host or host
            self.port = await self._http.bind(at, self._keys.metrics_prom_exporter_port)
            log.info("metrics are available", extra={"host": at, "port": self.port})

    async def start(self) -> None:
        """Answer, or export, from now on."""
        if self._exporting is not None:
            await self._exporting.start()
        elif self.port:
            await self._http.serve()

    async def stop(self) -> None:
        """End all connections."""
        if self._exporting is not None:
            await self._exporting.stop()
        self._http.close()

    def close(self) -> None:
        """End all connections at once, without an export, if the service was not started."""
        if self._exporting is not None:
            self._exporting.close()
        self._http.close()

    @property
    def trouble(self) -> str | None:
        """Reason why the last export failed."""
        return None if self._exporting is None else self._exporting.trouble

    def _answer(self, request: Request) -> Answer:
        page = self._pages.get(request.path)
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, f"the pages are {', '.join(self._pages)}")
        return page(request)


def _exporting(keys: MetricsKeys, metrics: Callable[[], Metrics]) -> Exporting | None:
    if keys.metrics_exporter_type == "OTLP_GRPC":
        millis = keys.metric_grpc_exporter_interval_in_mills
        send, close = otlp_sender(keys)
    elif keys.metrics_exporter_type == "LOG":
        millis = keys.metric_logging_exporter_interval_in_mills
        send, close = log_them, lambda: None
    else:
        return None
    deltas = in_deltas(send) if keys.metrics_in_delta else send
    return Exporting(millis / 1000, metrics, deltas, close)


def pages_of_server(
    server: Server,
    reasons: Callable[[], list[str]],
    facts: Facts,
    metrics: Callable[[], Metrics],
    of_peer: Callable[[Peer], Mapping[str, object]] = lambda _: {},
) -> dict[str, Page]:
    """Return the pages of a server.

    ``reasons`` returns why clients are not served properly. ``facts`` are the server's own facts for ``/varz``, and
    ``of_peer`` returns the facts of a connection.
    """

    def ready(_: Request) -> Answer:
        found = reasons()
        if found:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(found))
        return plain(HTTPStatus.OK, "ok")

    def various(_: Request) -> Answer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return json_of(
            {
                "version": __version__,
                "pid": os.getpid(),
                **facts(),
                "notReady": reasons(),
                "connections": len(server.peers),
                "connectionsMax": server.connection_limit.connections_max,
                "cpuSeconds": round(used.ru_utime + used.ru_stime, 3),
                "memoryPeakBytes": used.ru_maxrss * 1024,
            }
        )

    return {
        "/healthz": lambda _: plain(HTTPStatus.OK, "ok"),
        "/readyz": ready,
        "/metrics": lambda _: Answer(HTTPStatus.OK, pieces(metrics()), CONTENT_TYPE),
        "/varz": various,
        "/connz": lambda request: _connections(server, request, of_peer),
    }


def _connections(server: Server, request: Request, of_peer: Callable[[Peer], Mapping[str, object]]) -> Answer:
    try:
        offset = max(0, int(request.query.get("offset", "0")))
        limit = int(request.query.get("limit", str(CONNECTIONS_LISTED_MAX)))
    except ValueError:
        return plain(HTTPStatus.BAD_REQUEST, "offset and limit must be whole numbers")
    limit = max(0, min(limit, CONNECTIONS_LISTED_MAX))
    peers = sorted(server.peers, key=lambda peer: peer.address)
    listed = [
        {
            "address": peer.address,
            **of_peer(peer),
            "unfinishedBytes": peer.unfinished_bytes,
            "unreadBytes": peer.unread_bytes,
            "reads": peer.reads,
            "waits": peer.waits,
        }
        for peer in peers[offset : offset + limit]
    ]
    return json_of({"total": len(peers), "offset": offset, "connections": listed})


def json_of(value: Any) -> Answer:
    """Return an answer of JSON."""
    return Answer(HTTPStatus.OK, _lines(value), JSON)


def _lines(value: Any) -> Iterable[bytes]:
    yield msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
