"""The parts of a store, built from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from firearrow.clock import Clock
from firearrow.store.commitlog import CommitLog
from firearrow.store.config import StoreConfig
from firearrow.store.fs import FileSystem
from firearrow.store.index import Index
from firearrow.store.lmq import Lmqs
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.queues import ConsumeQueues
from firearrow.store.rocks import RocksConsumeQueues


def log_of(config: StoreConfig, store_host: bytes, fs: FileSystem, clock: Clock) -> CommitLog:
    """The CommitLog."""
    file_bytes = config.mapped_file_size_commit_log
    return CommitLog(config.commit_log_path, file_bytes, store_host, fs, clock.monotonic)


def in_files(queues: ConsumeQueues) -> FileConsumeQueues | None:
    """The queues, if they are in files."""
    return queues if isinstance(queues, FileConsumeQueues) else None


def patience(queues: ConsumeQueues) -> AbstractContextManager[None]:
    """Context that gives new queues in files their files all at once."""
    return queues.patience() if isinstance(queues, FileConsumeQueues) else nullcontext()


def queues_of(
    config: StoreConfig, fs: FileSystem, monotonic: Callable[[], float], wants_batches: Callable[[str], bool]
) -> ConsumeQueues:
    """The queues, in files or in RocksDB, as configured."""
    if config.store_type == "defaultRocksDB":
        directory, elsewhere = config.rocks_queue_paths
        return RocksConsumeQueues(directory, elsewhere, config.rocksdb_compression_type)
    return FileConsumeQueues(
        config.consume_queue_path,
        config.consume_queue_file_bytes,
        fs,
        batch_file_bytes=config.batch_queue_file_bytes,
        wants_batches=wants_batches,
        monotonic=monotonic,
    )


def lmqs_of(config: StoreConfig, queues: ConsumeQueues) -> Lmqs | None:
    """The LMQs, if the configuration enables them."""
    quota = config.max_lmq_consume_queue_num if config.enable_lmq_quota else None
    return Lmqs(queues, quota) if config.dispatches_lmqs else None


def index_of(config: StoreConfig, clock: Clock, fs: FileSystem) -> Index | None:
    """The index, if the configuration enables it."""
    if not config.message_index_enable:
        return None
    sizes = config.max_hash_slot_num, config.max_index_num
    return Index(config.root_path / "index", *sizes, clock.now_ms, fs)
