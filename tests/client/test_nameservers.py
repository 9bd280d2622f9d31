"""Name servers: any one that answers will do, and one that is gone is passed over."""

import asyncio
from pathlib import Path

import pytest

from firearrow.client import Producer
from tests.client.cluster import Cluster, clustered

NOBODY = "127.0.0.1:1"


def test_one_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        servers = [NOBODY, "127.0.0.1:2", cluster.name_server]
        for _ in range(4):  # each time in another order
            async with cluster.session(name_servers=servers) as session:
                assert (await session.route("TBW102")).broker_datas[0].broker_name == "a"
                assert session.name_servers.addresses[0] == cluster.name_server

    clustered(tmp_path, main)


def test_none_answers(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session(name_servers=NOBODY) as session:
            with pytest.raises(
                ConnectionError, match=rf"no name server answers: {NOBODY} can't be"
            ):
                await session.route("T")

    clustered(tmp_path, main)


def test_sends_go_on_without_name_servers(tmp_path: Path) -> None:
    """What is known stays known; the other name server is found when there is one again."""

    async def main(cluster: Cluster) -> None:
        second = await cluster.add_name_server()
        both = [cluster.name_server, second]
        async with (
            cluster.session(name_servers=both, poll_seconds=5) as session,
            Producer(session, group="shop") as producer,
        ):
            await producer.send("orders", b"before")
            first = session.name_servers.addresses[0]
            await cluster.stop_name_server(first)
            for _ in range(20):
                await producer.send("orders", b"during")
                await asyncio.sleep(1)
            [left] = {*both} - {first}
            assert session.name_servers.addresses[0] == left
            await session.refresh("orders")
        assert len(cluster.all_stored("orders")) == 21

    clustered(tmp_path, main)
