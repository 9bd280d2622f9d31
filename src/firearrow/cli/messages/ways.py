"""Way of a message: its sender, the place where it is stored, and the progress of each group with it.

The facts come from the record itself, from the trace topic if clients write traces, from the offsets of all groups at
the message's broker (one request), and from the copies in topics of retries and dead letters, which keep the
producer's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.diagnosis.findings import counted
from firearrow.client.tracing.records import TraceStep, steps_in
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.wire.client_bodies import OffsetWrapper
from firearrow.wire.codes import BY_UNIQUE_KEY

COLUMNS: Final = ("at", "step", "group", "place", "state", "text", "messageId")
GROUPS_MAX: Final = 20
"""Groups whose copies of the message are looked for; each costs some requests."""
COPIES_MAX: Final = 32
POSITIONS_SECONDS: Final = 5.0
GOOD, WAITS, BAD, PLAIN = "good", "warn", "bad", "plain"


class Step(NamedTuple):
    """A station of the way; ``state`` is good, warn, bad or plain."""

    at_ms: int
    step: str
    group: str | None
    place: str | None
    state: str
    text: str
    message_id: str | None = None

    @property
    def cells(self) -> list[Cell]:
        """Values for `COLUMNS`."""
        return [as_moment(self.at_ms), *self[1:]]


async def way_of(admin: Admin, message: MessageView) -> Table:
    """Give the way of a message, of a retry or a dead letter from its origin on."""
    notes: list[str] = []
    message = await _origin(admin, message, notes)
    traced = await _traced(admin, message, notes)
    steps = [*_sent(message, traced), *await _groups(admin, message, traced, notes)]
    return Table("Way", COLUMNS, [step.cells for step in steps], " ".join(notes))


async def _origin(admin: Admin, message: MessageView, notes: list[str]) -> MessageView:
    found = message.properties
    topic, message_id = found.get(keys_of.RETRY_TOPIC), found.get(keys_of.ORIGIN_MESSAGE_ID)
    if not (names.is_retry(message.topic) or names.is_dlq(message.topic)) or not message_id:
        return message
    try:
        return await admin.messages.view(message_id, topic)
    except (OSError, FirearrowError):
        notes.append(f"The message of topic {topic!r} that this is a copy of is no longer stored.")
        return message


async def _traced(admin: Admin, message: MessageView, notes: list[str]) -> list[TraceStep]:
    if message.unique_key is None:
        return []
    since = message.born_timestamp_ms - 60_000
    try:
        found = await admin.find(names.TRACE_TOPIC, message.unique_key, since_ms=since)
    except TopicNotFound:
        notes.append("No topic of traces exists, so who consumed it is known from offsets only.")
        return []
    except (OSError, FirearrowError):
        return []
    return [step for trace in found for step in steps_in(trace, message.unique_key)]


def _sent(message: MessageView, traced: Iterable[TraceStep]) -> list[Step]:
    found = message.properties
    sends = [step for step in traced if step.kind == "Pub"]
    group = next((step.group for step in sends), None) or found.get(keys_of.PRODUCER_GROUP)
    took = f", in {sends[0].cost_ms} ms" if sends else ""
    place = f"{message.topic}/{message.queue_id}/{message.queue_offset}"
    steps = [Step(message.born_timestamp_ms, "sent", group, str(message.born_host), PLAIN, f"Sent{took}.")]
    due = found.get(keys_of.TIMER_OUT_MS, "")
    waits = message.topic in (names.TIMER_TOPIC, names.SCHEDULE_TOPIC)
    if due.isascii() and due.isdecimal() and len(due) < 15:
        text = "Waits for this time." if waits else "Waited for this time."
        steps.append(Step(int(due), "delayed", None, None, WAITS if waits else PLAIN, text))
    elif level := found.get(keys_of.DELAY_LEVEL):
        steps.append(Step(0, "delayed", None, None, PLAIN, f"Waited as long as delay level {level} says."))
    text = "Stored until it is delivered." if waits else "Stored for its groups."
    stored = Step(message.store_timestamp_ms, "stored", None, place, GOOD, text, message.offset_message_id)
    return [steps[0], stored, *steps[1:]] if waits else [*steps, stored]


async def _groups(admin: Admin, message: MessageView, traced: Sequence[TraceStep], notes: list[str]) -> list[Step]:
    positions = await _positions(admin, message, notes)
    by_trace = {step.group for step in traced if step.kind == "Sub" and step.group}
    mine = {group: at for (group, topic, queue), at in positions.items() if (topic, queue) == _queue_of(message)}
    groups = sorted({*mine, *by_trace})
    if len(groups) > GROUPS_MAX:
        notes.append(f"Retries and dead letters are looked for in the first {GROUPS_MAX} of {len(groups)} groups.")
    examined = groups[:GROUPS_MAX]
    found = dict(zip(examined, await concurrently(examined, lambda it: _of_group(admin, message, it)), strict=True))
    if not groups:
        notes.append("No group has consumed anything of its queue.")
    steps: list[Step] = []
    for group in groups:
        tries = sorted(_tries(group, traced), key=lambda step: step.at_ms)
        copies = sorted(found.get(group, []), key=lambda step: step.at_ms)
        steps += [*tries, *copies, _end(message, group, mine.get(group), [*tries, *copies], positions)]
    return steps


async def _positions(admin: Admin, message: MessageView, notes: list[str]) -> dict[tuple[str, str, int], OffsetWrapper]:
    """Give the offsets of all groups at the broker of a message, by group, topic and queue."""
    try:
        found = await admin.offsets.positions(str(message.store_host), POSITIONS_SECONDS)
    except (OSError, FirearrowError) as error:
        notes.append(f"The broker does not tell the offsets of groups: {error}")
        return {}
    return {(group, queue.topic, queue.queue_id): at for group, queue, at in found}


def _queue_of(message: MessageView) -> tuple[str, int]:
    return message.topic, message.queue_id


def _tries(group: str, traced: Iterable[TraceStep]) -> list[Step]:
    return [
        Step(
            step.time_ms,
            "tried",
            group,
            step.host,
            GOOD if step.succeeded else BAD,
            f"{'Consumed' if step.succeeded else 'Failed'} in {step.cost_ms} ms.",
        )
        for step in traced
        if step.kind == "Sub" and step.group == group
    ]


async def _of_group(admin: Admin, message: MessageView, group: str) -> list[Step]:
    """Give the copies of a message in a group's topics of retries and dead letters."""
    topics = (
        names.retry_topic(group),
        names.pop_retry_topic(message.topic, group),
        names.pop_retry_topic(message.topic, group, v2=True),
        names.dlq_topic(group),
    )
    steps: list[Step] = []
    for topic in topics:
        for copy in await _copies(admin, message, topic):
            place = f"{topic}/{copy.queue_id}/{copy.queue_offset}"
            dead = names.is_dlq(topic)
            text = "A dead letter since then." if dead else f"Stored for try {copy.reconsume_times + 1}."
            kind, state = ("dead", BAD) if dead else ("retry", WAITS)
            steps.append(Step(copy.store_timestamp_ms, kind, group, place, state, text, copy.offset_message_id))
    return steps


