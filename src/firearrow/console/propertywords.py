"""Properties of messages in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.cli.output.reports import Cell, Table, as_moment, in_time, shown
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView

COLUMNS: Final = ("property", "value", "meaning")
OF_SENDER: Final = "Set by the sender."
_MS_DIGITS_MAX: Final = 15

TIMES: Final = frozenset(
    {
        keys_of.TIMER_DELIVER_MS, keys_of.TIMER_OUT_MS, keys_of.TIMER_ENQUEUE_MS, keys_of.TIMER_DEQUEUE_MS,
        keys_of.BORN_TIMESTAMP, keys_of.FIRST_POP_TIME, keys_of.PUSH_REPLY_TIME, "ARRIVE_TIME", "CONSUME_START_TIME",
    }
)  # fmt: skip
"""Properties whose value is a time in ms."""
DURATIONS: Final[Mapping[str, int]] = {
    keys_of.TIMER_DELAY_SEC: 1,
    keys_of.TIMER_DELAY_MS: 1000,
    keys_of.CHECK_IMMUNITY_SEC: 1,
    keys_of.REPLY_TTL: 1000,
}
"""Properties whose value is a duration, with the parts of a second that it counts."""

MEANINGS: Final[Mapping[str, str]] = {
    keys_of.KEYS: "Words to find it by: brokers index them.",
    keys_of.TAGS: "Tag, which subscriptions filter by.",
    keys_of.WAIT_STORE: "“false”: the broker answered before the message was on disk.",
    keys_of.SHARDING_KEY: "Messages with the same word are in one queue, in order.",
    keys_of.PRIORITY: "Priority: a higher number is delivered first.",
    keys_of.LITE_TOPIC: "Lite topic of the message below its topic.",
    keys_of.INNER_MULTI_DISPATCH: "Light queues that have the message, too.",
    keys_of.INNER_MULTI_QUEUE_OFFSET: "Its offsets in those light queues.",
    keys_of.TRACE_CONTEXT: "Context of a trace, set by the sender's tracing.",
    "traceparent": "Context of a trace (W3C): version, trace, span, flags.",
    "tracestate": "More context of a trace (W3C), by vendor.",
    "b3": "Context of a trace (Zipkin).",
    "uber-trace-id": "Context of a trace (Jaeger).",
    keys_of.UNIQUE_KEY: "Id that the sender's client gave it; retries and dead letters keep it.",
    keys_of.EXTEND_UNIQUE_INFO: "More of the client's id.",
    keys_of.INSTANCE_ID: "Namespace of the sender.",
    keys_of.CLUSTER: "Cluster that stored it.",
    keys_of.MSG_REGION: "Region of the broker that stored it.",
    keys_of.TRACE_ON: "Says if clients record traces of it.",
    keys_of.BORN_HOST: "Address of the sender, behind a proxy.",
    keys_of.BORN_TIMESTAMP: "Time of the send.",
    keys_of.DUP_INFO: "Number that a consumer can detect a copy by.",
    keys_of.CRC32: "Checksum of the properties.",
    keys_of.DELAY_LEVEL: "Delay level: the broker waited as long as this level says.",
    keys_of.TIMER_DELIVER_MS: "Time that the sender wants it delivered at.",
    keys_of.TIMER_DELAY_SEC: "Delay that the sender wants.",
    keys_of.TIMER_DELAY_MS: "Delay that the sender wants.",
    keys_of.TIMER_OUT_MS: "Time of its delivery, rounded up to the timer's precision.",
    keys_of.TIMER_ENQUEUE_MS: "Time when the timer read it.",
    keys_of.TIMER_DEQUEUE_MS: "Time when the timer delivered it.",
    keys_of.TIMER_ROLL_TIMES: "Times that the timer wrote it again, because it waits for long.",
    keys_of.TIMER_DELETE_UNIQUE_KEY: "It recalls the waiting message with this id.",
    keys_of.TIMER_DELAY_LEVEL: "Delay level, as the timer carries it out.",
    keys_of.TIMER_ENGINE: "Storage of the timer that has it: F for files, R for RocksDB.",
    keys_of.REAL_TOPIC: "Topic that gets it when the broker is done with it.",
    keys_of.REAL_QUEUE_ID: "Queue that gets it then.",
    keys_of.FORWARD_QUEUE_ID: "Queue that an acting broker forwards it to.",
    keys_of.RETRY_TOPIC: "Topic of the message that this is a retry or a dead letter of.",
    keys_of.ORIGIN_MESSAGE_ID: "Id by offset of the message that this is a copy of.",
    keys_of.RECONSUME_TIME: "Times that consumers failed with it.",
    keys_of.MAX_RECONSUME_TIMES: "Retries until it is a dead letter.",
    keys_of.ORIGIN_GROUP: "Group that failed with it.",
    keys_of.DLQ_ORIGIN_TOPIC: "Topic that this dead letter comes from.",
    keys_of.DLQ_ORIGIN_MESSAGE_ID: "Id of the message that this dead letter is a copy of.",
    keys_of.TRANSACTION_PREPARED: "A message of a transaction: consumers get it after the commit.",
    keys_of.PRODUCER_GROUP: "Producer group, whose clients answer checks of the transaction.",
    keys_of.TRANSACTION_ID: "Id of its transaction.",
    keys_of.CHECK_IMMUNITY_SEC: "Time without checks of the transaction.",
    keys_of.TRANSACTION_CHECK_TIMES: "Times that the broker checked the transaction.",
    keys_of.TRANSACTION_PREPARED_QUEUE_OFFSET: "Offset of the first copy of this half.",
    keys_of.CORRELATION_ID: "Pairs a request with its reply.",
    keys_of.REPLY_TO_CLIENT: "Client that waits for the reply.",
    keys_of.REPLY_TTL: "Time that the client waits for the reply.",
    keys_of.MESSAGE_TYPE: "“reply”: it answers a request.",
    keys_of.PUSH_REPLY_TIME: "Time when a broker passed the reply on.",
    "ARRIVE_TIME": "Time when the reply arrived at the broker.",
    keys_of.POP_CHECKPOINT: "Handle of its receipt, for a POP consumer.",
    keys_of.FIRST_POP_TIME: "Time when a POP consumer got it first.",
    keys_of.MIN_OFFSET: "First offset of the queue, as the client saw it.",
    keys_of.MAX_OFFSET: "Last offset of the queue, as the client saw it.",
    "CONSUME_START_TIME": "Time when the consumer began with it.",
    keys_of.INNER_NUM: "Messages in this record: it is an inner batch.",
    keys_of.INNER_BASE: "Queue offset of the first message in this record.",
    keys_of.RESENT_ID: "A copy of this dead letter: broker/topic/queue/offset.",
}
"""Meaning of each property that clients and brokers set."""


def table_of(message: MessageView) -> Table:
    """Give the properties of a message: first the sender's, then the properties with a known meaning."""
    found = message.properties
    own = sorted(name for name in found if name not in MEANINGS)
    known = sorted(name for name in found if name in MEANINGS)
    rows: list[list[Cell]] = [[name, found[name], _meaning(name, found[name])] for name in (*own, *known)]
    return Table("Properties", COLUMNS, rows)


def _meaning(name: str, value: str) -> str:
    text = MEANINGS.get(name, OF_SENDER)
    if not (value.isascii() and value.isdecimal() and len(value) < _MS_DIGITS_MAX):
        return text
    if name in TIMES:
        return f"{text.removesuffix('.')}: {shown('', as_moment(int(value)))}."
    if name in DURATIONS:
        return f"{text.removesuffix('.')}: {in_time(int(value) / DURATIONS[name])}."
    return text
