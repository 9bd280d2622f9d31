"""Counters for metrics alone, beside those of `BrokerStats`.

There is a `Tally` only where metrics are asked for. Plain messages are not counted here: what a
topic got besides those of another kind are the normal ones. Who counts here does so where a message
takes long already: with a delay, at the end of a transaction, when it failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.clock import Clock
from firearrow.message.names import is_system_topic
from firearrow.net.meter import KEYS_MAX, Counts, Histograms
from firearrow.net.server import Answer, Handler, Peer
from firearrow.store import PutCounters
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

FIFO: Final = "fifo"
DELAY: Final = "delay"
TRANSACTION: Final = "transaction"

CK: Final = "CK"
ACK: Final = "ACK"

FINISH_BOUNDS_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
DELAY_BOUNDS_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)
CREATE_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)


class Tally:
    """The counters, each by what its family is labelled with (``metrics.table``)."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], PutCounters] = {}  # by topic and kind, but for normal
        self.commits: Counts[str] = Counts()
        self.rollbacks: Counts[str] = Counts()
        self.finished: Histograms[str] = Histograms(FINISH_BOUNDS_S)
        self.dead: Counts[tuple[str, str]] = Counts()  # group, topic
        self.delivered: Counts[str] = Counts()  # of a delay level, by topic
        self.delivered_bytes = 0
        self.timed_in: Counts[str] = Counts()
        self.timed_out: Counts[str] = Counts()
        self.delays: Histograms[str] = Histograms(DELAY_BOUNDS_S)
        self.revive_in: Counts[tuple[str, str, str]] = Counts()  # group, topic, CK or ACK
        self.revive_out: Counts[tuple[str, str, str, int]] = Counts()  # and the revive queue
        self.revived: Counts[tuple[str, str]] = Counts()  # group, topic
        self.topics_made: Histograms[tuple[bool, bool]] = Histograms(CREATE_BOUNDS_MS)
        self.groups_made: Histograms[tuple[bool]] = Histograms(CREATE_BOUNDS_MS)

    def put(self, topic: str, kind: str, size: int) -> None:
        """A message of some kind was put into a topic, as a record of so many bytes."""
        counters = self.kinds.get((topic, kind))
        if counters is None:
            if len(self.kinds) >= KEYS_MAX:
                return
            counters = self.kinds[topic, kind] = PutCounters()
        counters.add(size)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: begin anew if it comes again."""
        for key in [key for key in self.kinds if key[0] == topic]:
            del self.kinds[key]

    def committed(self, topic: str, size: int, age_ms: int) -> None:
        """A transaction was committed that began so long ago."""
        self.commits.add(topic)
        self.finished.add(topic, age_ms // 1000)
        self.put(topic, TRANSACTION, size)


# --- Measures how long it takes to create topics and groups, which clients may wait for ---


_TOPIC: Final = int(RequestCode.UPDATE_AND_CREATE_TOPIC)
_GROUP: Final = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)


def measured(handlers: Mapping[int, Handler], tally: Tally, clock: Clock) -> dict[int, Handler]:
    """Give handlers of which those that create one topic or group are measured."""

    def handler_of(code: int, handler: Handler) -> Handler:
        def handle(peer: Peer, request: AnyCommand) -> Answer:
            begin, is_done = clock.monotonic(), False
            try:
                answer = handler(peer, request)
                is_done = not isinstance(answer, Response) or not answer.code
            finally:
                took_ms = int((clock.monotonic() - begin) * 1000)
                if code == _GROUP:
                    tally.groups_made.add((is_done,), took_ms)
                else:
                    topic = request.ext.get("topic", "") if isinstance(request.ext, dict) else ""
                    tally.topics_made.add((is_done, is_system_topic(topic)), took_ms)
            return answer

        return handle

    return {
        code: handler_of(code, handler) if code in (_TOPIC, _GROUP) else handler for code, handler in handlers.items()
    }
