"""An archive's files as a table of Apache Iceberg, committed by the driver.

The archive stays the source of truth. ``publish`` compares both: it adds files that the table lacks, and removes files
that the archive no longer has after a compaction or an expiry. Both happen in one snapshot, which also names the
archive and its version. So a call can be repeated, and goes on where a killed process stopped::

    table = Iceberg(archive, iceberg_table(catalog, "logs.messages"))
    follow(workers, source, archive, stop=stop, on_step=table.publish)

No file is copied. The table refers to the archive's files, and is partitioned by topic and day as they are. Needs
``firearrow[iceberg]`` and no JVM. Iceberg's own connector lets Spark read such tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from firearrow.errors import ConfigError
from firearrow.spark.jobs.archive.delta import Archive, State
from firearrow.spark.jobs.archive.parquet import UNMEASURED
from firearrow.spark.tables import MESSAGES

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_PROPERTY: Final = "firearrow.archive"


def iceberg_table(catalog: Catalog, name: str) -> Table:
    """Return the table of that name; create it, by topic and day, if it does not exist."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.transforms import DayTransform

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        unmeasured = {f"write.metadata.metrics.column.{column}": "none" for column in UNMEASURED}
        table = catalog.create_table(name, MESSAGES, properties=unmeasured)
        with table.update_spec() as spec:
            spec.add_identity("topic")
            spec.add_field("storeTimestamp", DayTransform(), "dt")
        return table


class Iceberg:
    """An Iceberg table of an archive's files."""

    def __init__(self, archive: Archive, table: Table) -> None:
        self._archive = archive
        self._table = table

    def publish(self, _: object = None) -> int:
        """Update the table to the files of the archive; return the number of added and removed files.

        Raises ConfigError if the table is another archive's.
        """
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        table = self._table.refresh()
        state = self._archive.load()
        _require_same(table.properties.get(_PROPERTY), self._archive, state)
        held = {task.file.file_path: task.file for task in table.scan().plan_files()}
        wanted = {self._name(path) for path in state.files}
        new, gone = sorted(wanted - held.keys()), sorted(held.keys() - wanted)
        if not new and not gone:
            return 0
        mark = {_PROPERTY: f"{state.archive}/{state.version}"}
        with table.transaction() as transaction:
            if table.name_mapping() is None:  # it lets Iceberg read files without its ids
                name_mapping = table.schema().name_mapping.model_dump_json()
                transaction.set_properties({"schema.name-mapping.default": name_mapping})
            update = transaction.update_snapshot(snapshot_properties=mark)
            with update.overwrite() if gone else update.fast_append() as snapshot:
                metadata: Any = transaction.table_metadata
                for file in parquet_files_to_data_files(table.io, metadata, iter(new)):
                    snapshot.append_data_file(file)
                for path in gone:
                    snapshot.delete_data_file(held[path])
            transaction.set_properties(mark)
        return len(new) + len(gone)

    def _name(self, path: str) -> str:
        name = self._archive.place.full(path)
        # not as_uri(): Iceberg does not decode the characters of a path
        return name if "://" in name else f"file://{name}"


def _require_same(mark: str | None, archive: Archive, state: State) -> None:
    if mark is None:
        return
    name = mark.partition("/")[0]
    if name != state.archive:
        raise ConfigError(f"the table is of archive {name}, but {archive.root} is archive {state.archive}")
