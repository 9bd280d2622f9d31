"""Topics as typed tables of Delta Lake and Iceberg: columns from bodies, each message once.

Workers without a JVM write the tables, on the engine of archives (``firearrow.spark.jobs.archive``). ``table`` and,
for Spark, ``frame`` read a table together with the messages that are not in it yet. A worker imports only the module
that it runs, so both load their modules when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firearrow.lake.reading import table
    from firearrow.lake.sparkframe import frame

__all__ = ["frame", "table"]


def __getattr__(name: str) -> Any:
    if name == "table":
        from firearrow.lake import reading

        return reading.table
    if name == "frame":
        from firearrow.lake import sparkframe

        return sparkframe.frame
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
