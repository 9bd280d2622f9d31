r"""The properties string of a message, and the keys that have a meaning.

Properties are sent and stored as text: ``key 0x01 value 0x02``, repeated; the last pair ends with 0x02 too. There is no
escape, so neither keys nor values can contain the two separators. An empty value means the same as no pair at all.
Example: ``TAGS`` = ``A`` and ``KEYS`` = ``k1``::

    54414753 01 41 02 4b455953 01 6b31 02        "TAGS\x01A\x02KEYS\x01k1\x02"

The order of the pairs has no meaning; of a repeated key, the last pair counts. Source:
MessageDecoder, MessageConst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from firearrow.errors import MessageError

NAME_END = "\x01"
PAIR_END = "\x02"

PROPERTIES_BYTES_MAX = 32_767  # the length field of a record is a signed i16

# Set by the sender's application.
KEYS = "KEYS"  # words separated by spaces, indexed
TAGS = "TAGS"
WAIT_STORE = "WAIT"  # "false": answer before the flush
BUYER_ID = "BUYER_ID"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"  # LMQs, joined by ","
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"  # their offsets in the same order
TRACE_CONTEXT = "TRACE_CONTEXT"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."  # never stored

# Identity and origin.
UNIQUE_KEY = "UNIQ_KEY"  # the id that the client created
EXTEND_UNIQUE_INFO = "EXTEND_UNIQ_INFO"
INSTANCE_ID = "INSTANCE_ID"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
DUP_INFO = "DUP_INFO"
CRC32 = "__CRC32#"

# Delay and time.
DELAY_LEVEL = "DELAY"  # 1 to 18
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
DELIVERY_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Properties that request a delivery time; the first that a message has counts."""
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_ROLL_LABEL = "TIMER_ROLL_LABEL"
TIMER_DELETE_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
TIMER_ENGINE = "E_T"

# The topic and queue that get a message when the broker is done with it.
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT = "REDIRECT"

# Retry and dead letters.
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
ORIGIN_GROUP = "ORIGIN_GROUP"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

# Transactions.
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_IMMUNITY_SEC = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_OFFSET = "TRANS_OFFSET"

# Request and reply.
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
REPLY_TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"  # "reply"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"  # time when a broker passed the reply on, in ms

# POP, and what clients add to messages in memory.
POP_CHECKPOINT = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"

# Inner batches: one record that holds several messages.
INNER_NUM = "INNER_NUM"  # count of messages
INNER_BASE = "INNER_BASE"  # queue offset of the first

# Listed for messages of old clients; no rule of ours reads them.
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"

RESERVED: Final = frozenset(
    {
        *(KEYS, TAGS, WAIT_STORE, BUYER_ID, PRIORITY, LITE_TOPIC, INNER_MULTI_QUEUE_OFFSET),
        *(UNIQUE_KEY, EXTEND_UNIQUE_INFO, INSTANCE_ID, CLUSTER, MSG_REGION, TRACE_ON, BORN_HOST),
        *(BORN_TIMESTAMP, DUP_INFO, CRC32, DELAY_LEVEL, *DELIVERY_TIMES, TIMER_OUT_MS),
        *(TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_DELETE_UNIQUE_KEY),
        *(TIMER_DELAY_LEVEL, REAL_TOPIC, REAL_QUEUE_ID, RETRY_TOPIC, ORIGIN_MESSAGE_ID),
        *(RECONSUME_TIME, MAX_RECONSUME_TIMES, ORIGIN_GROUP, DLQ_ORIGIN_TOPIC),
        *(DLQ_ORIGIN_MESSAGE_ID, TRANSACTION_PREPARED, PRODUCER_GROUP, CORRELATION_ID),
        *(TRANSACTION_PREPARED_QUEUE_OFFSET, REPLY_TO_CLIENT, REPLY_TTL, MESSAGE_TYPE),
        *(PUSH_REPLY_TIME, "ARRIVE_TIME", POP_CHECKPOINT, "POP_CK_OFFSET", FIRST_POP_TIME),
        *(MIN_OFFSET, MAX_OFFSET, "CONSUME_START_TIME", TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG),
    }
)
"""Names that no property of an application may have. Java: MessageConst#STRING_HASH_SET."""

OF_APPLICATION: Final = frozenset(
    {KEYS, TAGS, WAIT_STORE, BUYER_ID, PRIORITY, LITE_TOPIC, DELAY_LEVEL, *DELIVERY_TIMES}
)
"""Reserved names whose values an application gives in other ways."""

