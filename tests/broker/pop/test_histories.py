"""Random pops, acknowledgements and ends of the broker: no message is lost, and none comes early.

A message may only come twice at once, or before its time, where a broker did not end in order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.testing.loop import START_MS, VirtualClock, VirtualLoop
from firearrow.wire.pop import Handle
from tests.broker.kvpops import KV
from tests.broker.popping import ack_fields, popped
from tests.broker.serving import Caller, Serving, kill
from tests.broker.world import Disk
from tests.net.talker import talking
from tests.store.stores import small_config

T = TypeVar("T")

STEPS: Final = 60
QUIET_SECONDS: Final = 200.0
OTHERS: Final = ("config", "kvStore", "timerwheel")


class History:
    """A broker, its only consumer, and what that must get."""

    def __init__(self, directory: Path, seed: int, *, is_sync: bool, **config: Any) -> None:
        self.chance = Random(seed)
        self._directory = directory
        self._config = config
        self._store = {"flush_disk_type": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH"}
        self._generation = 0
        self._now_ms = START_MS
        self.sent: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.perhaps_consumed: set[bytes] = set()  # acknowledged late
        self.visible_ms: dict[bytes, int] = {}
        self.held: list[tuple[bytes, Handle]] = []
        self.repeats = 0
        self._has_crashed = False
        self._numbers = itertools.count()
        self._root.mkdir()
        self._begin()

    @property
    def _root(self) -> Path:
        return self._directory / str(self._generation)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run something within the present life of the broker."""
        return self._runner.run(main)

    def _begin(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clock = VirtualClock(self._runner.get_loop())
        self.clock.start_ms = self._now_ms
        self._fs = Disk(self._root, others=OTHERS)
        self.run(self._open())

    async def _open(self) -> None:
        config = BrokerConfig(
            broker_name="broker-a", broker_cluster_name="C", broker_fast_failure_enable=False,
            server_channel_max_idle_time_seconds=10**7, **self._config,
        )  # fmt: skip
        store = small_config(
            self._root, flush_interval_consume_queue=10_000,
            mapped_file_size_consume_queue=4000, mapped_file_size_timer_log=52 * 100, **self._store,
        )  # fmt: skip
        chance = Random(self.chance.random())
        self.broker = Broker(config, store, self.clock, background=False, chance=chance, fs=self._fs)
        self._port = await self.broker.start("127.0.0.1", 0)

    async def _call(self, *calls: Any) -> list[Any]:
        """Make calls one after another."""
        async with talking(self._port) as talker:
            caller = Caller(Serving(self.broker, self._port), talker, False)
            return [await call(caller) for call in calls]

    # --- what happens ---

    def send(self) -> None:
        """Send some messages."""
        bodies = [b"%d" % next(self._numbers) for _ in range(self.chance.choice((1, 3, 20)))]

        def sending(body: bytes) -> Any:
            return lambda caller: caller.sent(body, queue_id=int(body) % 4)

        self.run(self._call(*map(sending, bodies)))
        self.sent.update(bodies)

    def pop(self, invisible_ms: int | None = None) -> int:
        """Pop what there is, and see that it is nobody's yet."""
        invisible_ms = invisible_ms or self.chance.choice((500, 3000, 15_000, 60_000))
        count = self.chance.choice((1, 8, 32))
        [taken] = self.run(self._call(lambda caller: popped(caller, invisibleTime=invisible_ms, maxMsgNums=count)))
        now_ms = self.clock.now_ms()
        for view, handle in taken:
            assert view.body in self.sent
            early = view.body in self.consumed or now_ms < self.visible_ms.get(view.body, 0)
            assert not early or self._has_crashed, f"{view.body} comes before its time"
            self.repeats += early
            self.visible_ms[view.body] = handle.visible_ms
            self.held.append((view.body, handle))
        return len(taken)

    def ack(self) -> None:
        """Acknowledge some of what was popped, as it may be late, or forget it."""
        for _ in range(self.chance.choice((1, 10, 50))):
            if not self.held:
                return
            body, handle = self.held.pop(self.chance.randrange(len(self.held)))
            fate = self.chance.random()
            if fate < 0.1:
                continue
            if fate < 0.2:
                self._change(body, handle)
            else:
                self._ack(body, handle)

    def _ack(self, body: bytes, handle: Handle) -> None:
        is_in_time = self.clock.now_ms() < handle.visible_ms
        self.run(self._call(lambda caller: caller.call(200051, ack_fields(handle))))
        if self.visible_ms[body] == handle.visible_ms:
            (self.consumed if is_in_time else self.perhaps_consumed).add(body)

    def _change(self, body: bytes, handle: Handle) -> None:
        """Have a message be visible at another time. By a handle that is outdated, that makes it
        come once more."""
        now_ms, invisible_ms = self.clock.now_ms(), self.chance.choice((1000, 20_000))
        if now_ms >= handle.visible_ms or self.visible_ms[body] != handle.visible_ms:
            return
        fields = ack_fields(handle, invisibleTime=invisible_ms)
        [answer] = self.run(self._call(lambda caller: caller.call(200053, fields)))
        assert answer.code == 0
        self.visible_ms[body] = now_ms + invisible_ms

    def sleep(self) -> None:
        """Let time pass."""
        self.run(asyncio.sleep(self.chance.choice((0.01, 1.0, 5.0, 30.0))))

    def switch(self) -> None:
        """Have pops noted elsewhere from now on."""
        is_on = not self.broker.settings.broker.pop_consumer_kv_service_enable
        self._config["pop_consumer_kv_service_enable"] = is_on
        body = f"popConsumerKVServiceEnable={str(is_on).lower()}".encode()
        [answer] = self.run(self._call(lambda caller: caller.call(25, {}, body)))
        assert answer.code == 0

    def roll_back(self) -> None:
        """Have all that is noted in the database moved to the revive topics."""
        [answer] = self.run(self._call(lambda caller: caller.call(200056, {})))
        assert answer.code == 0

    def restart(self) -> None:
        """Stop the broker, and start it again."""
        self.run(self.broker.stop())
        self._end()

    def kill(self) -> None:
        """Kill the process."""
        self._has_crashed = True
        kill(self.broker)
        self._end()

    def lose_power(self) -> None:
        """Have the machine fail."""
        self._has_crashed = True
        self._fs.crash(self._directory / str(self._generation + 1), self.chance.getrandbits(32))
        kill(self.broker)
        self._generation += 1
        self._end()

    def _end(self) -> None:
        self._now_ms = self.clock.now_ms() + self.chance.choice((1, 2000, 100_000))
        self._runner.close()
        self._begin()

    def finish(self) -> None:
        """Consume what there is until nothing comes any more."""
        quiet = 0.0
        while quiet < QUIET_SECONDS:
            if self.pop(120_000):
                quiet = 0.0
                for body, handle in self.held:
                    self._ack(body, handle)
                self.held.clear()
            else:
                self.run(asyncio.sleep(10))
                quiet += 10
        self.run(self.broker.stop())
        self._runner.close()


LIVELY: Final = ["send"] * 4 + ["pop"] * 6 + ["ack"] * 6 + ["sleep"] * 4
ENDS: Final = {"stops": ["restart"], "kills": ["restart", "kill"], "losses": ["lose_power"] * 2}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("ends", ENDS)
def test_each_message_is_consumed(tmp_path: Path, ends: str, buffered: bool, seed: int) -> None:
    is_sync = ends == "losses"
    config = {"enable_pop_buffer_merge": buffered}
    history = History(tmp_path, seed, is_sync=is_sync, **config)
    history.send()
    for _ in range(STEPS):
        getattr(history, history.chance.choice(LIVELY + ENDS[ends]))()
    history.finish()
    assert history.sent - history.consumed - history.perhaps_consumed == set()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("others", [[], ["switch", "switch", "roll_back"]], ids=["kv", "switched"])
@pytest.mark.parametrize("ends", ENDS)
def test_each_message_is_consumed_by_records(tmp_path: Path, ends: str, others: list[str], seed: int) -> None:
    """That are in RocksDB, or now there and now in the revive topics."""
    history = History(tmp_path, seed, is_sync=ends == "losses", **KV)
    history.send()
    for _ in range(STEPS):
        getattr(history, history.chance.choice(LIVELY + others + ENDS[ends]))()
    history.finish()
    assert history.sent - history.consumed - history.perhaps_consumed == set()
