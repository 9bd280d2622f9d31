"""Ways to break one invariant of a store that an original broker wrote, a row for each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import NamedTuple

from firearrow.clock import SystemClock
from firearrow.database import Database, FamilyOptions
from firearrow.message.model import MessageView
from firearrow.message.record import crc_property
from firearrow.store import rocksformat as rows
from firearrow.store.offline import Layout, Selection, StoreView, find, rebuild
from tests import golden
from tests.store.stores import append, append_named, make_store, opened, settle

FILE_BYTES = 262_144
LOG_END = 592_625
PLAIN = "consumequeue/GoldenPlain/0/00000000000000000000"
BATCHES = "batchconsumequeue/Bat/0/00000000000000000000"
INDEX = "index/20261120213024175"
INDEX_SLOTS = 2000
ENTRIES_AT = 40 + 4 * INDEX_SLOTS

Break = Callable[[Path], None]


class Damage(NamedTuple):
    """How one invariant is broken.

    ``alone``: nothing else is found. ``corrected``: repair leaves a sound store without it.
    ``own`` breaks a store of small files that this project wrote, instead of the original's,
    ``database`` one that the original wrote with its queues in RocksDB, ``batches`` one with queues
    of batches.
    """

    invariant: str
    apply: Break
    alone: bool = True
    corrected: bool = True
    own: bool = False
    database: bool = False
    batches: bool = False


def prepared(damage: Damage, directory: Path) -> Path:
    """A broken store."""
    root = own_store(directory) if damage.own else golden_store(directory)
    if damage.database:
        root = database_store(directory)
    if damage.batches:
        root = golden.extract("batch-queues", directory)
    damage.apply(root)
    return root


def database_store(directory: Path) -> Path:
    """A store of the original broker, whose queues are in RocksDB, that ended in good order."""
    return golden.extract("rocksdb-cq-clean", directory)


def golden_store(directory: Path) -> Path:
    """A store of the original broker that ended in good order."""
    return golden.extract("file-cq-clean", directory)


def own_store(directory: Path) -> Path:
    """A store whose log, queues and index all have several files."""
    root = directory / "own"
    store = make_store(root)
    store.open()
    for number in range(600):
        properties = {"UNIQ_KEY": f"U{number}", "TAGS": "A"}
        now_ms = 1_795_000_000_005 + 100 * number
        append(store, b"x" * 150, properties=properties, now_ms=now_ms)
        settle(store)
    store.close()
    return root


def write(root: Path, name: str, position: int, data: bytes) -> None:
    """Overwrite some bytes of a file."""
    with (root / name).open("r+b") as file:
        file.seek(position)
        file.write(data)


def read(root: Path, name: str, position: int, size: int) -> bytes:
    """Some bytes of a file."""
    with (root / name).open("rb") as file:
        file.seek(position)
        return file.read(size)


def messages(root: Path, **selection: object) -> list[MessageView]:
    """Records of a store."""
    with StoreView(Layout(root)) as view:
        return list(find(view, Selection(**selection)))  # type: ignore[arg-type]


def in_record(root: Path, message: MessageView, position: int, data: bytes) -> None:
    """Overwrite some bytes of a record in its log file."""
    base = message.physical_offset // FILE_BYTES * FILE_BYTES
    write(root, f"commitlog/{base:020d}", message.physical_offset - base + position, data)


def a_message(root: Path) -> MessageView:
    """A plain message in the middle of the log."""
    return messages(root, topic="GoldenPlain", queue_id=0)[60]


def _record(position: int, data: bytes) -> Break:
    return lambda root: in_record(root, a_message(root), position, data)


def _put(name: str, position: int, data: bytes) -> Break:
    return lambda root: write(root, name, position, data)


def _cut(name: str, size: int) -> Break:
    return lambda root: os.truncate(root / name, size)


def _stray(name: str) -> Break:
    def apply(root: Path) -> None:
        (root / name).write_bytes(b"?")

    return apply


def _body(root: Path) -> None:
    in_record(root, a_message(root), 88, b"\0")


def _store_time(root: Path) -> None:
    before, message = next(
        pair
        for pair in zip(messages(root), messages(root)[1:], strict=False)
        if pair[0].store_timestamp_ms == pair[1].store_timestamp_ms and pair[0].store_timestamp_ms % 1000 > 1
    )
    in_record(root, message, 56, pack(">q", before.store_timestamp_ms - 1))


def _topic(root: Path) -> None:
    message = a_message(root)
    base = message.physical_offset // FILE_BYTES * FILE_BYTES
    data = read(root, f"commitlog/{base:020d}", message.physical_offset - base, message.store_size)
    in_record(root, message, data.index(b"\x0bGoldenPlain") + 1, b"\xff")


def _properties(root: Path) -> None:
    message = a_message(root)
    base = message.physical_offset // FILE_BYTES * FILE_BYTES
    data = read(root, f"commitlog/{base:020d}", message.physical_offset - base, message.store_size)
    in_record(root, message, data.index(b"WAIT\x01") + 4, b"x")


def _transaction(root: Path) -> None:
    commit = next(message for message in messages(root) if message.sys_flag & 0xC == 8)
    in_record(root, commit, 76, pack(">q", 1 << 40))


def _crc_property(root: Path) -> None:
    """A message whose CRC property is wrong: such a store is written here, none is golden."""
    store = make_store(root)
    store.open()
    append(store, b"body", properties=b"A\x01b\x02" + crc_property(12345), now_ms=1_795_000_100_000)
    settle(store)
    store.close()


def _queue_tail(root: Path) -> None:
    write(root, PLAIN, 3999, b"\1")


def _entry(number: int, physical: int, size: int = 200, tag: int = 0) -> Break:
    return lambda root: write(root, PLAIN, number * 20, pack(">qiq", physical, size, tag))


def _shift(root: Path) -> None:
    at = int.from_bytes(read(root, PLAIN, 200, 8), "big")
    write(root, PLAIN, 200, pack(">q", at + 1))


def _last_entry(root: Path) -> int:
    return len(messages(root, topic="GoldenPlain", queue_id=0)) - 1


def _forget_last(root: Path) -> None:
    write(root, PLAIN, _last_entry(root) * 20, bytes(20))


def forget_last_entry(root: Path) -> None:
    _forget_last(root)
    (root / "abort").write_text("1")


def _orphan(root: Path) -> None:
    last = messages(root)[-1]
    _entry(_last_entry(root) + 1, last.physical_offset, last.store_size)(root)


def _stand_in(root: Path) -> None:
    """Lose a message, and make the queue as a start would."""
    in_record(root, a_message(root), 4, b"gone" * 2)
    rebuild(Layout(root), SystemClock())


def _beyond(root: Path) -> None:
    _entry(_last_entry(root) + 1, LOG_END + 500)(root)


def _swap(root: Path) -> None:
    first, second = read(root, PLAIN, 200, 20), read(root, PLAIN, 220, 20)
    write(root, PLAIN, 200, second + first)


def _hash(root: Path) -> None:
    at = ENTRIES_AT + 20 * 7
    value = int.from_bytes(read(root, INDEX, at, 4), "big")
    step = INDEX_SLOTS if value + INDEX_SLOTS < 1 << 31 else -INDEX_SLOTS
    write(root, INDEX, at, pack(">i", value + step))  # the same slot


def _no_index(root: Path) -> None:
    (root / INDEX).unlink()


def _own_queue_file(root: Path) -> None:
    (root / "consumequeue/T/0" / f"{400:020d}").unlink()


def _own_index_file(root: Path) -> None:
    max((root / "index").iterdir()).unlink()


def _own_index_order(root: Path) -> None:
    first, second = sorted((root / "index").iterdir())[:2]
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def _own_log_file(root: Path) -> None:
    (root / "commitlog" / f"{64 * 1024:020d}").unlink()


def _json(name: str, change: Callable[[dict[str, object]], None]) -> Break:
    """Change a file of fastjson; its bare integer keys come out quoted, as they may."""

    def apply(root: Path) -> None:
        from firearrow.wire import fastjson

        value = fastjson.loads((root / "config" / name).read_bytes())
        change(value)
        (root / "config" / name).write_text(json.dumps(value))

    return apply


def _timer_file(root: Path) -> None:
    name = "timerlog/00000000000000000000"
    (root / "timerlog" / f"{999_999:020d}").write_bytes((root / name).read_bytes()[:0] + bytes(131_072))


def _slot(root: Path) -> None:
    data = (root / "timerwheel").read_bytes()
    used = next(at for at in range(0, len(data), 32) if int.from_bytes(data[at + 24 : at + 28], "big"))
    write(root, "timerwheel", used + 16, pack(">q", 53))


def _queue_table(value: dict[str, object]) -> None:
    table = value["offsetTable"]
    assert isinstance(table, dict)
    table["GoldenPlain@golden_ok"][0] = 99_999


def _delays(value: dict[str, object]) -> None:
    table = value["offsetTable"]
    assert isinstance(table, dict)
    table[1] = 99_999


def _no_topic(value: dict[str, object]) -> None:
    table = value["topicConfigTable"]
    assert isinstance(table, dict)
    del table["GoldenBatch"]


# --- queues that are rows ---

QUEUE = ("GoldenPlain", 0)


@contextmanager
def database(root: Path) -> Iterator[Database]:
    """The database of a store's queues, to be changed."""
    families = [FamilyOptions(rows.ENTRIES, 1 << 20), FamilyOptions(rows.OFFSETS, 1 << 20)]
    opened = Database(root / "consumequeue", families, cache_bytes=1 << 20, open_files_max=64, log_ahead=True)
    try:
        yield opened
    finally:
        opened.close()


