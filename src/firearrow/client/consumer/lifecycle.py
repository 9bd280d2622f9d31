"""The life of a consumer on a session: begun once, ended once, as by ``async with``."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from firearrow.client.session.session import Session
from firearrow.errors import ClientError
from firearrow.wire.client_bodies import ConsumerData


class ConsumerLife:
    """Life of any consumer; ``joined`` is the result of `Session.of`. A session that only this consumer uses begins and
    ends with it."""

    def __init__(self, joined: tuple[Session, bool]) -> None:
        self.session, self._owns_session = joined
        self._state = "new"

    @property
    def group(self) -> str:
        """The group, as brokers call it."""
        raise NotImplementedError

    def consumer_data(self) -> ConsumerData:
        """Entry of the consumer in the heartbeat."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin; returns once the brokers know of it, and raises if that can't be."""
        if self._state != "new":
            raise ClientError(f"group {self.group!r} can't be started: it is {self._state}")
        self._state = "running"
        try:
            if self._owns_session:
                await self.session.start()
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End: what was committed reaches the brokers, which hear of the leave; what was received
        can't be acknowledged any more. Does no harm when it has ended."""
        if self._state != "running":
            return
        self._state = "stopped"
        try:
            await self._end()
        finally:
            await self.session.remove_consumer(self)
            if self._owns_session:
                await self.session.close()

    async def _begin(self) -> None:
        """Join the session, and do what else is to be done at first."""
        raise NotImplementedError

    async def _end(self) -> None:
        """End what was begun, but for the session; also where the begin has failed."""

    def _check_running(self) -> None:
        if self._state != "running":
            raise ClientError(f"group {self.group!r} does not run: it is {self._state}")
