"""Session of a Spark Connect server, for ``--master sc://HOST:PORT``.

The server runs Spark, and this process has neither a JVM nor a log of Spark. Like the driver of a classic session, this
process plans jobs, so it must see the store. The server's workers read it, and need Firearrow as well.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from firearrow.cli.failures import sentence
from firearrow.cli.interrupt import Ending
from firearrow.cli.pipeline.checks import MASTER_SECONDS
from firearrow.cli.pipeline.options import SparkOptions
from firearrow.errors import ConfigError, FirearrowError, MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRIES_MAX: Final = 5  # about 20 s; PySpark would try a server that has ended for ten minutes
SETTINGS: Final = {"spark.sql.session.timeZone": "UTC"}


@contextmanager
def connected(options: SparkOptions, ending: Ending | None) -> Iterator[SparkSession]:
    """Begin a session of the server that ``options`` name, and end it, with its queries, after the block.

    Raises ConfigError for missing packages, a wrong address, or settings that a session cannot change. Raises
    FirearrowError if the server does not answer.
    """
    assert options.master is not None, "the options name one"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of retries; the error that follows says the same
        _require_server(options.master)
        spark = _session(options.master, dict(options.conf))
        if ending is not None:
            ending.elsewhere.append(spark.stop)
        try:
            yield spark
        finally:
            spark.client.set_retry_policies([])  # a server that has ended ends no session
            spark.stop()


def _require_server(master: str) -> None:
    """Raise FirearrowError unless a server that speaks gRPC answers soon; PySpark would try for ten minutes."""
    try:
        import grpc
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        raise MissingPackage("sc://... needs", "packages of Spark Connect", "connect") from error
    try:
        builder = DefaultChannelBuilder(master)
    except (ValueError, PySparkException) as error:
        raise ConfigError(f"{master.partition(';')[0]}: {sentence(error)}") from error
    channel = builder.toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=MASTER_SECONDS)
    except grpc.FutureTimeoutError:
        raise FirearrowError(
            f"Spark does not start: no Spark Connect server answers at {builder.endpoint} within {MASTER_SECONDS} s"
        ) from None
    finally:
        channel.close()


def _session(master: str, given: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    from firearrow.spark import configure

    logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
    builder = configure(SparkSession.Builder().remote(master).appName("firearrow pipeline"))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES_MAX)])
    for key, value in given.items():
        try:
            spark.conf.set(key, value)
        except PySparkException as error:
            spark.stop()
            reason = sentence(error)
            raise ConfigError(f"--conf {key}={value}: a session of Spark Connect refuses it: {reason}") from error
    return spark
