"""Redeliver popped messages that nobody acknowledged in time (revive).

The revive queues (``wire.poprecords``) have a record for each pop, the checkpoint, a second before its messages are
visible again, and behind it the acknowledgements. Two seconds after the visible time, the messages of a checkpoint that
lack an acknowledgement go to a retry topic (``retries``), so an acknowledgement may be two seconds late. A checkpoint
waits for longer if acknowledgements that came in time may not be read yet (``revivequeue``). Open checkpoints stay in
memory, so each record is read once.

For each revive queue the group ``CID_RMQ_SYS_REVIVE_GROUP`` has the offset of the last record that a start no longer
needs. Offsets are saved when the log is on the disk, so a crash repeats some messages and loses none.

Java: PopReviveService reads all queues every second, each time from the last finished checkpoint. It ends the round if
ten seconds of reading do not reach records of two seconds later: with very many checkpoints of one time it redelivers
nothing.

Source: RocketMQ ``PopReviveService``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.retries import Retries, RetryLog, RetryTarget
from firearrow.broker.pop.revivequeue import LATE_MS, OpenCheckpoint, ReviveQueue
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.turns import LOOK_SECONDS_MAX, RETRY_SECONDS, TURN_SECONDS, TurnService
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.logs import Log
from firearrow.message import names
from firearrow.message.names import REVIVE_GROUP
from firearrow.services import Scheduler
from firearrow.store import MessagesArrived
from firearrow.wire.poprecords import PopCheckpoint

log: Final = Log(__name__)

TURN_STEPS_MAX: Final = 64  # of reading, and of redelivery, for a clock that stands still during a turn
GATHER_SECONDS: Final = 0.25  # from the arrival of a record until it is read with those behind it
BEHIND_SECONDS: Final = 0.2  # until late acknowledgements are looked for again
EARLY_SECONDS: Final = 1.0  # until acknowledgements without a checkpoint are forgotten
PUT_AGAIN_SECONDS: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds after each attempt until a message that its retry topic refuses is put again."""


class CheckpointSink(Protocol):
    """Function that writes a checkpoint into a revive queue."""

    def __call__(self, checkpoint: PopCheckpoint, revive_queue_id: int, now_ms: int, /) -> object:
        """Write a checkpoint; raise BrokerError, MessageError or StoreError if it can't be written."""
        ...


class _Redelivery(NamedTuple):
    """Time when the unacknowledged messages of a checkpoint are redelivered.

    Checkpoints of the same time keep the order of their messages in the queue, for a consumer that pops faster than
    the clock ticks. ``number`` keeps the order of equal ones.
    """

    at_ms: int
    start_offset: int
    number: int
    open: OpenCheckpoint
    queue: ReviveQueue


