"""Messages as consumers receive them: a stored record as a Protobuf message.

Each fact is in one place of the record::

    tag, keys            TAGS, KEYS at its spaces
    message_id           UNIQ_KEY, or otherwise the place of the record
    body_digest          MD5 of the body that is sent, in upper-case hex
    message_type         see `messagetypes`
    born_host            __BORNHOST, or otherwise the address of the sender
    delivery_timestamp   TIMER_DELIVER_MS, or the sender's clock and TIMER_DELAY_SEC
    priority             _SYS_MSG_PRIORITY_, if it is a number of 0 or more
    receipt_handle       POP_CK
    delivery_attempt     earlier attempts and 1
    dead_letter_queue    DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID

All properties without a reserved name are the application's.

Remoting producers compress large bodies by zlib, LZ4 or Zstandard. RocketMQ calls all of them GZIP, and several of its
clients can't read them. Here such a body is decompressed, so every client can read it. A body in GZIP, or one that
can't be decompressed, goes out as it is.

Source: RocketMQ's ``GrpcConverter#buildMessage``, ``#buildSystemProperties``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import md5
from typing import Final

from firearrow.client.message import unwrapped
from firearrow.errors import ConfigError, MessageError
from firearrow.javanumbers import INT_MAX, INT_TEXT, LONG_TEXT
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.compress import decompress
from firearrow.message.model import MessageView
from firearrow.message.record import MESSAGE_BODY_BYTES_MAX, iter_records
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from firearrow.proxy.messages import DigestType, Encoding, Message, Resource, SystemProperties
from firearrow.proxy.messagetypes import type_of
from firearrow.proxy.times import TIME_SECONDS_MAX, set_time
from firearrow.proxy.validation import is_blank

GZIP_BEGINNING: Final = b"\x1f\x8b"
NAMESPACE_END: Final = "%"

_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP
_MD5: Final = int(DigestType.MD5)
_IDENTITY: Final = int(Encoding.IDENTITY)
_GZIP: Final = int(Encoding.GZIP)
_is_int: Final = re.compile(INT_TEXT).fullmatch
_is_long: Final = re.compile(LONG_TEXT).fullmatch

# Properties whose text is a field as it is.
_FIELDS: Final = (
    (keys_of.TAGS, "tag"),
    (keys_of.SHARDING_KEY, "message_group"),
    (keys_of.LITE_TOPIC, "lite_topic"),
    (keys_of.POP_CHECKPOINT, "receipt_handle"),
    (keys_of.TRACE_CONTEXT, "trace_context"),
)


def records_in(body: bytes) -> list[MessageView]:
    """Read the records of an answer to a pop; an inner batch counts as its messages.

    An inner batch with a damaged body stays one record. Raises MessageError for a damaged record.
    """
    views: list[MessageView] = []
    for view in iter_records(body):
        views += _messages_of(view) if view.sys_flag & _WRAPPED == _WRAPPED else (view,)
    return views


def _messages_of(view: MessageView) -> list[MessageView]:
    try:
        return list(unwrapped(view))
    except (ConfigError, MessageError):
        return [view]


def message_of(
    view: MessageView, topic: str = "", attempts: int | None = None, body_bytes_max: int = MESSAGE_BODY_BYTES_MAX
) -> Message:
    """Return the message of a record.

    ``topic`` is the one that the consumer has asked for, by default the record's: a retry topic is not shown.
    ``attempts`` is the count of earlier attempts, by default the record's. A compressed body goes out as it is if it
    would have more than ``body_bytes_max`` bytes otherwise.
    """
    message = Message()
    attempts = view.reconsume_times if attempts is None else attempts
    fill_message(message, view, topic or view.topic, attempts, body_bytes_max)
    return message


def fill_message(
    message: Message, view: MessageView, topic: str, attempts: int, body_bytes_max: int = MESSAGE_BODY_BYTES_MAX
) -> None:
    """Fill an empty message, maybe within an answer, as `message_of` does.

    Parts are filled in place, which takes half the time of a part that is made and copied. So does a map that is set
    name by name, and not by a dictionary.
    """
    body, encoding = _body_of(view, body_bytes_max)
    properties = view.properties
    message.topic.CopyFrom(resource_of(topic))
    message.body = body
    own = message.user_properties
    for name, text in properties.items():
        if name not in keys_of.RESERVED:
            own[name] = text
    system = message.system_properties
    system.message_id = properties.get(keys_of.UNIQUE_KEY) or view.offset_message_id
    digest = system.body_digest
    digest.type = _MD5
    digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = type_of(properties)
    set_time(system.born_timestamp, view.born_timestamp_ms)
    born_host = properties.get(keys_of.BORN_HOST, "")
    system.born_host = view.born_host.ip if is_blank(born_host) else born_host
    set_time(system.store_timestamp, view.store_timestamp_ms)
    system.store_host = str(view.store_host)
    system.queue_id = view.queue_id
    system.queue_offset = view.queue_offset
    system.delivery_attempt = attempts + 1
    for name, field in _FIELDS:
        if name in properties:
            setattr(system, field, properties[name])
    if keys_of.KEYS in properties:
        system.keys.extend(keys_in(properties[keys_of.KEYS]))
    if not _RARE.isdisjoint(properties):
        _set_rare(system, properties, view.born_timestamp_ms)


def keys_in(text: str) -> list[str]:
    """Split keys at each space; empty words at the end are left out (Java's ``String#split``)."""
    bare = text.rstrip(" ")
    return bare.split(" ") if bare else []


@lru_cache(maxsize=1024)  # topics are few compared to messages
def resource_of(name: str) -> Resource:
    """Return a topic or group with its namespace apart: ``ns%orders`` is ``orders`` in ``ns``.

    Names of the system have no namespace. The prefix of a retry or dead-letter topic stays in front of the name.
    Callers must not change the resource.
    """
    if names.is_system_topic(name) or name.startswith(names.SYSTEM_GROUP_PREFIX):
        return Resource(name=name)
    prefix = next((it for it in (names.RETRY_PREFIX, names.DLQ_PREFIX) if name.startswith(it)), "")
    namespace, mark, bare = name[len(prefix) :].partition(NAMESPACE_END)
    return Resource(resource_namespace=namespace, name=prefix + bare) if namespace and mark else Resource(name=name)


def _body_of(view: MessageView, body_bytes_max: int) -> tuple[bytes, int]:
    """Return the body to send and its encoding."""
    body = view.body
    if not view.sys_flag & COMPRESSED:
        return body, _IDENTITY
    if body.startswith(GZIP_BEGINNING):
        return body, _GZIP
    try:
        return decompress(body, view.sys_flag, body_bytes_max), _IDENTITY
    except (ConfigError, MessageError):
        return body, _GZIP  # as RocketMQ sends it


_RARE: Final = frozenset(
    {keys_of.TIMER_DELAY_SEC, keys_of.TIMER_DELIVER_MS, keys_of.PRIORITY, keys_of.DLQ_ORIGIN_TOPIC}
)


def _set_rare(system: SystemProperties, properties: Mapping[str, str], born_ms: int) -> None:
    delivery_ms = _delivery_ms(properties, born_ms)
    if delivery_ms is not None:
        set_time(system.delivery_timestamp, delivery_ms)
    priority = properties.get(keys_of.PRIORITY, "")
    if _is_int(priority) and 0 <= int(priority) <= INT_MAX:
        system.priority = int(priority)
    topic, message_id = properties.get(keys_of.DLQ_ORIGIN_TOPIC), properties.get(keys_of.DLQ_ORIGIN_MESSAGE_ID)
    if topic is not None and message_id is not None:
        system.dead_letter_queue.topic = topic
        system.dead_letter_queue.message_id = message_id


def _delivery_ms(properties: Mapping[str, str], born_ms: int) -> int | None:
    """Return the sender's delivery time, None without a readable one.

    Java: a delay counts from the reception, and an unreadable one ends the whole answer.
    """
    delay, time = properties.get(keys_of.TIMER_DELAY_SEC), properties.get(keys_of.TIMER_DELIVER_MS, "")
    if delay is not None:
        ms = born_ms + int(delay) * 1000 if _is_long(delay) else -1
    else:
        ms = int(time) if _is_long(time) else -1
    return ms if 0 <= ms <= TIME_SECONDS_MAX * 1000 else None