def entry_key(number: int) -> bytes:
    """The key of an entry."""
    return rows.entry_head(*QUEUE) + number.to_bytes(8, "big")


def entry_row(root: Path, number: int) -> tuple[int, int, int, int]:
    """An entry as its row has it."""
    with database(root) as opened:
        value = opened.tables[rows.ENTRIES].get(entry_key(number))
    assert value is not None
    found: tuple[int, int, int, int] = rows.VALUE.unpack(value)
    return found


def put_row(root: Path, family: str, key: bytes, value: bytes | None) -> None:
    """Change a row, or remove it."""
    with database(root) as opened:
        batch = opened.batch()
        if value is None:
            batch.delete(family, key)
        else:
            batch.put(family, key, value)
        opened.write(batch)


def put_entry(root: Path, number: int, *fields: int) -> None:
    """Write an entry."""
    put_row(root, rows.ENTRIES, entry_key(number), rows.VALUE.pack(*fields))


def put_last(root: Path, physical_offset: int, number: int) -> None:
    """Write what the last message is."""
    key = rows.offset_key(*QUEUE, rows.MAX)
    put_row(root, rows.OFFSETS, key, rows.PLACE.pack(physical_offset, number))


def _changed(field: int, by: int) -> Break:
    def apply(root: Path) -> None:
        fields = list(entry_row(root, 10))
        fields[field] += by
        put_entry(root, 10, *fields)

    return apply


