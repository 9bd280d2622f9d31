"""A cluster of Spark with an application, an object store with a store of messages, and a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow.fs as pafs
from moto.server import ThreadedMotoServer

from firearrow.message.model import MessageView
from tests.interop.servers import Server
from tests.spark.brokers import serving
from tests.spark.cluster import Driver, driver, packed_environment, wheel
from tests.spark.cluster_driver import totals_of
from tests.spark.javaoptions import java_options
from tests.store.stores import append, opened

MESSAGES = 4000
QUEUES = 2
BODIES = [b"body %d" % number for number in range(MESSAGES)]
ALL = totals_of(("T", body) for body in BODIES)
SPLIT = {"splitBytes": "128k"}  # so small that both executors get some of a small store
SECRET = "a-secret-of-the-driver"


@dataclass(frozen=True)
class Site:
    """A cluster of Spark with an application, an object store with a store of messages, and a broker."""

    master: str
    driver: Driver
    broker: Server
    home: Path
    options: tuple[str, ...]
    variables: dict[str, str]

    @property
    def store(self) -> str:
        """The store of `BODIES` in the object store."""
        return "s3://bucket/store"

    @property
    def lake(self) -> str:
        """An archive in the object store; the stores of all sites of a process share moto's memory."""
        return f"s3://bucket/lake-{self.home.name}"

    def mark(self, name: str) -> str:
        """A file that exists once an executor was killed."""
        return str(self.home / f"killed-{name}")


@contextmanager
def site_at(home: Path, master: str, *settings: str, variables: Mapping[str, str]) -> Iterator[Site]:
    """Start everything but the cluster for a ``with`` block; ``settings`` and ``variables`` are those of the driver."""
    with opened(home / "store", mapped_file_size_commit_log=1 << 18, mapped_file_size_consume_queue=1 << 16) as store:
        for number, body in enumerate(BODIES):
            append(store, body, "T", number % QUEUES)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    own = {
        **variables,
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }
    try:
        urlopen(Request(f"http://{host}:{port}/bucket", method="PUT")).close()
        bucket = f"s3://key:secret@bucket/store?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        pafs.copy_files(str(home / "store"), bucket)
        with serving(home / "broker") as broker:
            options = (
                "--master", master, "--archives", str(packed_environment(home)), "--py-files", str(wheel(home)),
                *confs(settings),
            )  # fmt: skip
            with driver(home / "driver", own, *options) as running:
                yield Site(master, running, broker, home, options, own)
    finally:
        server.stop()


def confs(settings: Iterable[str]) -> Iterator[str]:
    """Words of the command for settings of Spark, with those that each application of a test has."""
    for setting in (
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.executor.memory=600m",
        f"spark.driver.extraJavaOptions={java_options()}",
        f"spark.executor.extraJavaOptions={java_options(killed=True)}",
        # Nothing is begun before both workers are there: one alone could do it all.
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
        # UDFs have the environment of other tasks then, so that they share a Python daemon and its workers.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled=false",
        *settings,
    ):
        yield from ("--conf", setting)


def of_views(views: Iterable[MessageView]) -> list[int]:
    """The totals of messages of one topic."""
    return totals_of(("", view.body) for view in views)[""]
