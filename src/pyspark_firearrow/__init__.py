"""Automatic registration of ``spark.read.format("rocketmq")``.

Spark imports every top-level package whose name begins with ``pyspark_`` and registers its ``DefaultSource``. That
happens in every session of an environment with Firearrow, so this module must be light and must not fail. The source
itself is in ``firearrow.spark.source.datasource``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from firearrow.spark.source.datasource import RocketMQSource  # only when Spark looks for it

        return RocketMQSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
