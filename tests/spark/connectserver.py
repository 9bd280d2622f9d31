"""A Spark Connect server in the JVM of a classic session: it starts no JVM of its own, and finds the session's warm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def serving(spark: SparkSession) -> Iterator[str]:
    """Serve on a free port; give the address."""
    context = spark.sparkContext._jsc.sc()
    for key, value in {"address": "127.0.0.1", "port": "0"}.items():
        context.conf().set(f"spark.connect.grpc.binding.{key}", value)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(context)
    try:
        yield f"sc://127.0.0.1:{service.localPort()}"
    finally:
        service.stop(*(getattr(service, f"stop$default${number}")() for number in (1, 2)))
