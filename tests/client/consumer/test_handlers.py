"""Handlers: awaited or in threads, and the results of their errors."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from firearrow.client.consumer.handlers import HandlerRegistration, RetryLater, is_coroutine
from firearrow.client.consumer.subscription import subscription_to
from firearrow.client.message import Message
from firearrow.errors import ConfigError
from firearrow.message.record import decode_record, encode_record

HOST = bytes(8)
MESSAGE = Message.received(decode_record(encode_record("T", b"x", b"", 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0)), "a")


async def awaited(_: Any) -> None:
    """A handler."""


class Plain:
    def __call__(self, _: Any) -> None:
        """Handle it."""


class Awaited:
    async def __call__(self, _: Any) -> None:
        """Handle it."""


@pytest.mark.parametrize(
    ("handler", "expected"), [(awaited, True), (Awaited(), True), (Plain(), False), (lambda _: None, False)]
)
def test_what_is_awaited(handler: Any, expected: bool) -> None:
    assert is_coroutine(handler) is expected


def registered(handler: Any, **options: Any) -> HandlerRegistration:
    return HandlerRegistration(subscription_to("T", 0), handler, **options)


def test_a_plain_function_runs_in_a_thread() -> None:
    threads: list[str] = []

    def handler(_: Message) -> None:
        threads.append(threading.current_thread().name)

    async def main() -> None:
        registration = registered(handler, concurrency=2)
        assert await registration.handle([MESSAGE]) is None
        registration.close()

    asyncio.run(main())
    assert threads[0].startswith("consume T")


@pytest.mark.parametrize(
    ("error", "level", "seconds"),
    [(ValueError("x"), 0, None), (RetryLater("x", level=3), 3, None), (RetryLater(seconds=2.5), 0, 2.5)],
)
def test_what_is_raised_says_when_to_try_again(error: Exception, level: int, seconds: float | None) -> None:
    async def handler(_: Message) -> None:
        raise error

    failure = asyncio.run(registered(handler).handle([MESSAGE]))
    assert failure is not None
    assert (failure.error, failure.level, failure.seconds) == (error, level, seconds)


@pytest.mark.parametrize(("count", "what"), [(1, "{0}"), (3, "3 messages from {0} on")])
def test_its_failure_is_a_sentence_with_the_traceback(count: int, what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_: Any) -> None:
        raise ValueError("bad data")

    asyncio.run(registered(handler, batch=8).handle([MESSAGE] * count))
    what = what.format(MESSAGE.message_id)
    assert caplog.messages == [f"handler of 'T' failed for {what} (try 1): ValueError: bad data"]
    [record] = caplog.records
    assert record.exc_info is not None


def test_with_batches_it_gets_lists() -> None:
    got: list[Any] = []

    async def handler(messages: list[Message]) -> None:
        got.append(messages)

    assert asyncio.run(registered(handler, batch=2).handle([MESSAGE, MESSAGE])) is None
    assert got == [[MESSAGE, MESSAGE]]


@dataclass
class Order:
    number: int


def holding(body: bytes) -> Message:
    record = encode_record("T", body, b"", 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0)
    return Message.received(decode_record(record), "a")


@pytest.mark.parametrize(
    ("kind", "value"), [(str, '{"number": 17}'), (bytes, b'{"number": 17}'), (Order, Order(17)), (dict, {"number": 17})]
)
@pytest.mark.parametrize("batch", [0, 2])
def test_with_a_kind_it_gets_bodies(kind: type, value: object, batch: int) -> None:
    got: list[object] = []
    registration = registered(got.append, kind=kind, batch=batch)
    assert asyncio.run(registration.handle([holding(b'{"number": 17}')])) is None
    assert got == [[value] if batch else value]
    registration.close()


def test_a_body_that_does_not_fit_its_kind_is_a_failure() -> None:
    failure = asyncio.run(registered(awaited, kind=Order).handle([holding(b'{"number": "x"}')]))
    assert failure is not None
    assert "of topic 'T' is not JSON of Order" in str(failure.error)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="'T': with manual=True a handler gets a Delivery"):
        registered(awaited, kind=str, manual=True)
    with pytest.raises(ConfigError, match="'T': the concurrency 0 is below 1"):
        registered(awaited, concurrency=0)
    with pytest.raises(ConfigError, match="'T': batches of 1025 messages"):
        registered(awaited, batch=1025)
