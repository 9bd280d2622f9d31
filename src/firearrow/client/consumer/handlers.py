"""The functions of an application that messages are handed to.

A handler that returns has consumed what it got; one that raises has not, and it comes again. Plain
functions run in threads, coroutines on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import astuple

from firearrow.client.consumer.rates import ConsumeRates
from firearrow.client.message import Message
from firearrow.client.session.portal import leave_signals, leaving_signals
from firearrow.client.tracing.tracer import ConsumeTrace
from firearrow.errors import ClientError, ConfigError
from firearrow.net.tasks import is_cancelled
from firearrow.wire.client_bodies import SubscriptionData

log = logging.getLogger(__name__)

CONCURRENCY: Final = 20  # as many as Java's clients have threads
BATCH_MAX: Final = 1024  # as upstream's consumeMessageBatchMaxSize
DEAD_LETTER: Final = -1

Handler = Callable[[Any], Any]
"""Takes a `Message`, or a list of them."""


class RetryLater(ClientError):
    """Raise it from a handler to say when the message is to come again.

    ``level`` is a delay level (1 to 18: 1 s to 2 h; of popped messages, 1 to 15: 30 s to 2 h), 0
    leaves it to the broker, and -1 gives the message up: it goes to the dead letters, where that
    is possible. A consumer in order takes ``seconds`` (0.01 to 30) instead.
    """

    def __init__(self, reason: str = "", *, level: int = 0, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.level = level
        self.seconds = seconds


class Failure:
    """That a handler failed, and what it said of when to try again."""

    __slots__ = ("error", "level", "seconds")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        asked = error if isinstance(error, RetryLater) else None
        self.level = 0 if asked is None else asked.level
        self.seconds = None if asked is None else asked.seconds


class Registration:
    """A subscription of an application to a topic, and its handler.

    ``batch`` 0 hands over one message each time, else lists of at most so many. With ``manual`` a
    message is consumed when the application says so.
    """

    def __init__(
        self,
        subscription: SubscriptionData,
        handler: Handler,
        concurrency: int = CONCURRENCY,
        batch: int = 0,
        *,
        manual: bool = False,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"topic {subscription.topic!r}: a concurrency of {concurrency}")
        if not 0 <= batch <= BATCH_MAX:
            raise ConfigError(f"topic {subscription.topic!r}: batches of {batch} messages")
        self.subscription = subscription
        self.concurrency = concurrency
        self.batch = batch
        self.manual = manual
        self.trace: ConsumeTrace | None = None
        self.rates: ConsumeRates | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.call: Callable[[Any], Awaitable[Any]] = handler
        """What is awaited for each message, or for each list."""
        if not is_coroutine(handler):
            self._threads = ThreadPoolExecutor(concurrency, f"consume {subscription.topic}", leave_signals)
            self.call = partial(_in_thread, self._threads, leaving_signals(handler))

    async def handle(self, messages: Sequence[Message]) -> Failure | None:
        """Hand messages over; gives what went wrong, if anything did."""
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
        """End the threads; those that work on something go on until they have done it."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def is_coroutine(handler: Handler) -> bool:
    """Tell whether a function, or a callable object, is to be awaited."""
    of_object = getattr(handler, "__call__", handler)  # noqa: B004 - its own kind is asked for
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(of_object)


async def _in_thread(threads: ThreadPoolExecutor, handler: Handler, argument: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, handler, argument)


def failure_of(messages: Sequence[Message], error: BaseException) -> Failure:
    """Log that a handler has failed; gives what it said of when to try again.

    Whatever an application raises, its messages come again: so does the CancelledError of something
    that it awaited. Only a cancellation of the worker itself is raised on.
    """
    if isinstance(error, asyncio.CancelledError) and is_cancelled():
        raise error
    first = messages[0]
    log.warning(
        "handler failed",
        extra={
            "topic": first.topic,
            "message_id": first.message_id,
            "messages": len(messages),
            "reconsume_times": first.reconsume_times,
            "error": f"{type(error).__name__}: {error}",
        },
        exc_info=None if isinstance(error, RetryLater) else error,
    )
    return Failure(error)


# --- A message whose consumer says itself when it is consumed ---


class Rollback(RetryLater):
    """All that a queue in order has given, and that was not acknowledged, is to come again."""


class Source(Protocol):
    """A source of messages, which learns of their fate.

    It is dropped when it is another consumer's: what is left of it is not consumed here.
    """

    @property
    def keeps_order(self) -> bool:
        """Tell whether its messages are consumed one behind the other, so that all can come again."""

    def may_begin(self, message: Message) -> bool:
        """Tell whether a message is still to be consumed; none of a source that is dropped is."""

    def done(self, messages: Sequence[Message]) -> None:
        """Messages are consumed; nobody needs to know if the source is dropped."""

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        """Messages are to come again, which they do anyway if the source is dropped."""


class Delivery(Message, eq=False, gc=True):
    """A message that counts as consumed once ``ack`` was called, and comes again after ``retry``.

    Until one of them is called it takes its place in the consumer's memory, and what comes behind
    it is consumed but not committed. In order, ``ack`` is for all that came before as well, and
    ``roll_back`` has all come again that was not acknowledged.
    """

    _source: Source | None = None

    @classmethod
    def of(cls, message: Message, source: Source) -> Delivery:
        """Make one of a message that a source has given."""
        delivery = cls(*astuple(message))
        delivery._source = source
        return delivery

    @property
    def is_settled(self) -> bool:
        """Tell whether it was said what becomes of it."""
        return self._source is None

    def ack(self) -> None:
        """It is consumed."""
        if self._source is not None:
            source, self._source = self._source, None
            source.done([self])

    async def retry(self, *, level: int = 0) -> None:
        """Have it come again, by a delay level (see `RetryLater`)."""
        await self.fail(Failure(RetryLater(level=level)))

    async def roll_back(self, *, seconds: float | None = None) -> None:
        """In order: have all come again that the queue gave and that was not acknowledged, in so
        many seconds (0.01 to 30; by default the consumer's ``suspend``). It counts as no failure.

        ClientError for a consumer in any order, which has nothing to roll back to. Source: upstream
        ``ConsumeOrderlyStatus#ROLLBACK`` without ``autoCommit``.
        """
        if self._source is not None and not self._source.keeps_order:
            raise ClientError(
                f"message {self.message_id} of topic {self.topic!r} can't be rolled back: its consumer keeps no order"
            )
        await self.fail(Failure(Rollback(seconds=seconds)))

    async def fail(self, failure: Failure) -> None:
        """It failed, unless it is settled."""
        if self._source is not None:
            source, self._source = self._source, None
            await source.failed([self], failure)
