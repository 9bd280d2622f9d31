"""What a slave learns from its master beside the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.broker.replication import slavesync
from firearrow.broker.topics import processor as admin_topics
from firearrow.clock import Clock
from firearrow.config import properties
from firearrow.config.table import take
from firearrow.errors import MessageError
from firearrow.namesrv.app import NameServer
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.client import Client
from firearrow.store.config import StoreConfig
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import RequestMode, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode
from tests.broker.replicated import caught_up, replica, slave_of
from tests.broker.serving import Caller, Serving, bodies, until
from tests.loglines import events, told
from tests.pages import ROOT, blocks
from tests.store.stores import KINDS, append_named, small_config


@asynccontextmanager
async def name_server(clock: Clock) -> AsyncIterator[str]:
    """A name server; gives its address."""
    server = NameServer(NamesrvConfig(), clock)
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def pair(tmp_path: Path, clock: Clock) -> AsyncIterator[tuple[Serving, Serving, Caller]]:
    """A master and a slave that find each other by a name server, and a caller of the master."""
    async with (
        name_server(clock) as address,
        replica(tmp_path / "m", clock, namesrv_addr=address) as master,
        master.caller() as caller,
        replica(tmp_path / "s", clock, role="SLAVE", namesrv_addr=address) as follower,
    ):
        yield master, follower, caller


async def asked(slave: Serving) -> None:
    """Wait until a slave has asked for all once more."""
    sync = slave.broker.replication.sync
    before = sync.rounds
    await asyncio.sleep(slavesync.WHOLE_SECONDS + 1)
    assert sync.rounds > before


async def round_(slave: Serving) -> None:
    """Have a slave ask for everything now."""
    before = slave.broker.replication.sync.rounds
    await slave.broker.replication.sync.ask_all()
    assert slave.broker.replication.sync.rounds > before


def test_a_slave_finds_its_master_and_becomes_like_it(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (master, slave, caller):
            await caller.sent(b"a")
            await caller.sent(b"stays", "U")
            await caller.call(200, {}, fastjson.dumps(SubscriptionGroupConfig("stays")))
            await caller.call(200, {}, fastjson.dumps(SubscriptionGroupConfig("g", retry_max_times=3)))
            for group, topic in (("g", "T"), ("stays", "U")):
                await caller.call(15, {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1})
            mode = RequestMode(topic="T", consumer_group="g", mode="POP", pop_share_queue_num=2)
            await caller.call(401, {}, fastjson.dumps(mode))
            master.broker.delay_offsets.note({2: 7}, 0, 0)
            await caught_up(slave, master)
            assert bodies(slave) == [b"a"]
            await round_(slave)
            await asyncio.sleep(10)  # until the offsets of delay levels are written
            ours, theirs = slave.broker, master.broker
            assert ours.topics.table == theirs.topics.table
            assert ours.topics.data_version == theirs.topics.data_version
            assert ours.groups.table == theirs.groups.table
            assert ours.offsets.query("g", "T", 0) == 1
            assert ours.delay_offsets.table == {2: 7}
            assert ours.modes.get("T", "g") == mode
            assert ours.troubles == {}
            await caller.call(215, {"topic": "T"})
            await caller.call(207, {"groupName": "g"})
            began = clock.monotonic()
            await asked(slave)
            assert clock.monotonic() - began < 65
            assert "T" not in ours.topics.table
            assert "g" not in ours.groups.table
            assert bodies(slave) == [b"a"], "only its configuration is gone"
        async with replica(tmp_path / "s", clock, role="SLAVE") as again:
            assert "T" not in again.broker.topics.table
            assert again.broker.topics.data_version == theirs.topics.data_version
            assert again.broker.modes.get("T", "g") == mode
            assert again.broker.delay_offsets.table == {2: 7}
            assert again.broker.offsets.query("g", "T", 0) == -1
            assert again.broker.offsets.query("stays", "U", 0) == 1

    loop.run(main)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_tables_come_in_pages(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slavesync, "PAGE_ENTRIES", 8)
    monkeypatch.setattr(admin_topics, "PAGE_MAX", 8)

    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (master, slave, _):
            broker = master.broker
            for number in range(count):
                broker.topics.put(TopicConfig(f"T{number}", 1, 1, 6))
                broker.groups.put(SubscriptionGroupConfig(f"g{number}"))
            await until(lambda: bool(slave.broker.replication.sync.master_address))
            await round_(slave)
            assert slave.broker.topics.table == broker.topics.table
            assert slave.broker.groups.table == broker.groups.table

    loop.run(main)


def test_a_page_that_can_not_be_read_is_no_end_of_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = Client.call

    async def odd(client: Client, address: str, code: int, *words: Any, **options: Any) -> Any:
        answer = await asks(client, address, code, *words, **options)
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            answer.ext = {"totalTopicNum": "many"}
        return answer

    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (_, slave, __):
            await until(lambda: bool(slave.broker.replication.sync.master_address))
            with monkeypatch.context() as patch:
                patch.setattr(Client, "call", odd)
                await slave.broker.replication.sync.ask_all()
            assert "sent totalTopicNum='many'" in str(slave.broker.replication.sync.trouble)
            await round_(slave)
            assert slave.broker.replication.sync.trouble is None

    loop.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_more_topics_and_groups_than_a_page_holds(tmp_path: Path, kind: str) -> None:
    """apache/rocketmq#10195: with topics in RocksDB, page 0 came again and again; #11041: the last
    one is lost where it is alone on its page."""

    async def main(clock: VirtualClock) -> None:
        store = {"store_type": kind}
        async with (
            replica(tmp_path / "m", clock, store=store) as master,
            replica(tmp_path / "s", clock, role="SLAVE", store=store) as slave,
        ):
            broker, system = master.broker, len(master.broker.topics.table)
            for number in range(2 * slavesync.PAGE_ENTRIES + 1 - system):
                broker.topics.put(TopicConfig(f"T{number}", 1, 1, 6))
                broker.groups.put(SubscriptionGroupConfig(f"g{number}"))
            assert len(broker.topics.table) % slavesync.PAGE_ENTRIES == 1
            slave.broker.replication.sync.follow(master.broker.address)
            await until(lambda: slave.broker.replication.sync.rounds > 0)
            assert slave.broker.topics.table == broker.topics.table
            assert slave.broker.groups.table == broker.groups.table

    loop.run(main)


def test_a_master_that_has_lost_its_files_empties_no_slave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            replica(tmp_path / "m", clock) as master,
            master.caller() as caller,
            slave_of(master, tmp_path / "s", clock) as slave,
            replica(tmp_path / "lost", clock) as lost,
        ):
            await caller.sent(b"a")
            await caller.call(200, {}, fastjson.dumps(SubscriptionGroupConfig("g")))
            await caller.call(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1})
            slave.broker.replication.sync.follow(master.broker.address)
            await until(lambda: slave.broker.replication.sync.watches)
            kept = dict(slave.broker.topics.table), dict(slave.broker.groups.table)
            slave.broker.replication.sync.follow(lost.broker.address)
            await until(lambda: slave.broker.replication.sync.watches)
            assert (slave.broker.topics.table, slave.broker.groups.table) == kept
            assert slave.broker.offsets.query("g", "T", 0) == 1
            said = events(caplog, logging.ERROR)
            assert said == [
                "topics are kept though the master has none: its files may be lost",
                "groups are kept though the master has none: its files may be lost",
            ]
            lost.broker.topics.put(TopicConfig("U", 1, 1, 6))
            await until(lambda: "U" in slave.broker.topics.table)
            assert "T" not in slave.broker.topics.table

    loop.run(main)


def test_a_topic_of_the_master_names_no_directory_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (master, slave, caller):
            await until(lambda: bool(slave.broker.replication.sync.master_address))
            names = ["../../../x", "..", str(tmp_path / "abs"), "a/b"]
            master.broker.topics.put_all(TopicConfig(name, 1, 1, 6) for name in names)
            for name in names:
                append_named(master.broker.store, name, now_ms=clock.now_ms())
            await caller.sent(b"a")
            await round_(slave)
            await caught_up(slave, master)
            assert "T" in slave.broker.topics.table
            assert not slave.broker.topics.table.keys() & set(names)
            said = [line for line in told(caplog) if line["event"] == "topic is left out"]
            assert [line["topic"] for line in said] == names
            async with slave.caller() as reader:
                assert [view.body for view in await reader.stored()] == [b"a"]

    loop.run(main)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "s"}
    made = {path.name for path in tmp_path.rglob("*") if path.is_dir()}
    assert not made & {"..", "a", "abs", "x"}


def test_a_slave_that_comes_before_its_master_waits_for_it(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with (
            name_server(clock) as address,
            replica(tmp_path / "s", clock, role="SLAVE", namesrv_addr=address) as slave,
        ):
            await asyncio.sleep(10)
            troubles = slave.broker.troubles
            assert troubles["what the master knows"] == "no name server says where the master is"
            async with replica(tmp_path / "m", clock, namesrv_addr=address) as master, master.caller() as caller:
                began = clock.monotonic()
                await caller.sent(b"a")
                await caught_up(slave, master)
                await until(lambda: "T" in slave.broker.topics.table)
                assert clock.monotonic() - began < 10

    loop.run(main)


def test_what_is_refused_is_asked_for_again_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (_, slave, caller):
            await until(lambda: bool(slave.broker.replication.sync.master_address))
            follow = slave.broker.offsets.follow

            def refuse(*_: object, **__: object) -> None:
                raise MessageError("not now", "JSON")

            monkeypatch.setattr(slave.broker.offsets, "follow", refuse)
            await caller.call(200, {}, fastjson.dumps(SubscriptionGroupConfig("g")))
            await slave.broker.replication.sync.ask_all()
            assert "g" in slave.broker.groups.table
            assert "offsets: JSON: not now" in str(slave.broker.troubles["what the master knows"])
            monkeypatch.setattr(slave.broker.offsets, "follow", follow)
            await round_(slave)
            assert "what the master knows" not in slave.broker.troubles

    loop.run(main)


def test_what_the_page_says_makes_a_pair(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(name_server(clock))
            brokers = []
            for number, block in enumerate(list(blocks(ROOT / "docs" / "replication.md"))[:2]):
                broker, rest = take(BrokerConfig, properties.loads(block.code))
                store, rest = take(StoreConfig, rest)
                assert rest == {}
                sizes = small_config(tmp_path / str(number), broker_role=store.broker_role)
                started = Broker(
                    structs.replace(broker, namesrv_addr=address),
                    structs.replace(sizes, in_sync_replicas=store.in_sync_replicas),
                    clock,
                    background=False,
                )
                port = await started.start("127.0.0.1", 0)
                stack.push_async_callback(started.stop)
                brokers.append(Serving(started, port))
            master, slave = brokers
            async with master.caller() as caller:
                await caller.sent(b"a")
                assert bodies(slave) == [b"a"]

    loop.run(main)


def test_what_the_page_says_has_slaves_act() -> None:
    names, brokers = (properties.loads(block.code) for block in list(blocks(ROOT / "docs" / "replication.md"))[2:])
    namesrv, rest = take(NamesrvConfig, names)
    assert (namesrv.support_acting_master, namesrv.notify_min_broker_id_changed, rest) == (True, True, {})
    broker, rest = take(BrokerConfig, brokers)
    store, rest = take(StoreConfig, rest)
    assert (broker.enable_slave_acting_master, broker.enable_remote_escape) == (True, True)
    assert (store.total_replicas, rest) == (2, {})
