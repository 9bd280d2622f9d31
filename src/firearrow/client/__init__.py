"""Client for any RocketMQ cluster, on asyncio; `firearrow.client.blocking` is the blocking form.

`Producer` sends, consumers receive `Message` values, and several of them may share a `Session`. Importing the package
imports none of its rooms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from firearrow.client.consumer.handlers import Delivery, RetryLater
    from firearrow.client.consumer.subscription import StartFrom
    from firearrow.client.idempotence import KeyStore, MemoryKeys, SqliteKeys, once
    from firearrow.client.message import Message
    from firearrow.client.pop.simpleconsumer import SimpleConsumer
    from firearrow.client.producer.drafts import Receipt, SendStatus
    from firearrow.client.producer.producer import Producer
    from firearrow.client.producer.sender import Rules
    from firearrow.client.producer.transactions import Decision, Transaction
    from firearrow.client.pull.pullconsumer import PullConsumer
    from firearrow.client.push.pushconsumer import PushConsumer
    from firearrow.client.queues import Queue
    from firearrow.client.session.session import Session
    from firearrow.message.compress import Compression
    from firearrow.message.model import Message as NewMessage
    from firearrow.net.access import Tls
    from firearrow.wire.signature import Credentials

_HOMES: Final = {
    "Compression": ("firearrow.message.compress", "Compression"),
    "Credentials": ("firearrow.wire.signature", "Credentials"),
    "Decision": ("firearrow.client.producer.transactions", "Decision"),
    "Delivery": ("firearrow.client.consumer.handlers", "Delivery"),
    "KeyStore": ("firearrow.client.idempotence", "KeyStore"),
    "MemoryKeys": ("firearrow.client.idempotence", "MemoryKeys"),
    "Message": ("firearrow.client.message", "Message"),
    "NewMessage": ("firearrow.message.model", "Message"),
    "Producer": ("firearrow.client.producer.producer", "Producer"),
    "PullConsumer": ("firearrow.client.pull.pullconsumer", "PullConsumer"),
    "PushConsumer": ("firearrow.client.push.pushconsumer", "PushConsumer"),
    "Queue": ("firearrow.client.queues", "Queue"),
    "Receipt": ("firearrow.client.producer.drafts", "Receipt"),
    "RetryLater": ("firearrow.client.consumer.handlers", "RetryLater"),
    "Rules": ("firearrow.client.producer.sender", "Rules"),
    "SendStatus": ("firearrow.client.producer.drafts", "SendStatus"),
    "Session": ("firearrow.client.session.session", "Session"),
    "SimpleConsumer": ("firearrow.client.pop.simpleconsumer", "SimpleConsumer"),
    "SqliteKeys": ("firearrow.client.idempotence", "SqliteKeys"),
    "StartFrom": ("firearrow.client.consumer.subscription", "StartFrom"),
    "Tls": ("firearrow.net.access", "Tls"),
    "Transaction": ("firearrow.client.producer.transactions", "Transaction"),
    "once": ("firearrow.client.idempotence", "once"),
}

__all__ = [
    "Compression",
    "Credentials",
    "Decision",
    "Delivery",
    "KeyStore",
    "MemoryKeys",
    "Message",
    "NewMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Queue",
    "Receipt",
    "RetryLater",
    "Rules",
    "SendStatus",
    "Session",
    "SimpleConsumer",
    "SqliteKeys",
    "StartFrom",
    "Tls",
    "Transaction",
    "once",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: Spark's workers need none of them, and importing asyncio takes time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
