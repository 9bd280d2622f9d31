"""A consumer that pops with frames of its own, for what the official clients do not let one see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import origin_topic, parse_handle
from tests.interop.differ_pops import handles_of
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S
from tests.interop.servers import BROKER_NAME
from tests.interop.waiting import wait_until
from tests.net.rawclient import RawClient, RawPending

SUCCESS, NOT_FOUND = 0, (209, 210)
POP, ACK, PEEK, CHANGE = 200050, 200051, 200052, 200053
NOTIFICATION, POLLING_INFO = 200054, 200055
QUERY_OFFSET, MAX_OFFSET = 14, 30


@dataclass(frozen=True)
class Popped:
    """A message with its handle."""

    view: MessageView
    handle: str

    @property
    def body(self) -> bytes:
        """What was sent."""
        return self.view.body


@dataclass
class Popper:
    """One consumer of a group; it holds no connection but while it is `opened`."""

    topic: str
    group: str
    client: RawClient = field(default_factory=lambda: RawClient(timeout_seconds=30))
    broker: str = ""

    @contextmanager
    def opened(self, broker: str) -> Iterator[Popper]:
        """Talk to a broker for a ``with`` block."""
        self.broker = broker
        try:
            yield self
        finally:
            self.client.close()

    def ask(self, code: int, **fields: FieldValue) -> AnyCommand:
        """Ask the broker in the name of the group, and give its answer whatever it is."""
        return self.begin(code, **fields).answer()

    def begin(self, code: int, **fields: FieldValue) -> RawPending:
        """Ask without waiting."""
        names: dict[str, FieldValue] = {"topic": self.topic, "consumerGroup": self.group}
        return self.client.begin(self.broker, code, names | fields)

    def begin_pop(
        self, *, count: int = 32, invisible_ms: int = 60_000, poll_ms: int = 0, **fields: FieldValue
    ) -> RawPending:
        """Pop without waiting for the answer, from all queues."""
        now: dict[str, FieldValue] = {
            "queueId": -1, "maxMsgNums": count, "invisibleTime": invisible_ms, "initMode": 0,
            "pollTime": poll_ms, "bornTime": round(time.time() * 1000), "expType": "TAG",
            "exp": "*", "order": False,
        }  # fmt: skip
        return self.begin(POP, **(now | fields))

    def pop(self, *, count: int = 32, invisible_ms: int = 60_000, poll_ms: int = 0) -> list[Popped]:
        """Pop once."""
        pending = self.begin_pop(count=count, invisible_ms=invisible_ms, poll_ms=poll_ms)
        return messages_of(pending.answer())

    def pop_all(self, count: int, *, invisible_ms: int = 60_000) -> list[Popped]:
        """Pop until there are so many messages, and none behind them."""
        found: list[Popped] = []

        def enough() -> bool:
            found.extend(self.pop(invisible_ms=invisible_ms, poll_ms=500))
            return len(found) >= count

        wait_until(enough, ARRIVAL_TIMEOUT_S, f"{count} messages of {self.topic}")
        return found + self.pop(invisible_ms=invisible_ms)

    def ack(self, message: Popped) -> int:
        """Acknowledge a message; gives the broker's code."""
        return self.ask(ACK, **self._place(message.handle)).code

    def change(self, handle: str, invisible_ms: int) -> str:
        """Have a message be invisible for so long from now on; gives its new handle."""
        place = self._place(handle)
        told = self.ask(CHANGE, **place, invisibleTime=invisible_ms).ext
        return str(
            parse_handle(handle)._replace(
                start_offset=parse_handle(handle).queue_offset,
                pop_ms=int(told["popTime"]),
                invisible_ms=int(told["invisibleTime"]),
                revive_queue_id=int(told["reviveQid"]),
            )
        )

    def _place(self, handle: str) -> dict[str, FieldValue]:
        parsed = parse_handle(handle)
        return {
            "topic": origin_topic(self.topic, self.group, parsed.origin),
            "queueId": parsed.queue_id, "extraInfo": handle, "offset": parsed.queue_offset,
        }  # fmt: skip

    def wait_for_waiting(self, consumers: int) -> None:
        """Wait until so many consumers of the group wait at the broker for any message."""

        def waiting() -> bool:
            return int(self.ask(POLLING_INFO, queueId=-1).ext["pollingNum"]) == consumers

        wait_until(waiting, ARRIVAL_TIMEOUT_S, f"{consumers} that pop {self.topic}")

    def wait_until_popped(self, count: int, queue_nums: int = 1) -> None:
        """Wait until the topic has so many messages and the group has popped all of them."""

        def offsets(code: int) -> list[int]:
            answers = [self.ask(code, queueId=queue_id) for queue_id in range(queue_nums)]
            return [int(answer.ext["offset"]) for answer in answers if answer.code == SUCCESS]

        def popped() -> bool:
            ends = offsets(MAX_OFFSET)
            return sum(ends) == count and offsets(QUERY_OFFSET) == ends

        wait_until(popped, ARRIVAL_TIMEOUT_S, f"{count} popped messages of {self.topic}")


def messages_of(answer: AnyCommand, broker_name: str = BROKER_NAME) -> list[Popped]:
    """The messages of an answer, each with its handle as RocketMQ's client makes it."""
    assert answer.code == SUCCESS or answer.code in NOT_FOUND, answer
    if answer.code in NOT_FOUND:
        return []
    pairs = zip(iter_records(answer.body), handles_of(answer, broker_name), strict=True)
    return [Popped(view, handle) for view, (handle, _) in pairs]
