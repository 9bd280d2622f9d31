"""When a broker's clients are served: between all that they need and all that is told of them."""

from __future__ import annotations

import asyncio
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.net.server import Server
from firearrow.services import Service

SECOND_PORT: Final = 2  # below listenPort, as upstream


class Serving(Service):
    """Takes clients from its start to its stop."""

    def __init__(self, server: Server) -> None:
        super().__init__("server")
        self._server = server
        self._second: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept clients."""
        await self._server.serve()

    def serve_replicas(self, config: BrokerConfig) -> None:
        """Take clients at the port where RocketMQ's slaves ask for topics, and its masters that
        come back for offsets.

        Java: MixAll#brokerVIPChannel; a broker has a second server there in any case.
        """
        if self._second is None:
            port = config.listen_port - SECOND_PORT
            self._second = asyncio.get_running_loop().create_task(self._server.serve_also(config.bind_address, port))

    async def stop(self) -> None:
        """Let answers leave and close every connection."""
        await self._server.stop()
