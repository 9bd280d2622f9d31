"""The servers that are fuzzed: each runs in a thread of its own, a test talks to it by socket.

To fuzz another server, add a `Target`.
"""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from firearrow.net.server import Peer
from firearrow.wire.codes import RequestCode
from tests.broker.serving import serving
from tests.namesrv.serving import name_server

START_SECONDS_MAX = 30


@dataclass(frozen=True)
class Target:
    """A server to be fuzzed.

    ``serve`` runs it, with its files in a directory, and gives its port. ``ping`` is a code that it
    answers with success, whatever was done to it, when it is asked without fields and body.
    ``held`` are the codes whose requests may be left open. ``forgets`` says that the answer to
    ``ping`` is what it was once all peers are gone.
    """

    name: str
    serve: Callable[[Path], AbstractAsyncContextManager[int]]
    ping: int
    codes: tuple[int, ...]
    held: frozenset[int] = frozenset()
    forgets: bool = False


@asynccontextmanager
async def _namesrv(directory: Path) -> AsyncIterator[int]:
    async with name_server(directory) as asker:
        yield asker.port


@asynccontextmanager
async def _broker(directory: Path) -> AsyncIterator[int]:
    async with serving(directory) as served:
        yield served.port


BROKER = Target(
    "broker",
    _broker,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    (10, 11, 12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 38, 41, 42, 46, 200,
     201, 202, 203, 204, 207, 208, 215, 223, 300, 307, 309, 310, 320, 352, 361, 105, 0, -1,
     2**31 - 1),
    held=frozenset({11, 361}),
)  # fmt: skip

TARGETS = [
    Target(
        "namesrv",
        _namesrv,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318,
         319, 322, 327, 901, 904, 10, 0, -1, 2**31 - 1),
        forgets=True,
    ),
    BROKER,
]  # fmt: skip


class Complaints(logging.Handler):
    """Keeps what is logged as an error or with a traceback; a sound server logs neither."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        if record.levelno >= logging.ERROR or record.exc_info:
            self.records.append(logging.Formatter().format(record))


class Stage:
    """A running target."""

    def __init__(self, target: Target, port: int, complaints: Complaints, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self.port = port
        self.complaints = complaints
        self._loop = loop

    def open_peers(self) -> int:
        """How many of its connections are still kept, wherever. Clusters that other tests share may
        have some in this process, too."""
        peers = [item for item in gc.get_objects() if isinstance(item, Peer)]
        return sum(peer.is_open and peer._server.loop is self._loop for peer in peers)


@contextmanager
def running(target: Target, directory: Path) -> Iterator[Stage]:
    """Run a target until the end of the block, and collect its complaints."""
    started = threading.Event()
    serving_at: list[tuple[int, asyncio.AbstractEventLoop]] = []
    stops: list[Callable[[], object]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with target.serve(directory) as port:
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            serving_at.append((port, loop))
            started.set()
            await stop.wait()

    gc.collect()  # what earlier tests have left says so before, not as a complaint of this one
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    thread = threading.Thread(target=lambda: asyncio.run(main()), name=f"fuzzed {target.name}")
    thread.start()
    try:
        assert started.wait(START_SECONDS_MAX), "the server did not start"
        port, loop = serving_at[0]
        yield Stage(target, port, complaints, loop)
    finally:
        for stop in stops:
            stop()
        thread.join(START_SECONDS_MAX)
        logging.getLogger().removeHandler(complaints)
    assert not thread.is_alive()
