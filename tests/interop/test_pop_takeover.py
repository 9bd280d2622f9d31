"""What one broker has popped and nobody has acknowledged, another gives again, in its time.

Brokers take the store from each other, in order or by ``kill -9``. Each gives what the ones before
it have left when its invisible time is over and not before, and pops some more.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from firearrow.wire.pop import parse_handle
from tests.interop.driver import Driver
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, Outgoing
from tests.interop.popper import Popped, Popper
from tests.interop.servers import Kind
from tests.interop.test_takeover import QUEUES, Handover
from tests.interop.waiting import wait_until

TOPIC, GROUP = "Popped", "poppers"
SOON_MS, LATER_MS = 3000, 12_000
EACH = 30
SETTINGS = {"flushConsumerOffsetInterval": "200"}  # what it has popped since, a kill forgets


class Leg(NamedTuple):
    """Who serves, and whether it is killed."""

    kind: Kind
    killed: bool = False
    forgets: bool = False  # killed before the group's offsets are in their file


OURS, KILLED = Leg("firearrow"), Leg("firearrow", killed=True)
FORGETS = Leg("firearrow", killed=True, forgets=True)
REAL, REAL_KILLED = Leg("real"), Leg("real", killed=True)
RELAYS: dict[str, tuple[Leg, ...]] = {"default": (KILLED, OURS, REAL, OURS)}
if os.environ.get("FIREARROW_ALL_HANDOVERS"):
    RELAYS |= {
        "there-and-back": (OURS, REAL, OURS),
        "back-and-there": (REAL, OURS, REAL),
        "killed": (KILLED, KILLED, OURS),
        "killed-at-once": (FORGETS, FORGETS, OURS),
        "killed-there": (KILLED, REAL, OURS),
        "killed-back": (REAL_KILLED, OURS, REAL),
        "defaultRocksDB": (OURS, REAL, OURS),
    }


class Relay:
    """The store; what was popped, and what of it is to come again, not before which time."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._popper = Popper(TOPIC, GROUP)
        self._sent = 0
        self._done: set[bytes] = set()  # acknowledged as soon as it was popped
        self._due_ms: dict[bytes, int] = {}
        self.awaited: set[bytes] = set()
        self.again: list[bytes] = []
        self.early: list[bytes] = []  # popped once more, as if they had not been
        self.twice: list[bytes] = []

    def run(self, leg: Leg, *, is_last: bool) -> None:
        """Serve once."""
        with self._handover.opened_by(leg.kind, killed=leg.killed) as java, self._popper.opened(java.server.broker):
            if not self._sent:
                java.create_topic(TOPIC, QUEUES)
            self._take_what_is_over(float("inf") if is_last else time.time() * 1000)
            if not is_last:
                java.producer().send(TOPIC, self._numbered(2 * EACH))
                self._pop(SOON_MS)
                self._pop(LATER_MS)
            if leg.killed and not leg.forgets:
                wait_until(self._is_saved, ARRIVAL_TIMEOUT_S, "offsets in their file")

    def _numbered(self, count: int) -> list[Outgoing]:
        """The next messages."""
        numbers = range(self._sent, self._sent + count)
        self._sent += count
        return [Outgoing(body=b"%d" % number, queue=number % QUEUES) for number in numbers]

    def _pop(self, invisible_ms: int) -> None:
        """Pop some messages; of three acknowledge one, and have one wait for some time."""
        popped: list[Popped] = []
        while len(popped) < EACH:
            some = self._popper.pop(count=EACH - len(popped), invisible_ms=invisible_ms, poll_ms=1000)
            popped += [message for message in some if not self._is_known(message)]
        for message in popped[::3]:
            assert self._popper.ack(message) == 0
            self._done.add(message.body)
        for message in popped[1::3]:
            self._wait_for(message.body, self._popper.change(message.handle, LATER_MS))
        for message in popped[2::3]:
            self._wait_for(message.body, message.handle)

    def _wait_for(self, body: bytes, handle: str) -> None:
        self.awaited.add(body)
        self._due_ms[body] = parse_handle(handle).visible_ms

    def _take_what_is_over(self, now_ms: float) -> None:
        """Pop until all is here that comes again at a time before this one."""

        def taken() -> bool:
            for message in self._popper.pop(poll_ms=500):
                assert self._is_known(message), message
            return not any(due_ms <= now_ms for due_ms in self._due_ms.values())

        wait_until(taken, ARRIVAL_TIMEOUT_S, f"what was popped; {self._due_ms}")

    def _is_known(self, message: Popped) -> bool:
        """Whether a message comes again; then acknowledge it."""
        if not message.view.reconsume_times:
            if message.body not in self._done | self.awaited:
                return False
            self.early.append(message.body)
            self._due_ms.pop(message.body, None)
            return self._popper.ack(message) == 0
        assert message.body not in self._done
        assert message.view.store_timestamp_ms >= self._due_ms.pop(message.body, 0)
        (self.twice if message.body in self.again else self.again).append(message.body)
        assert self._popper.ack(message) == 0
        return True

    def _is_saved(self) -> bool:
        """Whether a start finds the topic, and that the group has popped all of it."""
        topics, offsets = map(self._config, ("topics.json", "consumerOffset.json"))
        found = re.search(rf'"{TOPIC}@{GROUP}": ?{{([^}}]*)', offsets)
        popped = re.findall(r":(\d+)", found[1]) if found else []
        return TOPIC in topics and sum(map(int, popped)) == self._sent

    def _config(self, name: str) -> str:
        """A file of the broker, if it is there by now."""
        path = self._handover.store / "config" / name
        return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("name", RELAYS)
def test_what_was_popped_comes_again_under_another_broker(driver: Driver, tmp_path: Path, name: str) -> None:
    legs = RELAYS[name]
    store_type = name if name == "defaultRocksDB" else "default"
    relay = Relay(Handover(driver, tmp_path, store_type, **SETTINGS))
    for leg in legs[:-1]:
        relay.run(leg, is_last=False)
    relay.run(legs[-1], is_last=True)
    assert len(relay.awaited) == 2 * (2 * EACH // 3) * (len(legs) - 1)
    assert relay.early == []
    assert relay.awaited <= set(relay.again)
    if not any(leg.killed for leg in legs):
        assert relay.twice == []
