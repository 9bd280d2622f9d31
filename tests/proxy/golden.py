"""Requests and messages of RocketMQ 5.5.0's proxy, with what its classes make of them.

`sends.json` has random sends, each with the refusal (code and text) or the properties, the system flag and the types of
its messages, from ``SendMessageActivity`` and ``TopicMessageType``. `receives.json` has random records, each with the
message that ``GrpcConverter`` builds. `consistent-hashes.json` has keys, counts of queues and the choice of Guava's
``Hashing``. `rmq-proxy-5.5.0.json` is a fresh ``ProxyConfig``.
"""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Message, SendMessageRequest

DATA = Path(__file__).parents[1] / "data" / "proxy"
CONFIG = ProxyConfig(max_message_size=64, max_user_property_size=96, user_property_max_num=4)
"""Configuration of the proxy that made the sends: its limits are small."""
SENDER = "127.0.0.1:5555"
NOW_MS = 1_795_915_000_000


class Send(NamedTuple):
    """A send and its outcome: a refusal or what is stored."""

    request: SendMessageRequest
    refusal: tuple[int, str] | None
    flag: int
    properties: list[str]
    types: list[str]


class Receive(NamedTuple):
    """A record and the message for consumers."""

    record: bytes
    message: Message


def rows(name: str) -> list[Any]:
    """Return the rows of a file."""
    found: list[Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    assert found
    return found


def sends() -> list[Send]:
    return [
        Send(
            SendMessageRequest.FromString(b64decode(row["request"])),
            (row["code"], row["text"]) if "code" in row else None,
            row.get("flag", 0),
            row.get("properties", []),
            row.get("types", []),
        )
        for row in rows("sends.json")
    ]


def receives() -> list[Receive]:
    return [
        Receive(b64decode(row["record"]), Message.FromString(b64decode(row["message"])))
        for row in rows("receives.json")
    ]
