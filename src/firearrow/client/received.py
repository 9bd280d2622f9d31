"""The messages in an answer to a pull or a pop.

An inner batch (a record of several messages, of topics with queues of batches) is taken apart:
each of its messages has a queue offset of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.message import properties as properties_codec
from firearrow.message.batch import split_batch
from firearrow.message.model import MessageView
from firearrow.message.names import is_retry, without_namespace
from firearrow.message.record import decode_record, record_heads
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP

_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP
_SPECIAL: Final = _WRAPPED | COMPRESSED


def messages_in(body: bytes, broker: str, namespace: str = "") -> list[Message]:
    """Read the messages of an answer; MessageError if a record or a body is damaged."""
    messages: list[Message] = []
    queue, topic, is_plain = Queue("", broker, 0), "", False
    known_topic, known_id = "", 0
    for at, end, name, queue_id, queue_offset, sys_flag, times, data in record_heads(body):
        if queue_id != known_id or name != known_topic:
            known_topic, known_id = name, queue_id
            queue = Queue(name, broker, queue_id)
            topic = without_namespace(namespace, name) if namespace else name
            is_plain = not is_retry(name)
        if is_plain and not sys_flag & _SPECIAL:
            messages.append(Message(body[at:end], queue, queue_offset, times, topic, data))
        else:
            messages += _messages_of(decode_record(body, at, end), broker, namespace)
    return messages


def _messages_of(view: MessageView, broker: str, namespace: str) -> list[Message]:
    """The messages of a record that has to be read for that."""
    if view.sys_flag & _WRAPPED == _WRAPPED:
        return [Message.received(one, broker, namespace) for one in _unwrapped(view)]
    return [Message.received(view, broker, namespace)]


def _unwrapped(view: MessageView) -> Iterator[MessageView]:
    for number, member in enumerate(split_batch(view.body_decompressed())):
        yield replace(
            view,
            body=member.body,
            flag=member.flag,
            properties=properties_codec.parse(member.properties),
            sys_flag=view.sys_flag & ~(COMPRESSED | _WRAPPED),
            queue_offset=view.queue_offset + number,
        )
