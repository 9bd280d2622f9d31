"""A master and a slave as processes, either of which is killed under load, again and again.

The logs must be the same byte by byte as far as the slave's goes, and what a SYNC_MASTER has
acknowledged must be on its slave.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from firearrow.store.offline import Layout, StoreComparison, diff
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.command import Command, request
from tests.crash.victim import Victim, serving
from tests.interop.servers import free_port
from tests.net.talker import Talker, talking

FOLLOWS_SECONDS: Final = 60
ANSWER_SECONDS: Final = 60
MOMENTS: Final = (0, 0.005, 0.05)
PAUSES: Final = (0.01, 0.3, 1.0)
AGAIN_ACKNOWLEDGED_MAX: Final = 400
PATIENT: Final = ("slaveTimeout=60000", "brokerFastFailureEnable=false", "osPageCacheBusyTimeOutMills=60000")


async def until_followed(port: int) -> None:
    """Wait until a master's first slave has all of its log."""
    async with asyncio.timeout(FOLLOWS_SECONDS), talking(port) as talker:
        while True:
            talker.ask(request(907, {}))
            status = fastjson.decode((await talker.answer()).body, HaStatus)
            slaves = status.ha_connection_info
            if slaves and slaves[0].slave_ack_offset == status.master_commit_log_max_offset:
                return
            await asyncio.sleep(0.01)


class Running(NamedTuple):
    """A broker: where it serves, and how it is killed, told to stop, and sent another signal."""

    port: int
    kill: Callable[[], object]
    stop: Callable[[], object]
    signal: Callable[[int], object] | None = None


class Replicas(Victim):
    """A master and a slave through many kills. ``behind_bytes`` are how far the slave was behind
    after each."""

    def __init__(self, seed: int, root: Path, kind: str, *, is_sync: bool) -> None:
        self._slave_store = root / "slave" / "store"
        super().__init__(seed, root / "master" / "store")
        for store in (self._store, self._slave_store):
            store.parent.mkdir(parents=True)
        self._is_sync = is_sync
        self._kind = f"storeType={kind}"
        self._ha_port = free_port(0)
        self._acknowledged_offset = -1
        self.behind_bytes: list[int] = []

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Both brokers, the slave following; they are killed in the end."""
        with ExitStack() as self._stack, ThreadPoolExecutor(2) as threads:
            starts = threads.submit(self._start_master), threads.submit(self._start_slave)
            self._master, self._slave = (start.result() for start in starts)
            asyncio.run(until_followed(self._master.port))
            yield

    def _start_master(self) -> Running:
        role = ("brokerRole=SYNC_MASTER", "inSyncReplicas=2") if self._is_sync else ()
        ha_port = f"haListenPort={self._ha_port}"
        return self._enter(self._store, self._kind, ha_port, *PATIENT, *role)

    def _start_slave(self) -> Running:
        master = f"haMasterAddress=127.0.0.1:{self._ha_port}"
        return self._enter(self._slave_store, self._kind, "brokerRole=SLAVE", "brokerId=1", master)

    def _enter(self, store: Path, *settings: str) -> Running:
        """Start a broker that ends with the round."""
        process, port = self._stack.enter_context(serving(store, *settings))

        def stop() -> None:
            process.terminate()
            assert process.wait(30) == 0

        return Running(port, process.kill, stop, process.send_signal)

    # --- kills ---

    def round(self, *_: str) -> None:
        """Start both, compare what the master has with what it acknowledged, send, and kill while
        messages are under way: the master and a moment later the slave. In some rounds before that
        the slave alone, which comes back while the master goes on, or one of both is paused."""
        with self._running():
            port = self._master.port
            asyncio.run(self._compare_new(port))
            self._first = self._random.choice((None, None, self._bring_back, self._pause))
            asyncio.run(self._load(port, self._strike))
            self._slave.kill()
        self._compare_logs()

    def _strike(self) -> None:
        first, self._first = self._first, None
        if first is None:
            self._master.kill()
        else:
            self._left = 1 << 60
            self._going_on = asyncio.get_running_loop().create_task(self._go_on(first))

    async def _answer(self, talker: Talker) -> Command[Any]:
        """The next answer; none comes while a slave starts that is waited for."""
        return await talker.answer(ANSWER_SECONDS)

    async def _go_on(self, first: Callable[[], Awaitable[None]]) -> None:
        await first()
        self._left = self._random.randrange(AGAIN_ACKNOWLEDGED_MAX)

    async def _bring_back(self) -> None:
        self._slave.kill()
        await asyncio.sleep(self._random.choice(MOMENTS))
        self._slave = await asyncio.to_thread(self._start_slave)

    async def _pause(self) -> None:
        send_signal = self._random.choice((self._master, self._slave)).signal
        if send_signal is not None:
            send_signal(signal.SIGSTOP)
            await asyncio.sleep(self._random.choice(PAUSES))
            send_signal(signal.SIGCONT)

    def _acknowledge(self, fields: dict[str, str], queue_id: int, bodies: list[bytes]) -> None:
        super()._acknowledge(fields, queue_id, bodies)
        last = fields["msgId"].rpartition(",")[2]
        self._acknowledged_offset = max(self._acknowledged_offset, int(last[16:], 16))

    # --- comparing ---

    def _compare(self) -> StoreComparison:
        return diff(Layout(self._store), Layout(self._slave_store))

    def _compare_logs(self) -> None:
        """The slave's log is the master's, as far as it goes."""
        found = self._compare()
        logs = [it for it in found.differences if it.part == "log"]
        ends = [it for it in logs if it.kind == "only in the first"]
        assert logs == ends, logs
        start, end = found.log_compared
        assert start == 0
        if self._is_sync:
            assert end > self._acknowledged_offset, "what was acknowledged is not on the slave"
        master_end = int(ends[0].what.split()[5].rstrip(",")) if ends else end
        self.behind_bytes.append(master_end - end)

    def end(self) -> None:
        """Stop both in order: they are the same then, and the slave is as good a master."""
        with self._running():
            asyncio.run(self._compare_new(self._master.port))
            self._master.stop()
            self._slave.stop()
        found = self._compare()
        assert [it for it in found.differences if it.part in {"log", "queues"}] == []
        assert found.queues == []
        with serving(self._slave_store, self._kind) as (process, port):
            assert asyncio.run(self._read(port, [0] * len(self.kept))) == self.kept
            process.terminate()
            assert process.wait(30) == 0
