"""Archives: messages in a Delta table, each exactly once, and the upkeep of that table.

The names of this package load their modules when they are first used, so a worker of Spark imports only the module
that it runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firearrow.spark.jobs.archive.archiving import archive, follow, source
    from firearrow.spark.jobs.archive.compaction import compact
    from firearrow.spark.jobs.archive.delta import Archive
    from firearrow.spark.jobs.archive.iceberg import Iceberg, iceberg_table
    from firearrow.spark.jobs.archive.upkeep import Upkeep, expire

__all__ = ["Archive", "Iceberg", "Upkeep", "archive", "compact", "expire", "follow", "iceberg_table", "source"]

_MODULES = {
    "Archive": "delta",
    "Iceberg": "iceberg",
    "Upkeep": "upkeep",
    "archive": "archiving",
    "compact": "compaction",
    "expire": "upkeep",
    "follow": "archiving",
    "iceberg_table": "iceberg",
    "source": "archiving",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
