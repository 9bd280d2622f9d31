"""Header of the send request, and the receipt that its answer becomes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from firearrow.client.queues import Queue
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue


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
