"""Proxy in cluster mode: its ports, in front of the brokers of a cluster."""

from __future__ import annotations

from typing import Final

from firearrow.auth.setup import credentials_of
from firearrow.clock import Clock
from firearrow.events import Events
from firearrow.net import tls
from firearrow.net.exposition import Metrics
from firearrow.net.grpc import drain
from firearrow.net.operations import Operations, pages_of_server
from firearrow.net.proxyheaders import networks_of
from firearrow.net.server import ConnectionClosed, Handler, Server
from firearrow.proxy.access import Anyone
from firearrow.proxy.cluster import ClusterBrokers
from firearrow.proxy.clusteraccess import patient
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.meter import CallMeter
from firearrow.proxy.metrics import Sources, metrics_of
from firearrow.proxy.remoting import RemotingClients
from firearrow.proxy.service import Service, limits_of


class ClusterProxy:
    """Proxy at a separate port, in front of the brokers of a cluster; ``start`` and ``stop`` once each.

    ``host`` is its address for clients that name none. ``memory_bytes_max`` limits the memory of all clients, 0 is a
    quarter of the machine's.
    """

    def __init__(self, config: ProxyConfig, host: str, clock: Clock, memory_bytes_max: int = 0) -> None:
        credentials = credentials_of(config.inner_client_authentication_credentials)
        self._config = config
        self._handlers: dict[int, Handler] = {}
        events = Events()
        self._server = Server(
            self._handlers,
            clock,
            events=events,
            idle_seconds_max=config.grpc_client_idle_time_mills / 1000,
            memory_bytes_max=memory_bytes_max or config.request_memory_bytes_max,
            plain_ext=True,
            tls=config,
        )
        access = tls.access_of(config, credentials)
        self._brokers = ClusterBrokers(config, access, clock, events, lambda: (host, self.port))
        self._remoting_host = config.remoting_access_addr or host
        self._remoting = RemotingClients(
            self._server, self._brokers, config, clock, lambda: (self._remoting_host, self.remoting_port)
        )
        events.listen(ConnectionClosed, self._remoting.closed)
        rights = self._brokers.rights
        meter = CallMeter(clock, self._server.departures) if config.has_metrics else None
        self.service: Final = Service(
            self._brokers,
            Anyone() if rights is None else rights.users_of_calls(),
            config,
            clock,
            meter,
            lambda: len(self._server.grpc_peers),
        )
        pages = pages_of_server(self._server, self._reasons_against, self._facts, self._metrics)
        self.operations: Final = Operations(config, pages, self._metrics)
        self.port: int = 0
        self.remoting_port: int = 0

    async def start(self, *, shares_port: bool = False) -> int:
        """Listen on the port of the configuration (0: a free one) and return it; CannotListen if that fails. With
        ``shares_port`` several processes may listen there.
        """
        config = self._config
        methods = self.service.methods()
        if config.authentication_enabled:
            methods = {path: patient(method) for path, method in methods.items()}
        self._server.grpc_methods = methods
        self._server.grpc_limits = limits_of(config)
        self._server.proxy_headers.trusted = networks_of(config.proxy_protocol_trusted_networks)
        self._server.grpc_everywhere = config.enable_remoting_local_proxy_grpc
        self.port = await self._server.bind(
            config.bind_address, config.grpc_server_port, shares_port=shares_port, is_for_grpc=True
        )
        try:
            await self.operations.bind(config.bind_address)
        except OSError:
            self.operations.close()
            await self._server.stop()
            raise
        self._brokers.start()
        await self._server.serve()
        await self.operations.start()
        return self.port

    async def serve_remoting(self, *, shares_port: bool = False) -> tuple[str, int]:
        """Serve remoting clients, too, at a separate port; return host and port.

        `start` comes first, and raises the same errors.
        """
        config = self._config
        self.remoting_port = await self._server.serve_also(
            config.bind_address, config.remoting_listen_port, shares_port=shares_port
        )
        self._handlers |= self._remoting.handlers()
        return self._remoting_host, self.remoting_port

    async def stop(self) -> None:
        """Send clients away, let their pending calls end, give back their messages, and close all connections."""
        self._server.retire_grpc()
        self.service.end_waits()
        await drain(self._server.grpc_peers, self._config.grpc_shutdown_time_seconds)
        self.service.stop()
        await self.operations.stop()
        await self._server.stop()
        await self._remoting.stop()
        await self._brokers.stop()

    # --- status ---

    def _metrics(self) -> Metrics:
        meter = self.service.meter
        assert meter is not None, "metrics are requested only with a meter"
        return metrics_of(Sources(self.service, meter, self._server, "cluster"), self._config)

    def _reasons_against(self) -> list[str]:
        return [] if self.service.health.is_serving else ["stop: the proxy stops"]

    def _facts(self) -> dict[str, object]:
        config = self._config
        return {
            "proxyName": config.proxy_name,
            "clusterName": config.proxy_cluster_name,
            "port": self.port,
            "grpcConnections": len(self._server.grpc_peers),
            "remotingPort": self.remoting_port,
            "remotingClients": len(self._remoting),
            "clients": sum(1 for _ in self.service.clients.all()),
        }
