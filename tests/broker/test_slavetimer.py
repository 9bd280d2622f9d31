"""A slave's timer follows its master's: as a master, the slave goes on where that was."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.broker.timing.timer import MasterTimer
from firearrow.store.timerfiles import CHECK
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire import fastjson
from tests.broker.replicated import caught_up, replica
from tests.broker.replication.test_slavesync import name_server
from tests.broker.serving import Caller, Serving, bodies, until

TICK_SECONDS = 3.0
SETTLED_SECONDS = 3 * TICK_SECONDS  # then the slave knows that a message was delivered
ROLLS: dict[str, Any] = {"timer_roll_window_slot": 20}


def timed(key: str, **asked: object) -> str:
    pairs = {"UNIQ_KEY": key, **asked}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


async def send(caller: Caller, body: bytes, ahead_ms: int) -> None:
    await caller.sent(body, i=timed(body.decode(), TIMER_DELAY_MS=ahead_ms))


def pending(served: Serving) -> int:
    return sum(served.broker.timing.store.pending.values())


@asynccontextmanager
async def followed(root: Path, clock: VirtualClock, ahead_ms: int) -> AsyncIterator[tuple[Serving, Serving]]:
    """A master, and a slave that has the master's message ``a``, which is due then."""
    async with (
        name_server(clock) as address,
        replica(root / "m", clock, namesrv_addr=address) as master,
        master.caller() as caller,
        replica(root / "s", clock, role="SLAVE", namesrv_addr=address) as slave,
    ):
        await send(caller, b"a", ahead_ms)
        await until(lambda: slave.broker.replication.sync.rounds > 0)
        await caught_up(slave, master)
        yield master, slave


