"""Life of a consumer on a session: one start and one end, as by ``async with``."""

from __future__ import annotations

import asyncio
from typing import Self

from firearrow.client.session.session import Session
from firearrow.errors import ClientError
from firearrow.wire.client_bodies import ConsumerData


class ConsumerLife:
    """Life of any consumer; ``joined`` is the result of `Session.of`. A session that only this consumer uses starts and
    closes with it."""

    def __init__(self, joined: tuple[Session, bool]) -> None:
        self.session: Session
        self.session, self._owns_session = joined
        self._state = "new"
        self._closing = asyncio.Lock()

    @property
    def group(self) -> str:
        """Group as brokers call it."""
        raise NotImplementedError

    def consumer_data(self) -> ConsumerData:
        """Entry of the consumer in the heartbeat."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start; when this returns, the brokers know the consumer."""
        if self._state != "new":
            raise ClientError(f"group {self.group!r} can't be started: it is {self._state}")
        self._state = "running"
        try:
            if self._owns_session:
                await self.session.start()
            await self._begin()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Commit to the brokers and unregister. Messages that were received can't be acknowledged afterwards. A second
        call only waits for the first."""
        async with self._closing:
            if self._state != "running":
                return
            self._state = "closed"
            try:
                await self._end()
            finally:
                await self.session.remove_consumer(self)
                if self._owns_session:
                    await self.session.close()

    async def _begin(self) -> None:
        """Join the session and start the consumer's own parts."""
        raise NotImplementedError

    async def _end(self) -> None:
        """End the consumer's own parts, also after a failed start."""

    def _check_running(self) -> None:
        if self._state != "running":
            raise ClientError(f"group {self.group!r} is not running: it is {self._state}")
