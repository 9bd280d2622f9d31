"""Producer in a cluster: records at the brokers, receipts and errors."""

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from firearrow.client import Decision, Message, NewMessage, Producer, Queue, Receipt, Rules, SendStatus
from firearrow.client.producer.choosing import by_hash
from firearrow.client.tracing import tracer as tracing
from firearrow.errors import BrokerError, ClientError, ConfigError, MessageError, NoReply, SendFailed
from firearrow.message import properties as keys_of
from firearrow.message.compress import Compression, compression_of
from firearrow.message.model import MessageView
from firearrow.message.names import TRACE_TOPIC
from firearrow.message.record import iter_records
from firearrow.testing.loop import START_MS
from firearrow.wire.command import FieldValue
from tests.broker.serving import pull_fields, seconds, until
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import make_topic, push, until_in_time
from tests.loglines import told


def producer(cluster: Cluster, **options: object) -> Producer:
    """A producer with a session of its own."""
    given = {"group": "shop", "clock": cluster.clock, "ip": "127.0.0.1", **options}
    return Producer(cluster.name_server, **given)  # type: ignore[arg-type]


def view_of(cluster: Cluster, receipt: Receipt) -> MessageView:
    """The record that a receipt tells of."""
    queue = receipt.queue
    views = cluster.stored(queue.topic, queue.queue_id, queue.broker)
    [view] = [view for view in views if view.queue_offset == receipt.queue_offset]
    return view


# --- one message ---


