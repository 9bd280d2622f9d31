"""Whatever happens to halves, and to the broker, each is decided as its producer wants, once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from tests.broker.serving import Serving, bodies, left_by_kill, serving
from tests.broker.transacting import (
    COMMIT,
    HALF,
    PATIENT,
    ROLLBACK,
    ROUND_SECONDS,
    Check,
    Fields,
    Producer,
    of_check,
    producing,
)

OPTIONS: dict[str, Any] = PATIENT | {"transaction_check_max": 10**6}

numbers = st.integers(0, 7)
actions = st.one_of(
    st.tuples(st.just("begin"), st.sampled_from([COMMIT, COMMIT, ROLLBACK]), st.booleans()),
    st.tuples(st.just("end"), numbers, numbers),
    st.tuples(st.just("sleep"), st.sampled_from([1, 4, 10, ROUND_SECONDS, 3 * ROUND_SECONDS])),
    st.tuples(st.just("answer"), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill")),
)


class Transaction:
    """What its producer knows: how it ends, and by which halves it may say so."""

    def __init__(self, body: bytes, outcome: int, half: Fields) -> None:
        self.body = body
        self.outcome = outcome
        self.halves = [half]


class History:
    """A broker that is stopped and killed, and a producer that outlives it."""

    def __init__(self, clock: VirtualClock, directory: Path) -> None:
        self._clock = clock
        self._directory = directory
        self._roots = count()
        self._root = directory / "0"
        self._stack = AsyncExitStack()
        self._numbers = count()
        self._is_answering = False
        self.served: Serving
        self._producer: Producer
        self.transactions: dict[str, Transaction] = {}

    async def open(self) -> None:
        """Start the broker."""
        enter = self._stack.enter_async_context
        self.served = await enter(serving(self._root, clock=self._clock, background=False, **OPTIONS))
        self._producer = await enter(producing(self.served))
        self._producer.answer = self._answer

    async def close(self) -> None:
        """Stop it."""
        await self._stack.aclose()

    async def restart(self) -> None:
        """Stop and start it."""
        await self.close()
        await self.open()

    async def kill(self) -> None:
        """Have it go on from what a kill leaves now."""
        root = self._directory / f"killed {next(self._roots)}"
        left_by_kill(self._root, root)
        await self.close()
        self._root = root
        await self.open()

    def _answer(self, check: Check) -> int | None:
        transaction = self.transactions[check.fields["msgId"]]
        transaction.halves.append(of_check(check))
        return transaction.outcome if self._is_answering else None

    async def begin(self, outcome: int, is_immune: bool) -> None:
        """Send a half."""
        number = next(self._numbers)
        found = {"UNIQ_KEY": f"ID{number}"}
        if is_immune:
            found["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "45"
        body = b"%d" % number
        half = await self._producer.begin(body, **found)  # type: ignore[arg-type]
        self.transactions[f"ID{number}"] = Transaction(body, outcome, half)

    async def end(self, number: int, which: int) -> None:
        """Decide a half, or a copy that the producer was asked about; perhaps not for the first
        time."""
        transactions = list(self.transactions.values())
        if transactions:
            transaction = transactions[number % len(transactions)]
            half = transaction.halves[which % len(transaction.halves)]
            answer = await self._producer.ended(half, transaction.outcome, fromTransactionCheck=True)
            assert answer.code == 0

    async def sleep(self, seconds: int) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def answer(self, does: bool) -> None:
        """Have the producer answer checks from now on, or not."""
        self._is_answering = does

    async def finish(self) -> None:
        """Check that all is decided as it should be, and stays so."""
        await self.answer(True)
        await asyncio.sleep(5 * ROUND_SECONDS)
        wanted = sorted(it.body for it in self.transactions.values() if it.outcome == COMMIT)
        assert sorted(bodies(self.served)) == wanted
        for number in range(len(self.transactions)):
            for which in range(4):
                await self.end(number, which)
        assert sorted(bodies(self.served)) == wanted
        await asyncio.sleep(2 * ROUND_SECONDS)
        store, query = self.served.broker.store, self.served.broker.offsets.query
        end = store.max_queue_offset(HALF, 0)
        assert max(query("CID_RMQ_SYS_TRANS", HALF, 0), 0) == end
        size = store.log_end_offset
        await asyncio.sleep(20 * ROUND_SECONDS)
        assert store.log_end_offset == size


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(actions, min_size=3, max_size=14))
def test_each_transaction_is_decided_once(history: list[tuple[Any, ...]]) -> None:
    async def main(clock: VirtualClock) -> None:
        with TemporaryDirectory() as directory:
            world = History(clock, Path(directory))
            await world.open()
            for name, *arguments in history:
                await getattr(world, name)(*arguments)
            await world.finish()
            await world.close()

    loop.run(main)
