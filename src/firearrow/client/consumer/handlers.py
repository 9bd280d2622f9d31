"""Functions of an application that consume messages.

A handler that returns has consumed its messages. If it raises, they are redelivered. Plain functions run in threads,
coroutines on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import astuple

from firearrow.client.arguments import Duration, seconds_of
from firearrow.client.consumer.rates import ConsumeRates
from firearrow.client.message import Message
from firearrow.client.session.portal import leave_signals, leaving_signals
from firearrow.client.tracing.tracer import ConsumeTrace
from firearrow.errors import ClientError, ConfigError
from firearrow.logs import Log
from firearrow.net.tasks import is_cancelled
from firearrow.wire.client_bodies import SubscriptionData

log: Final = Log(__name__)

CONCURRENCY: Final = 20  # the thread count of RocketMQ's clients
BATCH_MAX: Final = 1024  # limit of RocketMQ's consumeMessageBatchMaxSize
DEAD_LETTER: Final = -1

Handler = Callable[[Any], Any]
"""Function of an application that gets a `Message`, a list of them, a `Delivery` or a body."""


class RetryLater(ClientError):
    """Raised by a handler to say when to redeliver the message.

    ``level`` is a delay level (1 to 18: 1 s to 2 h; for popped messages, 1 to 15: 30 s to 2 h). With 0 the broker
    chooses, and -1 makes the message a dead letter if possible. A consumer in order takes ``seconds`` (0.01 to 30)
    instead.
    """

    def __init__(self, reason: str = "", *, level: int = 0, seconds: Duration | None = None) -> None:
        super().__init__(reason)
        self.level = level
        self.seconds: float | None = None if seconds is None else seconds_of(seconds, "seconds")


class Failure:
    """Failure of a handler, with its wish for the next attempt."""

    __slots__ = ("error", "level", "seconds")

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error
        asked = error if isinstance(error, RetryLater) else None
        self.level: int = 0 if asked is None else asked.level
        self.seconds: float | None = None if asked is None else asked.seconds


class HandlerRegistration:
    """Subscription of an application to a topic, with its handler.

    ``batch`` is the maximum length of the lists that the handler gets; with 0 it gets single messages. With ``manual``
    the application acknowledges each message. With ``kind`` the handler gets the body in place of the message.
    """

    def __init__(
        self,
        subscription: SubscriptionData,
        handler: Handler,
        concurrency: int = CONCURRENCY,
        batch: int = 0,
        *,
        manual: bool = False,
        kind: Any = None,
    ) -> None:
        if manual and kind is not None:
            raise ConfigError(f"topic {subscription.topic!r}: with manual=True a handler gets a Delivery, not a {kind}")
        if concurrency < 1:
            raise ConfigError(f"topic {subscription.topic!r}: the concurrency {concurrency} is below 1")
        if not 0 <= batch <= BATCH_MAX:
            raise ConfigError(f"topic {subscription.topic!r}: batches of {batch} messages, allowed is 0 to {BATCH_MAX}")
        self.subscription = subscription
        self.concurrency = concurrency
        self.batch = batch
        self.manual = manual
        self.trace: ConsumeTrace | None = None
        self.rates: ConsumeRates | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.call: Callable[[Any], Awaitable[Any]] = handler
        """Awaited for each message, or for each list."""
        if not is_coroutine(handler):
            self._threads = ThreadPoolExecutor(concurrency, f"consume {subscription.topic}", leave_signals)
            self.call = partial(_in_thread, self._threads, leaving_signals(handler))
        if kind is not None:
            self.call = partial(_with_values, self.call, reader_of(kind))

    async def handle(self, messages: Sequence[Message]) -> Failure | None:
        """Call the handler with messages; returns its failure, or None."""
        trace, rates, failure = self.trace, self.rates, None
        request_id = None if trace is None else trace.begin(messages)
        time = asyncio.get_running_loop().time
        began = time()
        try:
            await self.call(messages if self.batch else messages[0])
        except (Exception, asyncio.CancelledError) as error:  # see `failure_of`
            failure = failure_of(messages, error)
        now, ok = time(), failure is None
        if rates is not None:
            rates.consumed(messages[0].queue.topic, len(messages), began, now, ok)
        if trace is not None and request_id is not None:
            trace.end(request_id, messages, now - began, ok=ok)
        return failure

    def close(self) -> None:
        """End the threads; a handler that runs still finishes its call."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def is_coroutine(handler: Handler) -> bool:
    """Tell whether a function or a callable object must be awaited."""
    of_object = getattr(handler, "__call__", handler)  # noqa: B004 - its own kind is asked for
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(of_object)


