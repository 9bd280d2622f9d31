"""A broker's life: what is there after a restart, how it stops, why it does not start."""

import asyncio
import json
import shutil
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.broker.storage import feature as storage
from firearrow.client import Producer
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError, StoreLocked
from firearrow.message.record import iter_records
from firearrow.store import catchup
from firearrow.store.fs import FileSystem
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import FieldValue, request
from tests.broker.fakes import HandClock
from tests.broker.serving import SUBSCRIPTION, SUSPEND, Caller, Serving, calling, pull_fields, send_fields, until
from tests.client.cluster import serving_cluster
from tests.loglines import told
from tests.net.talker import talking
from tests.store.stores import opened, small_config


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(limited())


def make_broker(root: Path) -> Broker:
    return Broker(BrokerConfig(broker_name="broker-a"), small_config(root), SystemClock())


def test_everything_outlives_a_restart(tmp_path: Path) -> None:
    place: dict[str, FieldValue] = {"consumerGroup": "own", "topic": "T", "queueId": 2}

    async def before(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await caller.sent(b"%d" % number, queue_id=2)
        group = json.dumps({"groupName": "own", "retryQueueNums": 3}).encode()
        assert (await caller.call(200, {}, group)).code == 0
        assert (await caller.call(15, place | {"commitOffset": 2})).code == 0

    async def after(served: Serving, caller: Caller) -> None:
        assert served.broker.topics.table["T"].write_queue_nums == 4
        assert served.broker.groups.table["own"].retry_queue_nums == 3
        assert (await caller.call(14, place)).ext == {"offset": "2"}
        assert [view.body for view in await caller.stored(queue_id=2)] == [b"0", b"1", b"2"]
        assert (await caller.sent(queue_id=2))["queueOffset"] == "3"

    calling(tmp_path, before)
    assert not (tmp_path / "abort").exists()
    calling(tmp_path, after)
    with opened(tmp_path) as store:
        assert store.max_queue_offset("T", 2) == 4


def test_a_stop_answers_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        broker = make_broker(tmp_path)
        served = Serving(broker, await broker.start("127.0.0.1", 0))
        async with served.caller() as caller, served.caller() as other:
            await caller.sent()
            await served.dispatched()
            flags = SUBSCRIPTION | SUSPEND
            opaque = other.tell(11, pull_fields(1, sysFlag=flags, suspendTimeoutMillis=60_000))
            await served.holding(1)
            stopping = asyncio.create_task(broker.stop())
            answer = await other.talker.answer()
            assert (answer.code, answer.opaque) == (19, opaque)
            assert await other.talker.end() == b""
            await stopping

    run(main())


def test_what_was_sent_before_a_stop_is_stored(tmp_path: Path) -> None:
    """Sends that are answered, but not dispatched when the broker stops."""

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(200):
            await caller.sent(bytes(number * 10))

    calling(tmp_path, main)
    with opened(tmp_path) as store:
        assert store.behind_bytes == 0
        assert store.max_queue_offset("T", 0) == 200


@pytest.mark.parametrize("garbage", [b"", bytes(4096), b'{"offsetTable":{"T@g":{0:1'])
def test_a_file_of_garbage_loses_no_offsets(tmp_path: Path, garbage: bytes) -> None:
    async def commit(served: Serving, caller: Caller) -> None:
        await caller.sent()
        served.broker.offsets.commit("g", "T", 0, 1)

    async def look(served: Serving, caller: Caller) -> None:
        assert served.broker.offsets.query("g", "T", 0) == 1
        assert "T" in served.broker.topics.table

    calling(tmp_path, commit)
    for name in ("consumerOffset.json", "topics.json"):
        path = tmp_path / "config" / name
        sound = path.read_bytes()
        path.write_bytes(garbage)
        path.with_name(f"{name}.bak").write_bytes(garbage)
        calling(tmp_path, look)
        assert fastjson.loads(path.read_bytes()).keys() == fastjson.loads(sound).keys()


def test_sends_that_wait_for_the_disk_are_answered_before_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(
            BrokerConfig(broker_name="broker-a"), small_config(tmp_path, flush_disk_type="SYNC_FLUSH"), SystemClock()
        )
        port = await broker.start("127.0.0.1", 0)
        async with talking(port) as talker:
            for opaque in range(1, 21):
                talker.ask(request(310, send_fields(), b"%d" % opaque, opaque=opaque))
            await until(lambda: broker.store.max_queue_offset("T", 0) > 0)
            stopping = asyncio.create_task(broker.stop())
            answered = 0
            while broker.store.log.end_offset and answered < 20:
                assert (await talker.answer()).code == 0
                answered += 1
            await stopping

    run(main())


def test_a_changed_permission_counts_at_once(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        order: dict[str, FieldValue] = {"topic": "O", "defaultTopic": "TBW102"}
        order |= {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": True}
        assert (await caller.call(17, order)).code == 0
        assert (await caller.send(topic="O")).code == 0
        assert (await caller.call(25, {}, b"brokerPermission=4")).code == 0
        assert (await caller.send(topic="O")).code == 16

    calling(tmp_path, main)


def test_a_port_in_use_is_an_error_and_leaves_the_store_alone(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            await make_broker(tmp_path).start("127.0.0.1", taken.getsockname()[1])

    run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_broker_with_the_name_of_a_host_announces_it_and_stores_its_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving_cluster(tmp_path, ("a",), broker_ip1="localhost") as cluster,
            Producer(cluster.name_server, group="shop") as producer,
        ):
            receipt = await producer.send("T", b"x")
            served = cluster.brokers["a"]
            assert served.broker.registering.identity.broker_addr == f"localhost:{served.port}"
            await served.dispatched()
            [view] = cluster.all_stored("T")
            assert view.store_host == ("127.0.0.1", served.port)
            assert receipt.offset_message_id == view.offset_message_id

    run(main())


def test_a_name_that_no_host_has_is_an_error_and_frees_the_port(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = BrokerConfig(broker_name="a", broker_ip1="no..host")
        with pytest.raises(ConfigError, match=r"^brokerIP1=no\.\.host has no IPv4 address: "):
            await Broker(config, small_config(tmp_path), SystemClock()).start("127.0.0.1", port)
        broker = make_broker(tmp_path)
        assert await broker.start("127.0.0.1", port) == port
        await broker.stop()

    run(main())


def test_a_store_in_use_is_an_error_and_frees_the_port(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with opened(tmp_path), pytest.raises(StoreLocked):
            await make_broker(tmp_path).start("127.0.0.1", port)
        broker = make_broker(tmp_path)
        assert await broker.start("127.0.0.1", port) == port
        await broker.stop()

    run(main())


def test_a_state_file_that_can_t_be_read_is_an_error_and_frees_everything(tmp_path: Path) -> None:
    async def start() -> None:
        broker = make_broker(tmp_path)
        await broker.start("127.0.0.1", 0)
        await broker.stop()

    broken = tmp_path / "config" / "topics.json"
    broken.parent.mkdir()
    broken.write_text("{")
    with pytest.raises(ConfigError, match=r"topics\.json"):
        run(start())
    assert not (tmp_path / "abort").exists()
    broken.unlink()
    run(start())


def test_its_topics_are_there_from_the_start(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        table = served.broker.topics.table
        assert table["TBW102"].perm == 7
        assert table["SELF_TEST_TOPIC"].write_queue_nums == 1
        assert table["broker-a"].perm == 7
        assert table["C"].write_queue_nums == 16

    calling(tmp_path, main)
    assert (tmp_path / "config" / "topics.json").exists()


def test_a_full_disk_refuses_sends_and_the_broker_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"first")
        await served.dispatched()
        with monkeypatch.context() as patched:
            patched.setattr(FileSystem, "create_file", full)
            while (answer := await caller.send(bytes(20_000))).code == 0:
                pass
            assert answer.code == 14
            assert "No space left" in str(answer.remark)
            assert (await caller.send(bytes(40_000))).code == 14
            first = await caller.pull(0, maxMsgNums=1)
            assert [view.body for view in iter_records(first.body)] == [b"first"]
        clock.seconds += 1
        assert (await caller.send(bytes(40_000))).code == 0

    clock = HandClock()
    calling(tmp_path, main, clock=clock)


def test_who_has_sent_to_a_queue_goes_on_after_it_was_deleted(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"old")
        await served.dispatched()
        store = served.broker.store
        store.queues.correct_min(store.log.end_offset)  # as if the log began here now
        assert (await caller.call(306, {})).code == 0
        assert (await caller.sent(b"new"))["queueOffset"] == "0"
        assert [view.body for view in await caller.stored()] == [b"new"]

    calling(tmp_path, main)


def test_a_queue_that_could_not_be_written_catches_up_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CATCH_UP_SECONDS", 0.01)
    monkeypatch.setattr(catchup, "_RETRY_SECONDS", 0.01)
    obstacle = tmp_path / "consumequeue/T/0"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("what is this?")

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await caller.sent(b"%d" % number)
        await served.dispatched()
        await until(lambda: served.broker.store.catch_up_left_out() is None)
        assert [view.body for view in await caller.stored()] == [b"0", b"1", b"2"]

    calling(tmp_path, main)


def test_an_unknown_code_is_refused_and_the_connection_stays(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for code in (0, -1, 9999, 200_072):
            answer = await caller.call(code, {})
            assert answer.code == 3
            assert str(code) in str(answer.remark)
        await caller.sent()

    calling(tmp_path, main)


def test_messages_whose_topic_was_lost_are_served_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def send(served: Serving, caller: Caller) -> None:
        await caller.sent(b"kept", "T", 2)
        await caller.sent(b"failed", "%RETRY%g", 0)
        await served.dispatched()

    async def read(served: Serving, caller: Caller) -> None:
        assert served.broker.topics.table["T"] == TopicConfig("T", 3, 3, 6)
        assert served.broker.topics.table["%RETRY%g"].read_queue_nums == 1
        assert [view.body for view in await caller.stored("T", 2)] == [b"kept"]

    calling(tmp_path, send)
    shutil.rmtree(tmp_path / "config")
    with caplog.at_level("WARNING"):
        calling(tmp_path, read)
        calling(tmp_path, read)
    [line] = [line for line in told(caplog) if "no configuration" in str(line["event"])]
    assert str(line["event"]).startswith("topics have messages but no configuration")
    assert (line["count"], line["topics"]) == (2, ["%RETRY%g", "T"])


def test_a_deleted_topic_does_not_come_back_with_its_queues(tmp_path: Path) -> None:
    queues, kept = tmp_path / "consumequeue", tmp_path / "kept"

    async def delete(served: Serving, caller: Caller) -> None:
        await caller.sent(b"deleted", "T")
        await caller.sent(b"deleted", "again")
        await served.dispatched()
        shutil.copytree(queues, kept)
        for topic in ("T", "again"):
            assert (await caller.call(215, {"topic": topic})).code == 0
        await caller.sent(b"new", "again")
        await served.dispatched()
        shutil.copytree(queues / "again", kept / "again", dirs_exist_ok=True)

    async def look(served: Serving, caller: Caller) -> None:
        assert served.broker.topics.get("T") is None
        assert not (queues / "T").exists()
        assert [view.body for view in await caller.stored("again")] == [b"new"]

    calling(tmp_path, delete)
    shutil.rmtree(queues)
    kept.rename(queues)  # as a recovery makes them from the log
    config = tmp_path / "config"
    for path in (config / "topics.json", config / "topics.json.bak"):
        path.unlink()
    shutil.rmtree(config / ".history")
    calling(tmp_path, look)
