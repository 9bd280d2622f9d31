"""The tables that a command line of `firearrow pipeline tables`, `serve` or `archive` names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from firearrow.cli.pipeline.options import ArchiveJob, TablesJob
from firearrow.errors import ConfigError
from firearrow.lake.catalogs import LakeCatalog
from firearrow.lake.filling import LAG_SECONDS, Lake
from firearrow.lake.spec import LakeFile, TableSpec, checked, read_lake_file

_OF_TABLES: Final = ("format", "bodies", "schema", "registry", "subject", "message", "cluster", "mode", "key")


def lake_of(options: TablesJob) -> Lake:
    """Return the tables of a command line; raise ConfigError if it names none."""
    file = read_lake_file(options.file) if options.file is not None else LakeFile()
    root = options.to or file.root
    if not root:
        raise ConfigError("the directory of the tables is missing: give --to DIR, or root in the file")
    given = {name: it for name in _OF_TABLES if (it := getattr(options, name))}
    specs = file.tables
    if options.topic is not None:
        specs = (checked(TableSpec(topics=options.topic, partition=options.partition or None, **given)),)
    lag = getattr(options, "lag", None) or (file.lag if options.file is not None else LAG_SECONDS)
    catalog = options.catalog or file.catalog
    known = LakeCatalog.of(catalog) if catalog else None
    return Lake(options.source(), root, specs, lag, by_attributes=options.topic is None, catalog=known)


def lake_beside_archive(options: ArchiveJob, named: str) -> Lake:
    """Return the tables of a directory, URI or file that an archive's command line names; raises as ``lake_of``."""
    file, to = (Path(named), None) if named.endswith(".toml") else (None, named)
    return lake_of(
        TablesJob(path=options.path, name_server=options.name_server, option=options.option, file=file, to=to)
    )