OF_BROKER: Final = tuple(
    sorted(
        (RESERVED - {BUYER_ID, PRIORITY, LITE_TOPIC}) | {TIMER_ROLL_LABEL, TRANSACTION_CHECK_TIMES, TRANSACTION_OFFSET}
    )
)
"""Properties that a copy of a message must not carry: its way through brokers, and values that a sender gives in other
ways."""

RESENT_ID: Final = "FIREARROW_RESENT"
"""Property of a dead letter that was sent again: the id of that dead letter."""


def parse(text: str | bytes) -> dict[str, str]:
    """Read a properties string; it never fails.

    Pairs without a name, a separator or a value are skipped, as every RocketMQ reader does. Bytes that are not UTF-8
    read as U+FFFD: one damaged message must not stop a consumer.
    """
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    pairs = text.split(PAIR_END)
    if not pairs[-1]:
        pairs.pop()  # the text behind the last separator
    # Sound pairs become a dictionary as they are: a third of the time of the loop below.
    try:
        found = dict([pair.split(NAME_END) for pair in pairs])
    except ValueError:
        return _parse_each(pairs)
    return _parse_each(pairs) if "" in found or "" in found.values() else found


def _parse_each(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition(NAME_END)
        if key and value:
            found[key] = value
    return found


def finder(name: str) -> Callable[[bytes], bytes | None]:
    """Return a function that finds the value of a name in a stored properties string.

    It returns the value that `parse` would, as stored; None if there is none. It reads no other pair, so it takes a
    fifth of the time.
    """
    first = f"{name}{NAME_END}".encode()
    pair_end = PAIR_END.encode()
    key = pair_end + first
    size = len(key)

    def value(text: bytes) -> bytes | None:
        at = text.rfind(key)
        while at >= 0:
            start = at + size
            end = text.find(pair_end, start)
            found = text[start:end] if end >= 0 else text[start:]
            if found:
                return found
            at = text.rfind(key, 0, at)
        if text.startswith(first):
            return text[size - 1 :].partition(pair_end)[0] or None
        return None

    return value


def lacks(text: bytes, names: Iterable[bytes]) -> bool:
    """Tell whether a stored properties string has none of some names and ends with a pair, so that others may follow.

    It reads no pair: a fifth of the time of `parse`.
    """
    if not text.endswith(b"\x02"):
        return False
    for name in names:  # noqa: SIM110 - `any` with a generator takes twice as long
        if text.find(name) >= 0:
            return False
    return True


def format(properties: Mapping[str, str]) -> str:  # noqa: A001 - callers say properties.format
    """Write a properties string; pairs with an empty value are left out.

    Raises MessageError for an empty key, or a key or value that contains a separator.
    """
    pairs = [f"{key}{NAME_END}{value}{PAIR_END}" for key, value in properties.items() if value]
    text = "".join(pairs)
    # Counting finds a fault without looking at each value: most messages pay two scans.
    if text.count(NAME_END) != len(pairs) or text.count(PAIR_END) != len(pairs):
        _refuse(properties)
    if "" in properties:
        raise MessageError("a property has an empty key", "properties")
    return text


def encode(properties: Mapping[str, str]) -> bytes:
    """Write a properties string as the UTF-8 bytes that a record holds.

    Raises MessageError like `format`, and for text that UTF-8 cannot carry or that is too long.
    """
    try:
        encoded = format(properties).encode()
    except UnicodeEncodeError as error:
        raise MessageError("a lone surrogate cannot be stored", "properties") from error
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise MessageError(f"{len(encoded)} bytes exceed the limit of {PROPERTIES_BYTES_MAX}", "properties")
    return encoded


def _refuse(properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        if NAME_END in key + value or PAIR_END in key + value:
            raise MessageError(f"property {key!r} contains a separator", "properties")


def fault_of(text: bytes) -> str | None:
    """Tell why no sender or broker would write a properties string so; None if one would."""
    if not is_utf8(text):
        return "its properties are not UTF-8"
    for pair in text.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if pair and (not separator or not name or b"\x01" in value):
            return f"its properties have the odd pair {pair.decode()!r}"
    return None


def is_utf8(text: bytes) -> bool:
    """Tell whether some bytes are UTF-8 text."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
