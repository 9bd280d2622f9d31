"""A broker on a free port with a small store, and a client that speaks in raw frames."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.clock import Clock, SystemClock
from firearrow.message.model import MessageView
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.command import Command, FieldValue, request
from tests.net.talker import Talker, talking
from tests.store.stores import abandon, messages, small_config

SUBSCRIPTION = 4
SUSPEND = 2
COMMIT = 1
STEP_SECONDS = 0.001  # of real or of virtual time
NOTIFY = 40  # the broker tells members of a group that it has changed


class Caller:
    """One connection to a broker; each call is answered before the next."""

    def __init__(self, serving: Serving, talker: Talker, binary: bool) -> None:
        self._serving = serving
        self.talker = talker
        self._binary = binary
        self._opaque = itertools.count(1)

    def tell(self, code: int, fields: Mapping[str, FieldValue], body: bytes = b"", *, oneway: bool = False) -> int:
        """Send a request and return its opaque."""
        command = request(code, fields, body, opaque=next(self._opaque), oneway=oneway)
        command.binary = self._binary
        self.talker.ask(command)
        return command.opaque

    async def call(self, code: int, fields: Mapping[str, FieldValue], body: bytes = b"") -> Command[Any]:
        """Send a request and return its answer."""
        opaque = self.tell(code, fields, body)
        answer = await self.talker.answer()
        while answer.code == NOTIFY and not answer.is_response:
            answer = await self.talker.answer()
        assert (answer.opaque, answer.binary, answer.flag) == (opaque, self._binary, 1)
        return answer

    async def send(
        self, body: bytes = b"body", topic: str = "T", queue_id: int = 0, **changed: FieldValue
    ) -> Command[Any]:
        """Send a message by 310 with some fields changed (one-letter names)."""
        return await self.call(310, send_fields(topic, queue_id, **changed), body)

    async def sent(self, *args: Any, **named: Any) -> dict[str, str]:
        """Send a message that must be taken; gives the fields of the answer."""
        answer = await self.send(*args, **named)
        assert (answer.code, answer.remark) == (0, None)
        fields: dict[str, str] = answer.ext
        return fields

    async def pull(self, queue_offset: int = 0, **changed: FieldValue) -> Command[Any]:
        """Pull from queue 0 of T for group g with a subscription to all."""
        return await self.call(11, pull_fields(queue_offset, **changed))

    async def stored(self, topic: str = "T", queue_id: int = 0) -> list[MessageView]:
        """What a queue holds, once dispatch has seen all of it by itself."""
        await self._serving.dispatched()
        return stored(self._serving, topic, queue_id)


def send_fields(topic: str = "T", queue_id: int = 0, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of 310 and 320."""
    fields: dict[str, FieldValue] = {
        "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
        "g": 1_795_000_000_000, "h": 7, "i": "TAGS\x01A\x02UNIQ_KEY\x01U1\x02", "j": 0, "k": False,
        "m": False,
    }  # fmt: skip
    return fields | changed


def pull_fields(queue_offset: int = 0, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of 11 and 361."""
    fields: dict[str, FieldValue] = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": queue_offset,
        "maxMsgNums": 32, "sysFlag": SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    return fields | changed


class Serving:
    """A running broker."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.port = port

    @asynccontextmanager
    async def caller(self, *, binary: bool = False) -> AsyncIterator[Caller]:
        """A connection of its own."""
        async with talking(self.port) as talker:
            yield Caller(self, talker, binary)

    async def dispatched(self) -> None:
        """Wait until consumers see all that was sent."""
        await until(lambda: self.broker.store.behind_bytes == 0)

    async def holding(self, count: int) -> None:
        """Wait until so many pulls are waiting."""
        await until(lambda: self.held == count)

    @property
    def held(self) -> int:
        """How many pulls are waiting."""
        return len(self.broker.pulling.held)


def stored(served: Serving, topic: str = "T", queue_id: int = 0) -> list[MessageView]:
    """What a queue holds, as consumers see it."""
    served.broker.store.catch_up()
    return messages(served.broker.store, topic, queue_id)


def bodies(served: Serving, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """The bodies in a queue."""
    return [view.body for view in stored(served, topic, queue_id)]


def seconds() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


def kill(broker: Broker) -> None:
    """End a broker as a kill of its process would: nothing is written or answered any more.

    Its loop has to end with it, as what it has planned there is not cancelled.
    """
    for feature in broker.features:
        feature.close()
    abandon(broker.store)


def left_by_kill(root: Path, elsewhere: Path) -> None:
    """Copy what a kill would leave now of a broker that goes on."""
    shutil.copytree(root, elsewhere)


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop run until something holds."""
    async with asyncio.timeout(10):
        while True:
            if holds():
                return
            await asyncio.sleep(STEP_SECONDS)


@asynccontextmanager
async def serving(
    root: Path,
    *,
    clock: Clock | None = None,
    store: Mapping[str, Any] | None = None,
    background: bool = True,
    **config: Any,
) -> AsyncIterator[Serving]:
    """A broker that is stopped in the end."""
    config.setdefault("broker_fast_failure_enable", False)  # this machine may be busy, too
    settings = BrokerConfig(broker_name="broker-a", broker_cluster_name="C", **config)
    broker = Broker(settings, small_config(root, **(store or {})), clock or SystemClock(), background=background)
    port = await broker.start("127.0.0.1", 0)
    try:
        yield Serving(broker, port)
    finally:
        await broker.stop()


def calling(
    root: Path, main: Callable[[Serving, Caller], Coroutine[Any, Any, None]], *, binary: bool = False, **options: Any
) -> None:
    """Run a test against a broker, with a first connection to it."""

    async def run() -> None:
        async with asyncio.timeout(30), serving(root, **options) as served, served.caller(binary=binary) as caller:
            await main(served, caller)

    asyncio.run(run())


def in_virtual_time(root: Path, main: Callable[[Serving, Caller], Coroutine[Any, Any, None]], **options: Any) -> None:
    """The same, with broker and clients on a loop of virtual time, whose clock all go by."""

    async def run(clock: VirtualClock) -> None:
        async with serving(root, clock=clock, background=False, **options) as served, served.caller() as caller:
            await main(served, caller)

    loop.run(run)
