"""Messages that were popped and not acknowledged in time come again.

What was popped, and what of it acknowledged, is in the revive queues (``records``): each checkpoint
a second before its messages are visible again, and the acknowledgements behind it. What is left of
a checkpoint then goes to a retry topic (``retries``), two seconds after that time: so late an
acknowledgement may be. It waits for longer if what was acknowledged in time may not all be read
(``revivequeue``). Checkpoints that are open stay in memory, so each record is read once.

The group ``CID_RMQ_SYS_REVIVE_GROUP`` has in each revive queue the offset of the last record that a
start needs no more. Offsets are written when the log is on the disk: so a crash repeats some
messages, and loses none.

Java: PopReviveService reads all queues every second, each time from the last checkpoint that is
done with, and gives up for the round if ten seconds of reading are not enough to come to records
of two seconds later: with very many checkpoints of one time nothing comes again.

Source: upstream ``PopReviveService``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.merging import Open
from firearrow.broker.pop.records import Checkpoint
from firearrow.broker.pop.retries import Retries, Target
from firearrow.broker.pop.revivequeue import LATE_MS, ReviveQueue
from firearrow.broker.pop.telling import Telling
from firearrow.errors import BrokerError, MessageError, PutLater, StoreError
from firearrow.message import names
from firearrow.message.names import REVIVE_GROUP
from firearrow.services import Alarm, Scheduler, Service
from firearrow.store import MessagesArrived

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.002  # requests wait for no longer than this and one step
TURN_STEPS_MAX: Final = 64  # where a clock does not say
GATHER_SECONDS: Final = 0.25  # records that came gather for so long before they are read
BEHIND_SECONDS: Final = 0.2  # how soon it is looked whether acknowledgements are there by now
EARLY_SECONDS: Final = 1.0  # how soon acknowledgements that came too late are forgotten
RETRY_SECONDS: Final = 1.0  # how soon a full disk is tried again
LOOK_SECONDS_MAX: Final = 10.0  # how soon it is noticed that the wall clock was set
PUT_AGAIN_SECONDS: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""For how long a message that can't be put into its retry topic waits, each time."""


class PutsCheckpoints(Protocol):
    """Writes a checkpoint into a revive queue."""

    def __call__(self, checkpoint: Checkpoint, revive_queue_id: int, now_ms: int, /) -> object:
        """Write it; BrokerError, MessageError or StoreError if it can't be."""
        ...


class _Due(NamedTuple):
    """When what is left of a checkpoint comes again.

    Those of the same time come in the order of their messages in a queue: that of a consumer that
    pops faster than the clock ticks. ``number`` tells equals apart.
    """

    at_ms: int
    start_offset: int
    number: int
    open: Open
    queue: ReviveQueue


