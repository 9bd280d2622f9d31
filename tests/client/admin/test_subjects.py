"""Each part of `Admin`, on a Firearrow: a change can be read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.client.admin import Admin
from firearrow.client.admin.messages import PullStatus
from firearrow.client.admin.topics import changes_text
from firearrow.client.queues import Queue
from firearrow.clock import SystemClock
from firearrow.errors import NotFound, NotSupported, TopicNotFound
from firearrow.message.model import NewMessage
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import MessageQueue, SubscriptionGroupConfig
from firearrow.wire.codes import BY_UNIQUE_KEY
from tests.client.admin.servers import run
from tests.interop.servers import Server, serve

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Firearrow with topic T and group g."""
    directory: Path = tmp_path_factory.mktemp("admin")
    with serve("firearrow", directory / "store", directory / "logs") as server:

        async def scene() -> None:
            async with Admin.of([server.namesrv]) as admin:
                await admin.topics.create(server.broker, TopicConfig("T", 2, 2))
                await admin.groups.create(server.broker, SubscriptionGroupConfig("g"))
                queue = Queue("T", "broker-a", 0)
                message = NewMessage.of("T", b"x", keys="k", properties={"UNIQ_KEY": "unique"})
                now = SystemClock().now_ms()
                stored = await admin.messages.send(server.broker, "p", queue, message, now)
                assert (stored.status, stored.queue_offset) == ("SEND_OK", 0)

        run(scene)
        yield server


def test_changes_of_attributes() -> None:
    assert changes_text({"+a": "b", "-c": ""}) == "+a=b,-c"


def test_topics(server: Server) -> None:
    async def scene() -> None:
        async with Admin.of([server.namesrv]) as admin:
            config = await admin.topics.config(server.broker, "T")
            assert (config.read_queue_nums, config.perm) == (2, 6)
            assert (await admin.topics.configs(server.broker)).topic_config_table["T"] == config
            assert "T" in await admin.topics.names_in_cluster("DefaultCluster")
            assert "TBW102" in await admin.topics.system_names(server.broker)
            with pytest.raises(TopicNotFound, match="topic 'none'"):
                await admin.topics.config(server.broker, "none")

    run(scene)


def test_groups(server: Server) -> None:
    async def scene() -> None:
        async with Admin.of([server.namesrv]) as admin:
            groups = admin.groups
            config = await groups.config(server.broker, "g")
            assert (await groups.configs(server.broker)).subscription_group_table["g"] == config
            assert await groups.topics(server.broker, "idle") == []
            subscription = await groups.subscription(server.broker, "g", "T")
            assert subscription.subscription_data is None
            assert await groups.readable(server.broker, "g", "T", change=False) is False
            assert await groups.readable(server.broker, "g", "T", change=True) is True
            await groups.create(server.broker, SubscriptionGroupConfig("gone"))
            await groups.delete(server.broker, "gone")
            table = (await groups.configs(server.broker)).subscription_group_table
            assert "gone" not in table

    run(scene)


def test_offsets(server: Server) -> None:
    async def scene() -> None:
        async with Admin.of([server.namesrv]) as admin:
            offsets = admin.offsets
            ends = (await offsets.earliest(server.broker, QUEUE), await offsets.latest(server.broker, QUEUE))
            assert ends == (0, 1)
            assert await offsets.at_time(server.broker, QUEUE, 0) == 0
            assert await offsets.earliest_ms(server.broker, QUEUE) > 0
            await offsets.commit(server.broker, "g", QUEUE, 1)
            table = (await offsets.progress(server.broker, "g", "T")).offset_table
            assert table[QUEUE].consumer_offset == 1
            await offsets.clone(server.broker, "g", "other", "T", offline=True)
            table = (await offsets.progress(server.broker, "other", "T")).offset_table
            assert table[QUEUE].consumer_offset == 1
            spans = await offsets.time_spans(server.broker, "g", "T")
            assert QUEUE in {span.message_queue for span in spans}
            assert isinstance(await offsets.corrections(server.broker, "T", "g"), dict)

    run(scene)


def test_messages(server: Server) -> None:
    async def scene() -> None:
        async with Admin.of([server.namesrv]) as admin:
            [found] = await admin.find("T", "k")
            assert found.body == b"x"
            assert await admin.find("T", "unique", by=BY_UNIQUE_KEY) == [found]
            assert await admin.messages.view(found.offset_message_id, "T") == found
            now = SystemClock().now_ms()
            assert await admin.message("T", "unique", now) == found
            queue = Queue("T", "broker-a", 0)
            pulled = await admin.messages.pull(server.broker, queue, 0, 9)
            assert (pulled.status, pulled.next_offset) == (PullStatus.FOUND, 1)
            behind = await admin.messages.pull(server.broker, queue, 1, 9)
            assert (behind.status, behind.messages) == (PullStatus.NO_NEW_MSG, [])
            with pytest.raises(NotFound, match="topic 'T' has no message with key 'none'"):
                await admin.find("T", "none")

    run(scene)


def test_brokers_and_name_servers(server: Server) -> None:
    async def scene() -> None:
        async with Admin.of([server.namesrv]) as admin:
            servers, brokers = admin.name_servers, admin.brokers
            await servers.put("space", "key", "value")
            assert await servers.pairs("space") == {"key": "value"}
            assert await servers.value("space", "key") == "value"
            await servers.delete("space", "key")
            with pytest.raises(NotFound, match="key 'key'"):
                await servers.value("space", "key")
            await brokers.update_config(server.broker, {"fileReservedTime": "49"})
            assert (await brokers.config(server.broker))["fileReservedTime"] == "49"
            assert (await admin.cluster()).cluster_addr_table == {"DefaultCluster": ["broker-a"]}
            status = await brokers.ha_status(server.broker)
            assert status.master
            assert not status.ha_connection_info
            with pytest.raises(NotSupported, match="user 'alice'"):
                await admin.auth.user(server.broker, "alice")

    run(scene)


def test_an_absent_client(server: Server) -> None:
    async def scene() -> None:
        async with Admin.of([server.namesrv]) as admin:
            with pytest.raises(NotFound, match="group 'g'"):
                await admin.consumers("g", server.broker)
            assert (await admin.groups.all_producers(server.broker)).data == {}

    run(scene)
