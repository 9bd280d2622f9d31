"""The files of a Delta table as a table of Apache Iceberg, committed by the driver.

The Delta log stays the source of truth. ``publish`` compares both: it adds files that the Iceberg table lacks, and
removes files that the Delta table no longer has after a compaction, a merge or an expiry. Both happen in one snapshot,
which also names the Delta table and its version. So a call can be repeated, and goes on where a killed process
stopped::

    table = Iceberg(archive, iceberg_table(catalog, "logs.messages"))
    follow(workers, source, archive, stop=stop, on_step=table.publish)

No file is copied. The Iceberg table refers to the Delta table's files, and is partitioned as they are. Needs
``firearrow[iceberg]`` and no JVM. Iceberg's own connector lets Spark read such tables.

Columns follow the Delta table's columns, in the same commit as the files, and a renamed column keeps its id. The files
have no ids of Iceberg, so readers find a column in them by each name that it had. Once another column gets such a name,
they would take it for the renamed one in older files. So that commit removes the older snapshots, too.

Several processes may publish the same table. A commit counts only on the snapshot that it was compared with; otherwise
the process compares again. The library's own retries would add the same files to the other process's snapshot, so they
are off for these tables (``commit.retry.num-retries``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from firearrow.errors import ConfigError, StoreLocked
from firearrow.logs import Log
from firearrow.spark.jobs.archive.delta import KEPT_HOURS, Archive, State, column_identity
from firearrow.spark.jobs.archive.parquet import UNMEASURED
from firearrow.spark.tables import MESSAGES

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

log: Final = Log(__name__)

_PROPERTY: Final = "firearrow.archive"
_COLUMNS: Final = "firearrow.columns"  # names of columns by their identities in the Delta table, if they differ
_NAMES: Final = "schema.name-mapping.default"  # it lets Iceberg read files without its ids
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",  # otherwise each commit adds a manifest that every reader opens
    "write.metadata.delete-after-commit.enabled": "true",  # otherwise each commit leaves a file with all snapshots
}
_TRIES_MAX: Final = 20  # consecutive commits of other processes
_SNAPSHOTS_MAX: Final = 2000  # of nearly 1 KB each in a file that every commit writes
_MARGIN_HOURS: Final = 1  # between the loading of a state and its snapshot


@dataclass(frozen=True, slots=True)
class IcebergPartition:
    """Column ``name`` that the Delta table is partitioned by; it is Iceberg's ``transform`` of ``source``."""

    name: str
    source: str
    transform: str = "identity"


@dataclass(frozen=True, slots=True)
class IcebergLayout:
    """Columns of an Iceberg table when it is created, its partitions, and table properties."""

    columns: pa.Schema
    partitions: Sequence[IcebergPartition] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


MESSAGES_LAYOUT: Final = IcebergLayout(
    MESSAGES,
    (IcebergPartition("topic", "topic"), IcebergPartition("dt", "storeTimestamp", "day")),
    {f"write.metadata.metrics.column.{column}": "none" for column in UNMEASURED},
)


