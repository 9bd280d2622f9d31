"""Name servers: the answer of any one will do, and an unreachable one is skipped."""

import asyncio
from pathlib import Path

import pytest

from firearrow.client import Producer
from firearrow.wire.codes import RequestCode
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import make_topic
from tests.loglines import told

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
            with pytest.raises(ConnectionError, match=rf"no name server answers: {NOBODY} can't be"):
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


def test_one_bad_entry_does_not_make_a_topic_unsendable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name server passes on what it is told: here an order with a slip, and too many queues."""

    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, Producer(session, group="shop") as producer:
            await make_topic(cluster, session, "orders", 2)
            order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
            for code, fields, body in (
                (RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true"),
                (RequestCode.PUT_KV_CONFIG, {**order, "value": "a:2;b:x;c:20000000"}, b""),
            ):
                await session.client.call(cluster.name_server, code, fields, body)
            await session.refresh("orders")
            for _ in range(4):
                await producer.send("orders", b"x")
        assert len(cluster.all_stored("orders")) == 4

    clustered(tmp_path, main)
    reasons = {line.get("reason") for line in told(caplog)}
    assert {
        "'b:x' in orderTopicConf is no broker with a number",
        "broker 'c' in orderTopicConf has 20000000 queues, a topic may have 65536",
    } <= reasons
