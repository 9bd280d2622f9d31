"""Subscriptions by handlers, with types: a checker derives a handler's argument from the subscription's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from firearrow.client.arguments import texts_of
from firearrow.client.consumer.handlers import Delivery, Handler
from firearrow.client.message import Message

T = TypeVar("T")
R = TypeVar("R")


class SubscribeOptions(TypedDict, total=False):
    """Arguments of a subscription that do not change what its handler gets.

    ``tags`` is ``A || B``, or a list; ``sql`` is an SQL92 expression in place of tags. Up to ``concurrency`` calls (20)
    run at a time.
    """

    tags: str | Iterable[str]
    sql: str
    concurrency: int


class Subscriber(Protocol[T]):
    """Decorator of a handler, which it returns unchanged."""

    def __call__(self, handler: Callable[[T], R], /) -> Callable[[T], R]:
        """Subscribe the handler."""


class Subscribing:
    """Subscriptions of push consumers, of asyncio and of threads."""

    @overload
    def on(self, topic: str, **options: Unpack[SubscribeOptions]) -> Subscriber[Message]: ...

    @overload
    def on(self, topic: str, *, batch: int, **options: Unpack[SubscribeOptions]) -> Subscriber[list[Message]]: ...

    @overload
    def on(self, topic: str, *, manual: Literal[True], **options: Unpack[SubscribeOptions]) -> Subscriber[Delivery]: ...

    @overload
    def on(
        self, topic: str, *, batch: int, manual: Literal[True], **options: Unpack[SubscribeOptions]
    ) -> Subscriber[list[Delivery]]: ...

    @overload
    def on(self, topic: str, *, kind: type[T], **options: Unpack[SubscribeOptions]) -> Subscriber[T]: ...

    @overload
    def on(
        self, topic: str, *, kind: type[T], batch: int, **options: Unpack[SubscribeOptions]
    ) -> Subscriber[list[T]]: ...

    def on(
        self, topic: str, *, kind: Any = None, batch: int = 0, manual: bool = False, **options: Unpack[SubscribeOptions]
    ) -> Any:
        """Subscribe the decorated function to a topic, before the consumer is started.

        The function gets a `Message`. With ``kind`` it gets the body instead: as ``str``, ``bytes``, or as a type that
        msgspec knows, read from JSON (a dataclass, a ``msgspec.Struct``, ``dict``). With ``batch`` it gets lists of up
        to ``batch`` of them. With ``manual`` it gets a `Delivery`, and must call its ``ack``.

        A coroutine function runs on the loop, a plain one in threads; up to ``concurrency`` calls run at a time. If the
        function returns, the message is consumed. If it raises, the message is redelivered; `RetryLater` says when.
        ``tags`` is ``A || B``, ``sql`` an SQL92 expression. Raises ConfigError.
        """
        texts_of([topic], "topic")  # without an argument, `on` gets the function itself

        def decorate(handler: Handler) -> Handler:
            self._subscribe(topic, handler, kind=kind, batch=batch, manual=manual, **options)
            return handler

        return decorate

    @overload
    def subscribe(
        self, topic: str, handler: Callable[[Message], object], **options: Unpack[SubscribeOptions]
    ) -> None: ...

    @overload
    def subscribe(
        self, topic: str, handler: Callable[[list[Message]], object], *, batch: int, **options: Unpack[SubscribeOptions]
    ) -> None: ...

    @overload
    def subscribe(
        self,
        topic: str,
        handler: Callable[[Delivery], object],
        *,
        manual: Literal[True],
        **options: Unpack[SubscribeOptions],
    ) -> None: ...

    @overload
    def subscribe(
        self,
        topic: str,
        handler: Callable[[list[Delivery]], object],
        *,
        batch: int,
        manual: Literal[True],
        **options: Unpack[SubscribeOptions],
    ) -> None: ...

    @overload
    def subscribe(
        self, topic: str, handler: Callable[[T], object], *, kind: type[T], **options: Unpack[SubscribeOptions]
    ) -> None: ...

    @overload
    def subscribe(
        self,
        topic: str,
        handler: Callable[[list[T]], object],
        *,
        kind: type[T],
        batch: int,
        **options: Unpack[SubscribeOptions],
    ) -> None: ...

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        kind: Any = None,
        batch: int = 0,
        manual: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> None:
        """Subscribe a function to a topic, before the consumer is started.

        The function gets a `Message`. With ``kind`` it gets the body instead: as ``str``, ``bytes``, or as a type that
        msgspec knows, read from JSON (a dataclass, a ``msgspec.Struct``, ``dict``). With ``batch`` it gets lists of up
        to ``batch`` of them. With ``manual`` it gets a `Delivery`, and must call its ``ack``.

        A coroutine function runs on the loop, a plain one in threads; up to ``concurrency`` calls run at a time. If the
        function returns, the message is consumed. If it raises, the message is redelivered; `RetryLater` says when.
        ``tags`` is ``A || B``, ``sql`` an SQL92 expression. Raises ConfigError.
        """
        self._subscribe(topic, handler, kind=kind, batch=batch, manual=manual, **options)

    def _subscribe(
        self, topic: str, handler: Handler, *, kind: Any, batch: int, manual: bool, **options: Unpack[SubscribeOptions]
    ) -> None:
        raise NotImplementedError
