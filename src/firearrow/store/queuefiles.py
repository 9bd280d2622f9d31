"""The ConsumeQueues of a store with ``storeType=default``: each has a directory of files.

The tree is ``consumequeue/TOPIC/QUEUE_ID/``, see ``consumequeue`` for the files. Topics with the attribute
``queue.type=BatchCQ`` have ``batchconsumequeue/TOPIC/QUEUE_ID/`` instead, see ``batchqueue``. The kind of a topic is
decided when its first queue is loaded or made, and stays until the topic is deleted. Existing files of queues of
batches decide it, otherwise the attribute. RocketMQ does not start if files and attribute disagree. Here usual queues
of such a topic are set aside and rebuilt, and queues of batches without the attribute are served.

Source: RocketMQ's ``ConsumeQueueStore``, ``#queueTypeShouldBe``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore, StoreError
from firearrow.logs import Log
from firearrow.message.names import fault_as_directory, is_lmq
from firearrow.store.batchqueue import DIRECTORY, FileBatchQueue, messages_end, units_of
from firearrow.store.commitlog import SCAN_BYTES_MAX
from firearrow.store.config import BATCH_FILE_BYTES
from firearrow.store.consumequeue import FileConsumeQueue, Unflushed
from firearrow.store.events import MessagesArrived
from firearrow.store.extension import DIRECTORY as EXTENSIONS
from firearrow.store.fs import OS_FILES, FileSystem, ManyFiles, NewNames, clear_way, keep_aside, names_in
from firearrow.store.inventory import Inventory
from firearrow.store.laggingqueues import NAME, Key, Lagging, LaggingFile, concerns_all
from firearrow.store.queues import ENTRY_BYTES, DispatchedEntries, HasRecord, ManyNewQueues, QueueRange, Run
from firearrow.store.segments import MappedFiles, maps_max

log: Final = Log(__name__)

_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
_LOOK_QUEUES: Final = 1000  # queues that a flush checks in a row; a millisecond
_LOOK_REST_SECONDS: Final = 0.0005
_SCAN_STEP_TOPICS: Final = 2000  # topics that are passed over in a row; a millisecond
assert _ENTRY.itemsize == ENTRY_BYTES
AnyQueue = FileConsumeQueue | FileBatchQueue

NEW_QUEUES_MAX: Final = 16
"""Limit of queues that get their first file in one round, and of the seconds for these. One queue costs a tenth of a
millisecond, a directory included, and ten times that while the disk is busy. All senders and readers wait for the whole
round.
"""
NEW_QUEUES_SECONDS: Final = 0.003


def _no_time() -> float:
    """The time for queues without a clock: it stands still."""
    return 0.0


def no_topic(_: str) -> bool:
    """Answer of ``wants_batches`` where no topic has the attribute."""
    return False


class FileConsumeQueues:
    """Implements ``ConsumeQueues``; a queue is added to the table when it is first opened.

    A queue that can't be opened is left out, with the reason logged: one broken queue never keeps the others from being
    served. Until it is whole again, nothing is sent to it either. ``wants_batches`` tells whether a topic has the
    attribute.
    """

    def __init__(
        self,
        directory: Path,
        file_size_bytes: int,
        fs: FileSystem = OS_FILES,
        *,
        batch_file_bytes: int = BATCH_FILE_BYTES,
        wants_batches: Callable[[str], bool] = no_topic,
        monotonic: Callable[[], float] = _no_time,
        new_queues_max: float = NEW_QUEUES_MAX,
    ) -> None:
        self._fs = fs
        self._monotonic = monotonic
        self._new_queues_max = new_queues_max
        self._is_patient = False
        self._directory = directory
        self._batch_directory = directory.parent / DIRECTORY
        self._file_size_bytes = file_size_bytes
        self._batch_file_bytes = batch_file_bytes
        self._wants_batches = wants_batches
        self._kinds: dict[str, bool] = {}  # by topic that has queues: whether they are of batches
        self._by_key: dict[Key, AnyQueue] = {}
        self._ids: dict[str, set[int]] = {}  # by topic: all queues that were ever made
        self._broken: dict[Key, str] = {}
        self._many = ManyFiles(directory.parent, fs)
        self._names = NewNames(directory.parent, self._many)
        self._maps = MappedFiles(maps_max())
        self._rest = Event()  # never set
        self._left_out_file = LaggingFile(directory.parent, fs)
        self._shut: dict[Key, AnyQueue] = {}  # nothing can be read from these
        self._rebuilt: set[Key] = set()  # the files of these were made by an earlier try
        self._hopeless: set[Key] = set()  # the log itself lacks messages that these need
        self._ends: dict[Key, int] = {}  # the ends of queues when the store was closed
        self.left_out: dict[Key, Lagging] = {}

    def load(self, *, on_disk: bool = False) -> None:
        """Open every queue that has files, see ``ConsumeQueues.load``."""
        assert not self._by_key, "queues are loaded before they are used"
        self._many.open()
        for topic in sorted(batch_topics(self._batch_directory.parent)):
            if not self._wants_batches(topic):
                log.warning(
                    "topic has queues of batches: RocketMQ does not start before the topic has "
                    "the attribute queue.type=BatchCQ",
                    extra={"topic": topic},
                )
            self._kinds[topic] = True
        for topic, queue_id in _queue_names(self._batch_directory):
            if self.is_batch(topic):  # otherwise the topic has no files, and decides nothing
                self._load(topic, queue_id, self._batch_directory, on_disk=on_disk)
        for topic, queue_id in _queue_names(self._directory):
            if self.is_batch(topic):
                place = self._directory / topic / queue_id
                self._break(place, "the topic's queues are of batches (queue.type=BatchCQ)")
            else:
                self._load(topic, queue_id, self._directory, on_disk=on_disk)
        self._left_out_file.load()
        for topic, number in self._left_out_file.noted:
            self._break(self._directory / topic / str(number), f"{NAME} names it")

    def _load(self, topic: str, queue_id: str, directory: Path, *, on_disk: bool) -> None:
        queue = self._make(topic, int(queue_id))
        try:
            queue.load(on_disk=on_disk)
            if not queue.segments.files and not queue.segments.directory.is_dir():
                raise CorruptStore("it is no directory")
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and concerns_all(error):
                raise
            self._break(directory / topic / queue_id, str(error))
        else:
            self._by_key[queue.topic, queue.queue_id] = queue

    def noted(self) -> dict[str, dict[int, tuple[int, int]]]:
        """The ends of queues for ``inventory``; ``laggingqueues`` notes the queues that are left out."""
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for (topic, queue_id), queue in self._by_key.items():
            if queue.segments.files and (topic, queue_id) not in self.left_out:
                place = queue.segments.first_offset, queue.max_offset
                found.setdefault(topic, {})[queue_id] = place
        return found

    def expect(self, inventory: Inventory, *, log_is_whole: bool) -> None:
        """Leave out, after ``load``, the queues that lack entries that they had when the store was closed.

        ``log_is_whole`` tells that the log still begins at the same offset. Otherwise their first files may be gone
        with the log's.
        """
        for key, first, end in inventory.each_queue():
            self._ends[key] = end
            queue = self._by_key.get(key)
            if key in self._broken:
                continue
            if queue is None or queue.max_offset < end or (log_is_whole and queue.segments.first_offset > first):
                path = self._directory / key[0] / str(key[1])
                self._break(path, "it lacks messages that it had when the store was closed")

    def expect_records(self, last: dict[Key, int], log_start_offset: int) -> None:
        """Leave out the queues that lack their last record in the log, or their first file although the log is there
        from 0 on.

        A queue without entries is not left out: its topic may have been deleted, or be another one by now.
        """
        for (topic, queue_id), queue in list(self._by_key.items()):
            if queue.max_physical_offset < 0:
                continue
            behind = queue.max_physical_offset < last.get((topic, queue_id), -1)
            headless = log_start_offset == 0 and queue.segments.first_offset > 0
            if behind or headless:
                path = self._directory / topic / str(queue_id)
                self._break(path, "it lacks messages that the log has")

    def _break(self, path: Path, reason: str) -> None:
        key = path.parent.name, int(path.name)
        log.error("queue is left out", extra={"topic": key[0], "queue_id": key[1], "path": path, "reason": reason})
        self._broken[key] = reason
        queue = self._by_key.pop(key, None)
        if queue is not None:
            queue.close()

    def is_batch(self, topic: str) -> bool:
        """Tell whether a topic's queues are queues of batches (``batchqueue``)."""
        settled = self._kinds.get(topic)
        return self._wants_batches(topic) if settled is None else settled

    def admit_batches(self, topic: str) -> bool:
        """Tell whether queues of a topic can be of batches, see ``ConsumeQueues.admit_batches``."""
        if self._kinds.get(topic, True):
            return True
        if any(queue.next_offset for queue in self._of_topic(topic).values()):
            return False
        self.delete_topic(topic)
        return True

    def _of_topic(self, topic: str) -> dict[tuple[str, int], AnyQueue]:
        keys = ((topic, queue_id) for queue_id in self._ids.get(topic, ()))
        return {key: self._by_key[key] for key in keys if key in self._by_key}

    def _make(self, topic: str, queue_id: int) -> AnyQueue:
        if (fault := fault_as_directory(topic)) is not None:
            raise CorruptStore(fault)
        self._ids.setdefault(topic, set()).add(queue_id)
        if self._kinds.setdefault(topic, self.is_batch(topic)):
            directory = f"{self._batch_directory}/{topic}/{queue_id}"
            size = self._batch_file_bytes
            return FileBatchQueue(directory, topic, queue_id, size, self._fs, self._maps)
        directory = f"{self._directory}/{topic}/{queue_id}"
        size = self._file_size_bytes
        return FileConsumeQueue(directory, topic, queue_id, size, self._fs, self._maps)

    def find(self, topic: str, queue_id: int) -> AnyQueue | None:
        """The queue, if it was ever opened; CorruptStore if it is unreadable at present.

        A consumer must not see the offsets that the queue seems to have meanwhile.
        """
        queue = self._by_key.get((topic, queue_id))
        if queue is None and (topic, queue_id) in self._shut:
            raise self._refusal(topic, queue_id)
        return queue

    def _refusal(self, topic: str, queue_id: int) -> CorruptStore:
        reason = self.left_out[topic, queue_id].reason
        return CorruptStore(f"queue {topic}-{queue_id} can't be read for now: {reason}")

    def open(self, topic: str, queue_id: int) -> AnyQueue:
        """The queue; a new one gets its files with its first dispatched message.

        Raises CorruptStore for a queue that was left out.
        """
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            if (topic, queue_id) in self._broken:
                reason = self._broken[topic, queue_id]
                raise CorruptStore(f"queue {topic}-{queue_id} is left out: {reason}")
            queue = self._shut.get((topic, queue_id))
            if queue is None:
                queue = self._by_key[topic, queue_id] = self._make(topic, queue_id)
        return queue

    def put(self, entries: DispatchedEntries, *, complete: bool = False) -> MessagesArrived:
        """Write each run to its queue, see ``ConsumeQueues.put``."""
        data = rows_of(entries)
        arrived = MessagesArrived()
        refused: dict[Key, int] = {}
        made = 0
        until = 0.0
        many_new = False
        for run in entries.each_run():
            key = run.topic, run.queue_id
            queue = self._by_key.get(key)
            try:
                if queue is None:
                    queue = self._opened(key)
                if not queue.segments.files:
                    now = self._monotonic()
                    until = until or now + NEW_QUEUES_SECONDS
                    late = made >= self._new_queues_max or (made and now >= until)
                    if late and not self._is_patient:
                        many_new = True
                        break
                    made += 1
                put_run(queue, entries, data, run, complete=complete)
            except (OSError, CorruptStore) as error:
                if isinstance(error, OSError) and concerns_all(error):
                    raise
                left, end = self.left_out.get(key), messages_end(entries, run)
                if queue is not None and (left.needs_rebuild if left is not None else isinstance(error, CorruptStore)):
                    end = queue.max_offset  # the numbers in the log make no sense
                refused[key] = end
                self._leave_out(key, error, int(entries.physical_offset[run.start]), end)
                if key in self._shut and self._shut[key].next_offset < end:
                    self._shut[key].next_offset = end  # no offset may be assigned a second time
                continue
            arrived.append((*key, run.queue_offset, queue.max_offset))
        if refused:
            self._left_out_file.add(refused)
        if many_new:
            raise ManyNewQueues(arrived)
        return arrived

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Context that lets a round make files for any number of new queues: nobody waits for its end."""
        self._is_patient = True
        try:
            yield
        finally:
            self._is_patient = False

    def put_one(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, entry: bytes) -> bool:
        """Write one entry if it is the next of a queue that has files. Return False, having done nothing, in cases that
        only ``put`` handles. Raises OSError when the disk is full.
        """
        key = topic, queue_id
        queue = self._by_key.get(key)
        if not isinstance(queue, FileConsumeQueue) or key in self.left_out:
            return False
        if queue_offset != queue.max_offset or physical_offset <= queue.max_physical_offset:
            return False
        if not queue.segments.files:
            return False
        queue.put(queue_offset, entry)
        return True

    def _opened(self, key: Key) -> AnyQueue:
        if key in self._shut:
            raise self._refusal(*key)
        return self.open(*key)

    def _leave_out(self, key: Key, error: OSError | CorruptStore, since: int, end: int) -> None:
        """Leave out a broken queue, so that the others get their messages. Any thread may call it.

        A queue whose topic can't be a directory stays left out, and no note names it.
        """
        left = self.left_out.get(key)
        if left is None:
            log.error(
                "queue gets no further entries for now: its messages stay in the log, all other queues go on",
                extra={"topic": key[0], "queue_id": key[1], "error": error},
            )
            left = Lagging(str(error), since, end, isinstance(error, CorruptStore))
            if fault_as_directory(key[0]) is not None:
                self._hopeless.add(key)
        self.left_out[key] = left._replace(end=max(left.end, end))

    @property
    def dispatched_offset(self) -> None:
        """None: pages reach the disk in any order."""
        return None

    @property
    def max_physical_offset(self) -> int:
        """Highest record that any queue knows, -1 for none."""
        return max((queue.max_physical_offset for queue in self._by_key.values()), default=-1)

    def last_before(self, physical_offset: int) -> int:
        """The last record before a physical offset, see ``ConsumeQueues.last_before``."""
        if physical_offset <= 0:
            return -1
        lasts = (queue.max_physical_offset for queue in self._by_key.values())
        near = max((last for last in lasts if last < physical_offset), default=-1)
        if near >= 0 and physical_offset - near <= SCAN_BYTES_MAX:
            return near  # so no entry of very many queues is read for this
        return max((queue.last_before(physical_offset) for queue in self._by_key.values()), default=-1)

    def ranges(self, *, lmqs: bool = True) -> Iterator[QueueRange]:
        """The range of each queue."""
        for (topic, queue_id), queue in self._by_key.items():
            if lmqs or not is_lmq(topic):
                yield QueueRange(topic, queue_id, queue.min_offset, queue.max_offset)

    def topics_from(self, prefix: str) -> Iterator[str | None]:
        """The topics with messages whose names begin with a prefix, see ``ConsumeQueues.topics_from``."""
        for number, topic in enumerate(dict.fromkeys(topic for topic, _ in list(self._by_key))):
            if topic.startswith(prefix):
                yield topic
            elif number % _SCAN_STEP_TOPICS == 0:
                yield None

    def lmq_count(self) -> int:
        """Number of LMQs."""
        return sum(is_lmq(topic) for topic, _ in self._by_key)

    def correct_min(self, log_start_offset: int) -> None:
        """Move each ``min_offset`` to the first message that the log still holds."""
        for queue in self._by_key.values():
            queue.correct_min(log_start_offset)

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> None:
        """Forget the entries of later records, see ``ConsumeQueues.cut``."""
        for queue in self._by_key.values():
            if queue.cut(log_end_offset, has_record):
                self._names.note(queue.segments.directory)

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Take out the files of each queue that hold no entry of an existing record."""
        gone: list[Path] = []
        for queue in self._by_key.values():
            gone += queue.delete_expired(log_start_offset)
        return gone

    def delete_queues(self, keys: set[tuple[str, int]]) -> None:
        """Forget single queues and delete their files."""
        for key in keys & self._by_key.keys():
            queue = self._by_key.pop(key)
            queue.close()
            if queue.segments.directory.is_dir():
                self._fs.remove_tree(queue.segments.directory)
                self._fs.sync_directory(queue.segments.directory.parent)
            self._drop_extension(*key)
        self._forget(keys)
        for topic in {topic for topic, _ in keys}:
            if not self._of_topic(topic):
                self._kinds.pop(topic, None)
                self._ids.pop(topic, None)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and delete their files."""
        for key, queue in self._of_topic(topic).items():
            del self._by_key[key]
            queue.close()
        known = (*self._left_out_file.noted, *self.left_out, *self._broken)
        self._forget({key for key in known if key[0] == topic})
        self._kinds.pop(topic, None)
        self._ids.pop(topic, None)
        for root in (self._directory, self._batch_directory):
            directory = root / topic
            if fault_as_directory(topic) is None and directory.is_dir():
                self._fs.remove_tree(directory)
                self._fs.sync_directory(root)
        self._drop_extension(topic)

    def _drop_extension(self, topic: str, *queue_id: int) -> None:
        """Delete RocketMQ's extension files of a topic's queues, or of one (``extension``)."""
        directory = self._directory.with_name(EXTENSIONS).joinpath(topic, *map(str, queue_id))
        if fault_as_directory(topic) is None and directory.is_dir():
            self._fs.remove_tree(directory)

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Move the files of queues that are left out, see ``ConsumeQueues.set_aside``."""
        aside = (self._broken.keys() | self.left_out.keys()) - self._hopeless
        ends = {key: self._known_end(key) for key in aside}
        if ends:
            self._left_out_file.add(ends)  # a kill before they are whole again must not end their rebuild
        for key in aside:
            reason = self._broken.pop(key, "")
            left = self.left_out.pop(key, None) or Lagging(reason, 0, ends[key], needs_rebuild=True)
            queue = self._by_key.pop(key, None) or self._make(*key)
            queue.close()
            assert ends[key] >= queue.next_offset, "no queue offset is given a second time"
            queue.next_offset = ends[key]
            try:
                self._clear_way(key, directory)
                self._move_aside(key, directory)
            except OSError as error:
                if concerns_all(error):
                    raise
                log.error("queue can't be rebuilt for now", extra={"topic": key[0], "queue_id": key[1], "error": error})
                self._shut[key] = queue
                self.left_out[key] = left._replace(reason=str(error), since=0, needs_rebuild=True)
        return aside

    def _known_end(self, key: Key) -> int:
        """Offset that is surely not below the end of the queue."""
        left, queue = self.left_out.get(key), self._by_key.get(key)
        known = max(self._left_out_file.noted.get(key, 0), self._ends.get(key, 0))
        return max(known, left.end if left else 0, queue.next_offset if queue else 0)

    def settle_aside(self, aside: set[Key]) -> None:
        """Let queues that were set aside continue after their former ends, once the log has been dispatched to them.

        Queues that still can't be written are unreadable. Queues whose entries the log itself can't continue are as
        complete as possible.
        """
        for key in aside - self._shut.keys():
            left = self.left_out.pop(key, None)
            if left is None or left.needs_rebuild:
                known = max(self._left_out_file.noted.get(key, 0), self._ends.get(key, 0))
                self.open(*key).begin_at(known)
            else:
                self._shut[key] = self._by_key.pop(key)
                self._shut[key].next_offset = max(self._shut[key].next_offset, left.end)
                self.left_out[key] = left._replace(needs_rebuild=True)
        self._ends.clear()

    def _clear_way(self, key: Key, directory: Path) -> None:
        """Move anything in the place of a directory that is no directory below ``directory``."""
        for root in (self._directory, self._batch_directory):
            clear_way(self._fs, root / key[0] / str(key[1]), root.parent, directory)

    def _move_aside(self, key: Key, directory: Path) -> None:
        """Move the directory of a queue below ``directory``; delete it if an earlier try made it."""
        for root in (self._directory, self._batch_directory):
            place = root / key[0] / str(key[1])
            if not place.is_dir():
                continue
            if key in self._rebuilt:
                self._fs.remove_tree(place)
            else:
                keep_aside(self._fs, place, root.parent, directory)

    # --- catching up ---

    @property
    def can_catch_up(self) -> bool:
        """Tell whether a queue is left out that may catch up."""
        return self.left_out.keys() > self._hopeless

    def try_again(self, key: Key, quarantine: Path) -> tuple[AnyQueue, int] | None:
        """Return the queue as it is on the disk, or an empty one, and the first record that it must catch up with. None
        if it still can't be written; OSError if disk or descriptors are short.

        Readers keep their object until ``take_over``.
        """
        if key in self._hopeless:
            return None
        left = self.left_out[key]
        try:
            self._clear_way(key, quarantine)
            fresh = None if left.needs_rebuild else self._as_it_was(key)
            if fresh is not None:
                return fresh, left.since
            self._move_aside(key, quarantine)
        except OSError as error:
            if concerns_all(error):
                raise
            self.left_out[key] = left._replace(reason=str(error))
            return None
        self._rebuilt.add(key)
        return self._make(*key), 0

    def _as_it_was(self, key: Key) -> AnyQueue | None:
        """The queue as it is on the disk; None if it differs from the known one."""
        known, fresh = self._by_key.get(key), self._make(*key)
        try:
            fresh.load()
        except (OSError, CorruptStore) as error:
            fresh.close()
            if isinstance(error, OSError) and concerns_all(error):
                raise
            return None
        if (
            known is None
            or fresh.segments.first_offset != known.segments.first_offset
            or fresh.max_offset < known.max_offset
        ):
            fresh.close()
            return None
        return fresh

    def fail_again(self, key: Key, error: OSError | CorruptStore) -> None:
        """Note that a queue could not catch up: it stays left out."""
        assert key not in self._hopeless, "then nobody tries"
        left = self.left_out[key]
        needs_rebuild = left.needs_rebuild or isinstance(error, CorruptStore)
        self.left_out[key] = left._replace(reason=str(error), needs_rebuild=needs_rebuild)
        if left.needs_rebuild and isinstance(error, CorruptStore):
            self._hopeless.add(key)
            log.error(
                "queue can't be rebuilt before the next start",
                extra={"topic": key[0], "queue_id": key[1], "error": error},
            )

    def take_over(self, key: Key, fresh: AnyQueue) -> tuple[str, int, int, int]:
        """Replace a queue by the one that has caught up; return its new messages, see ``MessagesArrived``."""
        assert (fresh.topic, fresh.queue_id) == key
        fresh.begin_at(self.left_out[key].end)
        queue = self._by_key.get(key) or self._shut.pop(key)
        first = queue.max_offset
        if isinstance(queue, type(fresh)):
            queue.take_over(fresh)
        else:
            queue = fresh
        self._by_key[key] = queue
        del self.left_out[key]
        self._rebuilt.discard(key)
        self._names.note(queue.segments.directory)
        log.info("queue has all its messages again", extra={"topic": key[0], "queue_id": key[1]})
        return *key, first, queue.max_offset

    def _forget(self, keys: set[Key]) -> None:
        """Forget that queues are left out: they are deleted."""
        for key in keys:
            self.left_out.pop(key, None)
            self._broken.pop(key, None)
            self._shut.pop(key, None)
        self._rebuilt -= keys
        self._hopeless -= keys
        if keys & self._left_out_file.noted.keys():
            self._left_out_file.renew(keys)

    def clear(self) -> int:
        """Delete all queues that have messages; return their number."""
        filled = [key for key, queue in self._by_key.items() if queue.max_offset]
        for topic in {topic for topic, _ in filled}:
            self.delete_topic(topic)
        return len(filled)

    def flush(self, least_pages: int) -> None:
        """Bring entries and the names of new files to the disk.

        A queue whose files are gone is left out.
        """
        whole = set(self._left_out_file.noted) - set(self.left_out)
        some = self._unflushed(least_pages)
        missing = self._many.sync_files([file.path for _, it in some for file in it.files])
        for queue, unflushed in some:
            gone = [file for file in unflushed.files if missing and file.path in missing]
            for file in gone:
                if file in queue.segments.files:  # otherwise it was deleted meanwhile
                    key, end = (queue.topic, queue.queue_id), queue.max_offset
                    self._leave_out(key, missing[file.path], 0, end)
                    self._left_out_file.add({key: end})
                    break
            else:
                queue.flushed(unflushed)
                if unflushed.new:
                    self._names.note(queue.segments.directory)
        self._names.sync()
        if least_pages == 0 and self._left_out_file.noted:
            ends = {key: left.end for key, left in list(self.left_out.items())}
            self._left_out_file.renew(whole - ends.keys(), ends)

    def _unflushed(self, least_pages: int) -> list[tuple[AnyQueue, Unflushed]]:
        """The queues that have at least ``least_pages`` pages to flush."""
        found: list[tuple[AnyQueue, Unflushed]] = []
        queues = list(self._by_key.values())
        for start in range(0, len(queues), _LOOK_QUEUES):
            if start:  # the interpreter has one lock: request threads would wait 5 ms for it, again and again
                self._rest.wait(_LOOK_REST_SECONDS)
            for queue in queues[start : start + _LOOK_QUEUES]:
                unflushed = queue.unflushed(least_pages)
                if unflushed is not None:
                    found.append((queue, unflushed))
        return found

    def close(self) -> None:
        """Unmap all files."""
        self._many.close()
        for queue in (*self._by_key.values(), *self._shut.values()):
            queue.close()
        self._by_key.clear()
        self._shut.clear()
        self._kinds.clear()
        self._ids.clear()


