"""Brokers as processes, the network between which a seed cuts under load.

For each broker of a name a client sends and another one reads, whatever its role is; if wanted, one
more sends what is to come later. All that anybody says goes through `tests.crash.wires`. In the end
there is one log, which `tests.crash.history` checks. `tests.crash.controlledcuts` and
`tests.crash.actingcuts` say who the brokers are, and what can happen to them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.wire.command import request
from tests.broker.serving import pull_fields, send_fields
from tests.crash.history import History
from tests.crash.victim import bodies_of_queue
from tests.crash.wires import OUTSIDE, Wires
from tests.interop.controllers import OurBroker
from tests.net.talker import Talker, talking

WITHIN_SECONDS: Final = 180  # a machine that runs much else takes a minute to start all
LOOK_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 2.0
BETWEEN_SENDS_SECONDS: Final = 0.005
QUEUES: Final = 2
Found = TypeVar("Found")


class Clients:
    """Send to and read from each of some ports, whoever serves there and whatever happens."""

    def __init__(self, ports: dict[str, int], delays_at: str = "") -> None:
        self.history = History(QUEUES)
        self.acknowledged: dict[str, int] = dict.fromkeys(ports, 0)
        self.delayed: set[bytes] = set()  # acknowledged messages that are to come later
        self._ports = ports
        self._delays_at = delays_at
        self._numbers = itertools.count()
        self._opaques = itertools.count(1)
        self._ends = False

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Send and read for a block, and until each has its last answer."""
        async with asyncio.TaskGroup() as group:
            for name, port in self._ports.items():
                group.create_task(self._repeat(port, partial(self._send, name)))
                group.create_task(self._repeat(port, partial(self._read, [0] * QUEUES)))
            if self._delays_at:
                group.create_task(self._repeat(self._ports[self._delays_at], self._delay))
            yield
            self._ends = True

    async def _repeat(self, port: int, some: Callable[[Talker], Awaitable[None]]) -> None:
        while not self._ends:
            with suppress(OSError, asyncio.IncompleteReadError):
                async with talking(port, OUTSIDE) as talker:
                    while not self._ends:
                        await some(talker)
            await asyncio.sleep(LOOK_SECONDS)

    async def _send(self, name: str, talker: Talker) -> None:
        number = next(self._numbers)
        queue_id, body = number % QUEUES, b"%d" % number
        self.history.sent.add(body)
        answer = await self._ask(talker, 310, send_fields("T", queue_id), body)
        if answer.code == 0:
            self.history.acknowledge(queue_id, int(answer.ext["queueOffset"]), [body])
            broker, offset = answer.ext["msgId"][:16], answer.ext["msgId"][16:]
            self.history.acknowledged_by(broker, int(offset, 16))
            self.acknowledged[name] += 1
        await asyncio.sleep(BETWEEN_SENDS_SECONDS if answer.code == 0 else LOOK_SECONDS)

    async def _delay(self, talker: Talker) -> None:
        number = next(self._numbers)
        later = f"DELAY\x012\x02UNIQ_KEY\x01{number}\x02"
        fields, body = send_fields("D", number % QUEUES, i=later), b"%d" % number
        if (await self._ask(talker, 310, fields, body)).code == 0:
            self.delayed.add(body)
        await asyncio.sleep(2 * LOOK_SECONDS)

    async def _read(self, offsets: list[int], talker: Talker) -> None:
        for queue_id, offset in enumerate(offsets):
            answer = await self._ask(talker, 11, pull_fields(offset, queueId=queue_id))
            if answer.code == 0:
                views = list(iter_records(answer.body))
                for at, view in enumerate(views, offset):
                    assert view.queue_offset == at
                    self.history.read(queue_id, at, view.body)
                offsets[queue_id] += len(views)
        await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, talker: Talker, code: int, fields: Any, body: bytes = b"") -> Any:
        opaque = next(self._opaques)
        talker.ask(request(code, fields, body, opaque=opaque))
        answer = await talker.answer(ANSWER_SECONDS)
        assert answer.opaque == opaque
        return answer