async def _in_thread(threads: ThreadPoolExecutor, handler: Handler, argument: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, handler, argument)


def failure_of(messages: Sequence[Message], error: BaseException) -> Failure:
    """Log the failure of a handler; returns its wish for the next attempt.

    Messages are redelivered after any error, also after the CancelledError of something that the handler awaited. Only
    a cancellation of the worker itself is raised again.
    """
    if isinstance(error, asyncio.CancelledError) and is_cancelled():
        raise error
    first, count = messages[0], len(messages)
    what = first.message_id if count == 1 else f"{count} messages from {first.message_id} on"
    log.warning(
        "handler failed",
        sentence=(
            f"handler of {first.topic!r} failed for {what} (try {first.reconsume_times + 1}): "
            f"{type(error).__name__}: {error}"
        ),
        extra={
            "topic": first.topic,
            "message_id": first.message_id,
            "messages": count,
            "reconsume_times": first.reconsume_times,
            "error": f"{type(error).__name__}: {error}",
        },
        exc_info=None if isinstance(error, RetryLater) else error,
    )
    return Failure(error)


# --- bodies in place of messages ---


def reader_of(kind: Any) -> Callable[[Message], Any]:
    """Function that reads a body as a type. It raises MessageError for a body that does not fit."""
    if kind is str:
        return Message.text
    if kind is bytes:
        return lambda message: message.body
    return lambda message: message.json(kind)


async def _with_values(call: Callable[[Any], Awaitable[Any]], read: Callable[[Message], Any], got: Any) -> None:
    await call([read(message) for message in got] if isinstance(got, list) else read(got))


# --- messages that the application acknowledges ---


class Rollback(RetryLater):
    """Redelivery of all unacknowledged messages of a queue in order."""


class Source(Protocol):
    """Source of messages, which learns the result of each.

    A source is dropped when another consumer gets its queue: this consumer leaves the remaining messages.
    """

    @property
    def keeps_order(self) -> bool:
        """Tell whether its messages are consumed one after another, so that all can be redelivered."""

    def may_begin(self, message: Message) -> bool:
        """Tell whether a message must still be consumed; False for all of a dropped source."""

    def done(self, messages: Sequence[Message]) -> None:
        """Note that messages are consumed; a dropped source ignores this."""

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        """Redeliver messages; a dropped source's are redelivered anyway."""


class Delivery(Message, eq=False, gc=True):
    """Message that is consumed after ``ack`` and redelivered after ``retry``.

    Until then it counts in the consumer's cache, and later messages are consumed but not committed. In order, ``ack``
    includes all earlier messages, and ``roll_back`` redelivers all unacknowledged messages.
    """

    _source: Source | None = None

    @classmethod
    def of(cls, message: Message, source: Source) -> Delivery:
        """Delivery of a source's message."""
        delivery = cls(*astuple(message))
        delivery._source = source
        return delivery

    @property
    def is_settled(self) -> bool:
        """Tell whether the message is acknowledged or given back."""
        return self._source is None

    def ack(self) -> None:
        """Mark the message as consumed."""
        if self._source is not None:
            source, self._source = self._source, None
            source.done([self])

    async def retry(self, *, level: int = 0) -> None:
        """Redeliver the message after a delay level (see `RetryLater`)."""
        await self.fail(Failure(RetryLater(level=level)))

    async def roll_back(self, *, seconds: Duration | None = None) -> None:
        """In order: redeliver all unacknowledged messages of the queue after ``seconds`` (0.01 to 30; by default the
        consumer's ``suspend``). This does not count as a failure.

        Raises ClientError for a consumer in any order, which can't roll back. Source: RocketMQ's
        ``ConsumeOrderlyStatus#ROLLBACK`` without ``autoCommit``.
        """
        if self._source is not None and not self._source.keeps_order:
            raise ClientError(
                f"message {self.message_id} of topic {self.topic!r} can't be rolled back: its consumer keeps no order"
            )
        await self.fail(Failure(Rollback(seconds=seconds)))

    async def fail(self, failure: Failure) -> None:
        """Count a failure, unless the message is settled."""
        if self._source is not None:
            source, self._source = self._source, None
            await source.failed([self], failure)
