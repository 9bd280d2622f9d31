"""The examples in the documentation run as they stand there, one after the other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from firearrow.spark import LagListener
from tests.spark.jobs import orders
from tools.demo import create_topics, serving

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return orders.fill(tmp_path_factory.mktemp("shop") / "store")


def examples(page: str, store: Path, work: Path, name_server: str = "127.0.0.1:1") -> list[str]:
    """The Python of a page, with places of this machine in it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = EXAMPLE.findall(text.replace("/srv/rocketmq/store", str(store)))
    return [
        block.replace("/srv/", f"{work}/").replace("127.0.0.1:9876", name_server) for block in found
    ]


def test_an_archive_is_a_script(shop: Path, tmp_path: Path) -> None:
    """Its processes import it, so that it must be guarded."""
    script = tmp_path / "script.py"
    script.write_text(examples("archive.md", shop, tmp_path)[0], encoding="utf-8")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ds.dataset(tmp_path / "archive", exclude_invalid_files=True).count_rows() > 1500


def run(code: str, names: dict[str, object]) -> None:
    exec(compile(code, "example", "exec"), names)


@pytest.mark.slow
def test_the_pages_of_the_pipeline(
    spark: SparkSession, shop: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "to") as (name_server, broker):
        create_topics(broker, {"Orders": 1, "orders-again": 1})
        names: dict[str, object] = {"spark": spark}
        for code in examples("archive.md", shop, tmp_path, name_server)[1:]:
            if "pyiceberg" not in code:
                run(code, names)
        names = {"spark": spark}
        for code in examples("pipeline.md", shop, tmp_path, name_server):
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
