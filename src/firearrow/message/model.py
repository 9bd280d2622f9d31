"""Messages as values: as an application sends one, and as the CommitLog holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from firearrow.errors import MessageError
from firearrow.message import properties as keys_of
from firearrow.message.compress import DECOMPRESSED_BYTES_MAX, decompress
from firearrow.message.hosts import Host
from firearrow.message.ids import encode_offset_id
from firearrow.message.sysflag import transaction_type

_COPIED: Final = frozenset({keys_of.TAGS, keys_of.KEYS})


class NewMessage(msgspec.Struct, frozen=True):
    """Message that an application sends.

    ``flag`` is a number that the application chooses; brokers carry it unread. `Message.of` builds a message from the
    properties that applications use most.
    """

    topic: str
    body: bytes
    properties: dict[str, str] = {}
    flag: int = 0

    @classmethod
    def of(
        cls,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        delay_level: int = 0,
        deliver_at_ms: int = 0,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> NewMessage:
        """Build a message.

        ``keys`` are searchable words. ``delay_level`` (1 to 18) and ``deliver_at_ms`` (wall clock) delay the delivery;
        0 means at once. ``properties`` are those that the application defines.
        """
        merged = dict(properties or {})
        if tags:
            merged[keys_of.TAGS] = tags
        if keys:
            merged[keys_of.KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        if delay_level:
            merged[keys_of.DELAY_LEVEL] = str(delay_level)
        if deliver_at_ms:
            merged[keys_of.TIMER_DELIVER_MS] = str(deliver_at_ms)
        return cls(topic, body, merged, flag)

    @property
    def tags(self) -> str | None:
        """The tag that subscriptions filter on."""
        return self.properties.get(keys_of.TAGS)

    @property
    def keys(self) -> list[str]:
        """The words under which the message can be found."""
        return self.properties.get(keys_of.KEYS, "").split()

    @property
    def unique_key(self) -> str | None:
        """The id that the client created, None before the message is sent."""
        return self.properties.get(keys_of.UNIQUE_KEY)


class MessageView(msgspec.Struct, frozen=True):
    """A message as the CommitLog holds it, decoded.

    ``physical_offset`` is the byte in the CommitLog, ``queue_offset`` the number in the queue. ``store_size`` is the
    size of the whole record in bytes. ``body_crc`` is the CRC-32 (31 bits) of ``body`` as stored, perhaps compressed:
    see `body_decompressed`. Times are ms since 1970.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The tag that subscriptions filter on."""
        return self.properties.get(keys_of.TAGS)

    @property
    def keys(self) -> list[str]:
        """The words under which the message can be found."""
        return self.properties.get(keys_of.KEYS, "").split()

    def copy(self, topic: str) -> NewMessage:
        """Return a message to send to a topic, with the sender's body, tag, keys and properties.

        Properties that brokers and clients have added are left out: some of them would act again.
        """
        kept = {
            name: value
            for name, value in self.properties.items()
            if name in _COPIED or (name not in keys_of.OF_BROKER and name != keys_of.RESENT_ID)
        }
        return NewMessage(topic, self.body_decompressed(), kept, self.flag)

    @property
    def unique_key(self) -> str | None:
        """The id that the client created."""
        return self.properties.get(keys_of.UNIQUE_KEY)

    @property
    def offset_message_id(self) -> str:
        """The id that names the place of the record."""
        return encode_offset_id(self.store_host, self.physical_offset)

    def offset_in(self, lmq: str) -> int:
        """Return the queue offset in an LMQ that has the message, too; MessageError if it has not."""
        queues = self.properties.get(keys_of.INNER_MULTI_DISPATCH, "").split(",")
        offsets = self.properties.get(keys_of.INNER_MULTI_QUEUE_OFFSET, "").split(",")
        try:
            return int(offsets[queues.index(lmq)])
        except (ValueError, IndexError):
            raise MessageError(f"the message is not in queue {lmq}") from None

    @property
    def transaction_type(self) -> int:
        """The transaction bits of the system flag."""
        return transaction_type(self.sys_flag)

    def body_decompressed(self, body_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
        """Return the body as its sender saw it; MessageError if it is damaged or too large."""
        return decompress(self.body, self.sys_flag, body_bytes_max)
