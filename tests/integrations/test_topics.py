"""Creation of missing topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.errors import ClientError
from firearrow.integrations.topics import admin_of, declare_topic
from tests.client.cluster import Cluster, clustered


def test_a_topic_is_made_on_each_broker_once(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await declare_topic(session, "T", 3, "PRIORITY")
            await declare_topic(session, "T", 7)
            for served in cluster.brokers.values():
                address = f"127.0.0.1:{served.port}"
                config = await admin_of(session).topics.config(address, "T")
                assert (config.read_queue_nums, config.write_queue_nums) == (3, 3)
                assert config.attributes == {"message.type": "PRIORITY"}

    clustered(tmp_path, main, ("a", "b"))


def test_there_is_no_broker(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            with pytest.raises(ClientError, match="'T' can't be created: no broker is registered"):
                await declare_topic(session, "T", 3)

    clustered(tmp_path, main, ())