def test_a_message_and_its_receipt(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            receipt = await shop.send("orders", b"body", key=["o-17", "x"], tag="paid", properties={"own": "1"})
            view = view_of(cluster, receipt)
            assert (view.body, view.tags, view.keys) == (b"body", "paid", ["o-17", "x"])
            assert (view.properties["own"], view.unique_key) == ("1", receipt.message_id)
            assert receipt.offset_message_id == view.offset_message_id
            assert (receipt.topic, receipt.status) == ("orders", SendStatus.SEND_OK)
            assert (receipt.region, receipt.trace_on) == ("DefaultRegion", True)
            assert view.born_timestamp_ms >= START_MS

    clustered(tmp_path, main)


class Order(msgspec.Struct):
    number: int
    item: str


def test_bodies_of_all_kinds(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            bodies = [b"bytes", "täxt", Order(17, "pen"), {"a": [1, 2]}, bytearray(b"array")]
            got = [view_of(cluster, await shop.send("orders", body)) for body in bodies]
            messages = [Message.received(view, "a") for view in got]
            assert messages[0].body == b"bytes"
            assert messages[1].text() == "täxt"
            assert messages[2].json(Order) == Order(17, "pen")
            assert messages[3].json() == {"a": [1, 2]}
            assert messages[4].body == b"array"
            with pytest.raises(MessageError, match="a object can't be sent"):
                await shop.send("orders", object())

    clustered(tmp_path, main)


@pytest.mark.parametrize("kind", ["ZLIB", "lz4", Compression.ZSTD, None])
def test_large_bodies_are_compressed(tmp_path: Path, kind: Compression | str | None) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster, compression=kind) as shop:
            large, small = bytes(5000), bytes(4095)
            view = view_of(cluster, await shop.send("orders", large))
            expected = Compression[kind.upper()] if isinstance(kind, str) else kind
            assert compression_of(view.sys_flag) == expected
            assert (len(view.body) < 200) == (kind is not None)
            assert Message.received(view, "a").body == large
            view = view_of(cluster, await shop.send("orders", small))
            assert (view.body, view.sys_flag) == (small, 0)

    clustered(tmp_path, main)


def test_one_that_nobody_is_told_of(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            ids = {await shop.send_oneway("orders", b"%d" % n, key="k") for n in range(20)}
            await until(lambda: len(cluster.all_stored("orders")) == 20)
            assert {view.unique_key for view in cluster.all_stored("orders")} == ids

    clustered(tmp_path, main)


@pytest.mark.parametrize(
    ("topic", "body", "options", "why"),
    [
        ("a b", b"x", {}, "illegal characters"),
        ("SCHEDULE_TOPIC_XXXX", b"x", {}, "clients can't send to it"),
        ("orders", b"", {}, "a message to topic 'orders' is empty"),
        ("orders", bytes((4 << 20) + 1), {}, "has 4194305 bytes, the limit is 4194304"),
        ("orders", b"x", {"delay_level": 19}, "19 is not between 1 and 18"),
        ("orders", b"x", {"delay_level": 1, "delay": timedelta(1)}, "one of delay, delay_level"),
        ("orders", b"x", {"delay": timedelta(-1)}, "is negative"),
        ("orders", b"x", {"deliver_at": datetime(2026, 1, 1)}, "is not a datetime with a time zone"),  # noqa: DTZ001
        ("orders", b"x", {"priority": -1}, "-1 is not a priority"),
        ("orders", b"x", {"properties": {"a": "\x01"}}, "property 'a' contains a separator"),
        ("orders", b"x", {"lite_topic": "a b"}, "the lite topic 'a b' contains"),
    ],
)
def test_what_can_not_be_sent(tmp_path: Path, topic: str, body: bytes, options: dict[str, object], why: str) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            with pytest.raises(MessageError, match=why):
                await shop.send(topic, body, **options)  # type: ignore[arg-type]

    clustered(tmp_path, main)


def test_a_producer_that_does_not_run(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        shop = producer(cluster)
        with pytest.raises(ClientError, match="producer 'shop' is not running: use it in"):
            await shop.send("orders", b"x")
        await shop.close()
        with pytest.raises(ConfigError, match="compression 'rar' is none of lz4, zstd, zlib"):
            producer(cluster, compression="rar")
        with pytest.raises(ConfigError, match="unit: set these options on the session itself"):
            Producer(cluster.session(), group="g", unit="u")
        with pytest.raises(ClientError, match="session of producer 'g' is not started"):
            await Producer(cluster.session(), group="g").start()

    clustered(tmp_path, main)


def test_two_share_a_session(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            async with Producer(session, group="one") as one, Producer(session, group="two") as two:
                assert (await one.send("orders", b"1")).topic == "orders"
                assert (await two.send("orders", b"2")).topic == "orders"
            assert session.is_running
        assert len(cluster.all_stored("orders")) == 2

    clustered(tmp_path, main)


# --- where to ---


def test_messages_spread_over_all_queues_of_all_brokers(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            places = Counter([(await shop.send("orders", b"x")).queue for _ in range(16)])
            assert set(places.values()) == {2}
            assert {queue.broker for queue in places} == {"a", "b"}

    clustered(tmp_path, main, ("a", "b"))


def test_a_key_has_its_queue_in_which_order_is_kept(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            queues = await shop.queues("orders")
            for key in ("o-1", "o-2", "täg"):
                receipts = [await shop.send("orders", f"{key}{n}", sharding_key=key) for n in range(5)]
                assert {it.queue for it in receipts} == {by_hash(queues, key)}
                views = [view_of(cluster, receipt) for receipt in receipts]
                assert [view.body.decode() for view in views] == [f"{key}{n}" for n in range(5)]
                offsets = [receipt.queue_offset for receipt in receipts]
                assert offsets == sorted(offsets)

    clustered(tmp_path, main, ("a", "b"))


def test_a_queue_can_be_chosen(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster, namespace="ns") as shop:
            seen: list[Queue] = []

            def last(queues: object) -> Queue:
                assert isinstance(queues, list)
                seen.extend(queues)
                return seen[-1]

            receipt = await shop.send("orders", b"x", selector=last)
            assert {queue.topic for queue in seen} == {"orders"}
            assert receipt.queue == Queue("ns%orders", "a", 3)
            again = await shop.send("orders", b"x", queue=Queue("orders", "a", 2))
            assert again.queue == Queue("ns%orders", "a", 2)
            assert (receipt.topic, again.topic) == ("orders", "orders")
            view = view_of(cluster, again)
            assert view.properties[keys_of.INSTANCE_ID] == "ns"
            assert Message.received(view, "a", "ns").topic == "orders"

    clustered(tmp_path, main)


# --- failures ---


def test_another_broker_takes_what_one_does_not(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            for _ in range(8):  # so that both brokers have the topic
                await shop.send("orders", b"x")
            await asyncio.sleep(40)
            await cluster.stop_broker("a")
            sent = [await shop.send("orders", b"%d" % n) for n in range(20)]
            assert {receipt.queue.broker for receipt in sent} == {"b"}
            assert {view_of(cluster, it).body for it in sent} == {b"%d" % n for n in range(20)}

    clustered(tmp_path, main, ("a", "b"))


def test_what_no_broker_takes(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            await shop.send("orders", b"x")
            await cluster.stop_broker("a")
            with pytest.raises(SendFailed, match=r"topic 'orders' on broker 'a': .* in 3 tries") as it:
                await shop.send("orders", b"x")
            assert isinstance(it.value.__cause__, ConnectionError)
            assert (it.value.topic, it.value.broker, it.value.tries) == ("orders", "a", 3)
            with pytest.raises(SendFailed, match=r"not sent: .* can't be reached"):
                await shop.send("orders", b"x", sharding_key="once")

    clustered(tmp_path, main)


def test_a_topic_that_can_not_be_made(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            with pytest.raises(SendFailed, match=r"topic 'orders': .* has no route") as caught:
                await shop.send("orders", b"x")
            assert caught.value.code == 17

    clustered(tmp_path, main, auto_create_topic_enable=False)


def test_a_broker_that_comes_back_is_sent_to_again(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster, rules=Rules(retries=10, timeout_seconds=20)) as shop:
            await shop.send("orders", b"before")
            port = await cluster.stop_broker("a")
            sending = asyncio.create_task(shop.send("orders", b"during"))
            await asyncio.sleep(2)
            await cluster.start_broker("a", port)
            assert (await sending).status is SendStatus.SEND_OK
            assert seconds() < 20

    clustered(tmp_path, main)


# --- later ---


def test_messages_for_later_come_in_time(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            began = seconds()
            moment = datetime.fromtimestamp(cluster.clock.now_ms() / 1000 + 50, UTC)
            await shop.send("orders", b"in a minute", delay=timedelta(minutes=1))
            await shop.send("orders", b"at fifty", deliver_at=moment)
            await shop.send("orders", b"level 4", delay_level=4)
            came: list[tuple[bytes, int]] = []
            while len(came) < 3:
                await asyncio.sleep(1)
                known = {body for body, _ in came}
                new = [it.body for it in cluster.all_stored("orders") if it.body not in known]
                came += [(body, round(seconds() - began)) for body in new]
            assert [body for body, _ in came] == [b"level 4", b"at fifty", b"in a minute"]
            for (_, at), due in zip(came, (30, 50, 60), strict=True):
                assert due <= at <= due + 2

    clustered(tmp_path, main)


def test_one_that_waits_is_taken_back(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            receipts = [await shop.send("orders", body, delay=timedelta(seconds=30)) for body in (b"stays", b"goes")]
            handle = receipts[1].recall_handle
            assert handle is not None
            assert await shop.recall("orders", handle) == receipts[1].message_id
            await asyncio.sleep(60)
            assert [view.body for view in cluster.all_stored("orders")] == [b"stays"]
            with pytest.raises(BrokerError) as caught:
                await shop.recall("orders", handle)
            assert caught.value.code == 604
            with pytest.raises(MessageError, match="recall handle is invalid"):
                await shop.recall("orders", "???")

    clustered(tmp_path, main, recall_message_enable=True)


# --- batches ---


def test_a_batch_is_in_one_queue_one_behind_the_other(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            own = NewMessage.of("", b"own", tags="other", keys="k", flag=7)
            receipts = await shop.send_batch("orders", [b"one", "two", own], tag="t")
            views = [view_of(cluster, receipt) for receipt in receipts]
            assert [view.body for view in views] == [b"one", b"two", b"own"]
            assert [view.tags for view in views] == ["t", "t", "t"]
            assert (views[2].keys, views[2].flag) == (["k"], 7)
            assert [view.unique_key for view in views] == [it.message_id for it in receipts]
            assert [view.offset_message_id for view in views] == [it.offset_message_id for it in receipts]
            assert len({receipt.queue for receipt in receipts}) == 1
            with pytest.raises(MessageError, match="has no messages"):
                await shop.send_batch("orders", [])
            late = NewMessage.of("", b"late", delay_level=3)
            with pytest.raises(MessageError, match="a batch can't have delayed messages"):
                await shop.send_batch("orders", [late])

    clustered(tmp_path, main)


def test_what_is_sent_side_by_side_goes_in_batches(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster, auto_batch=True) as shop:
            began = seconds()
            sends = [shop.send("orders", b"%d" % n, tag=str(n % 2)) for n in range(200)]
            receipts = await asyncio.gather(*sends)
            assert 0.01 <= seconds() - began < 0.1
            for n, receipt in enumerate(receipts):
                view = view_of(cluster, receipt)
                assert (view.body, view.tags) == (b"%d" % n, str(n % 2))
                assert view.unique_key == receipt.message_id
            by_tag = [{it.queue for it in receipts[tag::2]} for tag in (0, 1)]
            assert list(map(len, by_tag)) == [1, 1]
            large = await asyncio.gather(*[shop.send("orders", bytes(20_000)) for _ in range(8)])
            assert len({(it.queue, it.queue_offset) for it in large}) == 8
            delayed = await shop.send("orders", b"x", delay_level=1)
            assert delayed.status is SendStatus.SEND_OK

    clustered(tmp_path, main)


def test_what_is_held_leaves_when_the_producer_closes(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        shop = producer(cluster, auto_batch=True)
        await shop.start()
        sending = asyncio.create_task(shop.send("orders", b"held"))
        await asyncio.sleep(0)
        await shop.close()
        assert view_of(cluster, await sending).body == b"held"

    clustered(tmp_path, main)


def test_a_batch_that_fails_fails_all_in_it(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster, auto_batch=True) as shop:
            await shop.send("orders", b"x")
            await cluster.stop_broker("a")
            sends = [shop.send("orders", b"%d" % n) for n in range(3)]
            failed = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(error) for error in failed] == [SendFailed] * 3

    clustered(tmp_path, main)


# --- transactions ---

CHECKED: dict[str, Any] = {"transaction_check_interval": 10_000, "transaction_time_out": 6000}


def test_a_transaction_is_seen_once_it_is_committed(tmp_path: Path) -> None:
    async def check(message: Message) -> Decision:
        raise AssertionError("all are decided")

    async def main(cluster: Cluster) -> None:
        async with producer(cluster, check=check) as shop:
            async with shop.transaction("orders", b"good", tag="t") as transaction:
                assert cluster.all_stored("orders") == []
                assert transaction.receipt.transaction_id == transaction.receipt.message_id
            async with shop.transaction("orders", b"bad") as transaction:
                transaction.roll_back()
            await until(lambda: len(cluster.all_stored("orders")) == 1)
            await asyncio.sleep(100)
            [view] = cluster.all_stored("orders")
            assert (view.body, view.tags) == (b"good", "t")

    clustered(tmp_path, main, **CHECKED)


def test_what_was_left_open_is_asked_for(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def check(message: Message) -> Decision:
        asked.append(message.body)
        if asked.count(message.body) == 1 and message.body == b"later":
            return Decision.UNKNOWN
        return Decision.ROLLBACK if message.body == b"bad" else Decision.COMMIT

    async def main(cluster: Cluster) -> None:
        async with producer(cluster, check=check) as shop:
            async with shop.transaction("orders", b"later") as transaction:
                transaction.leave_open()
            async with shop.transaction("orders", b"bad") as transaction:
                transaction.leave_open()
            with pytest.raises(ZeroDivisionError):
                async with shop.transaction("orders", b"raised"):
                    raise ZeroDivisionError
            await asyncio.sleep(100)
            assert {it.body for it in cluster.all_stored("orders")} == {b"later", b"raised"}
            assert Counter(asked) == {b"later": 2, b"bad": 1, b"raised": 1}

    clustered(tmp_path, main, **CHECKED)


def test_a_transaction_needs_a_check_and_no_delay(tmp_path: Path) -> None:
    async def check(message: Message) -> Decision:
        return Decision.COMMIT

    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, Producer(session, group="plain") as plain:
            with pytest.raises(ClientError, match="producer 'plain' has no check function"):
                async with plain.transaction("orders", b"x"):
                    raise AssertionError
            async with Producer(session, group="other", check=check) as other:
                delayed = NewMessage.of("orders", b"x", delay_level=1)
                with pytest.raises(MessageError, match="a transaction can't be delayed"):
                    async with other.transaction("orders", delayed):
                        raise AssertionError

    clustered(tmp_path, main)


# --- messages that are sent on ---


def test_properties_of_rocketmqs_own_are_refused(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, Producer(session, group="plain") as plain:
            for name in keys_of.RESERVED:
                reason = f"the property {re.escape(name)} is RocketMQ's own"
                with pytest.raises(MessageError, match=reason):
                    await plain.send("orders", b"x", properties={name: "1"})
            for name in keys_of.RESERVED - keys_of.OF_APPLICATION - {keys_of.UNIQUE_KEY}:
                received = NewMessage("orders", b"x", {"own": "1", name: "1"})
                with pytest.raises(MessageError, match=r"Message\.copy\(\) returns a message that can be sent"):
                    await plain.send("orders", received)

    clustered(tmp_path, main)


def test_a_message_that_came_late_and_again_is_sent_on_at_once(tmp_path: Path) -> None:
    copies: list[Message] = []

    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session, Producer(session, group="plain") as plain:
            for topic in ("T", "on"):
                await make_topic(cluster, session, topic)

            async def forward(message: Message) -> None:
                if message.reconsume_times == 0:
                    raise ValueError("again")
                await plain.send("on", message.copy())

            async def take(message: Message) -> None:
                copies.append(message)

            async with push(cluster, forward), push(cluster, take, "on", group="on"):
                await plain.send("T", b"x", tag="t", key=["k", "l"], properties={"own": "1"}, delay_level=5)
                await until_in_time(lambda: len(copies) == 1, "the copy")
                await asyncio.sleep(3600)

        [copy] = copies
        assert (copy.body, copy.tag, copy.keys, copy.reconsume_times) == (b"x", "t", ["k", "l"], 0)
        assert copy.properties["own"] == "1"
        unexpected = {*copy.properties} & (keys_of.RESERVED - ADDED_BY_A_SEND)
        assert unexpected == set()

    clustered(tmp_path, main)


ADDED_BY_A_SEND = {"TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT"}


# --- requests ---


async def next_message(shop: Producer, queue: Queue, queue_offset: int) -> Message:
    """The message at a place."""
    fields: dict[str, FieldValue] = pull_fields(queue_offset, topic=queue.topic, queueId=queue.queue_id)
    answer = await shop.session.call(queue.broker, 11, fields)
    return Message.received(next(iter_records(answer.body)), queue.broker)


def test_a_request_gets_its_reply(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop, producer(cluster, group="kitchen") as kitchen:
            asking = [asyncio.create_task(shop.request("orders", f"{n}?", key="k")) for n in range(3)]
            await until(lambda: len(cluster.all_stored("orders")) == 3)
            for view in cluster.all_stored("orders"):
                asked = Message.received(view, "a")
                await kitchen.reply(asked, asked.body + b"!")
            replies = await asyncio.gather(*asking)
            assert [reply.text() for reply in replies] == ["0?!", "1?!", "2?!"]

    clustered(tmp_path, main)


def test_a_reply_has_properties_of_its_own(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop, producer(cluster, group="kitchen") as kitchen:
            asking = asyncio.create_task(shop.request("orders", "17?"))
            await until(lambda: len(cluster.all_stored("orders")) == 1)
            [view] = cluster.all_stored("orders")
            await kitchen.reply(Message.received(view, "a"), NewMessage("any", b"17!", {"dish": "soup"}))
            reply = await asking
            assert (reply.text(), reply.properties["dish"]) == ("17!", "soup")

    clustered(tmp_path, main)


def test_a_request_without_reply(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster) as shop:
            with pytest.raises(NoReply, match=r"topic 'orders': no reply to .* in 2 s"):
                await shop.request("orders", b"?", timeout_seconds=2)
            assert 2 <= seconds() <= 3
            [view] = cluster.all_stored("orders")
            await shop.reply(Message.received(view, "a"), b"too late")
            receipt = await shop.send("orders", b"no request")
            with pytest.raises(ClientError, match="can't be replied to: it has no CORRELATION_ID"):
                await shop.reply(Message.received(view_of(cluster, receipt), "a"), b"!")

    clustered(tmp_path, main)


# --- trace ---


def test_the_trace_tells_of_all_that_was_sent(tmp_path: Path) -> None:
    async def check(message: Message) -> Decision:
        return Decision.COMMIT

    async def main(cluster: Cluster) -> None:
        async with producer(cluster, trace=True, check=check) as shop:
            plain = await shop.send("orders", b"1234", key="k", tag="t")
            batch = await shop.send_batch("orders", [b"a", b"b"])
            async with shop.transaction("orders", b"half") as transaction:
                half = transaction.receipt
        records = "".join(view.body.decode() for view in cluster.all_stored(TRACE_TOPIC))
        rows = [row.split("\x01") for row in records.split("\x02")[:-1]]
        assert [row[0] for row in rows] == ["Pub", "Pub", "Pub", "EndTransaction"]
        address = f"127.0.0.1:{cluster.brokers['a'].port}"
        assert rows[0][2:10] == ["DefaultRegion", "shop", "orders", plain.message_id, "t", "k", address, "4"]
        assert rows[0][11:] == ["0", plain.offset_message_id, "true"]
        assert rows[1][5:10] == [",".join(it.message_id for it in batch), "null", "null", address, "2"]
        assert rows[2][11] == "1"
        assert rows[3][3:6] == ["shop", "orders", half.message_id]
        assert rows[3][9:] == ["2", half.message_id, "COMMIT_MESSAGE", "false"]
        words = {word for view in cluster.all_stored(TRACE_TOPIC) for word in view.keys}
        assert {"k", plain.message_id, half.message_id} <= words

    clustered(tmp_path, main, trace_topic_enable=True)


def trace_records(cluster: Cluster) -> list[str]:
    """What the trace topic has of sends."""
    text = "".join(view.body.decode() for view in cluster.all_stored(TRACE_TOPIC))
    return [row for row in text.split("\x02") if row.startswith("Pub")]


def test_a_burst_of_sends_is_traced_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: Cluster) -> None:
        async with producer(cluster, trace=True) as shop:
            await asyncio.gather(*(shop.send("orders", b"x") for _ in range(3000)))
        assert len(trace_records(cluster)) == 3000

    clustered(tmp_path, main, trace_topic_enable=True)
    assert [line for line in told(caplog) if line["event"] == "trace records are dropped"] == []


def test_what_a_trace_lacks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "HELD_MAX", 40)

    async def main(cluster: Cluster) -> None:
        async with producer(cluster, trace=True) as shop:
            await asyncio.gather(*(shop.send("orders", b"x") for _ in range(500)))
        traced = len(trace_records(cluster))
        lines = [line for line in told(caplog) if line["event"] == "trace records are dropped"]
        assert 40 <= traced < 500
        assert sum(int(str(line["records"])) for line in lines) == 500 - traced

    clustered(tmp_path, main, trace_topic_enable=True)