async def _copies(admin: Admin, message: MessageView, topic: str) -> list[MessageView]:
    key = message.unique_key
    if key is None:
        return []
    with suppress(OSError, FirearrowError):  # the group has no such topic, or no such copy
        found = await admin.find(
            topic, key, by=BY_UNIQUE_KEY, count=COPIES_MAX, since_ms=message.store_timestamp_ms - 1
        )
        return [copy for copy in found if copy.properties.get(keys_of.RETRY_TOPIC, message.topic) == message.topic]
    return []


def _end(
    message: MessageView,
    group: str,
    at: OffsetWrapper | None,
    before: Sequence[Step],
    positions: Mapping[tuple[str, str, int], OffsetWrapper],
) -> Step:
    """Give the present state of a group."""
    dead = any(step.step == "dead" for step in before)
    if dead:
        return Step(0, "end", group, None, BAD, "Given up: it is a dead letter.")
    retried = [step for step in before if step.step == "retry"]
    succeeded = [step for step in before if step.step == "tried" and step.state == GOOD]
    if at is None:
        return Step(0, "end", group, None, PLAIN, "The group has no offset in this queue.")
    if at.consumer_offset <= message.queue_offset:
        behind = message.queue_offset - max(at.consumer_offset, 0)
        first = counted(behind, "message of the queue comes", "messages of the queue come")
        text = f"Not consumed: {first} first." if behind else "Not consumed: it is next."
        return Step(0, "end", group, None, WAITS, text)
    if retried and not succeeded:
        topic, queue, offset = str(retried[-1].place).rsplit("/", 2)
        last = positions.get((group, topic, int(queue)))
        if last is None or last.consumer_offset <= int(offset):
            return Step(0, "end", group, None, WAITS, f"Waits for try {len(retried) + 1}.")
    text = "Consumed." if succeeded or not before else "Consumed after retries."
    return Step(0, "end", group, None, GOOD, text if before else "Consumed, or passed over by its filter.")
