"""Values of a send: a draft from a body and its options, the fields of the request, and the receipt.

Bodies are bytes, text (as UTF-8), or any value that msgspec can write as JSON. From 4 KiB on, bodies are compressed, as
in RocketMQ's producers; the system flag says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from firearrow.client.arguments import Duration, duration_fault, ms_of, one_or_several
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.errors import ConfigError, MessageError
from firearrow.message import properties as keys_of
from firearrow.message.compress import LEVEL, Compression, compress
from firearrow.message.model import NewMessage
from firearrow.message.names import AUTO_CREATE_TOPIC, is_sendable, validate_lite, validate_topic
from firearrow.message.sysflag import COMPRESSED, COMPRESSION_SHIFT
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue

BODY_BYTES_MAX: Final = 4 << 20  # Java: maxMessageSize
COMPRESS_FROM_BYTES: Final = 4096  # Java: compressMsgBodyOverHowmuch
DELAY_LEVELS_MAX: Final = 18
TIME_KEYS: Final = frozenset({keys_of.DELAY_LEVEL, *keys_of.DELIVERY_TIMES})
_OPTIONS: Final = {
    keys_of.TAGS: "tag",
    keys_of.KEYS: "key",
    keys_of.DELAY_LEVEL: "delay_level",
    keys_of.TIMER_DELAY_SEC: "delay",
    keys_of.TIMER_DELAY_MS: "delay",
    keys_of.TIMER_DELIVER_MS: "deliver_at",
    keys_of.PRIORITY: "priority",
    keys_of.LITE_TOPIC: "lite_topic",
}
_OF_OTHERS: Final = keys_of.RESERVED - keys_of.OF_APPLICATION - {keys_of.UNIQUE_KEY}


class Draft(NamedTuple):
    """Message to send; ``topic`` is the name at the brokers."""

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int

    @property
    def waits(self) -> bool:
        """Tell whether delivery is delayed."""
        return not TIME_KEYS.isdisjoint(self.properties)

    @property
    def message_id(self) -> str:
        """Unique id of the message."""
        return self.properties[keys_of.UNIQUE_KEY]


def body_of(value: Any) -> bytes:
    """Bytes of a body. Raises MessageError for None and for a value that msgspec can't write."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if value is None:
        raise MessageError("None is no body; JSON's null is b'null'", "body")
    if isinstance(value, Message):
        raise MessageError("a received message can't be sent: send its copy()", "body")
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError) as error:
        raise MessageError(f"a {type(value).__name__} can't be sent: {error}", "body") from error


class SendOptions(msgspec.Struct, frozen=True):
    """Arguments of a send that become properties of the message."""

    key: str | Sequence[str] | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    delay: Duration | None = None
    delay_level: int = 0
    deliver_at: datetime | None = None
    priority: int | None = None
    lite_topic: str | None = None
    sharding_key: str | None = None


def properties_of(options: SendOptions) -> dict[str, str]:
    """Properties of a message. Raises MessageError for contradictory options."""
    found = _own_properties(options.properties) if options.properties else {}
    if options.tag is not None and _text(options.tag, "tag"):
        found[keys_of.TAGS] = options.tag
    if options.key is not None and (keys := _keys(options.key)):
        found[keys_of.KEYS] = keys
    if options.sharding_key is not None:
        found[keys_of.SHARDING_KEY] = _text(options.sharding_key, "sharding_key")
    if options.priority is not None:
        if not _counts(options.priority):
            raise MessageError(f"{options.priority!r} is not a priority: they are numbers from 0 on", "priority")
        found[keys_of.PRIORITY] = str(options.priority)
    if options.lite_topic is not None:
        fault = validate_lite(options.lite_topic)
        if fault is not None:
            raise MessageError(fault, "lite topic")
        found[keys_of.LITE_TOPIC] = options.lite_topic
    if options.delay is not None or options.delay_level or options.deliver_at is not None:
        found |= _times(options)
    return found


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    found = dict(properties)
    _refuse(keys_of.RESERVED.intersection(found))
    for name, value in found.items():
        _text(name, "properties")
        _text(value, f"property {name!r}")
    return found


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise MessageError(f"{value!r} is not text", name)
    return value


def _keys(key: str | Iterable[str]) -> str:
    """Keys as one text."""
    return " ".join(_text(word, "key") for word in one_or_several(key))