def _blank_row(root: Path) -> None:
    physical_offset, _, *rest = entry_row(root, 10)
    put_entry(root, 10, physical_offset, 0x7FFFFFFF, *rest)


def _swapped_rows(root: Path) -> None:
    first, second = entry_row(root, 10), entry_row(root, 11)
    put_entry(root, 10, *second)
    put_entry(root, 11, *first)


def _no_row(root: Path) -> None:
    put_row(root, rows.ENTRIES, entry_key(10), None)


def _shorter(root: Path) -> None:
    """The queue's row was not written, though its last entry was, and a killed broker knows it."""
    last = _last_entry(root)
    put_last(root, entry_row(root, last - 1)[0], last - 1)
    put_row(root, rows.OFFSETS, rows.DISPATCHED_KEY, rows.DISPATCHED.pack(0))
    (root / "abort").write_text("1")


def _behind_last(root: Path) -> None:
    last = _last_entry(root)
    put_entry(root, last + 1, *entry_row(root, last))


def _extra_row(root: Path, physical_offset: int) -> None:
    last = _last_entry(root)
    put_entry(root, last + 1, physical_offset, *entry_row(root, last)[1:])
    put_last(root, physical_offset, last + 1)


def _orphan_row(root: Path) -> None:
    _extra_row(root, messages(root)[-1].physical_offset)


