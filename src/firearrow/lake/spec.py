"""Specification of typed tables: their topics, their columns and their form.

It comes from a file, and from the attributes of topics, which win::

    root = "s3://bucket/lake"
    catalog = "prod:lake"        # for tables with format = "iceberg"; see ``firearrow.lake.catalogs``

    [[tables]]
    topics = "orders.*"          # a regular expression for whole names
    bodies = "json"              # json, avro or protobuf
    schema = "order string, customer string, cents long"
    partition = ["day", "bucket(16, customer)"]
    cluster = ["customer"]

A topic with the attribute ``table.format`` does not need an entry in the file. Other attributes have the names of the
keys with ``table.`` before them: ``table.bodies``, ``table.schema``, ``table.partition`` and so on. Where a schema or a
list has commas, an attribute has semicolons, because RocketMQ's tools separate attributes by commas. RocketMQ's brokers
refuse attributes that they do not know, so their topics need the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from firearrow.errors import ConfigError
from firearrow.lake.partitioning import Partitioning
from firearrow.spark.bodies.registry import Registry

ATTRIBUTE: Final = "table."
UNDECODED: Final = "__undecoded"
_LISTS: Final = ("partition", "cluster")
_BETWEEN: Final = re.compile(r";(?![^(]*\))")  # not within bucket(16; customer)

Format = Literal["delta", "iceberg"]
Mode = Literal["append", "upsert"]
BodyFormat = Literal["json", "avro", "protobuf"]


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Specification of the table of a topic. Each field is a key of the file, too.

    ``schema`` is a text or the name of a file: Spark's text of columns or a JSON Schema, an Avro schema, or a
    descriptor file of Protobuf. ``subject`` names the schema in a registry. ``key`` is the column that identifies a row
    of a table with ``mode="upsert"``: by default the message's keys. ``lag`` is the time in seconds after which a
    message must be in the table.
    """

    topics: str = ""
    format: Format = "delta"
    bodies: BodyFormat = "json"
    schema: str = ""
    registry: str = ""
    subject: str = ""
    message: str = ""
    partition: tuple[str, ...] | None = None
    cluster: tuple[str, ...] = ()
    mode: Mode = "append"
    key: str = ""
    change_data_feed: bool = False
    lag: float | None = None

    @property
    def partitioning(self) -> tuple[Partitioning, ...]:
        """Columns that the table is partitioned by: the day of storing, unless the table has upserts.

        A row of a table with upserts would move with each change.
        """
        texts = self.partition
        if texts is None:
            texts = () if self.mode == "upsert" else ("day",)
        return tuple(Partitioning.of(text) for text in texts)

    def as_text(self) -> str:
        """Return the specification in JSON, without a password."""
        registry = str(Registry(self.registry)) if self.registry else ""
        return msgspec.json.encode(msgspec.structs.replace(self, registry=registry)).decode()


class LakeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the file: the directory or URI of all tables, the time in seconds after which messages must be in
    them, the catalog of Iceberg tables, and the tables."""

    root: str = ""
    lag: float = 60.0
    catalog: str | dict[str, str | int | bool] = ""
    tables: tuple[TableSpec, ...] = ()


def read_lake_file(path: Path) -> LakeFile:
    """Read the file of a lake; raise ConfigError if it is wrong."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), LakeFile)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for spec in found.tables:
        checked(spec)
    return found


def checked(spec: TableSpec) -> TableSpec:
    """Return a specification that does not contradict itself; raise ConfigError for any other."""
    try:
        re.compile(spec.topics)
    except re.error as error:
        raise ConfigError(f"topics {spec.topics!r}: {error}") from None
    _require_possible(spec, spec.topics)
    return spec


def specs_of(topics: Mapping[str, Mapping[str, str]], specs: Iterable[TableSpec]) -> dict[str, TableSpec]:
    """Return the specification of each topic that becomes a table.

    ``topics`` has the attributes of each topic. The first of ``specs`` that names a topic holds for it. Raises
    ConfigError for wrong attributes.
    """
    found: dict[str, TableSpec] = {}
    specs = tuple(specs)
    for topic, attributes in topics.items():
        own = {name.removeprefix(ATTRIBUTE): it for name, it in attributes.items() if name.startswith(ATTRIBUTE)}
        spec = next((spec for spec in specs if re.fullmatch(spec.topics, topic)), None)
        if spec is None and "format" not in own:
            continue
        found[topic] = _with_attributes(spec or TableSpec(), own, topic)
        _require_possible(found[topic], topic)
    return found


def table_name(topic: str) -> str:
    """Return the name of a topic's table: characters that SQL does not take in a name become ``_``."""
    return re.sub(r"\W", "_", topic, flags=re.ASCII)


def _with_attributes(spec: TableSpec, own: Mapping[str, str], topic: str) -> TableSpec:
    values: dict[str, Any] = {}
    for name, text in own.items():
        key = name.replace(".", "_")
        if key in _LISTS:
            parts = (part.strip().replace(";", ",") for part in _BETWEEN.split(text))
            values[key] = [part for part in parts if part]
        else:
            values[key] = text.replace(";", ",") if key == "schema" else text
    try:
        return msgspec.convert({**msgspec.to_builtins(spec), "topics": topic, **values}, TableSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"topic {topic!r}: attributes {ATTRIBUTE}*: {error}") from None


def _require_possible(spec: TableSpec, name: str) -> None:
    """Raise ConfigError for a specification that contradicts itself."""
    _ = spec.partitioning
    if spec.key and spec.mode != "upsert":
        raise ConfigError(f"table of {name!r}: key {spec.key!r} is for mode = upsert")
    if spec.subject and not spec.registry:
        raise ConfigError(f"table of {name!r}: subject {spec.subject!r} needs a registry")
    if spec.bodies != "protobuf" and spec.message:
        raise ConfigError(f"table of {name!r}: message {spec.message!r} is for bodies = protobuf")
    if not spec.schema and not (spec.registry and spec.subject):
        raise ConfigError(f"table of {name!r}: needs a schema, or a registry and a subject")
