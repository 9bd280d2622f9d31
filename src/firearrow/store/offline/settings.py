"""What brokers configure, as they have left it: JSON files, or databases in their place.

With ``storeType=defaultRocksDB`` a broker keeps topics, groups and offsets in databases below
``config/``; a row has a name and the JSON of what the file's table has for it. A JSON file of that
name is then a copy, if it is there at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from firearrow.database import DEFAULT, Snapshot
from firearrow.errors import CorruptStore, FirearrowError
from firearrow.journal import bring_up_to_date, changes_beside
from firearrow.wire import fastjson

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
LIGHT_OFFSETS: Final = "lmqConsumerOffset.json"  # with enableLmq, in place of the other
DELAYS: Final = "delayOffset.json"


class _Kept(NamedTuple):
    """Where a file's table is if it is in a database; ``wrapped`` if rows have its name, too."""

    directory: str
    table: str
    wrapped: bool = False


_DATABASES: Final = {
    TOPICS: _Kept("topics", "topicConfigTable"),
    GROUPS: _Kept("subscriptionGroups", "subscriptionGroupTable"),
    OFFSETS: _Kept("consumerOffsets", "offsetTable", wrapped=True),
}


def databases(directory: Path) -> dict[str, Path]:
    """The databases in a configuration directory, by the files that they are in the place of."""
    paths = {name: directory / kept.directory for name, kept in _DATABASES.items()}
    return {name: path for name, path in paths.items() if (path / "CURRENT").exists()}


def stored_config(directory: Path, name: str) -> dict[str, Any] | str:
    """What a configuration file, or the database in its place, holds; or why it can't be read.

    Raises ConfigError where it is a database, and the package for it is missing.
    """
    database = databases(directory).get(name)
    if database is not None:
        return _rows(database, name)
    changes = changes_beside(  # before the file, see `files_of`
        name,
        [path.name for path in directory.glob(f"{name}.journal.*")],
        lambda journal: (directory / journal).read_bytes(),
    )
    content = parse_config(directory / name)
    if isinstance(content, dict) and name in _DATABASES:
        bring_up_to_date(content, changes, {_DATABASES[name].table})
    return content


def topics_with_batches(directory: Path) -> frozenset[str]:
    """The topics with the attribute ``queue.type=BatchCQ``, as far as they can be read."""
    value = stored_config(directory, TOPICS)
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    return frozenset(
        str(topic)
        for topic, config in (table.items() if isinstance(table, dict) else ())
        if isinstance(config, dict)
        and isinstance(attributes := config.get("attributes"), dict)
        and attributes.get("queue.type") == "BatchCQ"
    )


def _rows(path: Path, name: str) -> dict[str, Any] | str:
    kept = _DATABASES[name]
    found: dict[str, Any] = {}
    try:
        database = Snapshot(path, (DEFAULT,))
        try:
            for key, value in database.tables[DEFAULT].rows():
                row = fastjson.loads(value)
                found[key.decode()] = row[kept.table] if kept.wrapped else row
        finally:
            database.close()
    except (CorruptStore, OSError) as error:
        return str(error)
    except (FirearrowError, ValueError, KeyError, TypeError) as error:
        return f"a row can't be read: {error}"
    return {kept.table: found}


def parse_config(path: Path) -> dict[str, Any] | str:
    """What a configuration file holds, or why it can't be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return str(error)
    if not data:
        return "it is empty"
    try:
        value = fastjson.loads(data)
    except (FirearrowError, ValueError) as error:
        return str(error) if data.strip(b"\0") else "all its bytes are zero"
    return value if isinstance(value, dict) else "it holds no object"
