"""What a broker owes groups that pop: each message, not before its time, and in order where they
ask for that.

A crash may have the broker forget the last `FORGETS_MS` of what was popped and acknowledged; what
that touches is *loose* from then on: it may come again, and early. All else must come exactly as it
is said here. Nothing that was acknowledged to its producer is ever missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from firearrow.message.model import MessageView
from firearrow.wire.pop import TOPIC as FROM_TOPIC
from firearrow.wire.pop import Handle
from tests.broker.owed import FAILURES, NO_FAILURE, RETRIES, Failure, Group

NORMAL, ORDERED, PRIORITY, LITE = "PN", "PO", "PP", "PL"  # topics, by how they are popped
POP_QUEUES: Final = {NORMAL: 3, ORDERED: 2, PRIORITY: 3, LITE: 2}
LITE_TOPICS: Final = tuple(f"l{number}" for number in range(4))
FORGETS_MS: Final = 60_000
OLD_MS: Final = 86_400_000  # so long after it was of use, a batch may be forgotten
LATE_MS: Final = 6000  # so soon a message that was not acknowledged is in its retry topic


class Popper(NamedTuple):
    """A group that pops a topic."""

    group: Group
    topic: str

    @property
    def name(self) -> str:
        """The group's."""
        return self.group.name

    @property
    def in_order(self) -> bool:
        """Whether it is given a queue's messages one batch after another."""
        return self.topic in (ORDERED, LITE)


ALL: Final = Popper(Group("pop-all"), NORMAL)
SOME: Final = Popper(Group("pop-tags", "A || C"), NORMAL)
CHOSEN: Final = Popper(Group("pop-sql", "digit > 3 AND TAGS IN ('A', 'C')", "SQL92"), NORMAL)
IN_ORDER: Final = Popper(Group("pop-order"), ORDERED)
BY_PRIORITY: Final = Popper(Group("pop-priority"), PRIORITY)
OF_LITE: Final = Popper(Group("pop-lite"), LITE)
POPPERS: Final = (ALL, SOME, CHOSEN, IN_ORDER, BY_PRIORITY, OF_LITE)


class PopSent:
    """A message; ``queue`` and ``queue_offset`` say where it is, once it was acknowledged."""

    __slots__ = ("is_certain", "number", "place", "queue", "queue_offset", "topic")

    def __init__(self, number: int, topic: str) -> None:
        self.number = number
        self.topic = topic
        self.is_certain = False
        self.place = -1  # its physical offset
        self.queue: int | str = -1  # a lite topic, where there is one
        self.queue_offset = -1

    @property
    def failure(self) -> Failure:
        """How its consumers fail with it."""
        return FAILURES.get(self.number % 16, NO_FAILURE)

    @property
    def is_to_die(self) -> bool:
        """Whether it ends as a dead letter: in order, nothing does."""
        return self.topic in (NORMAL, PRIORITY) and (self.failure.times > RETRIES or self.failure.level < 0)


class _Fate:
    """What one group knows of a message that it does not pop in order."""

    __slots__ = ("handle", "is_done", "is_loose", "times", "touched_ms", "visible_ms")

    def __init__(self) -> None:
        self.handle: Handle | None = None  # the last that it was given with
        self.times = 0  # how often it failed, as it must say when it comes next
        self.visible_ms = -1
        self.touched_ms = -1
        self.is_done = False
        self.is_loose = False


