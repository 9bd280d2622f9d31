"""A client for any RocketMQ cluster, on asyncio; `firearrow.client.blocking` is its blocking twin.

`Producer` sends, consumers receive `Message` values, and a `Session` is what several of them may
share. What Spark's jobs use (routes, offsets, pulls, sends of bytes, all blocking) is in modules
of this package that are not imported with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from firearrow.client.handlers import Delivery, RetryLater
    from firearrow.client.idempotence import KeyStore, MemoryKeys, SqliteKeys, once
    from firearrow.client.message import Message
    from firearrow.client.producer import Producer
    from firearrow.client.pullconsumer import PullConsumer
    from firearrow.client.push import PushConsumer
    from firearrow.client.queues import Queue
    from firearrow.client.receipt import Receipt, SendStatus
    from firearrow.client.sender import Rules
    from firearrow.client.session import Session
    from firearrow.client.simple import SimpleConsumer
    from firearrow.client.subscription import StartFrom
    from firearrow.client.transactions import Decision, Transaction
    from firearrow.message.compress import Compression
    from firearrow.message.model import Message as NewMessage
    from firearrow.net.access import Tls
    from firearrow.wire.signature import Credentials

_HOMES: Final = {
    "Compression": ("firearrow.message.compress", "Compression"),
    "Credentials": ("firearrow.wire.signature", "Credentials"),
    "Decision": ("firearrow.client.transactions", "Decision"),
    "Delivery": ("firearrow.client.handlers", "Delivery"),
    "KeyStore": ("firearrow.client.idempotence", "KeyStore"),
    "MemoryKeys": ("firearrow.client.idempotence", "MemoryKeys"),
    "Message": ("firearrow.client.message", "Message"),
    "NewMessage": ("firearrow.message.model", "Message"),
    "Producer": ("firearrow.client.producer", "Producer"),
    "PullConsumer": ("firearrow.client.pullconsumer", "PullConsumer"),
    "PushConsumer": ("firearrow.client.push", "PushConsumer"),
    "Queue": ("firearrow.client.queues", "Queue"),
    "Receipt": ("firearrow.client.receipt", "Receipt"),
    "RetryLater": ("firearrow.client.handlers", "RetryLater"),
    "Rules": ("firearrow.client.sender", "Rules"),
    "SendStatus": ("firearrow.client.receipt", "SendStatus"),
    "Session": ("firearrow.client.session", "Session"),
    "SimpleConsumer": ("firearrow.client.simple", "SimpleConsumer"),
    "SqliteKeys": ("firearrow.client.idempotence", "SqliteKeys"),
    "StartFrom": ("firearrow.client.subscription", "StartFrom"),
    "Tls": ("firearrow.net.access", "Tls"),
    "Transaction": ("firearrow.client.transactions", "Transaction"),
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
    """Import what is asked for: Spark's workers need none of it, and asyncio takes its time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
