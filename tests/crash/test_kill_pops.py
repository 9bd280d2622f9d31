"""``kill -9`` with popped messages in consumers' hands: each is acknowledged, or comes again."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.wire.command import request
from tests.broker.popping import ack, pop_fields, popped
from tests.broker.serving import Caller, Serving
from tests.crash.victim import serving
from tests.net.talker import talking

ROUNDS = 3
BATCHES = 25
SOON_MS = 2000  # messages of a dead consumer are visible after that
LATER_MS = 60_000  # later than the end of the test
DRAIN_SECONDS = 60.0


class Consumer:
    """Sends, pops, and acknowledges half of that, until the broker is killed."""

    def __init__(self) -> None:
        self._random = Random(7)
        self._numbers = itertools.count()
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()

    async def load(self, caller: Caller, process: subprocess.Popen[str]) -> None:
        """Work for a while, and have the broker be killed with pops on their way."""
        for _ in range(BATCHES):
            for _ in range(8):
                body = b"%d" % next(self._numbers)
                await caller.sent(body, queue_id=self._random.randrange(4))
                self.sent.add(body)
            for view, handle in await popped(caller, maxMsgNums=8, invisibleTime=SOON_MS):
                if self._random.random() < 0.5:
                    answer = await ack(caller, handle)
                    assert answer.code == 0
                    self.acknowledged.add(view.body)
        for opaque in range(10**6, 10**6 + 5):
            fields = pop_fields(invisibleTime=SOON_MS, maxMsgNums=4)
            caller.talker.ask(request(200050, fields, opaque=opaque))
        await asyncio.sleep(self._random.random() * 0.01)
        process.kill()

    async def drain(self, caller: Caller, _: object) -> None:
        """Acknowledge all that comes."""
        async with asyncio.timeout(DRAIN_SECONDS):
            while self.sent - self.acknowledged:
                taken = await popped(caller, invisibleTime=LATER_MS)
                for view, handle in taken:
                    assert view.body in self.sent
                    assert (await ack(caller, handle)).code == 0
                    self.acknowledged.add(view.body)
                if not taken:
                    await asyncio.sleep(0.1)


def life(
    store: Path, work: Callable[[Caller, subprocess.Popen[str]], Coroutine[Any, Any, None]], *settings: str
) -> None:
    """Have a consumer work with a broker that is killed, or stopped, in the end."""

    async def run(process: subprocess.Popen[str], port: int) -> None:
        async with talking(port) as talker:
            unused: Any = None
            served = Serving(unused, port)
            await work(Caller(served, talker, False), process)

    with serving(store, "brokerName=broker-a", *settings) as (process, port):
        asyncio.run(run(process, port))
        process.terminate()
        process.wait(30)


MEMORY = ("enablePopBufferMerge=true", "popCkStayBufferTime=1500", "popCkStayBufferTimeOut=100")
ROCKSDB = ("popConsumerKVServiceInit=true", "popConsumerKVServiceEnable=true")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("settings", [(), MEMORY, ROCKSDB], ids=["topic", "memory", "rocksdb"])
def test_a_killed_broker_loses_no_popped_message(tmp_path: Path, settings: tuple[str, ...]) -> None:
    consumer = Consumer()
    for _ in range(ROUNDS):
        life(tmp_path / "store", consumer.load, *settings)
    left = consumer.sent - consumer.acknowledged
    assert left
    life(tmp_path / "store", consumer.drain, *settings)


@pytest.mark.timeout(240)
def test_none_is_lost_when_each_life_notes_pops_elsewhere(tmp_path: Path) -> None:
    consumer = Consumer()
    for settings in (ROCKSDB, (), ROCKSDB):
        life(tmp_path / "store", consumer.load, *settings)
    assert consumer.sent - consumer.acknowledged
    life(tmp_path / "store", consumer.drain)