def _beyond_row(root: Path) -> None:
    _extra_row(root, 3 * FILE_BYTES)


def _wrong_last(root: Path) -> None:
    put_last(root, 5, _last_entry(root))


def _short_row(root: Path) -> None:
    put_row(root, rows.ENTRIES, entry_key(10), b"short")


def _wrong_first(root: Path) -> None:
    key = rows.offset_key(*QUEUE, rows.MIN)
    put_row(root, rows.OFFSETS, key, rows.PLACE.pack(0, 9999))


def _dispatched(root: Path) -> None:
    put_row(root, rows.OFFSETS, rows.DISPATCHED_KEY, rows.DISPATCHED.pack(1 << 40))


def _stray_row(root: Path) -> None:
    put_row(root, rows.ENTRIES, b"notes", b"?")


def _usual_kind(root: Path) -> None:
    for queue_id in ("0", "2"):
        directory = root / "consumequeue/Bat" / queue_id
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(bytes(400))


def _odd_name(root: Path) -> None:
    with opened(root) as store:
        append_named(store, "../../x", now_ms=1_795_000_060_000)


def _no_attribute(topics: dict[str, object]) -> None:
    table = topics["topicConfigTable"]
    assert isinstance(table, dict)
    table["Bat"]["attributes"] = {}


IN_DATABASE = [
    Damage("queue-order", _swapped_rows, alone=False),
    Damage("queue-pre-blank", _blank_row, alone=False),
    Damage("queue-tail", _behind_last),
    Damage("queue-entry-missing", _no_row),
    Damage("queue-behind-log", _shorter, alone=False, corrected=False),
    Damage("queue-entry-position", _changed(0, 1)),
    Damage("queue-entry-size", _changed(1, 1)),
    Damage("queue-entry-tag", _changed(2, 1)),
    Damage("queue-entry-time", _changed(3, 1)),
    Damage("queue-entry-orphan", _orphan_row),
    Damage("queue-stand-in", _stand_in, alone=False, corrected=False),
    Damage("queue-beyond-log", _beyond_row),
    Damage("queue-row", _wrong_last),
    Damage("queue-row", _wrong_first),
    Damage("queue-row", _dispatched),
    Damage("queue-row", _stray_row),
    Damage("queue-row", _short_row, alone=False),
]
IN_DATABASE = [damage._replace(database=True) for damage in IN_DATABASE]

