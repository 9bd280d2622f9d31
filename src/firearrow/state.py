"""A broker's state as it is stored below ``config/``: topics, groups, offsets. This module writes nothing.

Each part is in a JSON file with earlier contents (`firearrow.files`), and a journal of the later changes
(`firearrow.journal`). A broker with ``storeType=defaultRocksDB`` has a database in place of some files, with a row for
every topic, group or ``topic@group``. Keys are names in UTF-8, values compact JSON:

================== ============= ====================== =================================
directory          family        key                    value
================== ============= ====================== =================================
topics             default       topic                  its config
subscriptionGroups default       group                  its config
subscriptionGroups forbidden     group                  ``{"topic":bits}``
consumerOffsets    default       topic@group            ``{"offsetTable":{"0":25}}``
each               kvDataVersion ``kvDataVersionKey``   the data version
================== ============= ====================== =================================

Worked example, in ``consumerOffsets``: key ``544067`` (``T@g``), value
``7b226f66667365745461626c65223a7b2230223a32357d7d``.

A JSON file with a higher data version counts instead of the database, as at the first start with this setting. A
database that is closed leaves a JSON file of its version, so that an administrator can turn the setting off again.
Source: RocketMQ's ``RocksDBTopicConfigManager``, ``RocksDBSubscriptionGroupManager``, ``RocksDBConsumerOffsetManager``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from firearrow.database import DEFAULT, Snapshot, Table
from firearrow.errors import ConfigError, CorruptStore, FirearrowError, MessageError
from firearrow.files import StoredPath, read_newest
from firearrow.journal import VERSION, Content, bring_up_to_date, changes_beside
from firearrow.wire import fastjson

VERSION_FAMILY: Final = "kvDataVersion"
VERSION_KEY: Final = b"kvDataVersionKey"
_MARK: Final = "CURRENT"
_NOT_COPIED: Final = ("LOCK", "LOG")
_ATTEMPTS: Final = 5  # a compaction may remove a file before it is copied

Row = tuple[str, bytes]  # family and key


class StatePart(NamedTuple):
    """Files and database of a part of the state.

    ``tables`` has the JSON file's field for each family of the database in ``directory``. ``wrapped`` is the field of
    the rows that holds the value, if the row is not itself the value of the JSON file's table.
    """

    file_name: str
    tables: Mapping[str, str]
    directory: str | None = None
    wrapped: str | None = None


TOPICS: Final = StatePart("topics.json", {DEFAULT: "topicConfigTable"}, "topics")
GROUPS: Final = StatePart(
    "subscriptionGroup.json", {DEFAULT: "subscriptionGroupTable", "forbidden": "forbiddenTable"}, "subscriptionGroups"
)
OFFSETS: Final = StatePart("consumerOffset.json", {DEFAULT: "offsetTable"}, "consumerOffsets", wrapped="offsetTable")
LMQ_OFFSETS: Final = StatePart("lmqConsumerOffset.json", {DEFAULT: "offsetTable"})
"""With ``enableLmq``, in place of the other file."""
DELAYS: Final = StatePart("delayOffset.json", {DEFAULT: "offsetTable"})
DELETED: Final = StatePart("deletedTopics.json", {DEFAULT: "deletedTopics"})
FILTERS: Final = StatePart("consumerFilter.json", {DEFAULT: "filterDataByTopic"})
ORDERS: Final = StatePart("consumerOrderInfo.json", {DEFAULT: "table"})
PARTS: Final = {
    part.file_name: part for part in (TOPICS, GROUPS, OFFSETS, LMQ_OFFSETS, DELAYS, DELETED, FILTERS, ORDERS)
}


def stored_state(directory: StoredPath, part: StatePart) -> Content:
    """Content of a part, as its JSON file would be; empty if nothing was ever written.

    Raises CorruptStore when it can't be read, ConfigError without the package for databases.
    """
    path = directory / part.file_name
    try:
        content, _ = read_json(path, part.tables.values())
    except ConfigError as error:
        raise CorruptStore(f"{path} {error}") from None
    return state_in_rows(directory, part, content) if has_database(directory, part) else content


def consumer_offsets(directory: StoredPath) -> Content:
    """Offsets of groups, see `stored_state`; of two JSON files, the newer."""
    content = stored_state(directory, OFFSETS)
    if has_database(directory, OFFSETS):
        return content
    return newer(content, stored_state(directory, LMQ_OFFSETS))


def read_json(path: StoredPath, tables: Collection[str]) -> tuple[Content, bool]:
    """Content of a JSON file or, if it can't be read, an earlier one, with the later changes; and True if the file
    alone has it all.

    Raises ConfigError when files exist and none can be read.
    """
    changes = changes_beside(path)  # before the file, see `changes_beside`
    found = read_newest(path, object_of)
    content, current = ({}, True) if found is None else (found.value, found.path == path)
    replayed = bring_up_to_date(path, content, changes, tables, current=current)
    return content, current and not replayed


def object_of(data: bytes) -> Content:
    """Object in a JSON file. Raises MessageError for any other JSON."""
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise MessageError("it is not an object", "JSON")
    return value


def table_of(content: Any, field: str) -> dict[str, Any]:
    """Table of a content, empty if it is missing."""
    table = content.get(field) if isinstance(content, dict) else None
    return {str(name): row for name, row in table.items()} if isinstance(table, dict) else {}


def topics_with_batches(topics: Mapping[str, Any]) -> frozenset[str]:
    """Topics of a table that have the attribute ``queue.type=BatchCQ``."""
    attributes = {name: table_of(config, "attributes") for name, config in topics.items()}
    return frozenset(name for name, of in attributes.items() if of.get("queue.type") == "BatchCQ")


def newer(content: Content, other: Content) -> Content:
    """Return the content with the higher data version, or the first that is not empty."""
    if not other or (content and counter_of(content) >= counter_of(other)):
        return content
    return other


def counter_of(content: Mapping[str, Any]) -> int:
    """Counter of a state's data version."""
    version = content.get(VERSION) or {}
    return int(version.get("counter") or 0)


