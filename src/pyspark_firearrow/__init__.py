"""Makes ``spark.read.format("rocketmq")`` work with nothing registered.

Spark imports every top-level package whose name begins with ``pyspark_`` and registers its
``DefaultSource``. That happens in every session of an environment where Firearrow is installed, so
nothing heavy may be imported here and nothing may fail: see ``firearrow.spark.source.datasource``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from firearrow.spark.source.datasource import RocketMQSource  # only when Spark looks for it

        return RocketMQSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
