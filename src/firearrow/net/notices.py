"""Word to others that nobody waits for: who does not hear it asks, or registers, soon anyway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from firearrow.errors import ConfigError
from firearrow.net.client import Client
from firearrow.net.tasks import Tasks

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 3.0


class Notices:
    """Sends one-way requests by a client, each in a task of its own.

    ``what`` says in the log what could not be told in time.
    """

    def __init__(self, client: Client, what: str) -> None:
        self._client = client
        self._what = what
        self._tasks = Tasks()

    def send(self, address: str, code: int, fields: Mapping[str, str | int], body: bytes = b"") -> None:
        """Begin to send one."""
        self._tasks.begin(self._send(address, code, fields, body), "a notice")

    async def stop(self) -> None:
        """Give up what is under way."""
        await self._tasks.close()

    async def _send(self, address: str, code: int, fields: Mapping[str, str | int], body: bytes) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await self._client.send(address, code, fields, body)
        except (OSError, TimeoutError, ConfigError) as error:  # any client may name an address
            log.warning("notice can't be sent", extra={"what": self._what, "address": address, "error": error})
