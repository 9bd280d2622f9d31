r"""Records of a message trace: sends and consumptions, their times and results.

A record is its fields with 0x01 between them and 0x02 after the last. Several records are the body of a message to the
trace topic. The keys of that message are the ids and keys of the traced messages. The first field names the kind of
record. An unknown field is the text ``null``, as in Java.

==============  ==================================================================================
Pub             time, region, group, topic, id, tags, keys, store host, body bytes, cost ms, kind
                (0 normal, 1 half, 2 decided, 3 delayed, 4 ordered), offset message id, ``true``
SubBefore       time, region, group, request id, id, times consumed before, keys
SubAfter        request id, id, cost ms, success, keys, outcome (0 success, 1 too late, 2 exception,
                3 nothing returned, 4 failed), time, group
EndTransaction  time, region, group, topic, id, tags, keys, store host, kind (2), transaction id,
                state, whether the broker had asked
Recall          time, region, group, topic, id, success
==============  ==================================================================================

Older clients leave out the last fields; newer versions of RocketMQ add fields at the end.

Worked example: ``Recall\x011795000000000\x01R\x01g\x01T\x01U1\x01true\x02``.

Source: RocketMQ's ``TraceDataEncoder``, ``TraceContext``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from firearrow.message.model import MessageView

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"


class SendKind(IntEnum):
    """Kind of a sent message."""

    NORMAL = 0
    HALF = 1
    DECIDED = 2
    DELAYED = 3
    ORDERED = 4


class ConsumeReturnType(IntEnum):
    """Outcome of a consumption."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class Record(NamedTuple):
    """Record with its topic, and the words for looking it up."""

    text: str
    topic: str
    keys: tuple[str, ...]


class TraceStep(NamedTuple):
    """Send (``kind`` Pub) or consumption (Sub) of a message."""

    kind: str
    group: str | None
    host: str
    time_ms: int
    cost_ms: int
    succeeded: bool


def steps_in(trace: MessageView, message_id: str) -> list[TraceStep]:
    """Read the steps of one message from a message of the trace topic."""
    text = trace.body_decompressed().decode("utf-8", "replace")
    host = trace.born_host.ip
    steps = [_step(record.split(FIELD_END), message_id, host) for record in text.split(RECORD_END)]
    return [step for step in steps if step is not None]


def _step(fields: list[str], message_id: str, host: str) -> TraceStep | None:
    while fields and not fields[-1]:
        fields.pop()
    if fields[:1] == ["Pub"] and len(fields) >= 12 and fields[5] == message_id:
        success_at = 12 if len(fields) == 13 else 13
        succeeded = len(fields) <= 12 or fields[success_at].lower() == "true"
        return TraceStep("Pub", fields[3], host, int(fields[1]), int(fields[10]), succeeded)
    if fields[:1] == ["SubAfter"] and len(fields) >= 6 and fields[2] == message_id:
        whole = len(fields) >= 9
        time_ms, group = (int(fields[7]), fields[8]) if whole else (0, None)
        succeeded = fields[4].lower() == "true"
        return TraceStep("Sub", group, host, time_ms, int(fields[3]), succeeded)
    return None


def _record(topic: str, message_id: str, keys: str | None, *fields: object) -> Record:
    text = FIELD_END.join(_text(field) for field in fields) + RECORD_END
    return Record(text, topic, (message_id, *(keys or "").split()))


def _text(field: object) -> str:
    if field is None:
        return "null"
    if isinstance(field, bool):
        return "true" if field else "false"
    return str(int(field)) if isinstance(field, IntEnum) else str(field)


def pub(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    kind: SendKind,
    offset_message_id: str,
) -> Record:
    """Record of a stored message. For a batch, ids and keys are lists with commas."""
    fields = time_ms, region, group, topic, message_id, tags, keys, store_host, body_bytes
    rest = cost_ms, kind, offset_message_id, True
    return _record(topic, message_id, keys, "Pub", *fields, *rest)


def sub_before(
    *,
    time_ms: int,
    region: str,
    group: str,
    request_id: str,
    topic: str,
    message_id: str,
    retry_times: int,
    keys: str | None,
) -> Record:
    """Record of a consumer's start with a message."""
    fields = time_ms, region, group, request_id, message_id, retry_times, keys
    return _record(topic, message_id, keys, "SubBefore", *fields)


def sub_after(
    *,
    time_ms: int,
    group: str,
    request_id: str,
    topic: str,
    message_id: str,
    cost_ms: int,
    success: bool,
    keys: str | None,
    outcome: ConsumeReturnType,
) -> Record:
    """Record of a consumer's end with a message."""
    fields = request_id, message_id, cost_ms, success, keys, outcome, time_ms, group
    return _record(topic, message_id, keys, "SubAfter", *fields)


def end_transaction(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    transaction_id: str | None,
    state: str,
    from_check: bool,
) -> Record:
    """Record of a decided transaction; ``state`` is a name of Java's ``LocalTransactionState``."""
    fields = time_ms, region, group, topic, message_id, tags, keys, store_host, SendKind.DECIDED
    rest = transaction_id, state, from_check
    return _record(topic, message_id, keys, "EndTransaction", *fields, *rest)


def recall(*, time_ms: int, region: str, group: str, topic: str, message_id: str, success: bool) -> Record:
    """Record of a recalled message."""
    fields = time_ms, region, group, topic, message_id, success
    return _record(topic, message_id, None, "Recall", *fields)
