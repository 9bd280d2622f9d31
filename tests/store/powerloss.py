"""A scripted life of a store on a file system that loses power, and what must be left of it.

One seed decides everything: what is appended, when it is dispatched and flushed, at which operation
of the file system the power fails, and what of the unsynced bytes and names survives. The store is
then opened on what is left, checked against the model, and goes on; a failure while it recovers is
one of the failures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from firearrow.message.record import decode_record
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store import MessageStore
from firearrow.store.fs import OS_FILES, FileSystem
from firearrow.testing.fs import CrashableFileSystem, PowerLoss
from tests.broker.fakes import HandClock
from tests.store.stores import ALWAYS, BORN_MS, append, make_store, messages, power_off, settle

TOPICS = "ABCD"
BATCH_TOPIC = "D"
FAILURES = 3
STEPS_MAX = 60
OPERATIONS_MAX = 60
NEVER = 1 << 62
DAY_MS = 86_400_000
CLOCK_SET_BY_MS = (0, 400 * DAY_MS, -400 * DAY_MS, 11_000, -11_000, 3000)


@dataclass(frozen=True)
class Sent:
    """One appended record, which is so many messages."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    key: str
    messages: int = 1


@dataclass
class Model:
    """What was appended, in the order of the log, and how much of it must outlive the machine."""

    sent: list[Sent] = field(default_factory=list)
    durable: int = 0


NOTHING_IS_RESERVED: dict[str, Any] = {
    "file_reserved_time": 0,
    "delete_when": ";".join(map(str, range(24))),
    "delete_commit_log_files_interval": 0,
    "delete_consume_queue_files_interval": 0,
    # Some entries of either kind of queue are on two sectors.
    "mapped_file_size_consume_queue": 20 * 130,
    "mapper_file_size_batch_consume_queue": 46 * 20,
}


class Life:
    """The store of one seed, through several losses of power."""

    def __init__(self, seed: int, directory: Path, kind: str = "default") -> None:
        self._kind = kind
        self._seed = seed
        self._random = Random(seed)
        self._directory = directory
        self._model = Model()
        self._number = 0
        self._countdown = 0
        self._clock = HandClock()
        self._setting = Random(seed)
        self._set_by_ms = 0

    def run(self) -> None:
        """Live, fail, recover, compare; in the end with a file system that never fails."""
        root = self._directory / "0"
        root.mkdir()
        for failure in range(1, FAILURES + 1):
            in_database = self._kind != "default"
            others = ("consumequeue",) if in_database else ()
            whole = bool((self._seed + failure) % 2)
            fs = CrashableFileSystem(root, self.before, others, whole=whole)
            self._countdown = self._random.randrange(OPERATIONS_MAX)
            root = self._directory / str(failure)
            self._live_until_failure(fs, root)
        self._open_and_check(root, OS_FILES).close()

    def before(self, operation: str, path: Path | None) -> None:
        """Fail if it is time, before an operation on the disk."""
        self._countdown -= 1
        if self._countdown < 0:
            raise PowerLoss

    def _live_until_failure(self, fs: CrashableFileSystem, left: Path) -> None:
        store = None
        try:
            store = self._open_and_check(fs.root, fs)
            for _ in range(self._random.randrange(STEPS_MAX)):
                self._step(store)
        except PowerLoss:
            pass
        fs.before = lambda operation, path: None
        self._countdown = NEVER
        fs.crash(left, self._random.randrange(1 << 32))
        if store is not None:
            power_off(store)

    def _open_and_check(self, root: Path, fs: FileSystem) -> MessageStore:
        settings = {**NOTHING_IS_RESERVED, "store_type": self._kind}
        store = make_store(root, fs=fs, clock=self._clock, wants_batches=BATCH_TOPIC.__eq__, **settings)
        store.open(background=False)
        self._check(store)
        return store

    # --- what happens ---

    def _step(self, store: MessageStore) -> None:
        if self._setting.random() < 0.05:  # somebody sets the clock
            self._set_by_ms = self._setting.choice(CLOCK_SET_BY_MS)
        chance = self._random.random()
        if self._random.random() < 0.05:
            self._clock.seconds += 61
            store.flush_step()
            store.clean()
        if chance < 0.6:
            for _ in range(self._random.choice((1, 1, 1, 5, 40))):
                self._append(store)
        elif chance < 0.75:
            settle(store)
        elif chance < 0.9:
            store.when_safe(store.log.end_offset, partial(self._flushed, len(self._model.sent)))
            store.flush_step()
        else:
            self._clock.seconds += self._random.choice((1, 11, 61))
            store.flush_step()

    def _flushed(self, count: int, done: bool) -> None:
        assert done
        self._model.durable = count

    def _append(self, store: MessageStore) -> None:
        self._number += 1
        topic, queue_id = self._random.choice(TOPICS), self._random.randrange(2)
        key = f"k{self._number}"
        body = self._random.randbytes(self._random.choice((0, 10, 100, 600, 3000)))
        queue = store.queue(topic, queue_id)
        queue_offset = queue.next_offset
        count = self._random.choice((1, 2, 40)) if store.queues.is_batch(topic) else 1
        properties = {"KEYS": key, "TAGS": "A", "INNER_NUM": str(count)}
        at = append(
            store, body, topic, queue_id, properties=properties,
            now_ms=BORN_MS + self._set_by_ms + self._number,
            sys_flag=INNER_BATCH if count > 1 else 0,
        )  # fmt: skip
        queue.next_offset = queue_offset + count
        self._model.sent.append(Sent(at, topic, queue_id, queue_offset, body, key, count))

    # --- what must be left ---

    def _check(self, store: MessageStore) -> None:
        """The log is the beginning of what was sent and has all that was durable; queues and index
        say the same."""
        sent = self._model.sent
        found = sum(message.physical_offset < store.log.end_offset for message in sent)
        assert found >= self._model.durable, "a message that was on the disk is gone"
        del sent[found:]
        self._check_queues(store)
        self._check_index(store)
        self._model.durable = found

    def _check_queues(self, store: MessageStore) -> None:
        start = store.log.start_offset
        by_queue: dict[tuple[str, int], list[Sent]] = {}
        for message in self._model.sent:
            by_queue.setdefault((message.topic, message.queue_id), []).append(message)
        for topic in TOPICS:
            for queue_id in range(2):
                expected = by_queue.get((topic, queue_id), [])
                views = messages(store, topic, queue_id)
                found = [
                    Sent(
                        view.physical_offset, view.topic, view.queue_id, view.queue_offset,
                        view.body, " ".join(view.keys), int(view.properties["INNER_NUM"]),
                    )
                    for view in views
                ]  # fmt: skip
                assert found == [sent for sent in expected if sent.physical_offset >= start]
                count = sum(message.messages for message in expected)
                assert store.queue(topic, queue_id).next_offset == count

    def _check_index(self, store: MessageStore) -> None:
        for message in self._model.sent:
            if message.physical_offset < store.log.start_offset:
                continue  # its time was over
            records = store.query(message.topic, message.key, "K", *ALWAYS, 10)
            offsets = [decode_record(record).physical_offset for record in records]
            assert offsets == [message.physical_offset]
