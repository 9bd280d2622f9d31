"""Options of Java for Spark's processes in tests, each of which lives for seconds or minutes.

Half of what such a process costs is loading Spark's classes, so all take them from the file that `firearrow pipeline`
has, too. The first process that ends in order writes it, for all later runs on this machine.
"""

from __future__ import annotations

from firearrow.spark.session import ClassData, require_java

FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options(*, killed: bool = False) -> str:
    """Return the options of a process; one that a test may have ``killed`` writes no file."""
    return " ".join([FAST_START, *ClassData(require_java()).options(write=not killed)])
