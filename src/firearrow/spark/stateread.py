"""A broker's state as it is in ``config/``: topics, groups and offsets, in JSON or RocksDB.

Which counts is the broker's rule: a database, unless the JSON file has a higher data version.
Nothing is written.

Formats: ``firearrow.broker.state.rows``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from firearrow.errors import CorruptStore, FirearrowError
from firearrow.journal import bring_up_to_date, changes_beside
from firearrow.spark.databases import CopiedDatabase, is_database
from firearrow.spark.storage import Storage
from firearrow.wire import fastjson


class Kind(NamedTuple):
    """One part of the state: its JSON file and the field with its table, and its database."""

    json_name: str
    field: str
    directory: str
    wrapped: bool = False  # whether rows of the database have the field, too


TOPICS: Final = Kind("topics.json", "topicConfigTable", "topics")
GROUPS: Final = Kind("subscriptionGroup.json", "subscriptionGroupTable", "subscriptionGroups")
OFFSETS: Final = Kind("consumerOffset.json", "offsetTable", "consumerOffsets", wrapped=True)

_VERSION_FAMILY: Final = "kvDataVersion"
_VERSION_KEY: Final = b"kvDataVersionKey"


def state_table(storage: Storage, kind: Kind) -> dict[str, Any]:
    """A table of the state, by name; empty where there is none. Raises CorruptStore."""
    changes = changes_beside(  # before the file, see `files_of`
        kind.json_name,
        [entry.name for entry in storage.entries("config")],
        lambda name: bytes(storage.read(f"config/{name}")),
    )
    content = read_json(storage, f"config/{kind.json_name}")
    bring_up_to_date(content, changes, {kind.field})
    directory = f"config/{kind.directory}"
    if is_database(storage, directory):
        table, version = _from_database(storage, directory, kind)
        if not content or (table and _counter(content.get("dataVersion")) <= _counter(version)):
            return table
    return _by_name(content.get(kind.field))


def read_json(storage: Storage, path: str) -> dict[Any, Any]:
    """A configuration file, empty where there is none. Raises CorruptStore."""
    try:
        data = bytes(storage.read(path))
    except FileNotFoundError:
        return {}
    try:
        value = fastjson.loads(data)
    except (FirearrowError, ValueError) as error:
        raise CorruptStore(f"{storage.root}/{path} can't be read: {error}") from None
    return value if isinstance(value, dict) else {}


def _from_database(storage: Storage, directory: str, kind: Kind) -> tuple[dict[str, Any], Any]:
    database = CopiedDatabase(storage, directory)
    try:
        table: dict[str, Any] = {}
        for key, value in database.tables["default"].rows():
            row = fastjson.loads(value)
            if kind.wrapped:
                row = row.get(kind.field) or {}
            table[key.decode("utf-8", "replace")] = row
        versions = database.tables.get(_VERSION_FAMILY)
        version = versions.get(_VERSION_KEY) if versions else None
        return table, fastjson.loads(version) if version else {}
    except (FirearrowError, ValueError, AttributeError) as error:
        raise CorruptStore(f"{storage.root}/{directory} can't be read: {error}") from None
    finally:
        database.close()


def _by_name(table: Any) -> dict[str, Any]:
    return {str(name): row for name, row in table.items()} if isinstance(table, dict) else {}


def _counter(version: Any) -> int:
    counter = version.get("counter") if isinstance(version, dict) else None
    return counter if isinstance(counter, int) else 0
