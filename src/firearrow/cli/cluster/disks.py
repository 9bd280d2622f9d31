"""Disks of brokers: use, growth, and the time when retention deletes or the disk is full, by the brokers' answers.

Brokers do not report the size of their queues and of their index, nor their files. The size of the queues is that of
one entry for each message at least. Each file of the log begins with a message, and the file before it ends with an
older one. So the rule of `firearrow store why-not-deleted` also judges the oldest file of a broker on another machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from firearrow.cli.failures import sentence
from firearrow.cli.output.reports import Cell, as_moment, in_bytes, in_time
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.diagnosis.clusterfacts import BrokerFacts, broker_of
from firearrow.client.diagnosis.findings import Finding, Level
from firearrow.clock import HOUR_MS
from firearrow.config.table import keys, update
from firearrow.errors import ConfigError, FirearrowError
from firearrow.store.config import CONSUME_QUEUE_UNIT_BYTES, StoreConfig, forced_percent, warning_percent

COLUMNS: Final = (
    "broker", "address", "bytesInLog", "bytesInQueues", "bytesOnDisk", "bytesFree", "diskShare", "oldestAt",
    "bytesPerHour", "keptHours", "note",
)  # fmt: skip
DAY_HOURS: Final = 24
GROWTH_HOURS_MIN: Final = 1 / 60
"""Age of the oldest message below which the growth is unknown."""
SOON_HOURS: Final = 24.0
_SPACE: Final = re.compile(r"(Total|Free) : ([\d.]+) (B|KiB|MiB|GiB|TiB)")
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Disk(NamedTuple):
    """Disk of a broker; None stands for a fact that it does not report. ``reason`` says why all are missing."""

    broker: str
    address: str
    config: StoreConfig = StoreConfig()
    log_bytes: int | None = None
    queue_bytes: int | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    used: float | None = None
    oldest_ms: int | None = None
    now_ms: int = 0
    refused: str = ""
    reason: str = ""
    log_end: int = 0
    """Physical offset behind the log."""
    dispatched: int = 0
    """Physical offset up to which the queues have it."""
    last_ms: int | None = None
    """Time of the last message in the oldest file of the log; None for the only file."""
    untold: str = ""
    """Reason why that time is unknown."""

    @property
    def oldest_file_end(self) -> int:
        """Physical offset behind the oldest file of the log."""
        size = self.config.mapped_file_size_commit_log
        return (self.log_end - (self.log_bytes or 0)) // size * size + size

    @property
    def age_hours(self) -> float:
        """Age of the oldest message; 0 without one."""
        return max(0.0, (self.now_ms - self.oldest_ms) / HOUR_MS) if self.oldest_ms is not None else 0.0

    @property
    def bytes_per_hour(self) -> float | None:
        """Average growth of the log since its oldest message; None if that is too young."""
        if self.log_bytes is None or self.age_hours < GROWTH_HOURS_MIN:
            return None
        return self.log_bytes / self.age_hours

    @property
    def capacity_bytes(self) -> float | None:
        """Sum of the bytes in use and the bytes that the broker may still use; `used` is the share in use."""
        if self.free_bytes is None or self.used is None or self.used >= 1:
            return self.total_bytes
        return self.free_bytes / (1 - self.used)

    def row(self) -> list[Cell]:
        """Give the cells of `COLUMNS`."""
        oldest = as_moment(self.oldest_ms) if self.oldest_ms is not None else None
        return [
            self.broker,
            self.address,
            self.log_bytes,
            self.queue_bytes,
            None if self.total_bytes is None else int(self.total_bytes),
            None if self.free_bytes is None else int(self.free_bytes),
            self.used,
            oldest,
            self.bytes_per_hour,
            None if self.reason else self.config.file_reserved_time,
            self.reason or (f"refuses writes: {self.refused}" if self.refused else ""),
        ]


async def disk_of(admin: Admin, server: RegisteredBroker, now_ms: int) -> Disk:
    """Ask a broker for its counters and its configuration."""
    facts = await broker_of(admin, server)
    if facts.error:
        return Disk(server.broker, server.address, reason=f"does not answer: {facts.error}")
    try:
        found = await admin.brokers.config(server.address)
    except (OSError, FirearrowError) as error:
        return Disk(server.broker, server.address, reason=f"does not give its configuration: {error}")
    disk = disk_from(facts, store_config(found), now_ms)
    if disk.oldest_file_end >= disk.log_end:
        return disk
    from firearrow.message.record import decode_record  # most commands read no message

    try:
        behind = decode_record(await admin.messages.record_at(server.address, disk.oldest_file_end))
    except (OSError, FirearrowError) as error:
        return disk._replace(untold=sentence(error))
    return disk._replace(last_ms=behind.store_timestamp_ms)


def store_config(found: dict[str, str]) -> StoreConfig:
    """Read the keys of a store; a value that Firearrow does not allow counts as the default."""
    config = StoreConfig()
    for key, text in found.items():
        if key in keys(StoreConfig):
            try:
                config = update(config, {key: text})
            except ConfigError:  # of RocketMQ
                continue
    return config


def disk_from(facts: BrokerFacts, config: StoreConfig, now_ms: int) -> Disk:
    """Give the disk of a broker by its answers."""
    first, last = facts.number("commitLogMinOffset"), facts.number("commitLogMaxOffset")
    oldest, stored = facts.number("earliestMessageTimeStamp"), facts.number("msgPutTotalTodayNow")
    space = {name: float(count) * _UNITS[unit] for name, count, unit in _space(facts)}
    log_bytes = None if first is None or last is None else max(0, int(last - first))
    in_log = None
    if log_bytes is not None and stored is not None and last:
        in_log = int(stored * log_bytes / last) * CONSUME_QUEUE_UNIT_BYTES
    return Disk(
        facts.name,
        facts.address,
        config,
        log_bytes,
        in_log,
        space.get("Total"),
        space.get("Free"),
        facts.disk_ratio,
        int(oldest) if oldest is not None and oldest > 0 else None,
        now_ms,
        facts.counted.get("writesRefused", ""),
        log_end=int(last or 0),
        dispatched=int((last or 0) - (facts.number("dispatchBehindBytes") or 0)),
    )


def _space(facts: BrokerFacts) -> list[tuple[str, str, str]]:
    return _SPACE.findall(facts.counted.get("commitLogDirCapacity", ""))


# --- Retention in words ---


def outlook(disk: Disk, bytes_per_hour: float | None = None) -> list[Finding]:
    """Say what will become of a disk; ``bytes_per_hour`` is a growth other than the average."""
    if disk.reason:
        return [Finding("disk", Level.UNKNOWN, disk.broker, disk.reason)]
    growth = disk.bytes_per_hour if bytes_per_hour is None else bytes_per_hour
    return [*_filling(disk, growth), *_kept(disk)]


def _filling(disk: Disk, growth: float | None) -> Iterator[Finding]:
    if disk.refused:
        cure = "Make room, or lower fileReservedTime: nothing can be sent to it."
        yield Finding("full", Level.CRITICAL, disk.broker, f"refuses writes: {disk.refused}", cure)
    capacity = disk.capacity_bytes
    if growth is None or capacity is None or disk.used is None or disk.log_bytes is None:
        yield Finding("growth", Level.OK, disk.broker, "has too few messages for a forecast")
        return
    config, pace = disk.config, f"grows by {in_bytes(growth)} an hour"
    most_bytes = growth * (config.file_reserved_time + DAY_HOURS / len(config.delete_when.split(";")))
    most_bytes += config.mapped_file_size_commit_log
    at_most = disk.used + max(0.0, most_bytes - disk.log_bytes) / capacity
    cleaned, forced, full = (
        percent / 100 for percent in (config.disk_max_used_space_ratio, forced_percent(config), warning_percent(config))
    )
    if at_most < cleaned:
        evidence = f"{pace}. Retention keeps its log below {in_bytes(most_bytes)}, and the disk below {at_most:.0%}"
        yield Finding("growth", Level.OK, disk.broker, evidence)
        return
    hours = {share: max(0.0, share - disk.used) * capacity / growth for share in (cleaned, forced, full)}
    steps = [f"{pace}. {_in(hours[cleaned])}, {cleaned:.0%} are used: old files are then deleted at any hour"]
    is_forced = at_most >= forced and config.clean_file_forcibly_enable
    if is_forced:
        steps.append(f"{_in(hours[forced]).lower()}, {forced:.0%}: the oldest files are then deleted before their time")
    elif at_most >= full:
        steps.append(f"{_in(hours[full]).lower()}, {full:.0%}: sends are then refused")
    is_soon = at_most >= full and not is_forced and hours[full] < SOON_HOURS
    cure = "Add room, or keep messages for less time (fileReservedTime)."
    yield Finding("growth", Level.CRITICAL if is_soon else Level.WARNING, disk.broker, "; ".join(steps), cure)


def _in(hours: float) -> str:
    return f"In {in_time(hours * 3600)}" if hours else "Already"


def _kept(disk: Disk) -> Iterator[Finding]:
    """Say why the oldest file is still there."""
    from firearrow.store import Circumstances, reasons_to_stay  # numpy, which takes longer than most commands

    config = disk.config
    hours = config.delete_when.replace(";", ", ")
    rule = f"Files are deleted from {config.file_reserved_time} h after their last message on, at {hours} o'clock"
    level, cure = Level.OK, ""
    look = "Run `firearrow store why-not-deleted STORE -c broker.conf` on its machine."
    if disk.oldest_ms is None or not disk.log_bytes:
        evidence = f"has no message. {rule}"
    elif disk.oldest_file_end >= disk.log_end:
        size = in_bytes(config.mapped_file_size_commit_log)
        evidence = f"has one file of {size}, and the last one always stays. {rule}"
    elif disk.last_ms is None:
        evidence, cure = f"does not tell the age of its oldest file: {disk.untold}. {rule}", look
    else:
        used = disk.used or 0.0
        circumstances = Circumstances(disk.now_ms, used, used, disk.dispatched)
        reasons = reasons_to_stay(disk.oldest_file_end, disk.last_ms, [], config, circumstances)
        hours_old = max(0.0, disk.now_ms - disk.last_ms) / HOUR_MS
        if reasons:
            evidence = f"keeps its oldest file, and all later ones with it: {'; '.join(it.text for it in reasons)}"
        else:
            policy = ", unless a group has not consumed it" if config.unconsumed_policy == "keep" else ""
            evidence = f"deletes its oldest file now{policy}: its last message is {in_time(hours_old * 3600)} old"
        if hours_old > config.file_reserved_time + DAY_HOURS:
            level, cure = Level.WARNING, f"It is overdue by more than a day. {look}"
    yield Finding("kept", level, disk.broker, evidence, cure)