class Line:
    """What one group knows of a queue that it pops in order, or of a lite topic."""

    def __init__(self, *, is_kept: bool) -> None:
        self.numbers: list[int] = []  # by queue offset
        self.following = 0  # where it goes on: what is before it is acknowledged
        self.is_loose = False
        self.is_counted = True  # the broker knows what it gave last
        self.is_kept = is_kept
        self.pop_ms = -1
        self.attempt = ""
        self.batch: dict[int, int] = {}  # when each offset is visible again
        self.acked: set[int] = set()
        self.counts: dict[int, int] = {}

    @property
    def free_ms(self) -> int:
        """When it gives something again."""
        open_ = [visible for offset, visible in self.batch.items() if offset not in self.acked]
        return max(open_, default=-1)

    def see(self, offsets: list[int], handle: Handle, attempt: str, consumed: set[int], said: str) -> None:
        """A batch has come, to a group that has consumed some messages."""
        pop_ms = handle.pop_ms
        self._age(pop_ms)
        first = offsets[0]
        said += f" gives {offsets} after {sorted(self.batch)}, {sorted(self.acked)} acknowledged"
        assert offsets == list(range(first, first + len(offsets))), said
        is_repeated = attempt == self.attempt
        if self.is_loose:
            # An earlier batch may count again, with what was acknowledged of it.
            passed = self.numbers[self.following : first]
            missing = [number for number in passed if number not in consumed]
            assert not missing, f"{said}: {missing} are passed by"
        else:
            assert first == self.following, f"{said}: it was at {self.following}"
            early_ms = self.free_ms - pop_ms
            assert is_repeated or early_ms <= 0, f"{said}: {early_ms} ms early"
        if is_repeated:
            counts = {at: count for at, count in self.counts.items() if at >= first}
        else:
            counts = {at: self.counts.get(at, 0) + 1 for at in offsets if at in self.batch}
        self.counts = counts if self.is_counted else {}
        self.batch = dict.fromkeys(offsets, handle.visible_ms)
        self.acked.clear()
        self.following, self.pop_ms, self.attempt = first, pop_ms, attempt
        self.is_loose = False

    def check_counts(self, given: Mapping[int, int], said: str) -> None:
        """Check what was said of how often messages were given before."""
        if self.is_counted:
            expected = {at: count for at, count in self.counts.items() if at in self.batch}
            assert given == expected, f"{said}: {given}, not {expected}"
        else:
            self.counts, self.is_counted = dict(given), True

    def knows(self, handle: Handle) -> bool:
        """Whether a message is, or may be, of the last batch."""
        is_last = handle.pop_ms == self.pop_ms and handle.queue_offset in self.batch
        return is_last or self.is_loose

    def ack(self, handle: Handle, now_ms: int) -> None:
        """A message was acknowledged."""
        self._age(now_ms)
        queue_offset = handle.queue_offset
        is_next = queue_offset == self.following
        if self.knows(handle):
            self.acked.add(queue_offset)
            while self.following in self.acked:
                self.following += 1
            if not self.is_kept and self.acked.issuperset(self.batch):
                self._forget()
        elif is_next and not self.batch:
            self.following += 1  # the broker has forgotten the pop

    def change(self, handle: Handle, visible_ms: int) -> None:
        """A message is to be visible at another time."""
        if handle.pop_ms == self.pop_ms and handle.queue_offset in self.batch:
            self.batch[handle.queue_offset] = visible_ms

    def _age(self, now_ms: int) -> None:
        """A batch may be forgotten that is old, with what was acknowledged of it."""
        if self.free_ms >= 0 and now_ms - self.free_ms >= OLD_MS:
            self.is_loose, self.is_counted = True, False

    def stopped(self) -> None:
        """The broker was stopped and started: some batches are in memory only."""
        if not self.is_kept:
            self._forget()

    def _forget(self) -> None:
        """The broker knows no batch any more."""
        self.batch.clear()
        self.acked.clear()
        self.counts, self.attempt = {}, ""

    def crashed(self) -> None:
        """The broker may have forgotten the last of it."""
        self.is_loose, self.is_counted, self.attempt = True, False, ""

    def cut(self, length: int) -> None:
        """Messages from an offset on are lost."""
        del self.numbers[length:]
        self.following = min(self.following, length)
        self.batch = {at: visible for at, visible in self.batch.items() if at < length}
        self.acked = {at for at in self.acked if at < length}