TIMER_UNIT = "timerlog/00000000000000000000"
ROWS = [
    Damage("log-file-size", _cut(f"commitlog/{FILE_BYTES:020d}", 262_044), False),
    Damage("log-file-missing", _own_log_file, alone=False, own=True),
    Damage("log-stray-file", _stray("commitlog/README")),
    Damage("log-file-end", _put("commitlog/00000000000000000000", 261_809, bytes(8))),
    Damage("record-frame", _record(4, b"\1\2\3\4"), alone=False),
    Damage("record-position", _record(28, pack(">q", 4711)), alone=False),
    Damage("record-body-crc", _body, corrected=False),
    Damage("record-crc-property", _crc_property, own=True, corrected=False),
    Damage("record-store-time", _store_time, corrected=False),
    Damage("record-topic", _topic, alone=False),
    Damage("record-properties", _properties, corrected=False),
    Damage("record-flags", _record(36, pack(">i", 0x1000)), corrected=False),
    Damage("record-hosts", _record(52, b"\0\1")),
    Damage("record-transaction", _transaction, corrected=False),
    Damage("record-queue-order", _record(20, pack(">q", 5000)), alone=False, corrected=False),
    Damage("log-tail", _put(f"commitlog/{2 * FILE_BYTES:020d}", 68_337 + 50, b"rest")),
    Damage("queue-file-size", _cut(PLAIN, 3990)),
    Damage("queue-file-missing", _own_queue_file, alone=False, own=True),
    Damage("queue-order", _swap, alone=False),
    Damage("queue-pre-blank", _entry(0, 0, 0x7FFFFFFF, 5), alone=False),
    Damage("queue-tail", _queue_tail),
    Damage("queue-entry-missing", _forget_last, alone=False),
    Damage("queue-behind-log", forget_last_entry, alone=False, corrected=False),
    Damage("queue-entry-position", _shift),
    Damage("queue-entry-size", _put(PLAIN, 208, pack(">i", 92))),
    Damage("queue-entry-tag", _put(PLAIN, 212, pack(">q", 77))),
    Damage("queue-entry-time", _changed(3, 1), database=True),
    Damage("queue-entry-messages", _put(BATCHES, 46 + 36, pack(">h", 2)), batches=True),
    Damage("queue-entry-orphan", _orphan),
    Damage("queue-stand-in", _stand_in, alone=False, corrected=False),
    Damage("queue-beyond-log", _beyond),
    Damage("queue-row", _wrong_last, database=True),
    Damage("queue-stray", _stray("consumequeue/GoldenPlain/0/notes")),
    Damage("queue-name", _odd_name, own=True, corrected=False),
    Damage("queue-kind", _usual_kind, batches=True),
    Damage("config-queue-type", _json("topics.json", _no_attribute), corrected=False, batches=True),
    Damage("index-file-size", _cut(INDEX, 168_033), alone=False),
    Damage("index-header", _put(INDEX, 32, pack(">i", 3))),
    Damage("index-chain", _put(INDEX, ENTRIES_AT + 20 * 9 + 16, pack(">i", 8))),
    Damage("index-entry", _hash, alone=False),
    Damage("index-entry-time", _put(INDEX, ENTRIES_AT + 20 * 9 + 12, pack(">i", 500))),
    Damage("index-key-missing", _own_index_file, own=True),
    Damage("index-behind-log", _no_index, corrected=False),
    Damage("index-order", _own_index_order, own=True),
    Damage("index-stray", _stray("index/notes")),
    Damage("checkpoint-size", _cut("checkpoint", 100)),
    Damage("checkpoint-time", _put("checkpoint", 0, pack(">q", 1 << 50))),
    Damage("checkpoint-offset", _put("checkpoint", 40, pack(">q", 1 << 50))),
    Damage("store-closed", _stray("abort"), corrected=False),
    Damage("config-readable", _put("config/topics.json", 0, bytes(4965))),
    Damage("config-backup", _put("config/topics.json.bak", 0, bytes(4965)), corrected=False),
    Damage("config-topic", _json("topics.json", _no_topic), corrected=False),
    Damage("config-offset", _json("consumerOffset.json", _queue_table), corrected=False),
    Damage("config-delay-offset", _json("delayOffset.json", _delays), corrected=False),
    Damage("timer-check", _cut("config/timercheck", 10)),
    Damage("timer-wheel-size", _cut("timerwheel", 320)),
    Damage("timer-file", _timer_file),
    Damage("timer-unit", _put(TIMER_UNIT, 52 + 12, pack(">i", 9)), alone=False),
    Damage("timer-chain", _put(TIMER_UNIT, 52 + 4, pack(">q", 52))),
    Damage("timer-wheel-slot", _slot),
    Damage("root-stray", _stray("notes.txt"), corrected=False),
]
