"""Counters for metrics alone, in addition to `BrokerStats`.

A `Tally` exists only with metrics. Plain messages are not counted here: they are the messages of a topic minus the
messages of other kinds. So only rare or slow events count here: a delay, the end of a transaction, a failure.
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
    """Counters by the labels of their families (``metrics.families``)."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], PutCounters] = {}  # by topic and kind, except normal
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
        """Count a message of some kind in a topic, with a record of ``size`` bytes."""
        counters = self.kinds.get((topic, kind))
        if counters is None:
            if len(self.kinds) >= KEYS_MAX:
                return
            counters = self.kinds[topic, kind] = PutCounters()
        counters.add(size)

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic; they begin again if it comes back."""
        for key in [key for key in self.kinds if key[0] == topic]:
            del self.kinds[key]

    def committed(self, topic: str, size: int, age_ms: int) -> None:
        """Count a committed transaction, with its age."""
        self.commits.add(topic)
        self.finished.add(topic, age_ms // 1000)
        self.put(topic, TRANSACTION, size)


# --- Duration of creations ---


_TOPIC: Final = int(RequestCode.UPDATE_AND_CREATE_TOPIC)
_GROUP: Final = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)


def measured(handlers: Mapping[int, Handler], tally: Tally, clock: Clock) -> dict[int, Handler]:
    """Return handlers; those that create one topic or group are wrapped with a measurement."""

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
