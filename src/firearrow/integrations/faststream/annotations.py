"""Annotations of handlers' parameters: the message and the broker of FastStream's context."""

from typing import Annotated

from faststream import Context

from firearrow.integrations.faststream import broker, messages

RocketMQMessage = Annotated[messages.RocketMQMessage, Context("message")]
RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
