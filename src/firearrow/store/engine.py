"""The message store: CommitLog, ConsumeQueues, index and checkpoint together.

One process, one event loop, one writer. Messages come in through the ``doors``. ``dispatch`` makes them visible to
consumers at times that it chooses. A thread brings both to the disk.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Final

from firearrow.clock import Clock
from firearrow.errors import CorruptStore, DiskFull, StoreError
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.machine import memory_bytes
from firearrow.message.model import MessageView
from firearrow.message.names import is_system_topic
from firearrow.message.record import decode_record
from firearrow.services import Scheduler, Service
from firearrow.store import inventory
from firearrow.store.acknowledging import Acknowledging, Condition, Needed, OnSafe, PutStatus
from firearrow.store.assembly import in_files, index_of, lmqs_of, log_of, patience, queues_of
from firearrow.store.batchqueue import FileBatchQueue
from firearrow.store.catchup import CatchUp
from firearrow.store.checkpoint import Checkpoint, End, StoreGuard
from firearrow.store.cleaner import Cleaner
from firearrow.store.config import StoreConfig
from firearrow.store.delays import DelayLevels
from firearrow.store.dispatch import STEP_RECORDS, Dispatcher, Dispatching
from firearrow.store.events import FlushRefused, MessagesArrived, QueuesDeleted, RecordDamaged
from firearrow.store.flush import DerivedFlush, LogFlush
from firearrow.store.flushservice import FlushService, LoopWorker, ThreadWorker
from firearrow.store.fs import OS_FILES, FileSystem, clear_way
from firearrow.store.inventory import Inventory
from firearrow.store.lmq import QUEUE_ID as LMQ_QUEUE_ID
from firearrow.store.logtail import LOOK_BYTES, LastRecords
from firearrow.store.lookup import Boundary, Lookup, QueueEntry
from firearrow.store.mending import RequestedBytes, asked_for, first_torn, mend
from firearrow.store.queuefiles import FileConsumeQueues, batch_topics, no_topic
from firearrow.store.queues import PutCounters, QueueRange, QueuesLeft
from firearrow.store.reader import PullReader, tag_codes
from firearrow.store.recordchecks import Damaged
from firearrow.store.recovery import Recovered, Recovery, StartProgress
from firearrow.store.retention import Consumed
from firearrow.store.truncation import cut_log, save_after_cut
from firearrow.store.writer import Writer

log: Final = Log(__name__)

CHECK_AGAIN_SECONDS: Final = 600.0
"""Time for which the store remembers that a record was sound (``recordchecks``)."""
_run_here: Final = operator.call


class MessageStore(Writer):
    """A store directory, open.

    ``store_host`` is the broker's advertised address as records hold it (see ``firearrow.message.hosts.pack_host``).
    ``scheduler`` is the event loop that the store runs in; without one its owner calls ``dispatch``. ``events`` get the
    events of ``store.events``. ``wants_batches`` tells which topics have the attribute ``queue.type=BatchCQ``; it is
    called from ``open`` on. ``counters`` returns the counters of the messages that are put into a topic.
    """

    _background = True
    _end: End | None = None  # end of the last run, once the directory is locked
    may_have_lost: bool = False  # known once the store is open
    was_closed: bool = True  # by the last process that had it open; known once the store is open

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        store_host: bytes,
        fs: FileSystem = OS_FILES,
        *,
        scheduler: Scheduler | None = None,
        events: Events | None = None,
        wants_batches: Callable[[str], bool] = no_topic,
        counters: Callable[[str], PutCounters] = lambda topic: PutCounters(),
    ) -> None:
        self.config: Final = config
        self.root: Final = config.root_path
        self._fs, self._clock, self._wants_batches = fs, clock, wants_batches
        monotonic = clock.monotonic
        queues = queues_of(config, fs, monotonic, wants_batches)
        log = log_of(config, store_host, fs, clock)
        lmq = lmqs_of(config, queues)
        events = events or Events()
        self.messages_arrived: Final = events.of(MessagesArrived)
        self.delays: Final = DelayLevels(config.message_delay_level)
        self._index = index_of(config, clock, fs)
        parts = log, self.delays, self.messages_arrived
        self._new_dispatcher = partial(Dispatcher, *parts, lmq=config.dispatches_lmqs, index_may_wait=True)
        self._dispatcher = self._new_dispatcher(queues, self._index, one_by_one=in_files(queues))
        dispatching = Dispatching(log, self._dispatcher, scheduler)
        super().__init__(log, queues, lmq, dispatching, counters, has_lmqs=config.enable_lmq)
        self.queues_deleted: Final = events.of(QueuesDeleted)
        self.flush_refused: Final = events.of(FlushRefused)
        self._scheduler = scheduler
        self._run_in_loop = _run_here if scheduler is None else scheduler.call_soon_threadsafe
        if lmq is not None:
            events.listen(QueuesDeleted, lmq.recount)
        self._damaged = Damaged(events.of(RecordDamaged))
        self._check_again_at = monotonic() + CHECK_AGAIN_SECONDS
        self._memory_bytes = memory_bytes()
        self._reader = PullReader(log, queues, config, self._memory_bytes, self._damaged, monotonic)
        # These methods of the parts are called too often for a layer in between.
        self.find_queue: Final = queues.find
        self.catch_up: Final = dispatching.catch_up
        self.watch: Final = dispatching.watch
        self.unwatch: Final = dispatching.unwatch
        self._lookup = lookup = Lookup(
            log, queues, self._index, self._reader.store_ms, clock, self._damaged,
            check_crc=config.check_crc_on_read, catch_up=dispatching.catch_up,
        )  # fmt: skip
        self.get: Final = self._reader.get
        self.content_at: Final = lookup.content_at
        self.named_at: Final = lookup.named_at
        self.all_named_at: Final = lookup.all_named_at
        self.record_named_at: Final = lookup.record_named_at
        self._guard = StoreGuard(self.root, fs)
        self.checkpoint: Checkpoint = Checkpoint()
        self._log_flush = LogFlush(self.log, self.checkpoint)
        self._flusher: FlushService | None = None
        self.acknowledging: Acknowledging = Acknowledging((), clock.monotonic)
        self.confirming: Acknowledging = self.acknowledging
        self._catch_up = self._new_catch_up()
        self._cleaner = Cleaner(log, queues, self._index, config, clock, fs, self._settled_offset)

    def _new_catch_up(self) -> CatchUp:
        return CatchUp(
            self.log,
            self.queues if isinstance(self.queues, FileConsumeQueues) else None,
            self._index,
            self._dispatcher,
            self._new_dispatcher,
            self.messages_arrived,
            self._clock.monotonic,
            self.root / "quarantine",
        )

    # --- life ---

    def lock(self) -> None:
        """Lock the directory, so that files beside the store's can be read before ``open``.

        Raises StoreError or OSError.
        """
        self._end = self._guard.take()

    def release(self) -> None:
        """Release the directory, which was locked but not opened."""
        if self._end is not None:
            self.queues.close()
            self._guard.release(clean=False)
            self._end = None

    def open(self, *, background: bool = True, cut_at: int | None = None) -> None:
        """Lock, recover and dispatch missing entries; from now on the store can be used.

        Without ``background`` there are no threads: only ``flush_step`` and ``close`` flush, and files are made when
        they are needed. The log from the physical offset ``cut_at`` on is given up before (``truncation``). Raises
        StoreError or OSError; the directory is then released again.
        """
        if self._end is None:
            self.lock()
        assert self._end is not None
        try:
            self._open(self._end, background=background, cut_at=cut_at)
        except BaseException:
            self.release()
            raise
        self._end = None

    def _open(self, end: End, *, background: bool, cut_at: int | None) -> None:
        batch = sorted(batch_topics(self.root))
        if batch and self.config.store_type == "defaultRocksDB":
            raise StoreError(
                f"the store {self.root} has queues of batches (queue.type=BatchCQ), which can't be "
                f"served with storeType=defaultRocksDB: topics {', '.join(batch)}; nothing was "
                "changed"
            )
        assert self._flusher is None, "a store is opened once"
        self.may_have_lost = end is End.LOST  # records that were not synced may be gone
        self.was_closed = end is End.CLEAN
        self._guard.mark()
        self.checkpoint = Checkpoint.load(self.root / "checkpoint")
        self.log.load()
        if cut_at is not None:
            self.may_have_lost |= cut_log(self.log, cut_at, self.checkpoint, self.root, self._fs)
        self.queues.load(on_disk=end is End.CLEAN)
        if self._index is not None:
            clear_way(self._fs, self.root / "index", self.root, self.root / "quarantine")
            self._index.load(None if end is End.CLEAN else self.checkpoint.index_ms)
        noted = inventory.load(self.root)
        if noted is not None:
            self._expect(noted)
        recovered = Recovery(
            self.log,
            self.queues,
            self._index,
            self.checkpoint,
            self._fs,
            self.root / "quarantine",
            ended=end,
            check_crc=self.config.check_crc_on_recover,
            progress=StartProgress("checking the CommitLog", self._clock.monotonic),
        ).run()
        end_offset = recovered.log_end_offset
        if noted is not None and end_offset < noted.log[1]:
            _say_shorter(end_offset, noted.log[1])
        if cut_at is not None:
            save_after_cut(self.checkpoint, recovered, self.root, self._fs)
        self._resume(recovered)
        self.follow(self.config.broker_role == "SLAVE")
        if noted is None and end is End.CLEAN:
            self._compare_with_log()
        if self._rebuild_left_out():
            self.queues.flush(0)
        self.queues.correct_min(self.log.start_offset)
        inventory.remove(self.root, self._fs)
        self._guard.settle()
        log.info(
            "store is open",
            extra={"path": self.root, "end_physical_offset": self.log.end_offset, "last_run": end.value},
        )
        flushed_offset = self.log.end_offset if end is End.CLEAN else 0
        self._start_flusher(flushed_offset, background=background)

    def _resume(self, recovered: Recovered) -> None:
        """Continue at the end of the log, and dispatch missing entries."""
        assert recovered.dispatch_offset <= recovered.queues_offset <= recovered.log_end_offset
        self.log.resume(recovered.log_end_offset, recovered.last_store_ms or self.checkpoint.log_ms)
        self._dispatcher.offset = recovered.dispatch_offset
        self._dispatcher.queues_offset = recovered.queues_offset
        self._dispatcher.complete = recovered.queues_offset == self.log.start_offset
        if self.config.broker_role == "SLAVE" and (torn := first_torn(self.log)) is not None:
            self.dispatching.limit_to(torn)  # until the log is compared with the master's
        self._dispatch_all()
        self._dispatcher.complete = False

    def _expect(self, noted: Inventory) -> None:
        """Compare the files with the note of the last close.

        Raises CorruptStore where the end of the log is gone: continuing would give the places of acknowledged messages
        to others.
        """
        start, end = self.log.start_offset, self.log.segments.end_offset
        if self.log.segments.files and end < noted.log[1]:
            raise CorruptStore(
                f"the CommitLog ended at {noted.log[1]} when the store was closed, its files end "
                f"at {end} now: put {self.log.segments.path_of(end)} back, or delete "
                f"{self.root / inventory.NAME} to go on without the messages in it"
            )
        if start > noted.log[0]:
            log.error(
                "CommitLog begins after the place where it began when the store was closed: the files between are gone",
                extra={"physical_offset": start, "noted_physical_offset": noted.log[0]},
            )
        if self._index is not None:
            self._index.expect(noted.index)
        if isinstance(self.queues, FileConsumeQueues):
            self.queues.expect(noted, log_is_whole=start == noted.log[0])

    def _compare_with_log(self) -> None:
        """Leave out the queues that don't reach the last records of the log, see ``logtail``."""
        if not isinstance(self.queues, FileConsumeQueues):
            return
        last = LastRecords(self.queues.is_batch)
        looking = self._new_dispatcher(last, None)
        before = self.queues.last_before(self.log.end_offset - LOOK_BYTES)
        looking.offset = max(before, self.log.start_offset)
        try:
            self._dispatch_all(looking)
        except CorruptStore as error:  # an entry refers to no record
            log.warning("queues can't be compared with the end of the log", extra={"error": error})
            return
        self.queues.expect_records(last.by_key, self.log.start_offset)

    def _note(self) -> None:
        """Note the files that the next start must find."""
        noted = Inventory(
            inventory.checkpoint_sum(self.root),
            (self.log.start_offset, self.log.end_offset),
            self._index.names if self._index is not None else [],
            self.queues.noted() if isinstance(self.queues, FileConsumeQueues) else {},
        )
        try:
            inventory.save(self.root, noted, self._fs)
        except OSError as error:
            log.warning(
                "inventory can't be written: the next start can't tell whether files are missing",
                extra={"error": error},
            )

    def _settled_offset(self) -> int:
        """End of the log that is on the disk and in the queues there."""
        in_queues = self.queues.dispatched_offset
        if in_queues is None:
            in_queues = self.checkpoint.queues_physical_offset
        flushed_offset = self._log_flush.flushed_offset
        assert flushed_offset <= self.log.end_offset
        return min(flushed_offset, in_queues)

    def keep_from(self, offset: Callable[[], int | None]) -> None:
        """Delete no file of the log from the physical offset on that ``offset`` returns."""
        self._cleaner.kept_from = offset

    def flush_log(self) -> None:
        """Return once everything in the log is on the disk, in any thread; OSError if that is impossible."""
        self._log_flush.flush()

    def _start_flusher(self, flushed_offset: int, *, background: bool) -> None:
        self._log_flush = LogFlush(self.log, self.checkpoint, flushed_offset)
        derived_flush = DerivedFlush(
            self.root, self._log_flush, self.queues, self._index, self._dispatcher, self.checkpoint, self._fs
        )
        loop = self._scheduler
        self._flusher = FlushService(
            self._log_flush,
            derived_flush,
            self.config,
            self._clock.monotonic,
            self._run_in_loop,
            ThreadWorker if background or loop is None else lambda _, step: LoopWorker(loop, step),
            lambda: self.acknowledging.has_waiters or self.confirming.has_waiters,
            self.flush_refused,
        )
        self.acknowledging = self.confirming = self._acknowledging(self._on_disk())
        self._flusher.moved.listen(lambda _: self.acknowledging.answer())
        self.log.on_clock_back = derived_flush.go_back
        if self.checkpoint.log_ms > self.log.last_store_ms > 0:  # the clock was set back, then
            derived_flush.go_back(self.log.last_store_ms)  # the power was lost, or RocketMQ had the store
        self.log.prepares_aside = self._background = background
        if background and self._scheduler is None:
            self._flusher.begin()
        log.info("flush policy", extra={"flush": self.config.loss_window})

    def _acknowledging(self, *needed: Needed) -> Acknowledging:
        return Acknowledging(needed, self._clock.monotonic, self._scheduler)

    def _on_disk(self) -> Needed:
        assert self._flusher is not None
        return Needed(self._flusher, self.config.sync_flush_timeout / 1000, PutStatus.NOT_FLUSHED)

    def copy_by(self, copies: Condition, seconds_max: float) -> Acknowledging:
        """Confirm sends by copies, too, from now on. The result answers the waiting senders: call its ``answer`` when
        there are more copies.
        """
        needed = Needed(copies, seconds_max, PutStatus.NOT_COPIED)
        if not self.sync_flush:
            self.confirming = self._acknowledging(needed)
            return self.confirming
        assert self._flusher is not None
        self.confirming = confirming = self._acknowledging(self._on_disk(), needed)
        self._flusher.moved.listen(lambda _: confirming.answer())
        return confirming

    @property
    def services(self) -> list[Service]:
        """The store's services, for its owner to start and stop, if it has a scheduler."""
        return [self.dispatching] if self._flusher is None else [self._flusher, self.dispatching]

    def _drop_unfinished(self) -> None:
        """Take back the beginning of a record whose rest the master has not sent yet."""
        if self._dispatcher.lacks_rest and self.behind_bytes:
            self.log.drop_end(self._dispatcher.offset)

    def close(self) -> None:
        """Dispatch and flush everything, then leave the directory as a clean one."""
        if self._flusher is None:
            return
        self._cleaner.stop()
        self._catch_up.stop()
        self.dispatching.limit_to(None)
        self.dispatching.cancel()
        flusher, self._flusher = self._flusher, None
        flusher.end()
        clean = True
        for step in (self._dispatch_all, self._drop_unfinished, flusher.finish):
            try:
                step()
            except (OSError, StoreError) as error:
                clean = False  # the next start checks everything again
                log.error(
                    "store can't be closed cleanly: the next start will look at everything again",
                    extra={"error": error},
                )
        self.acknowledging.refuse()
        self.confirming.refuse()
        if clean and self.log.end_offset:
            assert self.flushed_offset >= self.log.end_offset, "a clean end leaves everything on the disk"
            self._note()
        self.log.close()
        self.queues.close()
        if self._index is not None:
            self._index.close()
        self._guard.release(clean=clean)

    def _dispatch_all(self, dispatcher: Dispatcher | None = None) -> None:
        """Dispatch the whole log; a step over the blank of a file has no records but is no end."""
        dispatcher = dispatcher or self._dispatcher
        progress = StartProgress("writing queues and index", self._clock.monotonic)
        start, end = dispatcher.offset, self.log.end_offset
        before = -1
        with patience(self.queues):
            while before < dispatcher.offset < end:
                before = dispatcher.offset
                dispatcher.run()
                progress(dispatcher.offset - start, end - start)

    def _rebuild_left_out(self) -> bool:
        """Rebuild from the log the queues whose files are unusable or incomplete; return whether there were any."""
        aside = self.queues.set_aside(self.root / "quarantine")
        if not aside:
            return False
        log.warning("queues are rebuilt from the log", extra={"count": len(aside)})
        rebuilding = self._new_dispatcher(self.queues, None, aside)
        rebuilding.offset = self.log.start_offset
        rebuilding.complete = True
        self._dispatch_all(rebuilding)
        if isinstance(self.queues, FileConsumeQueues):
            self.queues.settle_aside(aside)
        return True

    # --- writing ---

    @property
    def sync_flush(self) -> bool:
        """Tell whether a send is answered only once it is on the disk."""
        return self.config.flush_disk_type == "SYNC_FLUSH"

    @property
    def must_confirm(self) -> bool:
        """Tell whether a send is answered only once it is on the disk, or copied."""
        return self.sync_flush or self.confirming is not self.acknowledging

    def when_confirmed(self, physical_offset: int, on_safe: OnSafe) -> None:
        """Call ``on_safe``, in the event loop, once the log meets the conditions of a send up to an offset."""
        self.confirming.wait_for(physical_offset, on_safe)

    def when_safe(self, physical_offset: int, on_safe: Callable[[bool], object]) -> None:
        """Call ``on_safe``, in the event loop, once it is known whether the disk has the log up to an offset. Its
        argument tells that.
        """
        self.acknowledging.wait_for(physical_offset, lambda it: on_safe(it is PutStatus.SAFE))

    def flush_soon(self) -> None:
        """Flush the log before its interval is over."""
        self.acknowledging.ask()

    @property
    def flushed_offset(self) -> int:
        """End of the flushed log, as a physical offset."""
        return self._log_flush.flushed_offset

    def flush_step(self) -> None:
        """Flush everything that is due by the clock, in this thread; OSError if the disk refuses.

        For a store that was opened without ``background``.
        """
        assert self._flusher is not None
        try:
            self._flusher.step()
        finally:
            self.acknowledging.expire()
            self.confirming.expire()

    def dispatch(self) -> bool:
        """Dispatch a batch; return whether there is more, see ``Dispatching.step``."""
        return self.dispatching.step()

    def catch_up_left_out(self) -> float | None:
        """Take a step of the catch-up of queues and index that were left out (``catchup``).

        Returns the seconds until the next step; None if nothing is left out.
        """
        return self._catch_up.step()

    # --- reading ---

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """First offset of a queue that can be read; 0 where there is no queue. For a queue of batches that has never
        had any it is -1 (RocketMQ's ``BatchConsumeQueue#minOffsetInQueue``).
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return -1 if self._wants_batches(topic) else 0
        return -1 if isinstance(queue, FileBatchQueue) and not queue.numbers else queue.min_offset

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the next message that becomes visible in a queue."""
        self.catch_up()
        queue = self.queues.find(topic, queue_id)
        return queue.max_offset if queue else 0

    def tag_codes(self, topic: str, queue_id: int, queue_offset: int, end: int) -> set[int]:
        """The tag codes of the entries from an offset to before another."""
        return tag_codes(self.queues.open(topic, queue_id), queue_offset, end, self.log)

    def store_time_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time (ms) of a message, -1 if the queue does not have it."""
        queue = self.queues.find(topic, queue_id)
        return self._reader.store_ms(queue, queue_offset) if queue else -1

    def time_span(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Store times (ms) of a queue's first and last message, -1 and -1 if it has none."""
        self.catch_up()
        return self._lookup.time_span(topic, queue_id)

    def iterate_from(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int | None = None
    ) -> Iterator[QueueEntry]:
        """The entries of a queue, see ``Lookup.iterate_from``."""
        return self._lookup.iterate_from(topic, queue_id, queue_offset, count_max)

    def search_offset(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """The queue offset of a store time."""
        self.catch_up()
        return self._lookup.search(topic, queue_id, time_ms, boundary)

    def head_in_memory(self, topic: str, queue_id: int) -> bool:
        """Tell whether a queue has messages and the first of them counts as recent."""
        queue = self.queues.find(topic, queue_id)
        if queue is None or queue.max_offset <= queue.min_offset:
            return False
        return self.is_recent(queue.entry(queue.min_offset)[0])

    def is_recent(self, physical_offset: int) -> bool:
        """Tell whether a record counts as recent: as one that is still in memory."""
        recent = self._memory_bytes * self.config.access_message_in_memory_max_ratio // 100
        return self.log.end_offset - physical_offset <= recent

    def record_at(self, physical_offset: int) -> bytes | None:
        """The stored record at a physical offset; None if no sound record begins there."""
        return self._lookup.record_at(physical_offset)

    def view_at(self, physical_offset: int) -> MessageView:
        """The message at a physical offset, see ``Lookup.view_at``."""
        return self._lookup.view_at(physical_offset)

    def query(self, topic: str, key: str, kind: str, begin_ms: int, end_ms: int, count_max: int) -> list[bytes]:
        """Records by key, see ``Lookup.query``."""
        self.catch_up()
        return self._lookup.query(topic, key, kind, begin_ms, end_ms, count_max)

    def explain_query(self, topic: str, key: str, kind: str, begin_ms: int, end_ms: int) -> str:
        """Explain, in one clause, why ``query`` returned nothing for these arguments."""
        if self.behind_bytes:
            return f"the last {self.behind_bytes} bytes of the CommitLog are not indexed yet"
        return self._lookup.explain_query(topic, key, kind, begin_ms, end_ms)

    def explain_offset(self, physical_offset: int) -> str:
        """Explain, in one clause, why ``record_at`` returned nothing for an offset."""
        return self._lookup.explain_offset(physical_offset)

    @property
    def index_end(self) -> tuple[int, int]:
        """Store time (ms) and physical offset of the last indexed key."""
        if self._index is None or not self._index.files:
            return 0, 0
        return self._index.end_ms, self._index.end_physical_offset

    # --- retention ---

    def clean(self) -> None:
        """Delete files whose time is over, and refuse sends if the disk is too full; see ``cleaner``. The owner calls
        it every ``cleanResourceInterval``.
        """
        if self._clock.monotonic() >= self._check_again_at:
            self.check_again()
        self._cleaner.clean(aside=self._background)

    def check_again(self) -> None:
        """Check records again before they are read, even those that were checked or written by this process."""
        self.log.doubt(self.log.end_offset)
        self._reader.forget_checked()
        self._check_again_at = self._clock.monotonic() + CHECK_AGAIN_SECONDS

    def clean_on_request(self) -> None:
        """Delete files whose time is over whatever the hour, in this round and those that follow."""
        self._cleaner.ask()
        self.clean()

    def retain_by(self, config: StoreConfig) -> None:
        """Use the retention keys of a changed configuration from now on."""
        self._cleaner.config = config

    def know_progress(self, progress: Callable[[], Iterable[Consumed]]) -> None:
        """Set the retention policy's source for the progress of consumer groups."""
        self._cleaner.progress = progress

    def delete_expired_queues(self) -> Iterator[QueueRange]:
        """Delete the queues that have no message in the log any more, except queues of system topics. Each step of the
        iterator deletes one.

        Their next message will have the queue offset 0. The event `QueuesDeleted` tells the code that keeps results of
        ``queue`` to get them again.
        """
        for topic, queue_id, _, _ in list(filter(self._is_expired, self.queues.ranges())):
            self.catch_up()
            queue = self.queues.find(topic, queue_id)
            if queue is None:
                continue
            now = QueueRange(topic, queue_id, queue.min_offset, queue.max_offset)
            if self._is_expired(now):  # the queue may have changed meanwhile
                self._catch_up.stop()
                with self._cleaner.paused():
                    self.queues.delete_queues({(topic, queue_id)})
                self.queues_deleted(QueuesDeleted(topic, queue_id))
                yield now

    def _is_expired(self, queue: QueueRange) -> bool:
        """Tell whether a queue has had messages, has none any more, and none is on its way to it."""
        if not 0 < queue.max_offset <= queue.min_offset or is_system_topic(queue.topic):
            return False
        return self.queue(queue.topic, queue.queue_id).next_offset == queue.max_offset

    def delete_unused_topics(self, kept: Collection[str]) -> Iterator[str]:
        """Delete the queues of all topics except the ``kept`` ones, system topics and LMQs. Each step of the iterator
        deletes the queues of one topic.
        """
        for topic in sorted({queue.topic for queue in self._unused(kept)}):
            if topic not in kept:  # it may have been created meanwhile
                self.delete_topic(topic)
                yield topic

    def _unused(self, kept: Collection[str]) -> Iterator[QueueRange]:
        for queue in self.queues.ranges(lmqs=False):
            if queue.topic not in kept and not is_system_topic(queue.topic):
                yield queue

    def topics_from(self, prefix: str) -> Iterator[str | None]:
        """The topics with messages whose names begin with a prefix. Between them the iterator returns None now and then
        while it passes over others, so that other work can be done.
        """
        return self.queues.topics_from(prefix)

    def queues_left(self, kept: Collection[str]) -> list[QueuesLeft]:
        """The queues with messages of all topics except the ``kept`` ones, system topics and LMQs, by topic."""
        left: dict[str, QueuesLeft] = {}
        for topic, queue_id, first, after in self._unused(kept):
            if first < after:
                last = self.queue(topic, queue_id).entry(after - 1)[0]
                known = left.get(topic) or QueuesLeft(topic, 0, -1, self.queues.is_batch(topic))
                left[topic] = known._replace(
                    queue_nums=max(known.queue_nums, queue_id + 1),
                    last_physical_offset=max(known.last_physical_offset, last),
                )
        return list(left.values())

    @property
    def log_start_offset(self) -> int:
        """Start of the log, as a physical offset."""
        return self.log.start_offset

    @property
    def log_end_offset(self) -> int:
        """End of the log, as a physical offset."""
        return self.log.end_offset

    @property
    def store_host(self) -> bytes:
        """The broker's address as records hold it."""
        return self.log.store_host

    # --- administration ---

    def advise(self, *, read_ahead: bool) -> None:
        """Tell the system to read the log ahead, for a reader in order, or not, for all other readers."""
        self.log.advise(read_ahead=read_ahead)

    def dispatch_in_steps(self) -> Iterator[None]:
        """Dispatch everything that is in the log now, one batch for each step of the iterator. An error ends it."""
        end = self.log.end_offset
        before = -1
        while before < self._dispatcher.offset < end:
            before = self._dispatcher.offset
            try:
                self._dispatcher.run(STEP_RECORDS, end)
            except (OSError, StoreError):
                return
            yield

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues; its records stay in the log until retention deletes them.

        Pending records are dispatched first: they must not come to a later topic of the same name. Raises DiskFull,
        having deleted nothing, if that is impossible.
        """
        self._dispatch_before_deletion(f"topic {topic}")
        self._catch_up.stop()
        with self._cleaner.paused():
            self.queues.delete_topic(topic)
        self.queues_deleted(QueuesDeleted(topic))

    def delete_lmqs(self, names: Collection[str]) -> None:
        """Delete LMQs, each as `delete_topic` does, at the cost of one."""
        if not names:
            return
        self._dispatch_before_deletion(f"{len(names)} LMQs")
        self._catch_up.stop()
        with self._cleaner.paused():
            self.queues.delete_queues({(name, LMQ_QUEUE_ID) for name in names})
        for name in names:
            self.queues_deleted(QueuesDeleted(name))

    def _dispatch_before_deletion(self, what: str) -> None:
        try:
            self._dispatch_all()
        except OSError as error:
            raise DiskFull(f"{what} can't be deleted before its last messages are dispatched: {error}") from error

    def admit_batches(self, topic: str) -> bool:
        """Tell whether a new topic can have ``queue.type=BatchCQ``, see ``ConsumeQueues.admit_batches``.

        If it can't, ``delete_topic`` makes it possible.
        """
        self._catch_up.stop()
        with self._cleaner.paused():
            return self.queues.admit_batches(topic)

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that are not dispatched yet."""
        return self._dispatcher.behind_bytes

    @property
    def dispatched_offset(self) -> int:
        """End of the dispatched log, as a physical offset."""
        return self._dispatcher.offset

    @property
    def earliest_store_ms(self) -> int:
        """Store time of the log's first message, -1 if there is none."""
        first = self.record_at(self.log.start_offset)
        return decode_record(first).store_timestamp_ms if first else -1

    def asked_for(self, record: RecordDamaged) -> RequestedBytes | None:
        """The request to a replica that repairs a damaged record; None if the record is gone."""
        return asked_for(self.log, record)

    def mend(self, record: RecordDamaged, asked: RequestedBytes, data: bytes) -> str | None:
        """Overwrite a damaged record with a replica's copy; return the reason if that copy is of no use.

        `flush_mended` brings it to the disk.
        """
        why = mend(self.log, self.queues, record, asked, data)
        if why is None:
            self._damaged.forget(record.physical_offset)
            self._reader.forget_checked()
        return why

    def flush_mended(self, record: RecordDamaged) -> None:
        """Return once a record is on the disk; in any thread."""
        at = record.physical_offset
        self.log.segments.flush(at, at + record.size)

    def runtime_facts(self) -> dict[str, str]:
        """The facts about the store that request 28 reports, under RocketMQ's names."""
        usage = os.statvfs(self.root)
        log_used = f"{self._fs.used_ratio(self.config.commit_log_path):.2f}"
        earliest = self.earliest_store_ms
        return {
            "commitLogMinOffset": str(self.log.start_offset),
            "commitLogMaxOffset": str(self.log.end_offset),
            "commitLogDiskRatio": log_used,
            f"commitLogDiskRatio_{self.config.commit_log_path}": log_used,
            "consumeQueueDiskRatio": f"{self._fs.used_ratio(self.root):.2f}",
            "commitLogDirCapacity": _capacity(usage),
            "dispatchBehindBytes": str(self.behind_bytes),
            "earliestMessageTimeStamp": str(earliest),
            "putMessageFailedTimes": str(self.log.failed_appends),
            "writesRefused": self.log.without_room or "",  # RocketMQ has no such entry, nor the next
            "damagedRecords": str(self._damaged.count),
            "remainHowManyDataToFlush": f"{self.log.end_offset - self._log_flush.flushed_offset} B",
        }


def _capacity(usage: os.statvfs_result) -> str:
    gib = usage.f_frsize / (1 << 30)
    return f"Total : {usage.f_blocks * gib:.1f} GiB, Free : {usage.f_bavail * gib:.1f} GiB."


def _say_shorter(end_offset: int, noted_offset: int) -> None:
    log.error(
        "CommitLog ends before the place where it ended when the store was closed",
        extra={"physical_offset": end_offset, "noted_physical_offset": noted_offset},
    )
