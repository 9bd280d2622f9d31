r"""The records of a message trace: who sent or consumed a message when, and how that went.

A record is its fields with 0x01 between them and 0x02 behind the last. Several make the body of a
message to the trace topic, whose keys are the ids and the keys of the messages in it. The first
field names the record; a field that is not known is the text ``null``, as Java writes it.

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

A client that is older leaves the last fields out; a newer one of RocketMQ puts more behind them.

Worked example: ``Recall\x011795000000000\x01R\x01g\x01T\x01U1\x01true\x02``.

Source: upstream ``TraceDataEncoder``, ``TraceContext``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from firearrow.message.model import MessageView

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"


class Kind(IntEnum):
    """Kind of a message that was sent."""

    NORMAL = 0
    HALF = 1
    DECIDED = 2
    DELAYED = 3
    ORDERED = 4


class Outcome(IntEnum):
    """Outcome of a consumption."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class Record(NamedTuple):
    """A record, the topic that it is about, and the words under which it can be found."""

    text: str
    topic: str
    keys: tuple[str, ...]


class Step(NamedTuple):
    """A send (``kind`` Pub) or a consumption (Sub) of a message."""

    kind: str
    group: str | None
    host: str
    time_ms: int
    cost_ms: int
    succeeded: bool


def steps_in(trace: MessageView, message_id: str) -> list[Step]:
    """Read the steps of one message from a message of the trace topic."""
    text = trace.body_decompressed().decode("utf-8", "replace")
    host = trace.born_host.ip
    steps = [_step(record.split(FIELD_END), message_id, host) for record in text.split(RECORD_END)]
    return [step for step in steps if step is not None]


def _step(fields: list[str], message_id: str, host: str) -> Step | None:
    while fields and not fields[-1]:
        fields.pop()
    if fields[:1] == ["Pub"] and len(fields) >= 12 and fields[5] == message_id:
        success_at = 12 if len(fields) == 13 else 13
        succeeded = len(fields) <= 12 or fields[success_at].lower() == "true"
        return Step("Pub", fields[3], host, int(fields[1]), int(fields[10]), succeeded)
    if fields[:1] == ["SubAfter"] and len(fields) >= 6 and fields[2] == message_id:
        whole = len(fields) >= 9
        time_ms, group = (int(fields[7]), fields[8]) if whole else (0, None)
        succeeded = fields[4].lower() == "true"
        return Step("Sub", group, host, time_ms, int(fields[3]), succeeded)
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
    kind: Kind,
    offset_message_id: str,
) -> Record:
    """A message was taken. Of a batch, ids and keys are lists with commas."""
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
    """A consumer has been given a message."""
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
    outcome: Outcome,
) -> Record:
    """A consumer is done with a message."""
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
    """A transaction was decided; ``state`` as Java's ``LocalTransactionState`` names it."""
    fields = time_ms, region, group, topic, message_id, tags, keys, store_host, Kind.DECIDED
    rest = transaction_id, state, from_check
    return _record(topic, message_id, keys, "EndTransaction", *fields, *rest)


def recall(*, time_ms: int, region: str, group: str, topic: str, message_id: str, success: bool) -> Record:
    """A message that waited for its time was taken back."""
    fields = time_ms, region, group, topic, message_id, success
    return _record(topic, message_id, None, "Recall", *fields)
