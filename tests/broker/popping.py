"""Pops and acknowledgements of a test's client, as RocketMQ's clients make them."""

from __future__ import annotations

from typing import Any

from firearrow.message.model import MessageView
from firearrow.message.names import is_retry, revive_topic
from firearrow.message.record import iter_records
from firearrow.wire.command import Command, FieldValue
from firearrow.wire.pop import Handle, origin_topic
from tests.broker.serving import Caller, Serving, stored

REVIVE_TOPIC = revive_topic("C")
INVISIBLE_MS = 60_000


def pop_fields(**changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of 200050: all of topic T for group g, from the first on."""
    fields: dict[str, FieldValue] = {
        "consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS, "pollTime": 0, "bornTime": 0, "initMode": 0,
        "expType": "TAG", "exp": "*", "order": False,
    }  # fmt: skip
    return fields | changed


async def pop(caller: Caller, **changed: FieldValue) -> Command[Any]:
    """Pop with some fields changed."""
    return await caller.call(200050, pop_fields(**changed))


async def popped(caller: Caller, **changed: FieldValue) -> list[tuple[MessageView, Handle]]:
    """Pop some messages, with a handle of each as RocketMQ's client makes it."""
    answer = await pop(caller, **changed)
    return [] if answer.code == 210 else messages_of(answer, str(changed.get("topic", "T")))


def messages_of(answer: Command[Any], topic: str = "T", group: str = "g") -> list[Any]:
    """The messages of an answer, each with its handle."""
    assert answer.code == 0, answer
    starts: dict[tuple[int, int], int] = {}
    for item in answer.ext["startOffsetInfo"].split(";"):
        origin, queue_id, start = map(int, item.split(" "))
        assert (origin, queue_id) not in starts
        starts[origin, queue_id] = start
    offsets = []
    for item in answer.ext["msgOffsetInfo"].split(";"):
        origin, queue_id, listed = item.split(" ")
        offsets += [(int(origin), int(queue_id), int(offset)) for offset in listed.split(",")]
    pop_ms, invisible_ms, revive = (int(answer.ext[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
    found = []
    for view, (origin, queue_id, offset) in zip(iter_records(answer.body), offsets, strict=True):
        start = starts[origin, queue_id]
        handle = Handle(start, pop_ms, invisible_ms, revive, origin, "broker-a", queue_id, offset)
        assert (view.queue_id, view.queue_offset) == (queue_id, offset)
        assert view.topic == topic
        if origin and not is_retry(topic):
            assert view.properties["POP_CK"] == str(handle)
        found.append((view, handle))
    return found


def ack_fields(handle: Handle, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of 200051, and most of those of 200053."""
    fields: dict[str, FieldValue] = {
        "consumerGroup": "g", "topic": origin_topic("T", "g", handle.origin),
        "queueId": handle.queue_id, "extraInfo": str(handle), "offset": handle.queue_offset,
    }  # fmt: skip
    return fields | changed


async def ack(caller: Caller, handle: Handle, **changed: FieldValue) -> Command[Any]:
    """Acknowledge a message."""
    return await caller.call(200051, ack_fields(handle, **changed))


def revive_records(served: Serving) -> list[MessageView]:
    """The records of all revive queues that were delivered."""
    return [view for queue_id in range(8) for view in stored(served, REVIVE_TOPIC, queue_id)]