def test_a_slave_that_becomes_the_master_delivers_what_is_left_and_nothing_again(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with name_server(clock) as address:
            async with (
                replica(tmp_path / "m", clock, namesrv_addr=address, store=ROLLS) as master,
                master.caller() as caller,
                replica(tmp_path / "s", clock, role="SLAVE", namesrv_addr=address, store=ROLLS) as slave,
            ):
                for number in range(20):
                    await send(caller, b"early%d" % number, 1 + number * 300)
                for number in range(20):
                    await send(caller, b"late%d" % number, 60_000 + number * 500)
                await asyncio.sleep(40)  # the late ones have rolled
                await send(caller, b"last", 30_000)
                await asyncio.sleep(SETTLED_SECONDS)
                await caught_up(slave, master)
                assert sorted(bodies(master)) == sorted(b"early%d" % n for n in range(20))
                assert pending(slave) == pending(master) == 21
                progress = slave.broker.timing.store.progress
                assert progress.queue_offset == master.broker.timing.store.progress.queue_offset
            async with replica(tmp_path / "s", clock, namesrv_addr=address, store=ROLLS) as leads:
                assert pending(leads) == 21
                await asyncio.sleep(60)
                await leads.dispatched()
                names = [b"early%d" % n for n in range(20)] + [b"late%d" % n for n in range(20)]
                assert sorted(bodies(leads)) == sorted([*names, b"last"])
                assert pending(leads) == 0

    loop.run(main)


@pytest.mark.parametrize("seed", range(12))
def test_whenever_the_master_is_lost_each_message_comes(tmp_path: Path, seed: int) -> None:
    """What was delivered some seconds before comes once, what was not comes at least once."""
    chance = Random(seed)
    delivered: set[bytes] = set()

    async def main(clock: VirtualClock) -> None:
        async with name_server(clock) as address:
            async with (
                replica(tmp_path / "m", clock, namesrv_addr=address) as master,
                master.caller() as caller,
                replica(tmp_path / "s", clock, role="SLAVE", namesrv_addr=address) as slave,
            ):
                sent = []
                for number in range(chance.randrange(1, 80)):
                    sent.append(b"%d" % number)
                    await send(caller, sent[-1], chance.choice((1, 400, 1500, 3000, 20_000)))
                    await asyncio.sleep(chance.choice((0, 0.01, 0.4, 2)))
                    if number == 40:
                        delivered.update(bodies(master))
                        await asyncio.sleep(SETTLED_SECONDS)
                await caught_up(slave, master)
            async with replica(tmp_path / "s", clock) as leads:
                await asyncio.sleep(30)
                await leads.dispatched()
                found = Counter(bodies(leads))
                assert found.keys() == set(sent)
                assert {body: found[body] for body in delivered} == dict.fromkeys(delivered, 1)

    loop.run(main)


def test_what_the_master_says_counts_when_the_log_is_here(tmp_path: Path) -> None:
    """Else what it had delivered and the slave had not got would be lost with the master."""

    async def main(clock: VirtualClock) -> None:
        async with followed(tmp_path, clock, 1000) as (master, slave):
            assert slave.broker.replicas.slave is not None
            await slave.broker.replicas.slave.stop()
            began_ms = slave.broker.timing.store.progress.read_ms
            await asyncio.sleep(30)
            assert bodies(master) == [b"a"]
            assert slave.broker.timing.store.progress.read_ms <= began_ms + 2 * 1000 * TICK_SECONDS
            assert slave.broker.store.log_end_offset < master.broker.store.log_end_offset
            await slave.broker.replicas.slave.start()
            await caught_up(slave, master)
            await asyncio.sleep(SETTLED_SECONDS)
            assert slave.broker.timing.store.progress.queue_offset == 1
            assert pending(slave) == 0

    loop.run(main)


def test_a_master_whose_progress_goes_back_is_followed(tmp_path: Path) -> None:
    """RocketMQ's begins again at an older progress when it was killed."""

    async def main(clock: VirtualClock) -> None:
        async with followed(tmp_path, clock, 60_000) as (_, slave):
            await asyncio.sleep(SETTLED_SECONDS)
            timing = slave.broker.timing
            before = timing.store.progress
            earlier_ms = before.read_ms - 2 * timing.store.precision_ms
            assert timing.timed is not None
            timing.timed.follow(MasterTimer(earlier_ms, before.queue_offset, (1, 1, 1), 0))
            await until(lambda: timing.store.progress.read_ms == earlier_ms)
            await asyncio.sleep(SETTLED_SECONDS)
            assert timing.store.progress.read_ms > before.read_ms
            assert pending(slave) == 1

    loop.run(main)


def test_what_the_master_says_counts_when_the_log_is_dispatched(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with followed(tmp_path, clock, 1000) as (master, slave):
            store, timers = slave.broker.store, slave.broker.timing.store
            store.dispatching.limit_to(store.log_end_offset)
            began_ms = timers.progress.read_ms
            await asyncio.sleep(30)
            assert bodies(master) == [b"a"]
            assert store.log_end_offset == master.broker.store.log_end_offset
            assert timers.progress.read_ms <= began_ms + 2 * 1000 * TICK_SECONDS
            store.dispatching.limit_to(None)
            await caught_up(slave, master)
            await asyncio.sleep(SETTLED_SECONDS)
            assert timers.progress.read_ms > began_ms + 20_000
            assert timers.progress.queue_offset == 1
            assert pending(slave) == 0

    loop.run(main)


def test_a_slave_s_timer_has_nothing_dispatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its master is ahead by would be dispatched at once, and nothing copied meanwhile."""

    async def main(clock: VirtualClock) -> None:
        async with followed(tmp_path, clock, 20_000) as (master, slave), master.caller() as caller:
            await asyncio.sleep(SETTLED_SECONDS)
            asked: list[int] = []
            copied = slave.broker.store
            monkeypatch.setattr(copied, "catch_up", lambda: asked.append(copied.behind_bytes))
            await send(caller, b"b", 1000)
            await caught_up(slave, master)
            await asyncio.sleep(SETTLED_SECONDS)
            assert pending(slave) == pending(master) == 1
            assert not asked

    loop.run(main)


def test_a_master_answers_how_far_its_timer_is(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with replica(tmp_path / "m", clock) as master, master.caller() as caller:
            await send(caller, b"a", 1000)
            await asyncio.sleep(5)
            await send(caller, b"b", 20_000)
            await asyncio.sleep(5)
            answer = await caller.call(60, {})
            read_ms, _, own, told, *_ = CHECK.unpack(answer.body)
            assert (own, told) == (2, 2)
            assert clock.now_ms() - 1000 <= read_ms <= clock.now_ms()
            counts = fastjson.decode((await caller.call(61, {})).body, dict[str, Any])
            assert counts["timingCount"]["T"]["count"] == 1
            await asyncio.sleep(40)
            read_ms, *_ = CHECK.unpack((await caller.call(60, {})).body)
            assert clock.now_ms() - 1000 <= read_ms <= clock.now_ms()

    loop.run(main)
