"""Message as an application gets it: its body as it was sent, and names without a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, overload

import msgspec
from msgspec.structs import replace

from firearrow.client.queues import Queue
from firearrow.errors import MessageError
from firearrow.message import properties as keys_of
from firearrow.message import properties as properties_codec
from firearrow.message.batch import split_batch
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView, NewMessage
from firearrow.message.names import is_retry, without_namespace
from firearrow.message.record import decode_record, record_heads
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP

T = TypeVar("T")

SHOWN_CHARACTERS: Final = 60  # of a body, in ``repr``
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Message(msgspec.Struct, eq=False, gc=False):
    """Received message.

    ``topic`` is the topic of the send, also after a redelivery from a retry topic. ``queue`` is its queue, by the
    topic's name at the broker. ``view`` is the broker's record, which is read when other fields are needed. Two
    messages are equal if they are the same record.
    """

    _record: bytes
    queue: Queue
    queue_offset: int
    """Offset in its queue."""
    reconsume_times: int
    """Count of failures in the group."""
    topic: str
    body: bytes
    _view: MessageView | None = None

    @property
    def view(self) -> MessageView:
        """Record as the broker stores it."""
        view = self._view
        if view is None:
            view = self._view = decode_record(self._record)
            self._record = b""
        return view

    @classmethod
    def received(cls, view: MessageView, broker: str, namespace: str = "") -> Message:
        """Message of a broker's record. Raises MessageError if its body can't be decompressed."""
        topic = view.topic
        if is_retry(topic):
            topic = view.properties.get(keys_of.RETRY_TOPIC, topic)
        if namespace:
            topic = without_namespace(namespace, topic)
        body = view.body_decompressed() if view.sys_flag & 1 else view.body
        queue = Queue(view.topic, broker, view.queue_id)
        return cls(b"", queue, view.queue_offset, view.reconsume_times, topic, body, view)

    # --- values of the sender ---

    @property
    def tag(self) -> str | None:
        """Tag, for the filters of subscriptions."""
        return self.view.properties.get(keys_of.TAGS)

    @property
    def keys(self) -> list[str]:
        """Words for looking the message up."""
        return self.view.keys

    @property
    def sharding_key(self) -> str | None:
        """Key that chose its queue."""
        return self.view.properties.get(keys_of.SHARDING_KEY)

    @property
    def properties(self) -> dict[str, str]:
        """The application's properties and RocketMQ's."""
        return self.view.properties

    @property
    def born_at(self) -> datetime:
        """Time of the send, by the sender's clock."""
        return _moment(self.view.born_timestamp_ms)

    @property
    def born_host(self) -> Host:
        """Address of the sender."""
        return self.view.born_host

    # --- values of the broker ---

    @property
    def message_id(self) -> str:
        """Id from its sender, or otherwise the address of its record."""
        return self.view.unique_key or self.view.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Id that is the address of its record."""
        return self.view.offset_message_id

    @property
    def stored_at(self) -> datetime:
        """Time of storage at the broker."""
        return _moment(self.view.store_timestamp_ms)

    # --- copies ---

    def copy(self) -> NewMessage:
        """Message to send, with the sender's body, tag, keys and properties.

        RocketMQ's own properties are left out: with them, a copy may arrive too early, or never.
        """
        return self.view.copy(self.topic)

    # --- body ---

    def text(self, encoding: str = "utf-8") -> str:
        """Body as text. Raises MessageError if it is not text."""
        try:
            return self.body.decode(encoding)
        except UnicodeDecodeError as error:
            raise self._unreadable(f"is not {encoding} text: {error}") from error

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """JSON of the body as a value of a type that msgspec knows. Raises MessageError if it does not fit.

        ``kind`` may be a ``msgspec.Struct``, a dataclass, a ``TypedDict`` or many other types.
        """
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            name = getattr(kind, "__name__", str(kind))
            raise self._unreadable(f"is not JSON of {name}: {error}") from error

    def _unreadable(self, why: str) -> MessageError:
        return MessageError(f"message {self.message_id} of topic {self.topic!r} {why}", "body")

    # --- comparison ---

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[Queue, int, str]:
        return self.queue, self.queue_offset, self.offset_message_id

    def __repr__(self) -> str:
        queue = self.queue
        words = [f"{self.topic} {queue.broker}/{queue.queue_id}@{self.queue_offset}"]
        if queue.topic != self.topic:
            words.append(f"from={queue.topic}")
        words += [f"tag={self.tag}"] if self.tag else []
        words += [f"keys={','.join(self.keys)}"] if self.keys else []
        words += [f"again={self.reconsume_times}"] if self.reconsume_times else []
        words += [f"id={self.message_id}", f"born={self.born_at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"]
        return f"<Message {' '.join(words)} {shown(self.body)}>"


def shown(body: bytes) -> str:
    """Body for people to read: its size and its beginning."""
    text = body[: SHOWN_CHARACTERS * 4].decode("utf-8", "replace")
    if not text.isprintable():
        text = body[: SHOWN_CHARACTERS // 2].hex()
        cut = len(body) > SHOWN_CHARACTERS // 2
    else:
        cut = len(text) > SHOWN_CHARACTERS or len(body) > SHOWN_CHARACTERS * 4
        text = repr(text[:SHOWN_CHARACTERS])
    return f"{len(body)} B {text}{'…' if cut else ''}".rstrip()


def _moment(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


# --- messages in the answer to a pull or a pop ---
#
# Inner batches (records of several messages, in topics with batch queues) are unpacked, since each message has its own
# queue offset.


_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP
_SPECIAL: Final = _WRAPPED | COMPRESSED


def messages_in(body: bytes, broker: str, namespace: str = "") -> list[Message]:
    """Read the messages of an answer. Raises MessageError for a damaged record or body."""
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
    """Messages of a record that must be decoded."""
    if view.sys_flag & _WRAPPED == _WRAPPED:
        return [Message.received(one, broker, namespace) for one in unwrapped(view)]
    return [Message.received(view, broker, namespace)]


def unwrapped(view: MessageView) -> Iterator[MessageView]:
    """Yield the messages of an inner batch; MessageError if its body is damaged."""
    for number, member in enumerate(split_batch(view.body_decompressed())):
        yield replace(
            view,
            body=member.body,
            flag=member.flag,
            properties=properties_codec.parse(member.properties),
            sys_flag=view.sys_flag & ~(COMPRESSED | _WRAPPED),
            queue_offset=view.queue_offset + number,
        )