class Reviving(TurnService):
    """Redeliver messages that nobody acknowledged.

    ``delivered_ms`` returns a time; the timer has delivered all messages before it. Events call ``arrived`` for new
    messages of queues.
    """

    def __init__(
        self,
        context: BrokerContext,
        in_flight: InFlight,
        routes: TopicRoutes,
        put_checkpoint: CheckpointSink,
        delivered_ms: Callable[[], int],
        scheduler: Scheduler,
    ) -> None:
        super().__init__("popped messages", scheduler)
        self._store = context.store
        self._topics = context.topics
        self._offsets = context.offsets
        self._settings = context.settings
        self._clock = context.clock
        self._replicas = context.replicas
        self._retries = Retries(context, routes, self.go_on)
        self._in_flight = in_flight
        self._tally = context.stats.tally
        self._put_checkpoint = put_checkpoint
        self._delivered_ms = delivered_ms
        self._queues: dict[tuple[str, int], ReviveQueue] = {}
        self._topic_names: set[str] = set()
        self._unread: dict[ReviveQueue, None] = {}
        self._due: list[_Redelivery] = []  # a heap; some of its checkpoints are acknowledged meanwhile
        self._number = 0
        self._log = RetryLog()

    # --- life ---

    async def start(self) -> None:
        """Read the open checkpoints, and redeliver from now on."""
        self._queues.clear()
        self._due.clear()
        prefix = names.revive_topic("")  # the cluster may have had another name
        for topic in sorted(topic for topic in self._topics.table if topic.startswith(prefix)):
            config = self._topics.table[topic]
            self._topic_names.add(topic)
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
                self._queues[topic, queue_id] = self._opened(topic, queue_id)
        self._unread = dict.fromkeys(self._queues.values())
        await super().start()

    def _opened(self, topic: str, queue_id: int) -> ReviveQueue:
        """Return a queue that begins at its group's offset."""
        kept = self._offsets.query(REVIVE_GROUP, topic, queue_id) + 1
        end = self._store.max_queue_offset(topic, queue_id)
        at = max(min(kept, end), self._store.min_queue_offset(topic, queue_id), 0)
        if kept > end:  # the log has lost records before the offset: other records will be there
            self._offsets.commit(REVIVE_GROUP, topic, queue_id, at - 1)
        broker_name = self._settings.broker.broker_name
        return ReviveQueue(self._store, topic, queue_id, at, broker_name, self._tally)

    async def stop(self) -> None:
        """Redeliver no further message, and keep the next start from redelivering the same ones."""
        was_running = self._is_running
        await super().stop()
        if was_running:
            if not self._replicas.is_slave:
                for queue in self._queues.values():
                    self._note_again(queue)
            self._commit()
            await self._retries.stop()

    def _note_again(self, queue: ReviveQueue) -> None:
        """Write open checkpoints again, so that a start can pass the closed ones behind them.

        Java: PopReviveService redelivers the messages of those closed checkpoints after a start.
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
            log.warning("some popped messages will be redelivered twice", extra={"error": error})
        else:
            queue.merging.forget(waiting)

    @property
    def queues(self) -> list[ReviveQueue]:
        """Revive queues, in the order of their names."""
        return list(self._queues.values())

    def arrived(self, arrivals: MessagesArrived) -> None:
        """Read new records soon, if there are revive queues among ``arrivals``."""
        is_new = False
        for topic, queue_id, _, _ in arrivals:
            if topic in self._topic_names:
                queue = self._queues.get((topic, queue_id))
                if queue is not None:
                    self._unread[queue] = None
                    is_new = True
        if is_new:
            self._wake(GATHER_SECONDS)

    # --- turns ---

    def _work(self) -> float:
        """Read new records, and redeliver due messages."""
        try:
            return 0.0 if self._read_and_revive() else self._seconds()
        finally:
            self._commit()

    def _read_and_revive(self) -> bool:
        """Read and redeliver; return whether there is more to do at once."""
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
        """Seconds until the next turn, unless new records come."""
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
        """Read new records of the queues, some of each, until a time."""
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

    def _plan(self, at_ms: int, added: OpenCheckpoint, queue: ReviveQueue) -> None:
        self._number += 1
        start_offset = added.checkpoint.start_offset
        heappush(self._due, _Redelivery(at_ms, start_offset, self._number, added, queue))

    # --- redelivery ---

    def _revive_due(self, known_ms: int, until: float) -> bool:
        """Redeliver due messages until a time; return whether there are more."""
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

    def _revive(self, due: _Redelivery, now_ms: int, until: float) -> None:
        """Redeliver the unacknowledged messages of a checkpoint until a time."""
        popped, checkpoint = due.open, due.open.checkpoint
        target = self._retries.target(checkpoint)
        if target is None:
            self._log.place_gone(checkpoint.topic, checkpoint.group)
            popped.left = 0
        while target is not None and popped.left:
            at = (popped.left & -popped.left).bit_length() - 1
            try:
                self._revive_one(due, target, at, now_ms)
            except (MessageError, BrokerError) as error:
                # Neither the message nor a checkpoint for it can be put now: other messages go on.
                self._log_failure(due, at, "waits", error)
                waits_until = now_ms + int(RETRY_SECONDS * 1000) + LATE_MS
                heapreplace(self._due, due._replace(at_ms=waits_until))
                return
            popped.left &= ~(1 << at)
            if self._clock.monotonic() >= until:
                break
        if not popped.left:
            due.queue.merging.close(popped)

    def _revive_one(self, due: _Redelivery, target: RetryTarget, at: int, now_ms: int) -> None:
        """Put one message into its retry topic, or otherwise a checkpoint that retries it later."""
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
                self._log_failure(due, at, "is given up", error)
                return
            self._log_failure(due, at, "is tried again later", error)
            waits_ms = PUT_AGAIN_SECONDS[min(times, again_max - 1)] * 1000
            queue_id = due.queue.queue_id % self._settings.broker.revive_queue_num
            self._put_checkpoint(checkpoint.put_again_for(queue_offset, now_ms + waits_ms), queue_id, now_ms)

    def _log_failure(self, due: _Redelivery, at: int, outcome: str, error: Exception) -> None:
        checkpoint = due.open.checkpoint
        place = checkpoint.topic, checkpoint.queue_id, checkpoint.queue_offset(at)
        self._log.failed((place, checkpoint.group), place, checkpoint.group, outcome, error)

    def _commit(self) -> None:
        """Commit the offsets of records that a start no longer needs."""
        for queue in self._queues.values():
            needed = queue.needed
            if needed > queue.saved:
                queue.saved = needed
                self._offsets.commit(REVIVE_GROUP, queue.topic, queue.queue_id, needed - 1)
