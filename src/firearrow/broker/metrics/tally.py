"""Counters for metrics alone, beside those of `BrokerStats`.

There is a `Tally` only where metrics are asked for. Plain messages are not counted here: what a
topic got besides those of another kind are the normal ones. Who counts here does so where a message
takes long already: with a delay, at the end of a transaction, when it failed.
"""

from __future__ import annotations

from typing import Final

from firearrow.net.counts import KEYS_MAX, Counts, Histograms
from firearrow.store import PutCounters

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
