"""One store directory that the two brokers take from each other's hands, and are killed with.

Each leg finds all messages of the legs before it, field by field, and adds its own; half of the
legs end by ``kill -9``. In the end both read the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import ALL_HANDOVERS, SMALL_FILES, Kind, serve

pytestmark = pytest.mark.slow

QUEUES = 3
TOPICS = ("Single", "Batched")
# Who serves, and whether it is killed. A leg takes up to 15 s; the last two are like others.
ALL_LEGS: tuple[tuple[Kind, bool], ...] = (
    ("real", False),
    ("firearrow", True),
    ("real", True),
    ("firearrow", False),
    ("real", True),
    ("firearrow", True),
)
LEGS = ALL_LEGS if ALL_HANDOVERS else ALL_LEGS[:4]
SETTINGS: dict[str, dict[str, str]] = {"files": {}, "rocksdb": {"storeType": "defaultRocksDB"}}


@dataclass
class Relay:
    """The store, and the messages that it must have, in the order of the log."""

    driver: Driver
    directory: Path
    settings: dict[str, str]
    messages: list[dict[str, Any]]
    broker_port: int = 0
    leg: int = 0

    def run(self, kind: Kind, *, killed: bool, adds: bool = True) -> None:
        """Serve once: compare, add, and end one way or the other."""
        self.leg += 1
        logs = self.directory / f"{self.leg}-{kind}"
        settings = {**SMALL_FILES, **self.settings}
        with serve(
            kind, self.directory / "store", logs, broker_port=self.broker_port, settings=settings, killed=killed
        ) as server:
            self.broker_port = server.broker_port
            java = JavaClient(self.driver, server)
            if self.messages:
                assert self._dump(java) == self.messages
                self._find(java)
            if adds:
                sent = self._add(java)
                before, self.messages = self.messages, self._dump(java)
                assert self.messages[: len(before)] == before
                assert len(self.messages) == len(before) + sent
            java.close()

    def _dump(self, java: JavaClient) -> list[dict[str, Any]]:
        messages = java.dump(self.directory / "dump.jsonl")
        messages.sort(key=lambda message: message["physicalOffset"])
        return messages

    def _find(self, java: JavaClient) -> None:
        for leg in range(1, min(self.leg, len(LEGS) + 1)):
            for number in (0, 149, 299):
                assert len(java.query_key("Single", f"leg{leg}-{number}")) == 1

    def _add(self, java: JavaClient) -> int:
        if self.leg == 1:
            for topic in TOPICS:
                java.create_topic(topic, QUEUES)
        producer = java.producer()
        singles = [
            Outgoing(
                body=b"%d " % number * (number % 200 + 1),
                tags=("TagA", "标签", None)[number % 3],
                keys=f"leg{self.leg}-{number}",
                queue=number % QUEUES,
            )
            for number in range(300)
        ]
        producer.send("Single", singles)
        for batch in range(10):
            producer.send_batch("Batched", [Outgoing(body=b"%d" % batch) for _ in range(20)])
        return len(singles) + 200


@pytest.mark.parametrize("queues", SETTINGS if ALL_HANDOVERS else ["rocksdb"])
def test_a_store_goes_from_hand_to_hand(driver: Driver, tmp_path: Path, queues: str) -> None:
    relay = Relay(driver, tmp_path, SETTINGS[queues], [])
    for kind, killed in LEGS:
        relay.run(kind, killed=killed)
    relay.run("real", killed=False, adds=False)
    relay.run("firearrow", killed=False, adds=False)
    assert len(relay.messages) == 500 * len(LEGS)