class Cuts:
    """Brokers by name, with the ports of who else there is, and what happens to the network."""

    faults: dict[str, Callable[[], Awaitable[None]]]
    delays_at = ""
    """The broker to which also messages go that are to come later."""

    def __init__(self, seed: int, brokers: Mapping[str, OurBroker], others: Mapping[str, int]) -> None:
        self.chance = Random(seed)
        self.happened: list[str] = []
        self.brokers = brokers
        self.all = {*brokers, *others}
        self.ports = {name: port_of(it.address) for name, it in brokers.items()}
        self.faults = {it.__name__: it for it in (self.delayed, self.lossy, self.doubled, self.reset)}
        self._others = others

    @asynccontextmanager
    async def started(self, names: Mapping[int, str], of: Iterable[str]) -> AsyncIterator[None]:
        """Have all run for a block, with clients of some brokers at work; check in the end what is
        left. ``names`` are those of processes that run already."""
        self.clients = Clients({name: self.ports[name] for name in of}, self.delays_at)
        self.wires = wires = Wires(self.chance)
        wires.names |= names
        self.client = Client(call_seconds=ANSWER_SECONDS)
        try:
            for name, port in self._others.items():
                await wires.serve(name, port)
            for name, port in self.ports.items():
                await wires.serve(name, port)
                await wires.serve(name, port + 1)
                self.start(name)
            async with self.clients.at_work():
                await self.settle()
                yield
                await self.settle()
            await self.check()
        finally:
            await self.client.close()
            await wires.close()
            for broker in self.brokers.values():
                broker.close()

    async def settle(self) -> None:
        """Wait until all is as it should be."""
        raise NotImplementedError

    async def check(self) -> None:
        """Check what is left, when nobody sends any more."""
        raise NotImplementedError

    def start(self, name: str) -> None:
        """Start a broker, or start it again."""
        self.brokers[name].start()
        self.wires.names[self.brokers[name].process.popen.pid] = name

    async def until(self, probe: Callable[[], Awaitable[Found | None]], what: str) -> Found:
        """Wait until something is found; give it."""
        try:
            async with asyncio.timeout(WITHIN_SECONDS):
                while True:
                    found = await probe()
                    if found:
                        return found
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{what}: not within {WITHIN_SECONDS} s of {self.happened}") from None

    async def acknowledged(self, names: Iterable[str]) -> None:
        """Wait until one of some brokers acknowledges what was sent from now on, or soon before."""
        before = {name: self.clients.acknowledged[name] for name in names}

        async def are_more() -> bool:
            return any(self.clients.acknowledged[it] > before[it] + 1 for it in before)

        await self.until(are_more, f"messages that one of {sorted(before)} acknowledges")

    async def queues_of(self, name: str) -> list[list[bytes]]:
        """What the queues of a broker hold."""
        async with talking(self.ports[name]) as talker:
            return [await bodies_of_queue(talker, at, 0) for at in range(QUEUES)]

    # --- what happens ---

    async def round(self, name: str = "") -> None:
        """Have something happen to the network when all is as it should be, heal it, and wait until
        clients go on."""
        await self.settle()
        name = name or self.chance.choice(sorted(self.faults))
        self.happened.append(name)
        await self.faults[name]()
        self.wires.heal()
        await self.acknowledged(self.clients.acknowledged)

    async def for_a_while(self) -> None:
        """Leave it at that for some time."""
        await asyncio.sleep(self.chance.uniform(0.2, 3))

    async def delayed(self) -> None:
        """All that is said takes 100 ms."""
        self.wires.delay_seconds = 0.1
        await self.for_a_while()

    async def lossy(self) -> None:
        """One in twenty has to be sent again."""
        self.wires.loss = 0.05
        await self.for_a_while()

    async def doubled(self) -> None:
        """Whoever connects does so twice, and says all twice."""
        self.wires.doubled = True
        self.wires.reset()
        await self.for_a_while()

    async def reset(self) -> None:
        """All connections end."""
        self.wires.reset()


def port_of(address: str) -> int:
    """The port of an address."""
    return int(address.rpartition(":")[2])
