"""Wrong arguments are refused where they are given, by name; durations are the same everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from firearrow.client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    Session,
    SimpleConsumer,
    SqliteKeys,
    StartFrom,
    blocking,
)
from firearrow.client.arguments import ms_of
from firearrow.errors import ClientError, ConfigError, FirearrowError
from firearrow.message.record import decode_record, encode_record
from firearrow.testing import EmbeddedCluster

NOBODY = "127.0.0.1:1"
HOST = bytes(8)
RECEIVED = Message.received(decode_record(encode_record("T", b"x", b"", 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0)), "a")

ANY: Any = None  # its attributes and calls are of no type
NO_DURATION = "is neither a timedelta nor a number of seconds"

SENDS: list[tuple[dict[str, Any], str]] = [
    ({"delay": "5s"}, f"delay: '5s' {NO_DURATION}"),
    ({"delay": True}, f"delay: True {NO_DURATION}"),
    ({"delay": -1}, "delay: -1 s is negative"),
    ({"delay": timedelta(seconds=-1)}, "delay: -1 day, 23:59:59 is negative"),
    ({"deliver_at": 5}, "deliver_at: 5 is not a datetime with a time zone"),
    ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at: .* is not a datetime with a time zone"),  # noqa: DTZ001
    ({"delay_level": "3"}, "delay_level: '3' is not between 1 and 18"),
    ({"tag": 5}, "tag: 5 is not text"),
    ({"key": 5}, "key: 5 is not text"),
    ({"key": ["a", 5]}, "key: 5 is not text"),
    ({"sharding_key": 17}, "sharding_key: 17 is not text"),
    ({"properties": {"a": 5}}, "property 'a': 5 is not text"),
    ({"priority": "3"}, "priority: '3' is not a priority"),
    ({"timeout_seconds": "3"}, f"timeout_seconds: '3' {NO_DURATION}"),
    ({"body": None}, "body: None is no body; JSON's null is b'null'"),
    ({"body": RECEIVED}, r"body: a received message can't be sent: send its copy\(\)"),
    ({"topic": None}, "topic: None is not text"),
]


@pytest.mark.parametrize(("options", "reason"), SENDS, ids=[reason for _, reason in SENDS])
def test_a_send_refuses_what_is_wrong(options: dict[str, Any], reason: str) -> None:
    async def main() -> None:
        async with Producer(NOBODY, group="shop") as producer:
            with pytest.raises(FirearrowError, match=f"^{reason}"):
                await producer.send(**({"topic": "orders", "body": b"x"} | options))

    asyncio.run(main())


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Session("http://host:9876"), "'http://host:9876' is not an address of the form host:port: .* scheme"),
    (lambda: Session("host"), "'host' is not an address of the form host:port"),
    (lambda: Session(9876), "name servers: 9876 is not text"),  # type: ignore[arg-type]
    (lambda: Producer(NOBODY, group=None), "group: None is not text"),  # type: ignore[arg-type]
    (lambda: Producer(NOBODY, group="g", timeout_seconds=-1), "timeout_seconds: -1 s is negative"),
    (lambda: push().on(print), "topic: <built-in function print> is not text"),  # type: ignore[call-overload]
    (lambda: push().on("T", tags=5)(print), "tags: 5 is not text"),  # type: ignore[call-overload]
    (lambda: PushConsumer(NOBODY, group="g", start="first"), "start: 'first' is neither"),  # type: ignore[arg-type]
    (lambda: PushConsumer(NOBODY, group="g", drain="1m"), f"drain: '1m' {NO_DURATION}"),  # type: ignore[arg-type]
    (lambda: SimpleConsumer(NOBODY, group="g", topics=["T"], start=StartFrom.TIMESTAMP), "start: .*TIMESTAMP"),
    (lambda: SimpleConsumer(NOBODY, group="g", topics=[5]), "topic: 5 is not text"),  # type: ignore[list-item]
    (lambda: RetryLater(seconds=-1), "seconds: -1 s is negative"),
]


def push() -> PushConsumer:
    return PushConsumer(NOBODY, group="g")


@pytest.mark.parametrize(("make", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_client_refuses_what_is_wrong(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}"):
        make()


def test_a_poll_without_a_subscription() -> None:
    async def main() -> None:
        async with PullConsumer(NOBODY, group="g") as consumer:
            with pytest.raises(ClientError, match="'g' polls nothing: subscribe to a topic or assign queues first"):
                await consumer.poll()

    asyncio.run(main())


def test_a_topic_that_no_broker_has(caplog: pytest.LogCaptureFixture) -> None:
    async def main(name_server: str) -> None:
        consumer = PushConsumer(name_server, group="g")
        consumer.on("ordres")(print)
        async with consumer:
            said = (
                f"group 'g' consumes nothing of topic 'ordres' until a broker has it: no broker of name servers "
                f"{name_server} has it now"
            )
            assert [it for it in caplog.messages if "'ordres'" in it][:1] == [said]

    with EmbeddedCluster() as cluster:
        asyncio.run(main(cluster.name_server))


def test_a_new_group_starts_at_the_first_message_unless_it_says_otherwise() -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        name_server = cluster.name_server
        with blocking.Producer(name_server, group="shop") as producer:
            producer.send("orders", "first")
        with blocking.PullConsumer(name_server, group="pulls") as consumer:
            consumer.subscribe("orders")
            assert [message.text() for message in consumer.poll(30)] == ["first"]
        with blocking.SimpleConsumer(name_server, group="pops", topics=["orders"]) as popper:
            assert [message.text() for message in popper.receive(wait=30)] == ["first"]
        pushed: list[str] = []
        pusher = blocking.PushConsumer(name_server, group="pushed")

        @pusher.on("orders")
        def take(message: Message) -> None:
            pushed.append(message.text())
            pusher.stop()

        pusher.run()
        assert pushed == ["first"]


@pytest.mark.parametrize("minute", [60, 60.0, timedelta(minutes=1)])
def test_durations_are_the_same_everywhere(minute: float | timedelta, tmp_path: Path) -> None:
    assert ms_of(minute, "x") == 60_000
    assert RetryLater(seconds=minute).seconds == 60
    keys = SqliteKeys(tmp_path / "keys", claim_seconds=minute)
    keys.close()
    consumer = PushConsumer(
        NOBODY, group="g", consume_timeout=minute, suspend=minute, invisible=minute, drain=minute, poll_seconds=minute
    )
    settings = consumer.member.settings
    assert (settings.consume_timeout, settings.suspend, settings.invisible, settings.drain) == (60, 60, 60, 60)
    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders")
        with blocking.Producer(cluster.name_server, group="shop", timeout_seconds=minute) as producer:
            producer.send("orders", "now", timeout_seconds=minute)
            receipt = producer.send("orders", "later", delay=minute)
            assert receipt.status == "SEND_OK"
            view = [it for it in cluster.messages("orders") if it.body == b"now"]
            assert len(view) == 1
        with blocking.SimpleConsumer(cluster.name_server, group="g", topics=["orders"]) as popper:
            received: list[Message] = []
            while not received:
                received = popper.receive(invisible=minute, wait=minute)
            popper.change_invisible(received[0], minute)
            assert popper.ack(received[0])
