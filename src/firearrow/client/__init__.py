"""Client for any RocketMQ cluster, on asyncio; `firearrow.client.blocking` is the blocking form.

`Producer` sends, consumers receive `Message` values, and several of them may share a `Session`. Importing the package
imports none of its rooms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from firearrow.client.arguments import Duration
    from firearrow.client.consumer.handlers import Delivery, Handler, RetryLater
    from firearrow.client.consumer.processqueue import Limits
    from firearrow.client.consumer.subscribing import SubscribeOptions, Subscriber
    from firearrow.client.consumer.subscription import StartFrom
    from firearrow.client.idempotence import Claim, KeyStore, MemoryKeys, SqliteKeys, once
    from firearrow.client.message import Message
    from firearrow.client.pop.simpleconsumer import SimpleConsumer
    from firearrow.client.producer.drafts import Receipt, SendStatus
    from firearrow.client.producer.producer import Producer
    from firearrow.client.producer.sender import Rules, Selector
    from firearrow.client.producer.transactions import Check, Decision, Transaction
    from firearrow.client.pull.pullconsumer import PullConsumer
    from firearrow.client.push.pushconsumer import Mode, PushConsumer
    from firearrow.client.queues import Queue
    from firearrow.client.session.session import Session, SessionOptions
    from firearrow.clock import Clock
    from firearrow.message.compress import Compression
    from firearrow.message.hosts import Host
    from firearrow.message.model import MessageView, NewMessage
    from firearrow.net.encryption import Tls
    from firearrow.wire.allocation import Strategy
    from firearrow.wire.signature import Credentials

HOMES: Final = {
    "Check": "firearrow.client.producer.transactions",
    "Claim": "firearrow.client.idempotence",
    "Clock": "firearrow.clock",
    "Compression": "firearrow.message.compress",
    "Credentials": "firearrow.wire.signature",
    "Decision": "firearrow.client.producer.transactions",
    "Delivery": "firearrow.client.consumer.handlers",
    "Duration": "firearrow.client.arguments",
    "Handler": "firearrow.client.consumer.handlers",
    "Host": "firearrow.message.hosts",
    "KeyStore": "firearrow.client.idempotence",
    "Limits": "firearrow.client.consumer.processqueue",
    "MemoryKeys": "firearrow.client.idempotence",
    "Message": "firearrow.client.message",
    "MessageView": "firearrow.message.model",
    "Mode": "firearrow.client.push.pushconsumer",
    "NewMessage": "firearrow.message.model",
    "Producer": "firearrow.client.producer.producer",
    "PullConsumer": "firearrow.client.pull.pullconsumer",
    "PushConsumer": "firearrow.client.push.pushconsumer",
    "Queue": "firearrow.client.queues",
    "Receipt": "firearrow.client.producer.drafts",
    "RetryLater": "firearrow.client.consumer.handlers",
    "Rules": "firearrow.client.producer.sender",
    "Selector": "firearrow.client.producer.sender",
    "SendStatus": "firearrow.client.producer.drafts",
    "Session": "firearrow.client.session.session",
    "SessionOptions": "firearrow.client.session.session",
    "SimpleConsumer": "firearrow.client.pop.simpleconsumer",
    "SqliteKeys": "firearrow.client.idempotence",
    "StartFrom": "firearrow.client.consumer.subscription",
    "Strategy": "firearrow.wire.allocation",
    "SubscribeOptions": "firearrow.client.consumer.subscribing",
    "Subscriber": "firearrow.client.consumer.subscribing",
    "Tls": "firearrow.net.encryption",
    "Transaction": "firearrow.client.producer.transactions",
    "once": "firearrow.client.idempotence",
}
"""Module of each public name."""

__all__ = [
    "Check",
    "Claim",
    "Clock",
    "Compression",
    "Credentials",
    "Decision",
    "Delivery",
    "Duration",
    "Handler",
    "Host",
    "KeyStore",
    "Limits",
    "MemoryKeys",
    "Message",
    "MessageView",
    "Mode",
    "NewMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Queue",
    "Receipt",
    "RetryLater",
    "Rules",
    "Selector",
    "SendStatus",
    "Session",
    "SessionOptions",
    "SimpleConsumer",
    "SqliteKeys",
    "StartFrom",
    "Strategy",
    "SubscribeOptions",
    "Subscriber",
    "Tls",
    "Transaction",
    "once",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: Spark's workers need none of them, and importing asyncio takes time."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
