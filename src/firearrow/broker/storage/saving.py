"""Writes of a broker's state files, and answers that wait for the disk.

A change by a request outlives the process before the request is answered (`StateFile.keep`). A change by an
administrator or a heartbeat is also durable before the answer: the answers of some milliseconds wait for one sync, in a
thread. A send or a pull that made its topic or group does not wait: a start gives a topic to messages without one. A
thread writes the files themselves within a second of a change (`SavingService`), each at most once a second, since the
time to write them grows with their content. That thread rests three times as long as it works. The event loop gives up
the interpreter at each system call, and got it back half a millisecond later each time, which made 100 ms of formatting
70 of waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from firearrow.broker.state.persistence import Rest, StateFile
from firearrow.logs import Log
from firearrow.net.gathering import Answers as BulkAnswers
from firearrow.net.server import FINISHED, Answer, BulkHandler, Finished, Handler, Peer, PeerRequest, Steps
from firearrow.services import Alarm, Scheduler, Service
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

WRITE_SECONDS: Final = 1.0
REST_SECONDS: Final = 0.003

_Waiting = tuple[Peer, AnyCommand, Response | bytes]
Confirming = Callable[[Peer, AnyCommand, Response | bytes], Finished]
"""Returns an answer, perhaps another one, or None and sends it later."""


class SyncedState(Protocol):
    """State that stores changes at once, so that they outlive the process."""

    unsynced: bool  # True if a stored change may not be durable

    def sync(self) -> None:
        """Return once the stored changes are durable, in any thread; OSError if the disk fails."""
        ...


class Saving(Service):
    """Service that syncs stored changes, and writes state files, in the default executor of the running event loop.

    ``kept`` are the states that store changes at once; any files may be written. Answers to codes of ``confirming`` go
    through that function when the changes are durable.
    """

    def __init__(
        self,
        kept: Sequence[SyncedState],
        name: str = "saving",
        confirming: Mapping[int, Confirming] = MappingProxyType({}),
    ) -> None:
        super().__init__(name)
        self._confirming = confirming
        self._loop = asyncio.get_running_loop()
        self._kept = kept
        self._waiting: list[_Waiting] = []
        self._syncing: asyncio.Task[None] | None = None
        self._due: dict[StateFile, None] = {}
        self._writing: asyncio.Future[None] | None = None
        self._hurry = threading.Event()

    def holding(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers whose answers wait until their changes are durable."""
        return {code: self._holding(handler) for code, handler in handlers.items()}

    def _holding(self, handler: Handler) -> Handler:
        kept = self._kept

        def handle(peer: Peer, request: AnyCommand) -> Answer:
            answer = handler(peer, request)
            if type(answer) is bytes:  # of requests that may be frequent
                for file in kept:
                    if file.unsynced:
                        return self._held(peer, request, answer)
                return answer
            if isinstance(answer, FINISHED):
                return self._held(peer, request, answer)
            return self._held_in_the_end(peer, request, answer)

        return handle

    def holding_several(self, handlers: Mapping[int, BulkHandler]) -> dict[int, BulkHandler]:
        """Return bulk handlers that change nothing themselves. While a change is not durable yet, they leave each
        request to the handler of one.
        """
        return {code: self._holding_several(handler) for code, handler in handlers.items()}

    def _holding_several(self, handler: BulkHandler) -> BulkHandler:
        def handle(requests: Sequence[PeerRequest]) -> BulkAnswers:
            return None if self._has_unsynced() else handler(requests)

        return handle

    def _held_in_the_end(self, peer: Peer, request: AnyCommand, steps: Steps) -> Steps:
        return self._held(peer, request, (yield from steps))

    def _held(self, peer: Peer, request: AnyCommand, answer: Finished) -> Finished:
        if answer is None:
            return None
        if self._has_unsynced():
            self._waiting.append((peer, request, answer))
            peer.owed += 1
            if self._syncing is None:
                self._syncing = self._loop.create_task(self._sync())
            return None
        confirm = self._confirming.get(request.code)
        return answer if confirm is None else confirm(peer, request, answer)

    def _has_unsynced(self) -> bool:
        """Tell whether any change is not durable: the answer may contain it."""
        for file in self._kept:  # noqa: SIM110 - `any` with a generator takes three times as long
            if file.unsynced:
                return True
        return False

    async def _sync(self) -> None:
        """Sync as long as answers wait; later ones wait for the next sync."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            refusal = None
            try:
                await self._loop.run_in_executor(None, _sync_all, self._kept)
            except OSError as error:
                log.error("change of state can't be made durable", extra={"error": error})
                refusal = _refusal(error)
            except Exception as error:  # the boundary: otherwise the waiting requests would never be answered
                log.error("change of state can't be made durable", exc_info=error)
                refusal = _refusal(error)
            for peer, request, answer in waiting:
                peer.owed -= 1
                assert peer.owed >= 0, "an owed answer is sent once"
                confirm = self._confirming.get(request.code) if refusal is None else None
                ready: Finished = refusal or answer
                if confirm is not None:
                    ready = confirm(peer, request, answer)
                if ready is not None:
                    peer.reply(request, ready)
        self._syncing = None

    def write(self, *files: StateFile) -> None:
        """Write files that are behind, after the write in progress."""
        self._due.update(dict.fromkeys(files))
        if self._writing is None:
            self._write_due()

    def _write_due(self) -> None:
        assert self._writing is None, "one thread at a time writes"
        due, self._due = self._due, {}
        writes = [write for file in due if (write := file.prepare()) is not None]
        if writes:
            self._writing = self._loop.run_in_executor(None, self._write_all, writes)
            self._writing.add_done_callback(self._written)

    def _write_all(self, writes: Iterable[Callable[[Rest], None]]) -> None:
        for write in writes:
            try:
                write(partial(self._hurry.wait, REST_SECONDS))
            except Exception as error:  # the boundary: the other files are written nevertheless
                log.error("file can't be written: the write is retried", exc_info=error)

    def _written(self, _: asyncio.Future[None]) -> None:
        self._writing = None
        self._write_due()

    @property
    def is_writing(self) -> bool:
        """Tell whether a thread writes files."""
        return self._writing is not None

    async def stop(self) -> None:
        """Return once no answer waits and no write is in progress; writes no longer rest."""
        self._hurry.set()
        await self.finish()

    async def finish(self) -> None:
        """Return once no answer waits and no write is in progress."""
        if self._syncing is not None:
            await self._syncing
        while self._writing is not None:
            await asyncio.wait([self._writing])


class SavingService(Service):
    """Service that writes files within a second of a stored change; nothing runs without changes. After a failure of
    the disk it retries each second.
    """

    def __init__(self, saving: Saving, files: Sequence[StateFile], scheduler: Scheduler) -> None:
        super().__init__("tables")
        self._saving = saving
        self._files = files
        self._alarm = Alarm(scheduler, self._look)

    async def start(self) -> None:
        """Begin to follow changes."""
        for file in self._files:
            file.on_kept = self._soon
        self._soon()

    async def stop(self) -> None:
        """Follow no more changes."""
        for file in self._files:
            file.on_kept = None
        self._alarm.cancel()

    def _soon(self) -> None:
        if not self._alarm.is_set:
            self._alarm.set(WRITE_SECONDS)

    def _look(self) -> None:
        if any(file.behind for file in self._files) or self._saving.is_writing:
            self._saving.write(*self._files)
            self._soon()


def _refusal(error: Exception) -> Response:
    return Response(ResponseCode.SYSTEM_ERROR, f"the change is not durable: {error}")


def _sync_all(files: Iterable[SyncedState]) -> None:
    for file in files:
        file.sync()
