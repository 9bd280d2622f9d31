"""What the official ``mqadmin`` prints of a broker, as two brokers must agree on it.

Times, rates, ids and addresses are masked, and so are the numbers of retry topics, which messages
come to by time. Lines are compared as a set, as tables come in the order of Java's hashes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

from firearrow.message import names
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient
from tests.interop.waiting import wait_until

# Longer ones first: a part of what is masked must not be masked before.
_MASKS: Final = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"), (r"\b\d{13}\b", "MS"),
    (r"\b127\.0\.0\.1:\d+", "ADDRESS"), (r"\b\d+\.\d\d\b", "RATE"),
    (r"MS@(\S+)@(\S+)@\d+", r"MS@\1@\2@PLACE"),  # queryMsgByKey ends its rows by a physical offset
)  # fmt: skip


def masked(printed: str) -> list[str]:
    """The lines of a text without what two brokers can't agree on."""
    for pattern, name in _MASKS:
        printed = re.sub(pattern, name, printed)
    return sorted(" ".join(line.split()) for line in printed.splitlines())


def of(lines: Sequence[str], prefix: str) -> list[str]:
    """Those of the lines that are about topics and groups of one script, the head with them."""
    return [line for line in lines if line.startswith("#") or prefix in line]


def without_numbers(lines: Sequence[str], about: str) -> list[str]:
    """Lines in which those that have a word about ``about`` tell no numbers."""
    return [re.sub(r"(?<= )-?\d+(?= |$)", "N", line) if about in line else line for line in lines]


Printing = Callable[[JavaClient], list[str]]


class Tools:
    """Commands of mqadmin about the topics and groups of one script."""

    def __init__(self, seed: int, prefix: str, topics: Sequence[str], groups: Sequence[str]) -> None:
        self._chance = random.Random(f"tools of {seed}")
        self._prefix = prefix
        self._topics = topics
        self._groups = groups

    def any(self) -> tuple[str, Printing]:
        """Give a command that is chosen by chance, as words and as what runs it."""
        make = self._chance.choice(
            (self._progress, self._progress_of_topic, self._all_progress, self._status, self._query,
             self._reset, self._clone, self._consume_stats, self._stats)
        )  # fmt: skip
        return make()

    def routes(self) -> tuple[str, Printing]:
        """Wait until the name server knows all topics; the tools go by that."""
        topics = {*self._topics, *map(names.retry_topic, self._groups)}

        def printing(java: JavaClient) -> list[str]:
            wait_until(lambda: topics <= set(java.topics()), ARRIVAL_TIMEOUT_S, f"routes {topics}")
            return []

        return "wait for routes", printing

    def _printed(self, *words: str, then: Callable[[list[str]], list[str]] = list) -> tuple[str, Printing]:
        def printing(java: JavaClient) -> list[str]:
            asked = [java.server.broker if word == "BROKER" else word for word in words]
            return then(masked(java.mqadmin(*asked)))

        return f"mqadmin {' '.join(words)}", printing

    @property
    def _group(self) -> str:
        return self._chance.choice([*self._groups, f"{self._prefix}-nobody"])

    @property
    def _topic(self) -> str:
        return self._chance.choice(self._topics)

    def _progress(self) -> tuple[str, Printing]:
        def then(lines: list[str]) -> list[str]:
            return without_numbers(without_numbers(lines, "Diff Total"), names.RETRY_PREFIX)

        return self._printed("consumerProgress", "-g", self._group, then=then)

    def _progress_of_topic(self) -> tuple[str, Printing]:
        return self._printed("consumerProgress", "-g", self._group, "-t", self._topic, "-s", "true")

    def _all_progress(self) -> tuple[str, Printing]:
        def then(lines: list[str]) -> list[str]:
            return without_numbers(of(lines, self._prefix), self._prefix)

        return self._printed("consumerProgress", then=then)

    def _status(self) -> tuple[str, Printing]:
        return self._printed("consumerStatus", "-g", self._group)  # nobody is there

    def _query(self) -> tuple[str, Printing]:
        key = f"{self._prefix}-k{self._chance.randrange(5)}"
        more = self._chance.choice(((), ("-p", "T"), ("-m", "32"), ("-b", "0", "-e", "1")))
        return self._printed("queryMsgByKey", "-t", self._topic, "-k", key, *more)

    def _reset(self) -> tuple[str, Printing]:
        asked = ("resetOffsetByTime", "-g", self._chance.choice(self._groups), "-t", self._topic)
        place = ("-b", "BROKER", "-q", "1", "-o", str(self._chance.randrange(3)))
        return self._printed(*asked, *self._chance.choice((("-s", "now"), ("-s", "1000"), ("-s", "0", *place))))

    def _clone(self) -> tuple[str, Printing]:
        groups = ("-s", self._chance.choice(self._groups), "-d", f"{self._prefix}-copy")
        return self._printed("cloneGroupOffset", *groups, "-t", self._topics[0])

    def _consume_stats(self) -> tuple[str, Printing]:
        def then(lines: list[str]) -> list[str]:
            found = without_numbers(of(lines, self._prefix), names.RETRY_PREFIX)
            return [line for line in found if f"{self._prefix}-later" not in line]

        more = self._chance.choice(((), ("-l", "2"), ("-o", "true")))
        return self._printed("brokerConsumeStats", "-b", "BROKER", *more, then=then)

    def _stats(self) -> tuple[str, Printing]:
        def then(lines: list[str]) -> list[str]:  # each broker samples its counters when it will
            return without_numbers(lines, self._prefix)

        return self._printed("statsAll", "-t", self._topic, then=then)
