"""Broker of FastStream on RocketMQ."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Unpack

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

from firearrow.client.producer.drafts import Receipt
from firearrow.client.session.session import SessionOptions
from firearrow.integrations.faststream.commands import RequestOptions, SendingOptions
from firearrow.integrations.faststream.connection import OpenConnection, RocketMQConfig
from firearrow.integrations.faststream.messages import RocketMQMessage
from firearrow.integrations.faststream.publishing import RocketMQProducer
from firearrow.integrations.faststream.registrator import RocketMQRegistrator

QUEUES: Final = 4
GROUP: Final = "faststream"
ADDRESS: Final = "localhost:9876"


class RocketMQLogStorage(DefaultLoggerStorage):
    """Logger of handlers, whose lines have topic, group and message id."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing: columns have no fixed width."""

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Logger of the broker, always the same."""
        found = self._get_logger_ref()
        if found is None:
            found = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=32,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(found)
        return found


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[Any, OpenConnection, RocketMQConfig]):
    """Broker of FastStream.

    ``cluster`` is the address of the name servers; ``session`` are further arguments of `Session`. ``group`` is the
    producer group, and the beginning of the consumer groups of subscribers without a ``group``: each service needs its
    own. Missing topics are created, with ``queues`` on each broker. The other arguments are FastStream's.
    """

    def __init__(
        self,
        cluster: str | Sequence[str] | None = None,
        *,
        group: str = GROUP,
        queues: int = QUEUES,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        specification_url: str | Sequence[str] | None = None,
        protocol: str = "rocketmq",
        protocol_version: str = "5",
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        **session: Unpack[SessionOptions],
    ) -> None:
        config = RocketMQConfig(
            group=group,
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            broker_dependencies=dependencies,
            logger=make_logger_state(logger, log_level, RocketMQLogStorage),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            id_generator=id_generator,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            extra_context={"broker": self},
        )
        config.producer = RocketMQProducer(config)
        addresses = _list(specification_url or cluster or ADDRESS)
        specification = BrokerSpec(addresses, protocol, protocol_version, description, tags, security=None)
        super().__init__(config=config, specification=specification, routers=routers)
        self._opening = partial(OpenConnection.of, cluster, group, queues, session)

    # --- life ---

    async def _connect(self) -> OpenConnection:
        connection = self.config.broker_config.connection = await self._opening()
        return connection

    async def start(self) -> None:
        """Connect, create missing topics, and consume."""
        connection = await self.connect()
        connection.gather()
        await super().start()
        await connection.start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Let handlers finish for ``graceful_timeout`` seconds; then commit and close all connections."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            connection, self._connection = self._connection, None
            self.config.broker_config.connection = None
            if connection is not None:
                await connection.close()

    async def ping(self, timeout: float | None = 3.0) -> bool:
        """Tell whether a name server answers in time."""
        if self._connection is None:
            return False
        return await self._connection.answers(timeout)

    # --- messages ---

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **sending: Unpack[SendingOptions],
    ) -> Receipt:
        """Publish a message; when this returns, a broker of RocketMQ has it.

        ``headers`` become properties. ``reply_to`` is a topic for the response of the handler.
        """
        cmd = self.config.command(
            message, topic=topic, headers=headers, correlation_id=correlation_id, reply_to=reply_to, sending=sending
        )
        receipt: Receipt = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]  # the base class calls the topic a queue
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **sending: Unpack[SendingOptions],
    ) -> list[Receipt]:
        """Publish messages to one queue in one request: the broker of RocketMQ takes all or none."""
        cmd = self.config.command(
            *messages, topic=topic, headers=headers, correlation_id=correlation_id, reply_to=reply_to, sending=sending
        )
        receipts: list[Receipt] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return receipts

    async def request(  # type: ignore[override]  # the base class has no headers
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **sending: Unpack[RequestOptions],
    ) -> RocketMQMessage:
        """Send a request to a handler; returns its response. Raises TimeoutError if none comes in time, by default in
        30 seconds."""
        cmd = self.config.command(
            message,
            kind=PublishType.REQUEST,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id,
            timeout=timeout,
            sending=sending,
        )
        response: RocketMQMessage = await self._basic_request(cmd, producer=self.config.producer)
        return response


def _list(addresses: str | Sequence[str]) -> list[str]:
    return addresses.split(";") if isinstance(addresses, str) else list(addresses)