class Reviving(Service):
    """Has messages come again that nobody acknowledged.

    ``delivered_ms`` says up to which time the timer has delivered all there was. ``arrived`` is to
    be told of what comes into queues.
    """

    def __init__(
        self,
        context: BrokerContext,
        put_checkpoint: PutsCheckpoints,
        delivered_ms: Callable[[], int],
        scheduler: Scheduler,
    ) -> None:
        super().__init__("popped messages")
        self._store = context.store
        self._topics = context.topics
        self._offsets = context.offsets
        self._settings = context.settings
        self._clock = context.clock
        self._replicas = context.replicas
        self._retries = Retries(context, self.go_on)
        self._in_flight = context.in_flight
        self._tally = context.stats.tally
        self._put_checkpoint = put_checkpoint
        self._delivered_ms = delivered_ms
        self._alarm = Alarm(scheduler, self._turn)
        self._queues: dict[tuple[str, int], ReviveQueue] = {}
        self._topic_names: set[str] = set()
        self._unread: dict[ReviveQueue, None] = {}
        self._due: list[_Due] = []  # a heap; some are acknowledged meanwhile
        self._number = 0
        self._runs = False
        self._telling = Telling()

    # --- life ---

    async def start(self) -> None:
        """Read what is open, and go on from now on."""
        self._queues.clear()
        self._due.clear()
        prefix = names.revive_topic("")  # the cluster may have had another name
        for topic in sorted(topic for topic in self._topics.table if topic.startswith(prefix)):
            config = self._topics.table[topic]
            self._topic_names.add(topic)
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
                self._queues[topic, queue_id] = self._opened(topic, queue_id)
        self._unread = dict.fromkeys(self._queues.values())
        self._runs = True
        self._alarm.set(0)

    def _opened(self, topic: str, queue_id: int) -> ReviveQueue:
        """A queue from where its group is."""
        kept = self._offsets.query(REVIVE_GROUP, topic, queue_id) + 1
        end = self._store.max_queue_offset(topic, queue_id)
        at = max(min(kept, end), self._store.min_queue_offset(topic, queue_id), 0)
        if kept > end:  # what it has passed is lost: the next records there are others
            self._offsets.commit(REVIVE_GROUP, topic, queue_id, at - 1)
        broker_name = self._settings.broker.broker_name
        return ReviveQueue(self._store, topic, queue_id, at, broker_name, self._tally)

    async def stop(self) -> None:
        """Have nothing come again, now or when the next start reads it."""
        self._alarm.cancel()
        if self._runs:
            self._runs = False
            if not self._replicas.is_slave:
                for queue in self._queues.values():
                    self._note_again(queue)
            self._commit()
            await self._retries.stop()

    def go_on(self) -> None:
        """Look again at what could not be put before."""
        if self._runs:
            self._alarm.set(0)

    def _note_again(self, queue: ReviveQueue) -> None:
        """Note the checkpoints anew that keep a start from passing what came again already.

        Java: PopReviveService has those messages come once more after a start.
        """
        is_ours = queue.topic == names.revive_topic(self._settings.broker.broker_cluster_name)
        waiting = queue.merging.before_closed() if is_ours and not queue.is_put_off else []
        now_ms = self._clock.now_ms()
        try:
            for popped in waiting:
                bits = popped.acknowledged_bits
                again = replace(popped.checkpoint, acknowledged_bits=bits)
                self._put_checkpoint(again, queue.queue_id, now_ms)
        except (BrokerError, MessageError, StoreError, OSError) as error:
            log.warning("some popped messages come again twice", extra={"error": error})
        else:
            queue.merging.forget(waiting)

    @property
    def trouble(self) -> str | None:
        """Why messages can't come again."""
        return self._telling.trouble

    @property
    def queues(self) -> list[ReviveQueue]:
        """The revive queues, in the order of their names."""
        return list(self._queues.values())

    def arrived(self, arrivals: MessagesArrived) -> None:
        """Some queues have new messages: read those of revive queues soon."""
        is_new = False
        for topic, queue_id, _, _ in arrivals:
            if topic in self._topic_names:
                queue = self._queues.get((topic, queue_id))
                if queue is not None:
                    self._unread[queue] = None
                    is_new = True
        if is_new and self._runs:
            self._alarm.set_earlier(GATHER_SECONDS)

    # --- when ---

    def _turn(self) -> None:
        """Do what is to be done, as much as one turn may."""
        is_busy, waits, error = False, False, "an error of its own"
        try:
            is_busy, error = self._work(), ""
        except PutLater:
            waits, error = True, ""
        except (StoreError, OSError) as refused:
            error = str(refused)
        finally:
            self._telling.note_trouble(error or None)
            self._commit()
            seconds = RETRY_SECONDS if error or waits else 0.0 if is_busy else self._seconds()
            if self._runs and seconds < math.inf:
                self._alarm.set(seconds)

    def _work(self) -> bool:
        """Read, and have messages come again; whether there is more to do at once."""
        begin = self._clock.monotonic()
        delivered_ms = self._delivered_ms()
        self._read(begin + TURN_SECONDS / 2)
        known_ms = min([delivered_ms, *(queue.known_ms for queue in self._unread)])
        for queue in self._queues.values():
            queue.merging.forget_early(known_ms)
        is_late = self._revive_due(known_ms, begin + TURN_SECONDS)
        self._unread.update((queue, None) for queue in self._queues.values() if queue.go_back())
        return is_late or bool(self._unread)

    def _seconds(self) -> float:
        """How long there is nothing to do unless something comes."""
        due = self._due
        while due and not due[0].open.left:
            heappop(due)
        seconds = math.inf
        if due:
            ahead = (due[0].at_ms - self._clock.now_ms()) / 1000
            seconds = min(ahead, LOOK_SECONDS_MAX) if ahead > 0 else BEHIND_SECONDS
        if any(queue.merging.has_early for queue in self._queues.values()):
            seconds = min(seconds, EARLY_SECONDS)
        return seconds

    # --- reading ---

    def _read(self, until: float) -> None:
        """Read new records, some of each queue in turn."""
        for _ in range(TURN_STEPS_MAX):
            queue = next(iter(self._unread), None)
            if queue is None:
                break
            del self._unread[queue]
            if queue.is_read:
                continue
            self._unread[queue] = None  # behind the others
            for added in queue.read_some():
                self._plan(added.checkpoint.due_ms + LATE_MS, added, queue)
            if self._clock.monotonic() >= until:
                break

    def _plan(self, at_ms: int, added: Open, queue: ReviveQueue) -> None:
        self._number += 1
        start_offset = added.checkpoint.start_offset
        heappush(self._due, _Due(at_ms, start_offset, self._number, added, queue))

    # --- coming again ---

    def _revive_due(self, known_ms: int, until: float) -> bool:
        """Have messages come again whose time is over; whether there are more."""
        heap, now_ms = self._due, self._clock.now_ms()
        for _ in range(TURN_STEPS_MAX):
            while heap and not heap[0].open.left:
                heappop(heap)
            if not heap or heap[0].at_ms > now_ms or heap[0].at_ms - LATE_MS > known_ms:
                return False
            self._revive(heap[0], now_ms, until)
            if self._clock.monotonic() >= until:
                return True
        return True

    def _revive(self, due: _Due, now_ms: int, until: float) -> None:
        """Have what is left of a checkpoint come again, as much as there is time for."""
        popped, checkpoint = due.open, due.open.checkpoint
        target = self._retries.target(checkpoint)
        if target is None:
            self._telling.place_gone(checkpoint.topic, checkpoint.group)
            popped.left = 0
        while target is not None and popped.left:
            at = (popped.left & -popped.left).bit_length() - 1
            try:
                self._revive_one(due, target, at, now_ms)
            except (MessageError, BrokerError) as error:
                # Neither it nor a checkpoint can be put now: others go on.
                self._say_failure(due, at, "waits", error)
                waits_until = now_ms + int(RETRY_SECONDS * 1000) + LATE_MS
                heapreplace(self._due, due._replace(at_ms=waits_until))
                return
            popped.left &= ~(1 << at)
            if self._clock.monotonic() >= until:
                break
        if not popped.left:
            due.queue.merging.close(popped)

    def _revive_one(self, due: _Due, target: Target, at: int, now_ms: int) -> None:
        """Put one message into its retry topic, or else have it tried again later."""
        checkpoint = due.open.checkpoint
        queue_offset = checkpoint.queue_offset(at)
        try:
            self._retries.put(target, queue_offset, now_ms)
            self._in_flight.done(checkpoint.topic, checkpoint.group, checkpoint.queue_id, 1)
            if self._tally is not None:
                self._tally.revived.add((checkpoint.group, checkpoint.topic))
        except MessageError as error:
            times = checkpoint.put_again_times
            again_max = len(PUT_AGAIN_SECONDS)
            if times >= again_max and self._settings.broker.skip_when_ck_re_put_reach_max_times:
                self._say_failure(due, at, "is given up", error)
                return
            self._say_failure(due, at, "is tried again later", error)
            waits_ms = PUT_AGAIN_SECONDS[min(times, again_max - 1)] * 1000
            queue_id = due.queue.queue_id % self._settings.broker.revive_queue_num
            self._put_checkpoint(checkpoint.put_again_for(queue_offset, now_ms + waits_ms), queue_id, now_ms)

    def _say_failure(self, due: _Due, at: int, outcome: str, error: Exception) -> None:
        checkpoint = due.open.checkpoint
        place = checkpoint.topic, checkpoint.queue_id, checkpoint.queue_offset(at)
        self._telling.failed((place, checkpoint.group), place, checkpoint.group, outcome, error)

    def _commit(self) -> None:
        """Note what a start needs no more."""
        for queue in self._queues.values():
            needed = queue.needed
            if needed > queue.saved:
                queue.saved = needed
                self._offsets.commit(REVIVE_GROUP, queue.topic, queue.queue_id, needed - 1)
