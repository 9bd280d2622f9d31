"""Topics of RocketMQ's own broker become typed tables, though it refuses attributes that say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from firearrow.client import Producer
from firearrow.client.admin.cluster import Admin
from firearrow.errors import BrokerError
from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec
from firearrow.wire.bodies import TopicConfig
from tests.interop.servers import SMALL_FILES, serve
from tests.spark.jobs.inline import Inline

ROWS = 20


async def create(namesrv: str, address: str, topic: str, attributes: dict[str, str]) -> None:
    async with Admin.of([namesrv]) as admin:
        await admin.topics.create(address, TopicConfig(topic, 2, 2, attributes=attributes))


async def send(namesrv: str, topic: str) -> None:
    async with Producer(namesrv, group="shop") as producer:
        for number in range(ROWS):
            await producer.send(topic, {"number": number})


def test_a_topic_of_the_original_is_a_table(tmp_path: Path) -> None:
    with serve("real", tmp_path / "store", tmp_path / "logs", settings=SMALL_FILES) as server:
        with pytest.raises(BrokerError, match=r"unsupported key: table\.format"):
            asyncio.run(create(server.namesrv, server.broker, "refused", {"+table.format": "delta"}))
        asyncio.run(create(server.namesrv, server.broker, "orders", {}))
        asyncio.run(send(server.namesrv, "orders"))
        spec = TableSpec(topics="orders", schema="number long")
        work = LakeFilling(Inline(), Lake({"nameServer": server.namesrv}, str(tmp_path / "lake"), (spec,)))
        assert work.round()
        assert not work.round()
    rows = pa.table(DeltaTable(str(tmp_path / "lake" / "orders")).to_pyarrow_table())
    assert sorted(rows["number"].to_pylist()) == [*range(ROWS)]
