"""The log as tables, on Spark: sources, a sink and jobs. Needs ``firearrow[spark]``.

``spark.read.format("rocketmq")`` reads the store's files (``path``) or pulls from brokers
(``nameServer``); both give the same rows. ``firearrow.spark.tables`` names the columns,
``firearrow.spark.options`` the options, ``configure`` sets what a session needs.
"""

from firearrow.spark.session import configure

__all__ = ["configure"]
