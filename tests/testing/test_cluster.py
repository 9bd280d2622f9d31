"""Embedded clusters in the caller's event loop: servers, end and remaining files."""

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.session.answers import read_body
from firearrow.errors import BrokerError, ConfigError, FirearrowError, InvalidRequest
from firearrow.net.client import Client
from firearrow.testing import BrokenStore, EmbeddedCluster
from firearrow.testing.settings import Value
from firearrow.wire.bodies import Route
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from tests.broker.serving import until
from tests.testing.asking import Asking, damage


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(limited())


async def route_of(cluster: EmbeddedCluster, topic: str) -> Route:
    client = Client()
    fields: dict[str, FieldValue] = {"topic": topic, "acceptStandardJsonOnly": True}
    try:
        answer = await client.call(cluster.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    finally:
        await client.close()
    return read_body(answer, Route, "route")


# --- what it is ---


def test_a_message_goes_in_and_comes_out() -> None:
    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            await cluster.create_topic("T", queues=2)
            async with Asking(cluster.brokers[0]) as client:
                await client.send(b"first")
                await client.send(b"second", queue_id=1)
                assert [view.body for view in await client.pull_all()] == [b"first"]
            stored = [(view.body, view.queue_id) for view in cluster.messages("T")]
            assert stored == [(b"first", 0), (b"second", 1)]
            assert cluster.messages("nothing") == []

    run(main())


def test_a_topic_can_be_deleted_and_made_again() -> None:
    """The log has its messages still, and the store is sound at the end."""

    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            await cluster.create_topic("T", queues=1)
            async with Asking(cluster.brokers[0]) as client:
                await client.send(b"gone")
            await cluster.delete_topic("T")
            await cluster.create_topic("T", queues=1)
            async with Asking(cluster.brokers[0]) as client:
                assert await client.pull_all() == []

    run(main())


def test_a_topic_is_on_each_broker_and_known_to_the_name_server() -> None:
    async def main() -> None:
        async with EmbeddedCluster(brokers=3) as cluster:
            await cluster.create_topic("T", queues=5, message_type="FIFO")
            route = await route_of(cluster, "T")
            assert {(it.broker_name, it.write_queue_nums) for it in route.queue_datas} == {
                (name, 5) for name in ("broker-a", "broker-b", "broker-c")
            }
            addresses = {it.broker_name: it.broker_addrs[0] for it in route.broker_datas}
            assert addresses == {broker.name: broker.address for broker in cluster.brokers}
            for broker in cluster.brokers:
                config = broker.server.topics.get("T")
                assert config is not None
                assert config.attributes == {"message.type": "FIFO"}
            await cluster.delete_topic("T")
            with pytest.raises(BrokerError, match="T"):
                await route_of(cluster, "T")

    run(main())


def test_a_group_is_on_each_broker_with_what_was_asked_for() -> None:
    async def main() -> None:
        async with EmbeddedCluster(brokers=2) as cluster:
            await cluster.create_group("g", retry_max_times=3, consume_message_orderly=True)
            found = [broker.server.groups.get("g") for broker in cluster.brokers]
            expected = SubscriptionGroupConfig(group_name="g", retry_max_times=3, consume_message_orderly=True)
            assert found == [expected, expected]

    run(main())


def test_what_a_broker_refuses_is_raised() -> None:
    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            with pytest.raises(InvalidRequest, match="no topic"):
                await cluster.create_topic("no topic")
            with pytest.raises(TypeError, match="retries"):
                await cluster.create_group("g", retries=3)

    run(main())


def test_keys_are_given_by_rocketmqs_names() -> None:
    async def main() -> None:
        given: dict[str, Value] = {"brokerClusterName": "shop", "transactionCheckMax": 2}
        async with EmbeddedCluster(1, given, transactionCheckMax=3) as cluster:
            config = cluster.brokers[0].server.config
            assert (config.broker_cluster_name, config.transaction_check_max) == ("shop", 3)

    run(main())


@pytest.mark.parametrize("brokers", [0, 27])
def test_there_are_one_to_26_brokers(brokers: int) -> None:
    with pytest.raises(ConfigError, match=f"brokers={brokers}: allowed is 1 to 26"):
        EmbeddedCluster(brokers)


# --- stop, kill and start ---


def test_a_broker_that_is_stopped_and_started_goes_on() -> None:
    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            broker, address = cluster.brokers[0], cluster.brokers[0].address
            async with Asking(broker) as client:
                await client.send(b"before")
            await cluster.stop_broker()
            assert not broker.is_running
            with pytest.raises(FirearrowError, match="broker-a is not running"):
                _ = broker.server
            assert [view.body for view in cluster.messages("T")] == [b"before"]
            assert not (broker.store / "abort").exists()
            await cluster.restart_broker()
            assert broker.address == address
            async with Asking(broker) as client:
                await client.send(b"after")
                assert [it.body for it in await client.pull_all()] == [b"before", b"after"]

    run(main())


def test_a_kill_leaves_the_store_as_it_is_and_answers_nobody() -> None:
    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            broker = cluster.brokers[0]
            async with Asking(broker) as client:
                await client.send(b"before")
                waiting = asyncio.create_task(client.wait("T", 1))
                await until(lambda: len(broker.server.pulling.held) == 1)
                await cluster.kill_broker()
                with pytest.raises(ConnectionError):
                    await waiting
            assert (broker.store / "abort").exists()
            await cluster.kill_broker()  # of what is dead, nothing
            await cluster.restart_broker()
            async with Asking(broker) as client:
                assert [view.body for view in await client.pull_all()] == [b"before"]

    run(main())


def test_a_store_that_a_kill_left_is_sound() -> None:
    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            async with Asking(cluster.brokers[0]) as client:
                await client.send_all([b"%d" % number for number in range(100)])
            await cluster.kill_broker()
            assert len(cluster.messages("T")) == 100

    run(main())


def test_the_name_server_can_be_gone_for_a_while() -> None:
    async def main() -> None:
        async with EmbeddedCluster(registerNameServerPeriod=10_000) as cluster:
            await cluster.create_topic("T")
            address = cluster.name_server
            await cluster.stop_name_server()
            with pytest.raises(ConnectionError):
                await route_of(cluster, "T")
            await cluster.restart_name_server()
            await cluster.restart_broker()  # it registers at once
            assert cluster.name_server == address
            assert len((await route_of(cluster, "T")).queue_datas) == 1

    run(main())


# --- the end ---


def test_nothing_is_left() -> None:
    async def main() -> tuple[Path, int]:
        async with EmbeddedCluster() as cluster:
            await cluster.create_topic("T")
            assert cluster.store.is_dir()
        assert len(asyncio.all_tasks()) == 1  # this test
        return cluster.directory, cluster.brokers[0].port

    async def check() -> None:
        directory, port = await main()
        assert not directory.exists()
        socket.create_server(("127.0.0.1", port)).close()

    run(check())


def test_a_store_of_the_tests_own_stays(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(2):
            async with EmbeddedCluster(directory=tmp_path) as cluster, Asking(cluster.brokers[0]) as client:
                await client.send()
        assert len(cluster.messages("T")) == 2

    run(main())


def test_a_broken_store_fails_the_test_and_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with EmbeddedCluster(directory=tmp_path) as cluster:
            async with Asking(cluster.brokers[0]) as client:
                await client.send()
            await cluster.stop_broker()
            damage(cluster.store)

    store = tmp_path / "broker-a"
    with pytest.raises(BrokenStore, match=rf"the store {store} is damaged") as caught:
        run(main())
    assert [finding.invariant for finding in caught.value.findings[store]] == ["record-body-crc"]
    assert "[record-body-crc]" in str(caught.value)


def test_what_the_test_failed_with_comes_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with EmbeddedCluster(directory=tmp_path) as cluster:
            async with Asking(cluster.brokers[0]) as client:
                await client.send()
            await cluster.stop_broker()
            damage(cluster.store)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        run(main())
    assert any("is damaged" in note for note in caught.value.__notes__)


def test_damage_can_be_allowed() -> None:
    async def main() -> None:
        async with EmbeddedCluster(verify=False) as cluster:
            async with Asking(cluster.brokers[0]) as client:
                await client.send()
            await cluster.stop_broker()
            damage(cluster.store)
        assert not cluster.directory.exists()

    run(main())


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "broker-b").write_text("no directory")

    async def main() -> None:
        cluster = EmbeddedCluster(brokers=2, directory=tmp_path)
        with pytest.raises(OSError, match="broker-b"):
            await cluster.start()
        assert not cluster.brokers[0].is_running
        assert len(asyncio.all_tasks()) == 1

    run(main())
