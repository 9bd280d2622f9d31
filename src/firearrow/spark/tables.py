"""The tables of a store: their columns, in Arrow's types.

========================  ==========================================================
table                     a row is
========================  ==========================================================
``messages``              a message
``consume_queue``         an entry of a ConsumeQueue: the place of a queue offset in the log
``index``                 an entry of an IndexFile: a key's hash and the place of its message
``consumer_offsets``      the offset of a consumer group in a queue
``topics``                a topic's configuration
``subscription_groups``   a consumer group's configuration
``timer``                 a delayed message that waits for its time
========================  ==========================================================

A few columns may be null. ``DECLARED`` marks the other columns as never null, so Spark does not check them for nulls,
which makes a scan up to a tenth faster.

Timestamps come from the broker's clock in milliseconds, converted to microseconds UTC for Spark. A user's schema may
name any of the columns, in any order.

``messages.properties`` is the stored string (``name \\x01 value \\x02 ...``), or a map with the option
``properties=map`` or if the user's schema says so.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES_MAP: Final = pa.map_(pa.string(), pa.string())

MESSAGES: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitLogOffset", pa.int64()),
        ("storeSize", pa.int32()),
        ("msgId", pa.string()),  # as clients print it: the unique id, or without one the offset id
        ("offsetMsgId", pa.string()),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bornTimestamp", TIMESTAMP),
        ("bornHost", pa.string()),  # address:port
        ("storeTimestamp", TIMESTAMP),
        ("storeHost", pa.string()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("bodyCrc", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.string()),  # as sent, separated by blanks
        ("properties", pa.string()),
        ("body", pa.binary()),  # decompressed, unless decompress=false
    ]
)

CONSUME_QUEUE: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitLogOffset", pa.int64()),
        ("size", pa.int32()),
        ("tagsCode", pa.int64()),
    ]
)

INDEX: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("file", pa.string()),
        ("entry", pa.int32()),
        ("slot", pa.int32()),
        ("keyHash", pa.int32()),
        ("commitLogOffset", pa.int64()),
        ("storeTimestamp", TIMESTAMP),  # to the second
        ("previous", pa.int32()),
    ]
)

CONSUMER_OFFSETS: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("consumerGroup", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("offset", pa.int64()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("lag", pa.int64()),
    ]
)

TOPICS: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),
        ("readQueues", pa.int32()),
        ("writeQueues", pa.int32()),
        ("permission", pa.int32()),
        ("filterType", pa.string()),
        ("sysFlag", pa.int32()),
        ("ordered", pa.bool_()),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)

SUBSCRIPTION_GROUPS: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("consumerGroup", pa.string()),
        ("consumeEnable", pa.bool_()),
        ("consumeFromMinEnable", pa.bool_()),
        ("consumeBroadcastEnable", pa.bool_()),
        ("consumeMessageOrderly", pa.bool_()),
        ("retryQueues", pa.int32()),
        ("retryMaxTimes", pa.int32()),
        ("brokerId", pa.int64()),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)

TIMER: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),  # topic of the delivery
        ("queueId", pa.int32()),
        ("deliveryTimestamp", TIMESTAMP),
        ("commitLogOffset", pa.int64()),
        ("size", pa.int32()),
        ("deleted", pa.bool_()),  # a request to delete a waiting message
        ("msgId", pa.string()),
    ]
)

TABLES: Final[dict[str, pa.Schema]] = {
    "messages": MESSAGES,
    "consume_queue": CONSUME_QUEUE,
    "index": INDEX,
    "consumer_offsets": CONSUMER_OFFSETS,
    "topics": TOPICS,
    "subscription_groups": SUBSCRIPTION_GROUPS,
    "timer": TIMER,
}

_OPTIONAL: Final = {"messages": ("tags", "keys"), "timer": ("queueId",)}

DECLARED: Final[dict[str, pa.Schema]] = {
    name: pa.schema([column.with_nullable(column.name in _OPTIONAL.get(name, ())) for column in table])
    for name, table in TABLES.items()
}