class PopOwed:
    """All messages that are popped, and what groups have seen of them; each sight is checked."""

    def __init__(self) -> None:
        self.sent: list[PopSent] = []
        self.begins_ms: list[int] = []  # of lives of the broker
        self._lives: list[tuple[int, int]] = []  # that ended
        self.consumed: dict[str, set[int]] = {popper.name: set() for popper in POPPERS}
        self.dead: dict[tuple[str, int], int] = {}  # how often each was consumed
        self._fates: dict[str, dict[int, _Fate]] = {popper.name: {} for popper in POPPERS}
        self.lines: dict[tuple[str, int | str], Line] = {}
        self._unseen: dict[int, dict[int, PopSent]] = defaultdict(dict)  # by priority, not popped
        self.has_crashed = False
        self.early = Counter[str]()

    def new(self, topic: str) -> PopSent:
        """The next message."""
        sent = PopSent(len(self.sent), topic)
        self.sent.append(sent)
        return sent

    def stored(self, sent: PopSent, queue: int | str, queue_offset: int, place: int) -> None:
        """A message was acknowledged."""
        sent.is_certain, sent.queue, sent.place = True, queue, place
        if sent.topic in (ORDERED, LITE):
            numbers = self.line(sent.topic, queue).numbers
            queue_offset = len(numbers) if sent.topic == LITE else queue_offset
            assert queue_offset == len(numbers), f"{sent.number} is at {queue_offset} of {queue}"
            numbers.append(sent.number)
        elif sent.topic == PRIORITY:
            assert isinstance(queue, int)
            self._unseen[queue][sent.number] = sent
        sent.queue_offset = queue_offset

    def line(self, topic: str, queue: int | str) -> Line:
        """What the group that pops a topic in order knows of a queue."""
        line = self.lines.get((topic, queue))
        if line is None:
            line = self.lines[topic, queue] = Line(is_kept=topic == ORDERED)
        return line

    # --- what is seen ---

    def _said(self, popper: Popper, view: MessageView) -> tuple[PopSent, str]:
        sent = self.sent[int(view.body)]
        said = f"{sent.number} (for {popper.name}, {view.reconsume_times} failures)"
        assert view.topic == popper.topic == sent.topic, said
        assert popper.group.wants(sent.number), f"{said} is not wanted"
        return sent, said

    def see(self, popper: Popper, view: MessageView, handle: Handle, now_ms: int) -> PopSent:
        """A group that does not pop in order has got a message."""
        sent, said = self._said(popper, view)
        fates = self._fates[popper.name]
        fate = fates.get(sent.number)
        if fate is None:
            fate = fates[sent.number] = _Fate()
        is_retry = handle.origin != FROM_TOPIC
        if not is_retry and sent.is_certain:
            place = view.queue_id, view.queue_offset
            assert place == (sent.queue, sent.queue_offset), f"{said} is at {place}"
        if not fate.is_loose:
            assert not fate.is_done, f"{said} comes though it was acknowledged"
            assert now_ms >= fate.visible_ms, f"{said} is {fate.visible_ms - now_ms} ms early"
            assert view.reconsume_times == fate.times, f"{said}: it failed {fate.times} times"
            assert is_retry == (fate.times > 0), f"{said} has {handle}"
            if is_retry:
                self._check_time(fate, view.store_timestamp_ms, said)
        if popper is BY_PRIORITY and not is_retry:
            self._see_priority(sent, said)
        fate.times = view.reconsume_times + 1
        fate.handle, fate.visible_ms, fate.touched_ms = handle, handle.visible_ms, now_ms
        return sent

    def _check_time(self, fate: _Fate, stored_ms: int, said: str) -> None:
        """What is visible again comes soon, or soon after a broker began to live."""
        assert stored_ms >= fate.visible_ms, f"{said} was stored too early"
        began_ms = max([at_ms for at_ms in self.begins_ms if at_ms <= stored_ms], default=0)
        late_ms = stored_ms - max(fate.visible_ms, began_ms)
        assert late_ms <= LATE_MS, f"{said} is {late_ms} ms late"

    def _see_priority(self, sent: PopSent, said: str) -> None:
        """Whatever is there of a higher priority was given before."""
        self._unseen[int(sent.queue)].pop(sent.number, None)
        for queue, unseen in self._unseen.items():
            waiting = queue > int(sent.queue) and any(one.is_certain for one in unseen.values())
            assert not waiting, f"{said} of priority {sent.queue} comes before {list(unseen)[:5]}"

    def see_batch(
        self,
        popper: Popper,
        queue: int | str,
        views: list[MessageView],
        offsets: list[int],
        handle: Handle,
        attempt: str,
        counts: Mapping[int, int],
    ) -> None:
        """A group that pops in order has got what follows in a queue."""
        line = self.line(popper.topic, queue)
        said = f"{popper.topic}-{queue}"
        for view, queue_offset in zip(views, offsets, strict=True):
            sent, what = self._said(popper, view)
            expected = line.numbers[queue_offset]
            assert sent.number == expected, f"{what} is at {queue_offset} of {queue}"
        line.see(offsets, handle, attempt, self.consumed[popper.name], said)
        line.check_counts(counts, said)

    def see_peeked(self, popper: Popper, view: MessageView) -> None:
        """A group was shown a message that it may pop next."""
        sent = self.sent[int(view.body)]
        said = f"{sent.number} (to {popper.name}, {view.reconsume_times} failures)"
        assert sent.topic == popper.topic, said
        fate = self._fates[popper.name].get(sent.number)
        if fate is not None and not fate.is_loose:
            assert not fate.is_done, f"{said} is shown though it was acknowledged"
            assert view.reconsume_times == fate.times, f"{said} is shown though it is popped"

    # --- what becomes of it ---

    def acked(self, popper: Popper, number: int, handle: Handle, now_ms: int) -> None:
        """A message was acknowledged, perhaps too late."""
        self.consumed[popper.name].add(number)
        fate = self._fates[popper.name][number]
        if handle != fate.handle:
            return  # it was popped again meanwhile
        fate.touched_ms = now_ms
        if now_ms < handle.visible_ms:
            fate.is_done = True
        else:
            fate.is_loose = True

    def changed(self, popper: Popper, number: int, old: Handle, new: Handle, now_ms: int) -> None:
        """A message is to be visible at another time; a change that comes too late makes another
        copy of it."""
        fate = self._fates[popper.name][number]
        if old != fate.handle or now_ms >= old.visible_ms:
            fate.is_loose = True
        fate.handle, fate.visible_ms, fate.touched_ms = new, new.visible_ms, now_ms

    def died(self, popper: Popper, number: int, times: int) -> None:
        """A group gave a message up."""
        self.dead[popper.name, number] = times + 1

    def missing(self, popper: Popper) -> list[int]:
        """What a group must get, and has not acknowledged."""
        done = self.consumed[popper.name]
        owed = (sent.number for sent in self.sent if sent.is_certain and sent.topic == popper.topic)
        return [number for number in owed if number not in done and popper.group.wants(number)]

    def check_dead(self, popper: Popper, found: Iterable[MessageView]) -> None:
        """Dead is what failed too often, or was given up at once, and nothing else."""
        count = Counter[int]()
        for view in found:
            number = int(view.body)
            count[number] += 1
            fate, times = self._fates[popper.name][number], self.dead.get((popper.name, number))
            assert times is not None, f"{number} died"
            if not fate.is_loose:
                at_once = self.sent[number].failure.level < 0
                most = 1 if at_once else RETRIES + 1
                assert view.reconsume_times == times == most, f"{number} died after {times}"
                assert count[number] == 1, f"{number} died twice"
        must = {
            sent.number
            for sent in self.sent
            if sent.is_certain and sent.topic == popper.topic and sent.is_to_die
            if popper.group.wants(sent.number)
        }
        assert must <= count.keys(), f"not dead: {sorted(must - count.keys())[:10]}"

    # --- ends of lives ---

    def stopped(self, at_ms: int) -> None:
        """The broker was stopped in order."""
        self._lives.append((self.begins_ms[-1], at_ms))
        for line in self.lines.values():
            line.stopped()

    def crashed(self, at_ms: int) -> None:
        """The broker was killed, or lost power."""
        self.has_crashed = True
        for line in self.lines.values():
            line.crashed()
        self._lives.append((self.begins_ms[-1], at_ms))
        for fates in self._fates.values():
            for fate in fates.values():
                is_new = at_ms - fate.touched_ms <= FORGETS_MS
                if is_new or (not fate.is_done and self._came_just_now(fate.visible_ms, at_ms)):
                    fate.is_loose, fate.is_done = True, False

    def _came_just_now(self, visible_ms: int, now_ms: int) -> bool:
        """Whether a message that was visible again may just have been put into its retry topic: a
        broker needs some of its life for that."""
        if visible_ms > now_ms:
            return False
        lived_ms = 0
        for begin_ms, end_ms in reversed(self._lives):
            if end_ms < visible_ms or lived_ms > FORGETS_MS:
                break
            lived_ms += end_ms - max(begin_ms, visible_ms)
        return lived_ms <= FORGETS_MS

    def lost_power(self, log_end: int, *, is_sync: bool) -> set[int]:
        """The log ends there now; gives the numbers of messages that are lost."""
        lost: set[int] = set()
        for sent in self.sent:
            if sent.is_certain and sent.place >= log_end:
                assert not is_sync, f"{sent.number} was acknowledged, and is lost"
                sent.is_certain = False
                lost.add(sent.number)
                if sent.topic in (ORDERED, LITE):
                    line = self.line(sent.topic, sent.queue)
                    line.cut(min(sent.queue_offset, len(line.numbers)))
        return lost
