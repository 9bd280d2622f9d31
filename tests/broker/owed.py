"""What a broker owes the clients of a `World`: the messages that it acknowledged, and their fate.

A message is known by its number. What its body and properties are, which groups want it, whether
its consumer fails and how, all follows from the number, so that a run is told by few words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from enum import Enum, auto
from typing import Final, NamedTuple

from firearrow.message import names
from firearrow.message.model import MessageView
from firearrow.store.delays import DelayLevels

TOPIC: Final = "T"
QUEUES: Final = 4
RETRIES: Final = 3
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
LEVELS: Final = DelayLevels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
FIRST_RETRY_LEVEL: Final = 3
LATE_MS: Final = 1500  # what is due comes within so much, while a broker lives
AGAIN_MS: Final = 60_000  # power takes what was noted for so long: it is delivered again
ROLLS_MS: Final = 172_800_000  # what waits for longer is stored again on its way


class Kind(Enum):
    """How a message was sent."""

    PLAIN = auto()
    DELAYED = auto()
    TIMED = auto()
    HALF = auto()


class Failure(NamedTuple):
    """How often a consumer fails with a message, and the level that it sends it back with."""

    times: int
    level: int = 0


ALWAYS: Final = 99
NO_FAILURE: Final = Failure(0)
FAILURES: Final = {2: Failure(1), 5: Failure(1, level=-1), 7: Failure(2), 11: Failure(ALWAYS), 13: Failure(1, level=2)}


class Group(NamedTuple):
    """A consumer group of the topic, by what it subscribes to."""

    name: str
    expression: str = "*"
    kind: str = "TAG"

    def wants(self, number: int) -> bool:
        """Whether a message is for it."""
        if self.kind == "SQL92":
            return number % 10 > 3 and number % 3 != 1
        return self.expression == "*" or number % 3 != 1


FAILING: Final = Group("failing")
ORDERLY: Final = Group("orderly")
TAGS: Final = Group("tags", "A || C")
SQL: Final = Group("sql", "digit > 3 AND TAGS IN ('A', 'C')", "SQL92")
GROUPS: Final = (FAILING, ORDERLY, TAGS, SQL)


class Sent:
    """A message; ``is_certain`` unless it was not acknowledged, or power took what was."""

    __slots__ = (
        *("asked", "decision", "due_ms", "is_certain", "is_recalled", "kind", "number", "place"),
        *("rolls", "stored_ms", "touched"),
    )

    def __init__(self, number: int, kind: Kind, due_ms: int, *, rolls: bool) -> None:
        self.number = number
        self.rolls = rolls
        self.kind = kind
        self.due_ms = due_ms
        self.decision = COMMIT
        self.asked = 0
        self.is_certain = False
        self.is_recalled = False
        self.place = -1  # its physical offset
        self.touched = 0  # where the log ended when the last word about it was acknowledged
        self.stored_ms = -1  # when it came into its queue

    @property
    def queue_id(self) -> int:
        """The queue that it is for."""
        return self.number % QUEUES

    @property
    def failure(self) -> Failure:
        """How the group that fails does so."""
        return FAILURES.get(self.number % 16, NO_FAILURE)

    @property
    def is_owed(self) -> bool:
        """Whether it must come."""
        return self.is_certain and self.decision == COMMIT and not self.is_recalled

    def properties(self) -> dict[str, str]:
        """What consumers choose by."""
        return {"UNIQ_KEY": f"{self.number:032X}", "TAGS": "ABC"[self.number % 3], "digit": str(self.number % 10)}


class Crash(NamedTuple):
    """When a broker ended without a stop; ``is_machine`` if power failed."""

    at_ms: int
    is_machine: bool


class Owed:
    """All messages, and what consumers have seen of them; each sight is checked."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.begins_ms: list[int] = []  # of lives of the broker
        self.crashes: list[Crash] = []
        self.queues: list[list[int]] = [[] for _ in range(QUEUES)]  # numbers, as they are stored
        self.consumed: dict[str, Counter[int]] = {group.name: Counter() for group in GROUPS}
        self.repeats = False  # consumers may have got something again
        self.dead: dict[int, int] = {}  # how often each was consumed
        self._retries: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._plain: list[list[Sent]] = [[] for _ in range(QUEUES)]
        self._plain_seen = [0] * QUEUES

    def new(self, kind: Kind, now_ms: int, due_ms: int = 0) -> Sent:
        """The next message."""
        sent = Sent(len(self.sent), kind, due_ms, rolls=due_ms - now_ms >= ROLLS_MS)
        self.sent.append(sent)
        if kind is Kind.PLAIN:
            self._plain[sent.queue_id].append(sent)
        return sent

    # --- what is seen ---

    def see(self, group: Group, view: MessageView, now_ms: int) -> Sent:
        """A group has got a message of the topic, or of its retry topic."""
        sent = self.sent[int(view.body)]
        said = f"{sent.number} ({sent.kind.name}, for {group.name})"
        assert group.wants(sent.number), f"{said} is not wanted"
        assert sent.decision == COMMIT, f"{said} was rolled back"
        assert not sent.is_recalled, f"{said} was recalled"
        if view.topic != TOPIC:
            self._see_retry(sent, view, now_ms, said)
            return sent
        assert view.reconsume_times == 0, said
        assert now_ms >= sent.due_ms, f"{said} is {sent.due_ms - now_ms} ms early"
        assert view.queue_id == sent.queue_id, said
        queue = self.queues[sent.queue_id]
        if view.queue_offset < len(queue):
            other = queue[view.queue_offset]
            assert other == sent.number, f"{said} is where {other} was"
        elif group.expression == "*":
            assert view.queue_offset == len(queue), f"{said} is behind a gap"
            self._stored(sent, view.store_timestamp_ms, said)
        return sent

    def _stored(self, sent: Sent, stored_ms: int, said: str) -> None:
        """A message is in its queue: for the first time, unless the broker crashed then."""
        if sent.stored_ms >= 0:
            assert self._may_come_again(sent), f"{said} is in its queue twice"
        elif sent.kind in (Kind.DELAYED, Kind.TIMED):
            self._check_time(sent.due_ms, stored_ms, said)
        if sent.kind is Kind.PLAIN:
            self._check_order(sent, said)
        sent.stored_ms = stored_ms
        self.queues[sent.queue_id].append(sent.number)

    def _check_time(self, due_ms: int, stored_ms: int, said: str) -> None:
        """What is due comes soon, or soon after a broker began to live."""
        assert stored_ms >= due_ms, f"{said} is {due_ms - stored_ms} ms early"
        began_ms = self.begins_ms[bisect_right(self.begins_ms, stored_ms) - 1]
        late_ms = stored_ms - max(due_ms, began_ms)
        assert late_ms <= LATE_MS, f"{said} is {late_ms} ms late"

    def _check_order(self, sent: Sent, said: str) -> None:
        """Plain messages are in a queue in the order of their sends."""
        plain, at = self._plain[sent.queue_id], self._plain_seen[sent.queue_id]
        while plain[at] is not sent:
            assert not plain[at].is_certain, f"{said} comes before {plain[at].number}"
            at += 1
            assert at < len(plain), f"{said} comes behind what was sent later"
        self._plain_seen[sent.queue_id] = at + 1

    def _may_come_again(self, sent: Sent) -> bool:
        """Whether a crash explains that a message was delivered twice."""
        if sent.rolls and self.crashes:  # it may have been just when the message rolled
            return True
        for crash in self.crashes:
            age_ms = crash.at_ms - sent.stored_ms
            noted_ms = 0
            if crash.is_machine:
                noted_ms = AGAIN_MS
            elif sent.kind is Kind.TIMED:
                noted_ms = LATE_MS
            if 0 <= age_ms < noted_ms:
                return sent.kind is not Kind.PLAIN
        return False

    def _see_retry(self, sent: Sent, view: MessageView, now_ms: int, said: str) -> None:
        dues_ms = self._retries[sent.number, view.reconsume_times]
        said += f", retry {view.reconsume_times}"
        assert dues_ms, f"{said} was never sent back"
        assert now_ms >= dues_ms[0], f"{said} is {dues_ms[0] - now_ms} ms early"
        if not self.repeats:
            assert len(dues_ms) == 1, said
            self._check_time(dues_ms[0], view.store_timestamp_ms, said)

    # --- what becomes of it ---

    def fails(self, sent: Sent, times: int) -> bool:
        """Whether the group that fails does so this time."""
        return times < sent.failure.times

    def sent_back(self, sent: Sent, times: int, now_ms: int) -> None:
        """A message that failed is to come again, or is dead."""
        if sent.failure.level < 0 or times >= RETRIES:
            self.dead[sent.number] = times + 1
            return
        level = sent.failure.level or FIRST_RETRY_LEVEL + times
        self._retries[sent.number, times + 1].append(LEVELS.due_ms(level, now_ms))

    def missing(self, group: Group) -> list[int]:
        """What a group must get, and has not got, or not seen to the end."""
        done = set(self.consumed[group.name])
        if group is FAILING:
            done.update(self.dead)
        owed = (sent.number for sent in self.sent if sent.is_owed)
        return [number for number in owed if number not in done and group.wants(number)]

    @staticmethod
    def _is_to_die(sent: Sent) -> bool:
        return sent.failure.times > RETRIES or sent.failure.level < 0

    def check_dead(self, found: list[MessageView]) -> None:
        """Dead is what failed too often, or was given up at once, and nothing else."""
        count = Counter(int(view.body) for view in found)
        for view in found:
            assert self.dead.get(int(view.body)) == view.reconsume_times, f"{view.body!r} died"
            assert view.topic == names.dlq_topic(FAILING.name)
        must = {sent.number for sent in self.sent if sent.is_owed and self._is_to_die(sent)}
        assert must <= count.keys(), f"not dead: {sorted(must - count.keys())[:10]}"
        if not self.repeats:
            assert all(value == 1 for value in count.values()), "some died twice"

    # --- ends of lives ---

    def lost_power(self, log_end: int, lengths: list[int], *, is_sync: bool) -> None:
        """The log ends there now, and the queues of the topic have so many messages."""
        for sent in self.sent:
            if is_sync:
                lost = sent.is_certain and sent.place >= log_end
                assert not lost, f"{sent.number} was acknowledged, and is lost"
            elif sent.touched > log_end:
                sent.is_certain = sent.is_recalled = False
        for queue_id, length in enumerate(lengths):
            self._cut(queue_id, length)

    def _cut(self, queue_id: int, length: int) -> None:
        lost = set(self.queues[queue_id][length:])
        del self.queues[queue_id][length:]
        left = set(self.queues[queue_id])
        for number in lost - left:
            self.sent[number].stored_ms = -1
        plain = self._plain[queue_id]
        seen = [at for at, sent in enumerate(plain) if sent.number in left]
        self._plain_seen[queue_id] = seen[-1] + 1 if seen else 0
