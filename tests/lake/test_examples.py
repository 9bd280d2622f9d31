"""The examples of the page on typed tables run as they stand there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec, read_lake_file
from firearrow.testing import BlockingCluster
from tests.pages import DOCS, NAME_SERVER, blocks
from tests.spark.jobs.inline import Inline

PAGE = DOCS / "lake.md"


def test_the_file_can_be_read(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "toml")
    (tmp_path / "lake.toml").write_text(block.code)
    lake = read_lake_file(tmp_path / "lake.toml")
    assert [spec.topics for spec in lake.tables] == ["orders.*", "prices"]


def test_duckdb_reads_a_table_with_its_newest_messages(
    rocketmq_cluster: BlockingCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rocketmq_cluster.create_topic("orders")
    send(rocketmq_cluster, "ann", 5)
    spec = TableSpec(topics="orders", schema="order string, customer string, cents long")
    lake = Lake({"nameServer": rocketmq_cluster.name_server}, str(tmp_path / "lake"), (spec,))
    assert LakeFilling(Inline(), lake).round()
    send(rocketmq_cluster, "bob", 7)
    (block,) = blocks(PAGE, "python")
    code = block.code.replace("/srv/lake", lake.root).replace(NAME_SERVER, rocketmq_cluster.name_server)
    exec(compile(code, block.place, "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out.replace(" ", "")
    assert "│bob│7│" in said
    assert "│ann│5│" in said


def send(cluster: BlockingCluster, customer: str, cents: int) -> None:
    from firearrow.client.blocking import Producer

    with Producer(cluster.name_server, group="shop") as producer:
        producer.send("orders", json.dumps({"customer": customer, "cents": cents}).encode())