def rows_of(entries: DispatchedEntries) -> bytes:
    """The entries of a round of dispatch as rows of queues in files, one after another."""
    rows: npt.NDArray[Any] = np.empty(len(entries.size), _ENTRY)
    rows["physical_offset"] = entries.physical_offset
    rows["size"] = entries.size
    rows["tag_code"] = entries.tag_code
    return rows.tobytes()


def put_run(queue: AnyQueue, entries: DispatchedEntries, data: bytes, run: Run, *, complete: bool) -> None:
    """Write a run to its queue; ``data`` is ``rows_of`` the entries."""
    _, _, first, start, end = run
    if isinstance(queue, FileBatchQueue):
        queue.put(units_of(entries, start, end), complete=complete)
    else:
        queue.put(first, data[start * ENTRY_BYTES : end * ENTRY_BYTES], complete=complete)


def _queue_names(directory: Path) -> list[tuple[str, str]]:
    """The topics and queue ids that have something in a directory of queues, sorted."""
    topics = [name for name in names_in(str(directory)) if fault_as_directory(name) is None]
    names = [(topic, name) for topic in topics for name in names_in(f"{directory}/{topic}")]
    return sorted(name for name in names if name[1].isascii() and name[1].isdigit())


def batch_topics(root: Path) -> frozenset[str]:
    """The topics of a store that have files of queues of batches (``batchqueue``)."""
    files = (root / DIRECTORY).glob("*/*/[0-9]*")
    return frozenset(path.parent.parent.name for path in files)
