"""The examples of the page on typed tables run as they stand there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firearrow.client.admin.cluster import Admin
from firearrow.client.blocking import Producer
from firearrow.lake.catalogs import LakeCatalog
from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec, read_lake_file
from firearrow.testing import BlockingCluster
from tests.pages import DOCS, NAME_SERVER, blocks
from tests.spark.jobs.inline import Inline

pytestmark = pytest.mark.usefixtures("patience")

PAGE = DOCS / "lake.md"


def test_the_file_can_be_read(tmp_path: Path) -> None:
    tables, catalog = blocks(PAGE, "toml")
    (tmp_path / "lake.toml").write_text(tables.code + catalog.code)
    lake = read_lake_file(tmp_path / "lake.toml")
    assert [spec.topics for spec in lake.tables] == ["orders.*", "prices"]
    assert LakeCatalog.of(lake.catalog).namespace == "lake"


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


def test_brokers_learn_what_is_in_the_tables(rocketmq_cluster: BlockingCluster, tmp_path: Path) -> None:
    attributes = {"table_format": "delta", "table_schema": "cents long"}
    rocketmq_cluster.create_topic("orders", queues=1, **attributes)
    rocketmq_cluster.create_group("lake")
    for cents in (5, 7, 9):
        send(rocketmq_cluster, "ann", cents)
    options = {"nameServer": rocketmq_cluster.name_server, "consumerGroup": "lake", "commitOffsets": "true"}
    assert LakeFilling(Inline(), Lake(options, str(tmp_path / "lake"))).round()

    async def committed() -> list[int]:
        async with Admin.of([rocketmq_cluster.name_server]) as admin:
            progress = await admin.progress("lake", "orders")
            return [each.consumer_offset for each in progress.offset_table.values()]

    assert asyncio.run(committed()) == [3]


def send(cluster: BlockingCluster, customer: str, cents: int) -> None:
    with Producer(cluster.name_server, group="shop") as producer:
        producer.send("orders", {"customer": customer, "cents": cents})
