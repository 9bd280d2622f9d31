"""Small stores, and the few calls by which tests fill and read them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firearrow.clock import Clock
from firearrow.message.hosts import Host, pack_host
from firearrow.message.model import MessageView
from firearrow.message.properties import encode
from firearrow.message.record import decode_record, iter_records
from firearrow.services import Scheduler
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig
from firearrow.store.consumequeue import FileConsumeQueue, WritableFileQueue
from firearrow.store.fs import OS_FILES, FileSystem
from tests.broker.fakes import HandClock

KiB = 1024
STORE_HOST = pack_host(Host("127.0.0.1", 10911))
BORN_HOST = pack_host(Host("10.0.0.7", 4711))
BORN_MS = 1_795_000_000_000
ALWAYS = (0, 1 << 62)

GOLDEN_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 262_144,
    "mapped_file_size_consume_queue": 4000,
    "max_hash_slot_num": 2000,
    "max_index_num": 8000,
}


KINDS = ("default", "defaultRocksDB")
"""The ways to keep queues."""

defaults: dict[str, Any] = {}
"""What every store here is configured with; a fixture may set the kind of queues."""


def contents(directory: Path) -> dict[str, bytes]:
    """The files below a directory, by their names, in the order of these."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def small_config(root: Path, **changed: Any) -> StoreConfig:
    """Files so small that tests roll them."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 64 * KiB,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 50,
        "max_index_num": 200,
    }
    return StoreConfig(store_path_root_dir=str(root), **{**sizes, **defaults, **changed})


def make_store(
    root: Path,
    *,
    clock: Clock | None = None,
    store_host: bytes = STORE_HOST,
    fs: FileSystem = OS_FILES,
    scheduler: Scheduler | None = None,
    wants_batches: Callable[[str], bool] = lambda topic: False,
    **changed: Any,
) -> MessageStore:
    """A store that is not open yet."""
    return MessageStore(
        small_config(root, **changed),
        clock or HandClock(),
        store_host,
        fs,
        scheduler=scheduler,
        wants_batches=wants_batches,
    )


@contextmanager
def opened(root: Path, *, background: bool = True, **options: Any) -> Iterator[MessageStore]:
    """An open store that is closed in the end."""
    store = make_store(root, **options)
    store.open(background=background)
    try:
        yield store
    finally:
        store.close()


def abandon(store: MessageStore) -> None:
    """Leave a store as a kill of its process would: files as they are, `abort` in place."""
    flusher = store._flusher
    assert flusher is not None
    flusher.end()
    store._flusher = None
    store.log.close()
    store.queues.close()
    if store._index is not None:
        store._index.close()
    store._guard.release(clean=False)


def power_off(store: MessageStore) -> None:
    """Let go of a store's maps after the machine is gone: nothing is written any more."""
    store._flusher = None
    store.log._next = None
    store.log.close()
    store.queues.close()
    if store._index is not None:
        store._index.close()
    store._guard.release(clean=False)


def append(
    store: MessageStore,
    body: bytes,
    topic: str = "T",
    queue_id: int = 0,
    *,
    properties: dict[str, str] | bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int = BORN_MS,
    now_ms: int = BORN_MS + 5,
    born_host: bytes = BORN_HOST,
    reconsume_times: int = 0,
) -> int:
    """Add one message and return its physical offset; `settle` makes it visible."""
    text = properties if isinstance(properties, bytes) else encode(properties)
    return store.put(
        store.queue(topic, queue_id), body, text, flag, sys_flag, born_ms, born_host, now_ms, reconsume_times
    )


def flush(queue: WritableFileQueue, least_pages: int = 0, fs: FileSystem = OS_FILES) -> bool:
    """Bring one queue to the disk, if it has so many pages for it; say whether files are new."""
    unflushed = queue.unflushed(least_pages)
    if unflushed is None:
        return False
    for file in unflushed.files:
        fs.sync_file(file.path)
    queue.flushed(unflushed)
    return unflushed.new


def append_named(store: MessageStore, topic: str | bytes, *, now_ms: int = BORN_MS + 5) -> int:
    """Add a message of a topic of any name, as somebody else's broker may have written it."""
    text = topic if isinstance(topic, bytes) else topic.encode()
    elsewhere = FileConsumeQueue(store.root / "never-made", "T" * len(text), 0, 400)
    elsewhere.topic_field = elsewhere.topic_field[: -len(text)] + text if text else b"\0"
    return store.put(elsewhere, b"x", b"", 0, 0, BORN_MS, BORN_HOST, now_ms, 0)


def settle(store: MessageStore) -> None:
    """Dispatch all that was appended."""
    behind = store.behind_bytes + 1
    while store.dispatch():
        assert store.behind_bytes < behind, "dispatch is stuck"
        behind = store.behind_bytes


def messages(store: MessageStore, topic: str = "T", queue_id: int = 0, start: int | None = None) -> list[MessageView]:
    """All messages of a queue, as consumers see them."""
    found: list[MessageView] = []
    at = store.min_queue_offset(topic, queue_id) if start is None else start
    while at < store.max_queue_offset(topic, queue_id):
        result = store.get(topic, queue_id, at, 32)
        assert result.next_offset > at, result
        found += iter_records(result.records)
        at = result.next_offset
    return found


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """The bodies of a queue, in order."""
    return [view.body for view in messages(store, topic, queue_id)]


def bodies_by_key(store: MessageStore, key: str, topic: str = "T", kind: str = "K", count: int = 64) -> list[bytes]:
    """The bodies of what a key finds, newest first."""
    return [decode_record(found).body for found in store.query(topic, key, kind, *ALWAYS, count)]


def reads_ahead(path: Path) -> list[bool]:
    """Whether the system reads more of a mapped file than what is touched, for each part of which
    it knows something else."""
    found: list[bool] = []
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        is_ours = is_ours or line.endswith(str(path))
        if line.startswith("VmFlags:"):
            if is_ours:
                found.append("rr" not in line.split())
            is_ours = False
    return found
