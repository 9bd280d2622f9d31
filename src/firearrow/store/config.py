"""The store's configuration: the keys of RocketMQ's MessageStoreConfig that the store obeys."""

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from firearrow.config.table import (
    LIVE,
    CountInt,
    FilePath,
    OptionalPath,
    Percent,
    Port,
    PositiveInt,
    PositiveLong,
    ServerConfig,
)
from firearrow.javanumbers import INT_MAX

CONSUME_QUEUE_UNIT_BYTES = 20
BATCH_UNIT_BYTES = 46
BATCH_FILE_BYTES = 300_000 * BATCH_UNIT_BYTES
FLUSH_PAGE_BYTES = 4096  # the pages of the least-pages keys

FlushDiskType = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
BrokerRole = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
UnconsumedPolicy = Literal["delete", "warn", "keep"]
_HOUR = "([01]?[0-9]|2[0-3])"
Hours = Annotated[str, Meta(pattern=f"{_HOUR}(;{_HOUR})*", title="hours from 0 to 23, separated by ;")]
OptionalServer = Annotated[str, Meta(pattern=r"(\S+:[0-9]{1,5})?", title="`host:port`, or nothing")]
# RocketMQ's slave has a buffer of 4 MiB, in which a frame's head of 12 bytes must fit, too.
TransferBytes = Annotated[int, Meta(ge=1, le=4 * 1024 * 1024 - 12)]
BodyBytes = Annotated[int, Meta(ge=1024, le=INT_MAX)]
_LEVEL = "[0-9]{1,9}[smhd]"
DelayLevelList = Annotated[
    str, Meta(pattern=f"{_LEVEL}( +{_LEVEL})*", title="numbers with s, m, h or d, separated by spaces")
]

StoreType = Literal["default", "defaultRocksDB"]
RocksCompression = Literal["none", "lz4", "lz4hc", "snappy", "zlib", "bz2", "zstd"]


