"""When a broker's server takes clients."""

from __future__ import annotations

from firearrow.net.server import Server
from firearrow.services import Service


class Serving(Service):
    """Takes clients, between all that they need and all that is told of them."""

    def __init__(self, server: Server) -> None:
        super().__init__("server")
        self._server = server

    async def start(self) -> None:
        """Accept clients."""
        await self._server.serve()

    async def stop(self) -> None:
        """Let answers leave and close every connection."""
        await self._server.stop()
