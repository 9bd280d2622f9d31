"""Declaration of subscribers and publishers, in brokers and routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Unpack

from fast_depends.dependencies import Dependant
from faststream._internal.broker import BrokerRouter
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream._internal.configs import PublisherSpecificationConfig, SubscriberSpecificationConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.middlewares import AckPolicy

from firearrow.client.consumer.handlers import CONCURRENCY
from firearrow.client.consumer.subscription import StartFrom
from firearrow.integrations.faststream.commands import SendingOptions
from firearrow.integrations.faststream.connection import Membership, RocketMQConfig, Selection
from firearrow.integrations.faststream.publisher import (
    RocketMQPublisher,
    RocketMQPublisherConfig,
    RocketMQPublisherSpecification,
)
from firearrow.integrations.faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    RocketMQSubscriberSpecification,
)
from firearrow.wire.client_bodies import SUBSCRIBE_ALL

BATCH: Final = 32


class RocketMQRegistrator(Registrator[Any, RocketMQConfig]):
    """Subscribers and publishers of a broker or a router."""

    def subscriber(  # type: ignore[override]  # the base class takes a finished subscriber
        self,
        topic: str,
        *,
        group: str = "",
        tags: str = SUBSCRIBE_ALL,
        sql: str = "",
        concurrency: int = CONCURRENCY,
        batch: int | bool = 0,
        ordered: bool = False,
        broadcasting: bool = False,
        start: StartFrom | datetime = StartFrom.FIRST,
        max_reconsume_times: int | None = None,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketMQSubscriber:
        """Subscribe to a topic in a consumer group, by default in the one named after the broker's group and the topic.

        ``tags`` is ``A || B``; ``sql`` an SQL92 expression. Up to ``concurrency`` handlers run at a time. With
        ``batch`` a handler gets lists of up to ``batch`` messages (32 if True). ``ordered`` consumes each queue in
        order; ``broadcasting`` gives all messages to each process. ``start`` is the first message of a new group.
        After ``max_reconsume_times`` redeliveries a message becomes a dead letter. All members of a group must
        subscribe to the same topics with the same filters.
        """
        config = RocketMQSubscriberConfig(
            _outer_config=self.config,  # type: ignore[arg-type]  # FastStream's composition of configurations
            _ack_policy=ack_policy,
            no_reply=no_reply,
            topic=topic,
            group=group,
            membership=Membership(ordered, broadcasting, start, max_reconsume_times),
            selection=Selection(tags, sql, concurrency, BATCH if batch is True else batch),
        )
        calls: CallsCollection[Any] = CallsCollection()
        shown = SubscriberSpecificationConfig(
            title_=title, description_=description, include_in_schema=include_in_schema
        )
        specification = RocketMQSubscriberSpecification(config._outer_config, shown, calls, topic)
        subscriber = RocketMQSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec)

    def publisher(  # type: ignore[override]  # the base class takes a finished publisher
        self,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        **sending: Unpack[SendingOptions],
    ) -> RocketMQPublisher:
        """Publish the results of the decorated handlers to a topic, or messages by ``publish``.

        With ``batch``, a sequence is one batch of messages.
        """
        config = RocketMQPublisherConfig(
            _outer_config=self.config,  # type: ignore[arg-type]  # FastStream's composition of configurations
            topic=topic,
            headers=headers or {},
            reply_to=reply_to,
            batch=batch,
            sending=sending,
        )
        shown = PublisherSpecificationConfig(
            title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
        )
        specification = RocketMQPublisherSpecification(config._outer_config, shown, topic)
        publisher = RocketMQPublisher(config, specification)
        super().publisher(publisher, persistent=persistent)
        return publisher


class RocketMQRoutePublisher(ArgsContainer):
    """Publisher of a `RocketMQRoute`, with the arguments of ``publisher``."""


class RocketMQRoute(SubscriberRoute):
    """Handler for a router, with the arguments of ``subscriber``."""

    def __init__(
        self, call: Callable[..., Any], topic: str, *, publishers: Iterable[RocketMQRoutePublisher] = (), **options: Any
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Any, RocketMQConfig]):
    """Subscribers and publishers for brokers that include the router; ``prefix`` begins all of their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        config = RocketMQConfig(
            prefix=prefix,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            ack_policy=ack_policy,
            include_in_schema=include_in_schema,
        )
        super().__init__(config=config, handlers=handlers, routers=routers)