def _counts(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _refuse(names: Collection[str]) -> None:
    """Raise MessageError for reserved property names. Java: Message#putUserProperty."""
    for name in sorted(names):
        cure = "Message.copy() returns a message that can be sent"
        if name in _OPTIONS:
            cure = f"use the argument {_OPTIONS[name]}=; {cure}"
        raise MessageError(f"the property {name} is RocketMQ's own: {cure}", "properties")


def _times(options: SendOptions) -> dict[str, str]:
    delay, level, moment = options.delay, options.delay_level, options.deliver_at
    if (delay is not None) + bool(level) + (moment is not None) > 1:
        raise MessageError("a message has only one of delay, delay_level and deliver_at", "delay")
    if delay is not None:
        fault = duration_fault(delay)
        if fault is not None:
            raise MessageError(fault, "delay")
        return {keys_of.TIMER_DELAY_MS: str(ms_of(delay, "delay"))}
    if moment is not None:
        if getattr(moment, "tzinfo", None) is None:
            raise MessageError(f"{moment!r} is not a datetime with a time zone", "deliver_at")
        return {keys_of.TIMER_DELIVER_MS: str(int(moment.timestamp() * 1000))}
    if level not in range(1, DELAY_LEVELS_MAX + 1):
        raise MessageError(f"{level!r} is not between 1 and {DELAY_LEVELS_MAX}", "delay_level")
    return {keys_of.DELAY_LEVEL: str(level)}


def check_topic(topic: str) -> None:
    """Raise MessageError for topics that only brokers may send to."""
    fault = validate_topic(_text(topic, "topic"))
    if fault is None and not is_sendable(topic):
        fault = f"the topic {topic!r} belongs to the brokers: clients can't send to it"
    if fault is not None:
        raise MessageError(fault, "topic")


def check_body(topic: str, body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise MessageError for an empty or too large body."""
    if not body:
        raise MessageError(f"a message to topic {topic!r} is empty", "body")
    if len(body) > bytes_max:
        raise MessageError(f"a message to topic {topic!r} has {len(body)} bytes, the limit is {bytes_max}", "body")


class Compressor:
    """Compressor of bodies of a minimum size; without a kind, it compresses none."""

    def __init__(
        self, kind: Compression | str | None, level: int = LEVEL, from_bytes: int = COMPRESS_FROM_BYTES
    ) -> None:
        self._kind = _kind_of(kind)
        self._level = level
        self._from_bytes = from_bytes
        self._flag = 0
        if self._kind is not None:
            self._flag = COMPRESSED | self._kind << COMPRESSION_SHIFT
            try:
                compress(b"", self._kind, level)
            except ConfigError as error:
                raise ConfigError(f"compression {self._kind.name}: {error}") from None

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """Body on the wire, and its bits of the system flag."""
        if self._kind is None or len(body) < self._from_bytes:
            return body, 0
        return compress(body, self._kind, self._level), self._flag


def _kind_of(kind: Compression | str | None) -> Compression | None:
    if kind is None or isinstance(kind, Compression):
        return kind
    try:
        return Compression[kind.upper()]
    except KeyError:
        names = ", ".join(it.name.lower() for it in Compression)
        raise ConfigError(f"compression {kind!r} is none of {names}") from None


def draft_of(topic: str, value: Any, *, bytes_max: int = BODY_BYTES_MAX) -> Draft:
    """Draft of a body, or of a `NewMessage` with its own properties; ``topic`` replaces the topic of the latter."""
    if isinstance(value, NewMessage):
        body, found, flag = value.body, dict(value.properties), value.flag
        _refuse(_OF_OTHERS.intersection(found))
    else:
        body, found, flag = body_of(value), {}, 0
    check_body(topic, body, bytes_max)
    return Draft(topic, body, found, flag)


# --- receipt ---


class SendStatus(StrEnum):
    """Durability of a stored message. In all cases the message is stored, and consumers get it."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_OF: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class Receipt(msgspec.Struct, frozen=True):
    """Receipt of a stored message.

    ``topic`` is the application's name for it. ``message_id`` is the producer's id. ``offset_message_id`` is the
    address of the record; for a delayed message and for a half, where it is stored meanwhile. ``recall_handle`` recalls
    a delayed message.
    """

    topic: str
    message_id: str
    queue: Queue
    queue_offset: int
    offset_message_id: str = ""
    status: SendStatus = SendStatus.SEND_OK
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True


# --- send request ---


NEW_TOPIC_QUEUES: Final = 4  # requested for a topic that the message creates
_NEW_TOPIC_QUEUES: Final = str(NEW_TOPIC_QUEUES)


def send_fields(
    group: str, queue: Queue, now_ms: int, *, batch: bool, sys_flag: int = 0, flag: int = 0, properties: str = ""
) -> dict[str, FieldValue]:
    """Fields of a send in their short form; a batch has no flags.

    All values are text already, since this runs for each message.

    Source: RocketMQ's ``SendMessageRequestHeaderV2``.
    """
    return {
        "a": group,
        "b": queue.topic,
        "c": AUTO_CREATE_TOPIC,
        "d": _NEW_TOPIC_QUEUES,
        "e": str(queue.queue_id),
        "f": str(sys_flag) if sys_flag else "0",
        "g": str(now_ms),
        "h": str(flag) if flag else "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
        "n": queue.broker,
    }
