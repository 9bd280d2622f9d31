"""Messages as tables, on Spark: sources, a sink and jobs. Needs ``firearrow[spark]``.

``spark.read.format("rocketmq")`` reads the files of a store (``path``) or pulls from brokers (``nameServer``); both
give the same rows. ``firearrow.spark.tables`` names the columns, and ``firearrow.spark.options`` the options.
``configure`` sets up a session, and ``prune_columns`` limits the queries of another session to the columns they use.
``register`` gives each topic a name in SQL. ``decoded`` turns bodies into typed columns. ``LagListener`` knows the lag
of streaming queries.
"""

from typing import Any

from firearrow.logs import configure_if_nobody_does
from firearrow.spark.session import configure

__all__ = ["LagListener", "configure", "decoded", "prune_columns", "register"]

configure_if_nobody_does()


def __getattr__(name: str) -> Any:
    if name == "LagListener":  # pyspark is imported only when it is needed
        from firearrow.spark.source.listener import LagListener

        return LagListener
    if name == "decoded":
        from firearrow.spark.bodies.decode import decoded

        return decoded
    if name == "prune_columns":
        from firearrow.spark.pruning import prune_columns

        return prune_columns
    if name == "register":
        from firearrow.spark.source.topicviews import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
