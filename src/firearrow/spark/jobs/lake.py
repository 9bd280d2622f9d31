"""An archive's files as a table of Apache Iceberg or Delta Lake, committed by the driver.

The archive stays what counts: each of its steps becomes one commit of the table, which also says
which step it is. So publishing can be repeated, and goes on where it was when a process was killed
between the two::

    table = Iceberg(archive, iceberg_table(catalog, "logs.messages"))
    follow(workers, source, archive, stop=stop, on_step=table.publish)

No file is copied: an Iceberg table refers to the archive's files, and a Delta table's log is in
the archive's directory. Both are partitioned by topic and day. From then on files may only be
joined by the table's own means (``firearrow.spark.jobs.compact`` refuses to).

Needs ``firearrow[iceberg]`` or ``firearrow[delta]``. No JVM takes part; how Spark reads such
tables is the affair of their own connectors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from firearrow.errors import ConfigError
from firearrow.files import make_directory
from firearrow.spark.jobs.compact import LAKES
from firearrow.spark.jobs.manifest import Archive, DataFile
from firearrow.spark.jobs.parquet import UNMEASURED
from firearrow.spark.tables import MESSAGES

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_PROPERTY: Final = "firearrow.archive"


class Addition(NamedTuple):
    """Files to be added to a table: those of the archive's steps up to ``sequence``."""

    archive: str
    sequence: int
    files: list[DataFile]


def additions(archive: Archive, after: int) -> Iterator[Addition]:
    """Give what a table lacks that has the steps up to ``after``, a step each.

    Where earlier manifests have been joined, what they hold comes first as one.
    """
    manifests = archive.manifests(after)
    if after == 0 and manifests and manifests[0].sequence > 1:
        manifests = [m for m in manifests if m.files is None]
        state = archive.load()
        late = {file.path for manifest in manifests for file in manifest.added}
        first = [file for path, file in state.files.items() if path not in late]
        joined = state.sequence - len(manifests)
        yield Addition(state.archive, joined, first)
    for manifest in manifests:
        yield Addition(manifest.archive, manifest.sequence, list(manifest.added))


def claim(archive: Archive, kind: str) -> None:
    """Note that a table holds the archive's files: they are not compacted here any more."""
    mark = archive.home / LAKES / kind
    if not mark.exists():
        with archive.changing():
            make_directory(mark)


# --- Iceberg ---


def iceberg_table(catalog: Catalog, name: str) -> Table:
    """Give the table of that name, made by topic and day if it is not there."""
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
        claim(archive, "iceberg")
        self._archive = archive
        self._table = table

    def publish(self, _: object = None) -> int:
        """Commit the steps that the table lacks; give how many these were.

        A step and its number are one commit. Raises ConfigError if the table is another archive's.
        """
        table = self._table.refresh()
        after = _published(table.properties.get(_PROPERTY), self._archive)
        steps = 0
        for addition in additions(self._archive, after):
            # not as_uri(): Iceberg takes the characters of a path as they are
            paths = [f"file://{self._archive.place(file)}" for file in addition.files]
            mark = {_PROPERTY: f"{addition.archive}/{addition.sequence}"}
            with table.transaction() as transaction:
                if paths:
                    transaction.add_files(paths, mark, check_duplicate_files=False)
                transaction.set_properties(mark)
            steps += 1
        return steps


def _published(mark: str | None, archive: Archive) -> int:
    """Give the last step that a table has, from what was noted there."""
    if mark is None:
        return 0
    name, _, sequence = mark.partition("/")
    mine = archive.load().archive
    if name != mine:
        raise ConfigError(f"the table is of archive {name}, but {archive.root} is archive {mine}")
    return int(sequence)


# --- Delta ---


class Delta:
    """A Delta table whose log is in an archive's directory."""

    def __init__(self, archive: Archive) -> None:
        claim(archive, "delta")
        self._archive = archive
        self.root = str(archive.root)

    def publish(self, _: object = None) -> int:
        """Commit the steps that the table lacks; give how many these were.

        The step's number is the version of an application transaction, so no step counts twice.
        """
        from deltalake import CommitProperties, DeltaTable
        from deltalake.transaction import Transaction

        table = self._open(DeltaTable)
        archive_id = self._archive.load().archive
        after = table.transaction_version(archive_id) or 0
        steps = 0
        for addition in additions(self._archive, after):
            done = Transaction(archive_id, addition.sequence)
            table.create_write_transaction(
                [_add_action(self._archive, file) for file in addition.files],
                "append",
                table.schema(),
                ["topic", "dt"],
                commit_properties=CommitProperties(app_transactions=[done]),
            )
            table.update_incremental()  # else the next one would seem to compete with this
            steps += 1
        return steps

    def _open(self, kind: Any) -> Any:
        """Open the table, made if it is not there."""
        if not (Path(self.root) / "_delta_log").exists():
            schema = MESSAGES.append(pa.field("dt", pa.date32()))
            kind.create(self.root, schema, partition_by=["topic", "dt"])
        return kind(self.root)


def _add_action(archive: Archive, file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    modified_ms = archive.place(file).stat().st_mtime_ns // 1_000_000
    stats = json.dumps({"numRecords": file.rows})
    partition = {"topic": file.topic, "dt": file.day}
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=partition,
        modification_time=modified_ms,
        data_change=True,
        stats=stats,
    )
