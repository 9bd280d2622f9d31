"""Catalog of the typed tables with ``format = "iceberg"``, and their Iceberg tables.

One block of the lake's file names the catalog, with the properties of pyiceberg::

    [catalog]
    namespace = "lake"                      # of the tables; it is created if it does not exist
    type = "rest"                           # rest, glue, hive, sql or dynamodb
    uri = "https://polaris.example/api/catalog"
    warehouse = "prod"

REST catalogs are Polaris, Lakekeeper, Nessie, Unity and others. ``name`` in the block is the catalog's name, by default
``firearrow``; an SQL catalog holds the tables of each name apart. pyiceberg also takes properties of this name from
``~/.pyiceberg.yaml`` and from the environment, so a secret can stay outside the file:
``PYICEBERG_CATALOG__FIREARROW__CREDENTIAL``. ``catalog = "NAME:NAMESPACE"`` instead of the block means a catalog that
is configured there. Without ``NAME:``, it is pyiceberg's default.

The Delta log stays the journal (``firearrow.spark.jobs.archive.iceberg``). A catalog that fails does not stop the Delta
tables; the Iceberg tables follow once it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from firearrow.errors import ConfigError, FirearrowError
from firearrow.lake.partitioning import Partitioning
from firearrow.lake.spec import UNDECODED
from firearrow.lake.typedrows import UNDECODED_ROWS
from firearrow.lake.typedtable import TypedTable
from firearrow.spark.jobs.archive.catalogs import IcebergCatalog
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.iceberg import (
    Iceberg,
    IcebergLayout,
    IcebergPartition,
    iceberg_table,
    property_of_names,
)

NAME: Final = "firearrow"
NEEDED: Final = "format = iceberg needs a catalog: --catalog [CATALOG:]NAMESPACE, or [catalog] in the file"


@dataclass(frozen=True)
class LakeCatalog:
    """Namespace of a catalog for the tables of a lake."""

    catalog: IcebergCatalog
    namespace: str

    @classmethod
    def of(cls, given: str | Mapping[str, str | int | bool]) -> LakeCatalog:
        """Read the block of a file, or ``[CATALOG:]NAMESPACE``; raise ConfigError if it names no namespace."""
        if isinstance(given, str):
            name, _, namespace = given.rpartition(":")
            catalog = IcebergCatalog(f"catalog {given}", name or None)
        else:
            texts = {key: str(it).lower() if isinstance(it, bool) else str(it) for key, it in given.items()}
            namespace, name = texts.pop("namespace", ""), texts.pop("name", NAME)
            catalog = IcebergCatalog(f"catalog {name}:{namespace}", name, texts)
        if not all(namespace.split(".")):
            raise ConfigError(f"{catalog.label}: the namespace of the tables is missing")
        return cls(catalog, namespace)


class IcebergTables:
    """The Iceberg tables of a typed table and of its undecoded messages."""

    def __init__(self, catalog: LakeCatalog, table: TypedTable) -> None:
        self._catalog = catalog
        self._table = table
        self._opened: dict[str, Iceberg] = {}

    def publish(self, seconds: float | None = None) -> int:
        """Update both to the files of the Delta tables; return the number of added and removed files.

        Raises CatalogError if the catalog fails or takes longer than ``seconds``, ConfigError if a table of the name
        has other rows.
        """
        try:
            return self._catalog.catalog.work(lambda: sum(each.publish() for each in self._both()), seconds)
        except FirearrowError:
            self._opened.clear()  # a table may have been dropped
            raise

    def expire_snapshots(self, seconds: float | None = None) -> int:
        """Remove the snapshots whose files the Delta tables do not keep longer; return their number.

        Raises CatalogError as ``publish``.
        """
        return self._catalog.catalog.work(lambda: sum(each.expire_snapshots() for each in self._both()), seconds)

    def _both(self) -> list[Iceberg]:
        partitions = [_partition(each) for each in self._table.partitioning]
        typed = IcebergLayout(self._table.columns, partitions, property_of_names(self._table.names))
        found = [
            self._iceberg(self._table.name, self._table, typed),
            self._iceberg(f"{self._table.name}{UNDECODED}", self._table.undecoded, IcebergLayout(UNDECODED_ROWS)),
        ]
        return [each for each in found if each is not None]

    def _iceberg(self, name: str, table: Archive, layout: IcebergLayout) -> Iceberg | None:
        """Return the Iceberg table of a Delta table, if there is one."""
        if name not in self._opened:
            if table.load().table is None:
                return None
            opened = iceberg_table(self._catalog.catalog.opened, f"{self._catalog.namespace}.{name}", layout)
            self._opened[name] = Iceberg(table, opened)
        return self._opened[name]


def _partition(each: Partitioning) -> IcebergPartition:
    transform = f"bucket[{each.buckets}]" if each.buckets else each.transform or "identity"
    return IcebergPartition(each.name, each.source, transform)
