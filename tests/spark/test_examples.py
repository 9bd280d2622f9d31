"""The examples in the documentation run as they stand there, one after the other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import cast

import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyspark.sql import SparkSession

from firearrow.spark import LagListener
from tests.pages import DOCS, NAME_SERVER, README, blocks
from tests.spark.jobs import orders
from tools.demo import create_topics, serving

pytestmark = pytest.mark.usefixtures("patience")


class OneLook(Event):
    """Ends what follows a log after its first step."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def is_set(self) -> bool:
        self._looks += 1
        return self._looks > 1

    def wait(self, timeout: float | None = None) -> bool:
        return True


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return orders.fill(tmp_path_factory.mktemp("shop") / "store")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """The catalogue of Iceberg tables that a program finds in its configuration."""
    found = InMemoryCatalog("local", warehouse=f"file://{tmp_path}/warehouse")
    found.create_namespace("logs")
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda name: found)
    yield found
    found.close()


def examples(
    page: Path, store: Path, work: Path, name_server: str = "127.0.0.1:1", language: str = "python"
) -> list[str]:
    """The code of a page, with places of this machine in it."""
    places = {"/srv/rocketmq/store": str(store), "/srv/": f"{work}/", NAME_SERVER: name_server}
    found = [block.code for block in blocks(page, language)]
    for written, meant in places.items():
        found = [code.replace(written, meant) for code in found]
    return found


def test_an_archive_is_a_script(shop: Path, tmp_path: Path) -> None:
    """Its processes import it, so that it must be guarded."""
    script = tmp_path / "script.py"
    script.write_text(examples(DOCS / "archive.md", shop, tmp_path)[0], encoding="utf-8")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ds.dataset(tmp_path / "archive", exclude_invalid_files=True).count_rows() > 1500


def run(code: str, names: dict[str, object]) -> None:
    exec(compile(code, "example", "exec"), names)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pages_of_the_pipeline(
    spark: SparkSession, shop: Path, tmp_path: Path, catalog: Catalog, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "to") as (name_server, broker):
        create_topics(broker, {"Orders": 1, "orders-again": 1})
        names: dict[str, object] = {"spark": spark, "one_look": OneLook()}
        for code in examples(DOCS / "archive.md", shop, tmp_path, name_server)[1:]:
            run(code.replace("Event()", "one_look"), names)
        assert len(catalog.load_table("logs.messages").scan().to_arrow()) > 1500
        names = {"spark": spark}
        for code in examples(DOCS / "pipeline.md", shop, tmp_path, name_server):
            run(code, names)
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        spark.streams.removeListener(cast("LagListener", names["listener"]))
        assert "order-" in capfd.readouterr().out
        sent = spark.read.format("rocketmq").load(str(tmp_path / "to"))
        rows = sent.groupBy("topic").count().collect()
        counts = {row.topic: row["count"] for row in rows}
        assert counts["orders-again"] > 0
        assert counts["Payments"] == 60
    shutil.rmtree(tmp_path / "to")


def test_the_readme(spark: SparkSession, shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The session is shared, so it goes on."""
    code = blocks(README, "python")[-1].code
    assert code.endswith("spark.stop()\n")
    run(code.replace("spark.stop()", "").replace("data/store", str(shop)), {})
    assert re.search(r"Orders *\| *paid", capfd.readouterr().out)


def test_statements_of_sql(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    session = spark.newSession()
    (code,) = examples(DOCS / "pipeline.md", shop, tmp_path, language="sql")
    made, asked = (session.sql(it) for it in code.split(";\n") if it.strip())
    assert made.collect() == []
    assert {row.tags: row.orders for row in asked.collect()}["paid"] > 100