class StoreConfig(ServerConfig, frozen=True):
    """Configuration of a store: its directory, the sizes of its files, and the intervals of its flushes."""

    # --- directories ---
    # fmt: off
    store_path_root_dir: Annotated[FilePath, "directory of the store"] = field(default_factory=lambda: str(Path.home() / "store"))
    store_path_commit_log: Annotated[OptionalPath, "directory of the CommitLog; empty: `commitlog` in the store"] = ""

    # --- kinds of queues ---
    store_type: Annotated[
        StoreType,
        "how queues are kept: `default` in separate files, `defaultRocksDB` in one database, "
        "for very many of them (needs the extra `rocksdb`)",
    ] = "default"
    use_separate_store_path_for_rocksdb_cq: Annotated[bool, "whether the database is in `consumequeue_rocksdb` and not in `consumequeue`"] = False
    rocksdb_compression_type: Annotated[RocksCompression, "how files of the database are compressed"] = "lz4"

    # --- LMQs ---
    enable_lmq: Annotated[bool, "whether there are LMQs: `%LMQ%...`, queues without a separate topic"] = False
    enable_multi_dispatch: Annotated[bool, "whether messages that ask for it are put into LMQs too; implied by `enableLmq` if queues are in RocksDB"] = False
    enable_lmq_quota: Annotated[bool, "whether maxLmqConsumeQueueNum applies"] = False
    max_lmq_consume_queue_num: Annotated[PositiveInt, "largest number of LMQs; a send that needs one more is refused"] = 20_000

    # --- sizes ---
    mapped_file_size_commit_log: Annotated[PositiveInt, "bytes of one CommitLog file"] = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: Annotated[PositiveInt, "bytes of one ConsumeQueue file, rounded up to whole entries of 20"] = 300_000 * CONSUME_QUEUE_UNIT_BYTES
    mapper_file_size_batch_consume_queue: Annotated[
        PositiveInt,
        "bytes of one file of a queue of batches (`queue.type=BatchCQ`), rounded up to whole "
        "entries of 46",
    ] = BATCH_FILE_BYTES
    max_hash_slot_num: Annotated[PositiveInt, "hash slots of one IndexFile"] = 5_000_000
    max_index_num: Annotated[PositiveInt, "entries of one IndexFile"] = 20_000_000
    max_message_size: Annotated[BodyBytes, "bytes of the largest body; a larger one is refused with code 13"] = 4 * 1024 * 1024

    # --- index ---
    message_index_enable: Annotated[bool, "whether keys and ids are indexed"] = True

    # --- flushes ---
    flush_disk_type: Annotated[FlushDiskType, "whether a send is answered before or after its bytes are on disk"] = "ASYNC_FLUSH"
    sync_flush_timeout: Annotated[PositiveInt, "ms that a send waits for the disk before it is answered with code 10"] = 5000
    flush_interval_commit_log: Annotated[PositiveInt, "ms between flushes of the CommitLog under ASYNC_FLUSH"] = 500
    flush_commit_log_least_pages: Annotated[CountInt, "pages of 4 KiB below which such a flush is left out; 0: none is"] = 4
    flush_commit_log_thorough_interval: Annotated[PositiveInt, "ms after which the CommitLog is flushed even if little has come"] = 10_000
    flush_interval_consume_queue: Annotated[PositiveInt, "ms between flushes of the ConsumeQueues"] = 1000
    flush_consume_queue_least_pages: Annotated[CountInt, "pages of 4 KiB below which a queue is left out of such a flush"] = 2
    flush_consume_queue_thorough_interval: Annotated[PositiveInt, "ms after which all ConsumeQueues are flushed and the checkpoint advances"] = 60_000

    os_page_cache_busy_time_out_mills: Annotated[PositiveLong, "ms that a put may take before sends that came meanwhile are refused with code 2", LIVE] = 1000

    # --- retention ---
    file_reserved_time: Annotated[CountInt, "hours that a CommitLog file is kept after its last message", LIVE] = 72
    delete_when: Annotated[Hours, "hours of the day (local time) when older files are deleted", LIVE] = "04"
    unconsumed_policy: Annotated[
        UnconsumedPolicy,
        "what happens to an old file with messages that a group has not consumed yet: `delete` "
        "deletes it, as RocketMQ does; `warn` deletes it and logs which groups lose messages; "
        "`keep` keeps it, even if sends must be refused then",
        LIVE,
    ] = "delete"
    clean_resource_interval: Annotated[PositiveInt, "ms between checks of the disk and of the files that can be deleted"] = 10_000
    delete_commit_log_files_interval: Annotated[CountInt, "ms between the deletion of one CommitLog file and the next", LIVE] = 100
    delete_consume_queue_files_interval: Annotated[CountInt, "ms between the deletion of one ConsumeQueue file and the next", LIVE] = 100
    delete_file_batch_max: Annotated[PositiveInt, "CommitLog files that are deleted at one check", LIVE] = 10
    disk_max_used_space_ratio: Annotated[Percent, "percent of used disk above which older files are deleted at any hour", LIVE] = 75
    disk_space_clean_forcibly_ratio: Annotated[
        Percent,
        "percent of used disk, taken as 30 to 85, above which the oldest files are deleted "
        "whatever their age",
        LIVE,
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        Percent,
        "percent of used disk, taken as 35 to 90, above which sends are refused, until it is no "
        "more than diskSpaceCleanForciblyRatio again",
        LIVE,
    ] = 90
    clean_file_forcibly_enable: Annotated[bool, "whether files are deleted before their time when the disk gets full", LIVE] = True

    # --- messages with a delivery time ---
    timer_wheel_enable: Annotated[bool, "whether messages can have a delivery time; otherwise such a send is refused"] = True
    timer_precision_ms: Annotated[PositiveInt, "ms that delivery times are rounded up to; must not change while messages wait"] = 1000
    timer_max_delay_sec: Annotated[PositiveInt, "seconds ahead that a delivery time may be; a send with a later one is refused", LIVE] = 259_200
    timer_roll_window_slot: Annotated[CountInt, "slots of timerPrecisionMs after which a message that still waits is stored again; less than 2 means the maximum, 604740"] = 172_800
    timer_congest_num_each_slot: Annotated[PositiveInt, "messages of one slot above which sends for it are refused now and then, and above twice as many always", LIVE] = INT_MAX
    timer_flush_interval_ms: Annotated[PositiveInt, "ms between flushes of the timer's files"] = 1000
    timer_stop_enqueue: Annotated[bool, "whether new messages for the timer stay in its topic for now", LIVE] = False
    timer_stop_dequeue: Annotated[bool, "whether nothing is delivered by the timer for now", LIVE] = False
    mapped_file_size_timer_log: Annotated[PositiveInt, "bytes of one file of the timer log; existing files keep their size"] = 100 * 1024 * 1024
    append_topic_for_timer_delete_key: Annotated[bool, "whether a recall names the topic as well as the message's id; must not change while messages wait"] = False

    # --- start ---
    check_crc_on_recover: Annotated[bool, "whether recovery checks the CRC of every body that it reads"] = True

    # --- reading ---
    check_crc_on_read: Annotated[
        bool,
        "whether pulls and look-ups check the CRC of every body and withhold bodies that don't match "
        "it, which takes 0.4 to 0.8 µs for 1 KiB. Bodies that clients decode further (compressed "
        "ones, inner batches) are always checked. RocketMQ has no such key, and its clients "
        "don't check",
    ] = False
    max_transfer_bytes_on_message_in_memory: Annotated[PositiveInt, "bytes of one pull from the recent part of the log"] = 256 * 1024
    max_transfer_count_on_message_in_memory: Annotated[PositiveInt, "messages of one pull from the recent part of the log"] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[PositiveInt, "bytes of one pull from the older part of the log"] = 64 * 1024
    max_transfer_count_on_message_in_disk: Annotated[PositiveInt, "messages of one pull from the older part of the log"] = 8
    access_message_in_memory_max_ratio: Annotated[Percent, "percent of the machine's memory that counts as the recent part"] = 40
    max_filter_message_size: Annotated[PositiveInt, "bytes of ConsumeQueue that one pull scans for a matching tag"] = 16_000
    default_query_max_num: Annotated[PositiveInt, "messages that one query by key returns at most"] = 32

    # --- delayed messages ---
    message_delay_level: Annotated[DelayLevelList, "the delay levels, shortest first", LIVE] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval: Annotated[PositiveInt, "ms between writes of the delivery progress of each delay level"] = 10_000

    # --- other brokers ---
    broker_role: Annotated[BrokerRole, "whether it is a master, whose messages slaves copy, or a `SLAVE`; `SYNC_MASTER` answers a send once inSyncReplicas brokers have the message"] = "ASYNC_MASTER"
    ha_listen_port: Annotated[Port, "port for slaves; 0: listenPort + 1, or a free one if listenPort is 0, too"] = 0
    heal_from: Annotated[OptionalServer, "another broker with the same log, as `host:haListenPort`, which provides a sound copy when a read meets a damaged record; empty: a slave's master (not in RocketMQ)"] = ""
    ha_master_address: Annotated[OptionalServer, "where a slave finds its master's haListenPort, as `host:port`; empty: the name servers tell it"] = ""
    ha_send_heartbeat_interval: Annotated[PositiveInt, "ms of silence after which master and slave send each other a heartbeat"] = 5000
    ha_housekeeping_interval: Annotated[PositiveInt, "ms of silence after which each counts the other as gone"] = 20_000
    ha_transfer_batch_size: Annotated[TransferBytes, "bytes of the CommitLog that are sent to a slave in one frame"] = 32 * 1024
    ha_flow_control_enable: Annotated[bool, "whether maxHaTransferByteInSecond applies"] = False
    max_ha_transfer_byte_in_second: Annotated[PositiveLong, "largest number of bytes that each slave is sent in a second"] = 100 * 1024 * 1024
    ha_max_gap_not_in_sync: Annotated[PositiveInt, "lowest lag in bytes of a slave that no longer counts as in sync"] = 256 * 1024 * 1024
    in_sync_replicas: Annotated[CountInt, "brokers that must have a message before a `SYNC_MASTER` answers its sender, itself among them; up to 1 it waits for none"] = 1
    total_replicas: Annotated[PositiveInt, "brokers that have one name, when slaves act for their master"] = 1
    slave_timeout: Annotated[PositiveInt, "ms that a send waits for slaves before it is answered with code 12"] = 3000
    enable_auto_in_sync_replicas: Annotated[bool, "whether, where slaves act for their master, a send waits for at most the number of brokers in sync, and for at least `minInSyncReplicas`"] = False
    min_in_sync_replicas: Annotated[PositiveInt, "brokers that must be in sync with a master in controller mode, or with `enableAutoInSyncReplicas`, itself among them, or it refuses sends"] = 1
    all_ack_in_sync_state_set: Annotated[bool, "whether in controller mode all brokers that are in sync must store a message before its sender gets the answer, whatever inSyncReplicas is"] = False
    ha_max_time_slave_not_catchup: Annotated[PositiveInt, "age in ms of the log end that a slave must have to stay in sync"] = 15_000
    async_learner: Annotated[bool, "whether this broker is never in sync in controller mode, so never master"] = False
    sync_master_flush_offset_when_startup: Annotated[bool, "whether a slave that may act for its master, and does not know its flushed offset, asks for it and notes it in its checkpoint; 907 reports it"] = False
    sync_from_last_file: Annotated[bool, "whether an empty slave in controller mode begins with the last file of the log; otherwise with the first"] = False
    store_path_epoch_file: Annotated[OptionalPath, "file of the epochs of the log; empty: `epochFileCheckpoint` in the store"] = ""
    store_path_broker_identity: Annotated[OptionalPath, "file of the number that the controller has given the broker; empty: `brokerIdentity` in the store"] = ""
    offset_check_in_slave: Annotated[bool, "whether a slave corrects the offsets of consumers that ask for messages that it does not have; otherwise it sends them to the master"] = False
    # fmt: on

    @property
    def root_path(self) -> Path:
        """Directory of the store."""
        return Path(self.store_path_root_dir)

    @property
    def commit_log_path(self) -> Path:
        """Directory of the CommitLog's files."""
        return Path(self.store_path_commit_log or self.root_path / "commitlog")

    @property
    def epoch_path(self) -> Path:
        """The file of the epochs of the log."""
        return Path(self.store_path_epoch_file or self.root_path / "epochFileCheckpoint")

    @property
    def identity_path(self) -> Path:
        """The file of the number that the controller has given the broker."""
        return Path(self.store_path_broker_identity or self.root_path / "brokerIdentity")

    @property
    def consume_queue_path(self) -> Path:
        """Directory of the ConsumeQueues."""
        return self.root_path / "consumequeue"

    @property
    def rocks_queue_paths(self) -> tuple[Path, Path]:
        """Directory of the database of ConsumeQueues, and where it must not be."""
        # Java: StorePathConfigHelper#getStorePathRocksDBConsumeQueue.
        separate = self.root_path / "consumequeue_rocksdb"
        if self.use_separate_store_path_for_rocksdb_cq:
            return separate, self.consume_queue_path
        return self.consume_queue_path, separate

    @property
    def dispatches_lmqs(self) -> bool:
        """Tell whether messages go to LMQs."""
        # Java: RocksDBConsumeQueueStore#dispatchLMQ does not check enableMultiDispatch.
        in_rocksdb = self.store_type == "defaultRocksDB"
        return self.enable_lmq and (self.enable_multi_dispatch or in_rocksdb)

    @property
    def consume_queue_file_bytes(self) -> int:
        """Bytes of one ConsumeQueue file: whole units only."""
        # Java: MessageStoreConfig#getMappedFileSizeConsumeQueue also rounds up.
        units = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_BYTES)
        return units * CONSUME_QUEUE_UNIT_BYTES

    @property
    def batch_queue_file_bytes(self) -> int:
        """Bytes of one file of a queue of batches: whole units only."""
        # Java: no rounding, and a broker that stops writing queues when a file is not full.
        units = -(-self.mapper_file_size_batch_consume_queue // BATCH_UNIT_BYTES)
        return units * BATCH_UNIT_BYTES

    @property
    def loss_window(self) -> str:
        """Describe, in one sentence, the messages that a crash may take from a store with these settings."""
        if self.flush_disk_type == "SYNC_FLUSH":
            return "SYNC_FLUSH: neither a machine nor a process crash loses what was acknowledged"
        interval_ms = self.flush_interval_commit_log
        thorough_ms = self.flush_commit_log_thorough_interval
        least_bytes = self.flush_commit_log_least_pages * FLUSH_PAGE_BYTES
        machine = f"the last {interval_ms} ms"
        if least_bytes > FLUSH_PAGE_BYTES and thorough_ms > interval_ms:
            machine += f" (while less than {least_bytes // 1024} KiB comes: {thorough_ms} ms)"
        return f"ASYNC_FLUSH: a machine crash may lose {machine}; a process crash loses nothing"


# Java: CleanCommitLogService#getDiskSpaceWarningLevelRatio and #getDiskSpaceCleanForciblyRatio.
_WARNING_PERCENT: Final = (35, 90)
_FORCED_PERCENT: Final = (30, 85)


def warning_percent(config: StoreConfig) -> int:
    """Percent of a disk above which sends are refused."""
    low, high = _WARNING_PERCENT
    return min(max(config.disk_space_warning_level_ratio, low), high)


def forced_percent(config: StoreConfig) -> int:
    """Percent of a disk above which files are deleted whatever their age."""
    low, high = _FORCED_PERCENT
    return min(max(config.disk_space_clean_forcibly_ratio, low), high)
