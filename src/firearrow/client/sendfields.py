"""The header of a send, whoever sends."""

from __future__ import annotations

from typing import Final

from firearrow.client.queues import Queue
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.wire.command import FieldValue

NEW_TOPIC_QUEUES: Final = 4  # what producers ask for of a topic that their message creates
_NEW_TOPIC_QUEUES: Final = str(NEW_TOPIC_QUEUES)


def send_fields(
    group: str, queue: Queue, now_ms: int, *, batch: bool, sys_flag: int = 0, flag: int = 0, properties: str = ""
) -> dict[str, FieldValue]:
    """The fields of a send in their short form; those of a batch have no flags.

    All is text already: this is asked for with each message.

    Source: upstream ``SendMessageRequestHeaderV2``.
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