def property_of_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the property of an Iceberg table that has the names of its columns by their identities."""
    return {_COLUMNS: json.dumps({identity: name for identity, name in names.items() if name != identity})}


def iceberg_table(catalog: Catalog, name: str, layout: IcebergLayout = MESSAGES_LAYOUT) -> Table:
    """Return the table of that name; create it, and its namespace, if it does not exist."""
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchNamespaceError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.transforms import parse_transform

    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        namespace = name.split(".")[:-1]
        for count in range(len(namespace)):
            catalog.create_namespace_if_not_exists(tuple(namespace[: count + 1]))
    try:
        creation = catalog.create_table_transaction(name, layout.columns, properties={**layout.properties})
        with creation, creation.update_spec() as spec:
            for each in layout.partitions:
                spec.add_field(each.source, parse_transform(each.transform), each.name)
    except (CommitFailedException, TableAlreadyExistsError):  # another process has created it
        log.info("table exists already", extra={"table": name})
    return catalog.load_table(name)


class Iceberg:
    """An Iceberg table of the files of an archive, or of another Delta table."""

    def __init__(self, archive: Archive, table: Table) -> None:
        self._archive = archive
        self._table = table

    def publish(self, _: object = None) -> int:
        """Update the table to the files of the Delta table; return the number of added and removed files.

        Raises ConfigError if the table is another archive's, StoreLocked if other processes change it without a pause.
        """
        from pyiceberg.exceptions import CommitFailedException

        for _attempt in range(_TRIES_MAX):
            try:
                return self._publish()
            except CommitFailedException as error:  # another process publishes, too
                log.info("files are compared again", extra={"reason": str(error)})
        raise StoreLocked(f"Iceberg table {self._name}: other processes change it without a pause")

    def _publish(self) -> int:
        """Compare and commit once; raises the library's CommitFailedException if another process was faster."""
        # The snapshot comes first. A Delta state that is older than the snapshot would undo what another process has
        # published; this way, the commit fails if the snapshot is not the newest.
        table = self._table.refresh()
        state = self._archive.load()
        if state.table is None:
            return 0
        self._require_same(state)
        self._prepare()
        transaction = table.transaction()
        has_changed = self._adapt(transaction, pa.schema(state.table.schema()))
        held = {task.file.file_path: task.file for task in table.scan().plan_files()}
        wanted = {self._place(path): values for path, values in state.partitions.items()}
        new, gone = sorted(wanted.keys() - held.keys()), sorted(held.keys() - wanted.keys())
        if new or gone:
            mark = {_PROPERTY: f"{state.archive}/{state.version}"}
            update = transaction.update_snapshot(snapshot_properties=mark)
            with update.overwrite() if gone else update.merge_append() as snapshot:
                for path in new:
                    snapshot.append_data_file(_data_file(table.io, transaction.table_metadata, path, wanted[path]))
                for path in gone:
                    snapshot.delete_data_file(held[path])
            transaction.set_properties(mark)
        elif not has_changed:
            return 0
        if _names(table.metadata) - _names(transaction.table_metadata):
            _drop_older_snapshots(transaction)
        transaction.commit_transaction()
        return len(new) + len(gone)

    def _prepare(self) -> None:
        """Give the table the properties that all tables have, before the first commit that needs them."""
        held = self._table.properties
        names = held.get(_NAMES) or self._table.schema().name_mapping.model_dump_json()
        wanted = {**_PROPERTIES, _NAMES: names}
        if wanted.items() - held.items():
            self._table.transaction().set_properties(wanted).commit_transaction()

    def _adapt(self, transaction: Transaction, columns: pa.Schema) -> bool:
        """Give the table the columns of the Delta table, in a transaction; tell whether there was a change."""
        schema = self._table.schema()
        own = {each.name for each in self._table.spec().fields if str(each.transform) != "identity"}
        columns = pa.schema([column for column in columns if column.name not in own])
        noted = self._table.properties.get(_COLUMNS, "{}")
        known = json.loads(noted)
        known = {each.name: each.name for each in schema.fields if each.name not in known.values()} | known
        names = {column_identity(column): column.name for column in columns}
        with transaction.update_schema() as update:
            for identity, name in names.items():
                if known.get(identity, name) != name:
                    update.rename_column(known[identity], name)
        with transaction.update_schema() as update:
            update.union_by_name(columns)
        properties = property_of_names(names)
        if properties[_COLUMNS] != noted:
            transaction.set_properties(properties)
        return properties[_COLUMNS] != noted or transaction.table_metadata.schema() != schema

    def expire_snapshots(self, kept_hours: int = KEPT_HOURS) -> int:
        """Remove old snapshots, and those beyond a number, but none that a branch or a tag names; return their number.

        Call it before ``Archive.clean`` with the same time: it leaves no snapshot whose files ``clean`` removes.
        Manifests stay; they are small, and engines of Iceberg remove orphan files.
        """
        table = self._table.refresh()
        before = datetime.now(UTC) - timedelta(hours=kept_hours - _MARGIN_HOURS)
        times = sorted(snapshot.timestamp_ms for snapshot in table.snapshots())
        if len(times) > _SNAPSHOTS_MAX:
            before = max(before, datetime.fromtimestamp(times[-_SNAPSHOTS_MAX] / 1000, UTC))
        table.maintenance.expire_snapshots().older_than(before).commit()
        return len(times) - len(table.refresh().snapshots())

    @property
    def _name(self) -> str:
        return ".".join(self._table.name())

    def _place(self, path: str) -> str:
        name = self._archive.place.full(path)
        # not as_uri(): Iceberg does not decode the characters of a path
        return name if "://" in name else f"file://{name}"

    def _require_same(self, state: State) -> None:
        """Raise ConfigError if the table has files of something else, or other partitions."""
        assert state.table is not None
        mark = self._table.properties.get(_PROPERTY)
        if mark is None and self._table.current_snapshot() is not None:
            raise ConfigError(f"the Iceberg table {self._name} has rows, but not those of an archive")
        name = state.archive if mark is None else mark.partition("/")[0]
        if name != state.archive:
            raise ConfigError(f"the table is of archive {name}, but {self._archive.root} is archive {state.archive}")
        held = [each.name for each in self._table.spec().fields]
        wanted = state.table.metadata().partition_columns
        if held != wanted:
            raise ConfigError(
                f"the Iceberg table {self._name} is partitioned by {', '.join(held) or 'nothing'}, but"
                f" {self._archive.root} by {', '.join(wanted) or 'nothing'}"
            )


def _names(metadata: TableMetadata) -> set[tuple[int | None, str]]:
    """Return pairs of a column's id and a name under which readers find the column in files."""
    return {(field.field_id, name) for field in metadata.name_mapping() or () for name in field.names}


def _drop_older_snapshots(transaction: Transaction) -> None:
    """Remove all snapshots but the present one, and those that a branch or a tag names."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    metadata = transaction.table_metadata
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    older = [each.snapshot_id for each in metadata.snapshots if each.snapshot_id not in kept]
    if older:
        ExpireSnapshots(transaction).by_ids(older).commit()


def _data_file(io: FileIO, metadata: TableMetadata, path: str, values: Mapping[str, Any]) -> DataFile:
    """Return the entry of a file whose partition is known.

    The library's own function takes the partition from the statistics of columns, which do not tell the bucket.
    """
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema, spec = metadata.schema(), metadata.spec()
    file = io.new_input(path)
    with file.open() as opened:
        footer = pq.read_metadata(opened)
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(_internal(values[each.name]) for each in spec.fields)),
        file_size_in_bytes=len(file),
        spec_id=spec.spec_id,
        **statistics.to_serialized_dict(),
    )


def _internal(value: Any) -> Any:
    """Return the value of a partition as Iceberg stores it: a day as the number of days since 1970."""
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value