# --- databases ---


def has_database(directory: StoredPath, part: StatePart) -> bool:
    """Tell whether a part was ever kept in a database."""
    return part.directory is not None and is_database(directory / part.directory)


def state_in_rows(directory: StoredPath, part: StatePart, in_json: Content) -> Content:
    """Content of the database of a part, or of a newer JSON file; see `newest`."""
    assert part.directory is not None
    place = directory / part.directory
    try:
        database = open_database(place, (*part.tables, VERSION_FAMILY))
        try:
            return newest(part, rows_of(database.tables, part), in_json)[0]
        finally:
            database.close()
    except (CorruptStore, OSError) as error:
        raise CorruptStore(f"{place} can't be read: {error}") from None


def is_database(directory: StoredPath) -> bool:
    """Tell whether a directory holds a database."""
    return (directory / _MARK).exists()


def open_database(directory: StoredPath, families: Iterable[str]) -> Snapshot:
    """Open a database with its present contents on the disk, see `Snapshot`; one of another machine is copied."""
    if isinstance(directory, Path):
        return Snapshot(directory, tuple(families))
    for attempts_left in range(_ATTEMPTS - 1, -1, -1):
        try:
            with TemporaryDirectory(prefix="firearrow-") as copy:
                _copy(directory, Path(copy))
                return Snapshot(Path(copy), tuple(families))
        except (OSError, CorruptStore):
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


def _copy(directory: StoredPath, to: Path) -> None:
    files = {file.name: file for file in directory.glob("*")}
    for name in sorted(files, key=lambda name: name.endswith(".sst")):
        if name not in _NOT_COPIED and not name.startswith("LOG."):
            (to / name).write_bytes(files[name].read_bytes())


def rows_of(tables: Mapping[str, Table], part: StatePart) -> dict[Row, bytes]:
    """Rows of a part in its database."""
    return {
        (family, key): value
        for family in (*part.tables, VERSION_FAMILY)
        if family in tables
        for key, value in tables[family].rows()
    }


def newest(part: StatePart, rows: Mapping[Row, bytes], in_json: Content) -> tuple[Content, bool]:
    """Content of the rows of a database, or of a newer JSON file; and True if it is that of the rows.

    Raises CorruptStore for rows that can't be read. Java: RocksDBTopicConfigManager#merge lays the file over the rows,
    which restores deleted entries.
    """
    try:
        version = rows.get((VERSION_FAMILY, VERSION_KEY))
        found: Content = {field: dict(_table(part, rows, family)) for family, field in part.tables.items()}
        found[VERSION] = fastjson.loads(version) if version else {}
    except (FirearrowError, ValueError, AttributeError) as error:
        raise CorruptStore(f"a row of {part.directory} can't be read: {error}") from None
    if not in_json or (rows and counter_of(in_json) <= counter_of(found)):
        return found, True
    return {field: in_json.get(field) or {} for field in found}, False


def _table(part: StatePart, rows: Mapping[Row, bytes], family: str) -> Iterator[tuple[str, Any]]:
    for (its_family, key), text in rows.items():
        if its_family == family:
            value = fastjson.loads(text)
            yield key.decode(), value if part.wrapped is None else value.get(part.wrapped) or {}
