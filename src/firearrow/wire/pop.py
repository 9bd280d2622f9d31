"""Texts that clients and broker exchange about popped messages, one line each.

A *handle* names a message that was popped. Clients write one for each message (property ``POP_CK``). They send it back
to acknowledge the message or to change its invisible time:

    <start offset> <pop time> <invisible time> <revive queue> <origin> <broker> <queue> <offset>

    7 1700000000000 60000 3 0 broker-a 2 9

*Start offset* is the first queue offset of the pop's batch; times are in ms. *Revive queue* is the queue where the
broker keeps its books of the batch (`ORDER_REVIVE_QUEUE`: in the state of the order). *Origin* names the topic of the
message: 0 the topic that was popped, 1 the group's retry topic of it, 2 the retry topic of the second form.

An answer to a pop has for each queue the parts that clients build handles from, joined by ``;``:

    startOffsetInfo   <origin> <queue> <start offset>
    msgOffsetInfo     <origin> <queue> <offset>,<offset>…
    orderCountInfo    <origin> <queue> <count>  and  <origin> qo<queue>%<offset> <count>

The last exists only for pops in order: the count of earlier pops of a message, or of every message of a queue.

Source: RocketMQ's ``ExtraInfoUtil``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.errors import MessageError
from firearrow.javanumbers import INT_MAX, LONG_MAX
from firearrow.message import names
from firearrow.wire.client_bodies import BatchAck

HANDLE_CHARS_MAX: Final = 1024
ANY_QUEUE: Final = -1  # the queue id of a request for any queue of a topic
ORDER_REVIVE_QUEUE: Final = 999  # in place of a revive queue: popped in order
TOPIC, RETRY_V1, RETRY_V2 = range(3)  # origins of a popped message


class Handle(NamedTuple):
    """Name of a popped message; see above."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    origin: int
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def is_ordered(self) -> bool:
        """True if the message was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @property
    def visible_ms(self) -> int:
        """Time when the message can be popped again unless it was acknowledged."""
        return self.pop_ms + self.invisible_ms

    @property
    def head(self) -> str:
        """All but the queue offset, which is the same for all messages of a pop in one queue."""
        return (
            f"{self.start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.origin} {self.broker_name} {self.queue_id}"
        )

    def __str__(self) -> str:
        """The handle on the wire."""
        return f"{self.head} {self.queue_offset}"


def split_handle(text: str) -> str:
    """Return the `Handle.head` of a handle with or without a queue offset at its end."""
    return text.rpartition(" ")[0] if text.count(" ") == 7 else text


def parse_handle(text: str, queue_offset: int = -1) -> Handle:
    """Read a handle; raises MessageError if it is none.

    A handle may end before the queue's offset, which then is ``queue_offset``.
    """
    if len(text) > HANDLE_CHARS_MAX:
        raise MessageError(f"a handle of {len(text)} characters")
    words = text.split(" ")
    if len(words) == 7:
        words.append(str(queue_offset))
    return handle_in(words, text)


def handle_in(words: Sequence[str], text: str) -> Handle:
    """Read the handle at the beginning of the words of a text; MessageError if there is none."""
    try:
        start, pop, invisible, revive, origin, broker_name, queue_id, offset, *_ = words
        start_offset, pop_ms, invisible_ms, queue_offset = int(start), int(pop), int(invisible), int(offset)
        revive_queue_id, kind, queue = int(revive), int(origin), int(queue_id)
    except ValueError:
        raise MessageError(f"not the handle of a popped message: {text[:200]!r}") from None
    if not (  # each by its own: half the time of a loop over them
        -LONG_MAX <= start_offset <= LONG_MAX
        and -LONG_MAX <= pop_ms <= LONG_MAX
        and -LONG_MAX <= invisible_ms <= LONG_MAX
        and -LONG_MAX <= queue_offset <= LONG_MAX
        and 0 <= revive_queue_id <= INT_MAX
        and 0 <= kind <= RETRY_V2
        and 0 <= queue <= INT_MAX
        and broker_name.isprintable()  # it becomes part of a property
    ):
        raise MessageError(f"a number of the handle is out of range: {text[:200]!r}")
    return Handle(start_offset, pop_ms, invisible_ms, revive_queue_id, kind, broker_name, queue, queue_offset)


def origin_of(topic: str) -> int:
    """Return the origin of a popped message: the kind of its topic."""
    if not names.is_retry(topic):
        return TOPIC
    return RETRY_V2 if names.is_pop_retry_v2(topic) else RETRY_V1


def origin_topic(topic: str, group: str, origin: int) -> str:
    """Return the topic that holds a message popped from ``topic``."""
    if origin == TOPIC:
        return topic
    return names.pop_retry_topic(topic, group, v2=origin == RETRY_V2)


def parse_start_offsets(text: str) -> dict[tuple[int, int], int]:
    """Read startOffsetInfo: the start offset by origin and queue; raises MessageError if it is none."""
    return {(int(origin), int(queue)): int(offset) for origin, queue, offset in _items(text, "startOffsetInfo")}


def parse_offsets(text: str) -> dict[tuple[int, int], list[int]]:
    """Read msgOffsetInfo: the offsets of messages by origin and queue; raises MessageError if it is none."""
    return {
        (int(origin), int(queue)): [int(offset) for offset in offsets.split(",")]
        for origin, queue, offsets in _items(text, "msgOffsetInfo")
    }


def parse_order_counts(text: str) -> dict[tuple[int, str], int]:
    """Read orderCountInfo: the count of earlier pops by origin and queue (``3``) or message (``qo3%17``).

    Raises MessageError if it is none.
    """
    return {(int(origin), place): int(count) for origin, place, count in _counts(text)}


def _counts(text: str) -> Iterator[list[str]]:
    for item in filter(None, text.split(";")):
        fields = item.split(" ")
        if len(fields) != 3 or not (_is_number(fields[0]) and _is_number(fields[2])):
            raise MessageError(f"not orderCountInfo: {text[:200]!r}")
        yield fields


def _items(text: str, what: str) -> Iterator[tuple[str, ...]]:
    for item in filter(None, text.split(";")):
        found = _item(item)
        if found is None:
            raise MessageError(f"not {what}: {text[:200]!r}")
        yield found.groups()


_item: Final = re.compile(r"(-?[0-9]+) (-?[0-9]+) (-?[0-9]+(?:,-?[0-9]+)*)").fullmatch


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def batch_acks(group: str, topic: str, handles: Iterable[Handle]) -> list[BatchAck]:
    """Return the items that acknowledge messages popped from ``topic`` together (200151): one for each pop of each
    queue."""
    together: dict[str, list[Handle]] = {}
    for handle in handles:
        together.setdefault(handle.head, []).append(handle)
    return [_batch_ack(group, topic, some) for some in together.values()]


def _batch_ack(group: str, topic: str, handles: Sequence[Handle]) -> BatchAck:
    first = handles[0]
    assert all(handle[:-1] == first[:-1] for handle in handles), "they are of one pop of one queue"
    bits = 0
    for handle in handles:
        bits |= 1 << (handle.queue_offset - first.start_offset)
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return BatchAck(
        group,
        topic,
        first.start_offset,
        first.queue_id,
        first.revive_queue_id,
        first.pop_ms,
        first.invisible_ms,
        str(first.origin),
        b64encode(data).decode(),
    )


def start_offset_info(origin: int, queue_id: int, start_offset: int) -> str:
    """Return a queue's item of startOffsetInfo."""
    return f"{origin} {queue_id} {start_offset}"


def msg_offset_info(origin: int, queue_id: int, offsets: Iterable[int]) -> str:
    """Return a queue's item of msgOffsetInfo."""
    return f"{origin} {queue_id} {','.join(map(str, offsets))}"


def order_count_infos(origin: int, queue_id: int, offsets: Sequence[int], counts: Mapping[int, int]) -> list[str]:
    """Return a queue's items of orderCountInfo.

    They hold the count of earlier pops of each message with any, and the smallest count, for clients that can read
    only that.
    """
    assert len(counts) <= len(offsets), "only these messages have counts"
    infos = [f"{origin} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    least = min(counts.values()) if len(counts) == len(offsets) else 0
    return [*infos, f"{origin} {queue_id} {least}"]
