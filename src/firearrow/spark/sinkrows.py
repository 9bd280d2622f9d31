"""Rows to messages: an Arrow batch as the bytes of batch sends, by columns.

===================  ============================  ===============================================
column               Arrow type                    meaning
===================  ============================  ===============================================
``body``             binary or string              required
``topic``            string                        without it, the option ``topic``
``tags``             string                        the tag that subscriptions filter on
``keys``             string or list of strings     searchable words; of a list, joined by blanks
``properties``       map of strings, or string     properties of the application; a string is
                                                   in stored form, ``name \\x01 value \\x02 ...``
``queueId``          integer                       the queue; by default all take turns
``orderKey``         string, binary or integer     equal keys go to one queue, in order; the option
                                                   ``orderKey`` may name another column
``delayLevel``       integer                       1 to 18
``deliverTimestamp`` timestamp, or integer in ms   when to deliver
``flag``             integer                       a number for the application's use
===================  ============================  ===============================================

Every message gets an id (property ``UNIQ_KEY``) unless its properties have one. Every column but the body may be null.

A member of a batch (``firearrow.message.batch``) consists of its head, body, the size of its properties and the
properties. Arrow joins these columns row by row, so any run of rows is already the body of a batch send. A message with
a delayed delivery can't be in a batch; such rows are marked ``alone``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import ConfigError, MessageError
from firearrow.message import properties
from firearrow.message.names import java_hash, validate_topic
from firearrow.message.properties import PROPERTIES_BYTES_MAX

Ints = npt.NDArray[np.int64]

# A frame may have 16 MiB, and the header of a single send holds its properties, perhaps escaped.
MESSAGE_BYTES_MAX: Final = 15 * 1024 * 1024
DELAY_LEVEL_MAX: Final = 18

_HEAD_BYTES: Final = 20
_MEMBER_BYTES_MIN: Final = 22
_ID_PREFIX_CHARS: Final = 20
_ID_NUMBERS: Final = 1 << 48
_DIGIT_PAIRS: Final = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.dtype("V2"))
_UNIQUE_PAIR: Final = np.dtype([("name", "S9"), ("prefix", f"S{_ID_PREFIX_CHARS}"), ("digits", "V2", 6), ("end", "u1")])
_TEXT_ENDS: Final = np.array([1, 2], np.uint8)
_NOTHING: Final = pa.scalar(b"", pa.binary())
_NO_DELAY: Final = "RocketMQ's transactions have no delayed messages"


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind))


def _is_words(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_list(kind) and _is_text(kind.value_type))


def _is_properties(kind: Any) -> bool:
    is_map = pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
    return bool(is_map or _is_text(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_moment(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


def _is_key(kind: Any) -> bool:
    return _is_bytes(kind) or _is_number(kind)


COLUMNS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "body": (_is_bytes, "binary or string"),
    "topic": (_is_text, "string"),
    "tags": (_is_text, "string"),
    "keys": (_is_words, "string or array<string>"),
    "properties": (_is_properties, "map<string,string> or string"),
    "queueId": (_is_number, "int"),
    "orderKey": (_is_key, "string, binary or an integer"),
    "delayLevel": (_is_number, "int"),
    "deliverTimestamp": (_is_moment, "timestamp, or bigint in milliseconds"),
    "flag": (_is_number, "int"),
}


DELAYS: Final = ("delayLevel", "deliverTimestamp")


def check_columns(schema: pa.Schema, topic: str | None, order_key: str | None, *, are_halves: bool = False) -> None:
    """Raise ConfigError unless rows of this schema can be messages, or half messages.

    ``topic`` and ``order_key`` are the options of these names.
    """
    for column in schema:
        known = COLUMNS.get("orderKey" if column.name == order_key else column.name)
        if known is None:
            raise ConfigError(f"column {column.name!r} can't be written: messages have {', '.join(COLUMNS)}")
        if are_halves and column.name in DELAYS:
            raise ConfigError(f"column {column.name} can't be written with delivery=exactly-once: {_NO_DELAY}")
        fits, allowed = known
        own = COLUMNS.get(column.name)
        if not fits(column.type) or (own is not None and not own[0](column.type)):
            raise ConfigError(f"column {column.name} is {column.type}; allowed is {allowed}")
    if "body" not in schema.names:
        raise ConfigError(f"column body is missing; the columns are {', '.join(schema.names) or 'none'}")
    if topic is None and "topic" not in schema.names:
        raise ConfigError("the topic is missing: give option topic, or a column topic")
    if order_key is not None and order_key not in schema.names:
        raise ConfigError(
            f"option orderKey={order_key!r}: there is no such column; the columns are {', '.join(schema.names)}"
        )


@dataclass
class Ids:
    """Unique ids: twenty digits that name the writer, and twelve digits that count.

    The first digits are an address, a process and a client, as RocketMQ's clients write them. Tools that look for a
    message by its id read the others as a time and a counter.
    """

    prefix: str
    number: int = 0

    def __post_init__(self) -> None:
        assert len(self.prefix) == _ID_PREFIX_CHARS

    def pairs(self, count: int) -> pa.Array:
        """Return the next ``count`` ids, each as a pair of a properties string."""
        pairs = np.empty(count, _UNIQUE_PAIR)
        numbers = (np.arange(count) + self.number) % _ID_NUMBERS
        self.number += count
        places = numbers.astype(">u8").view(np.uint8).reshape(count, 8)[:, 2:]
        pairs["name"] = b"UNIQ_KEY\x01"
        pairs["prefix"] = self.prefix.encode()
        pairs["digits"] = _DIGIT_PAIRS[places]
        pairs["end"] = 2
        return _fixed(pairs.view(np.uint8), _UNIQUE_PAIR.itemsize)


class SinkRows(NamedTuple):
    """The messages of an Arrow batch.

    ``members`` is a binary array of batch members. ``topic_number`` gives the place of each row's topic in ``topics``.
    ``queue_id`` is -1 for a row without a queue. ``queue_id``, ``order_hash`` and ``alone`` are None if no row has one.
    """

    members: pa.Array
    topics: list[str]
    topic_number: Ints
    queue_id: Ints | None
    order_hash: Ints | None
    alone: npt.NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.members)


def rows_of(
    batch: pa.RecordBatch, ids: Ids, topic: str | None, order_key: str | None, half_group: str | None = None
) -> SinkRows:
    """Return the messages of a batch whose columns ``check_columns`` accepts.

    With ``half_group`` they are half messages of this producer group, and each goes alone. Raises MessageError
    that names the column, the row's number in the batch and the fault.
    """
    body = _bytes(batch, "body")
    if body.null_count:
        raise MessageError("a message needs a body, which may be empty", _place(body.is_null()))
    pairs, alone = _properties(batch, ids)
    if half_group is not None:
        pairs, alone = _halves(pairs, alone, half_group)
    members = _members(body, pairs, _numbers(batch, "flag", 0, 1 << 31))
    topics, topic_number = _topics(batch, topic)
    queue_id = _numbers(batch, "queueId", -1, 1 << 31)
    if queue_id is not None and (queue_id < -1).any():
        row = int(np.argmax(queue_id < -1))
        raise MessageError(f"{queue_id[row]} is not a queue", f"column queueId, row {row}")
    return SinkRows(members, topics, topic_number, queue_id, _order(batch, order_key), alone)


def _members(body: pa.Array, pairs: pa.Array, flag: Ints | None) -> pa.Array:
    """Join heads, bodies, and properties with their sizes row by row."""
    body_bytes, pairs_bytes = _lengths(body), _lengths(pairs)
    total = body_bytes + pairs_bytes + _MEMBER_BYTES_MIN
    for size, limit, column in (
        (pairs_bytes, PROPERTIES_BYTES_MAX, "properties, with tags, keys and id"),
        (total, MESSAGE_BYTES_MAX, "body"),
    ):
        if len(size) and size.max() > limit:
            row = int(size.argmax())
            reason = f"{size[row]} bytes exceed the limit of {limit}"
            raise MessageError(reason, f"column {column}, row {row}")
    head = np.zeros((len(body), 5), ">i4")
    head[:, 0] = total
    if flag is not None:
        head[:, 3] = flag
    head[:, 4] = body_bytes
    heads = _fixed(head.view(np.uint8).reshape(-1), _HEAD_BYTES)
    sizes = _fixed(pairs_bytes.astype(">i2").view(np.uint8), 2)
    return _joined(heads, body, sizes, pairs)


# --- properties ------------------------------------------------------------------------------


def _halves(
    pairs: pa.Array, delayed: npt.NDArray[np.bool_] | None, group: str
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the properties of half messages, and a mask of the rows that go alone: all of them.

    Our pairs come last, and brokers take the last one of a name: a row may be the copy of another group's message.
    """
    if delayed is not None:
        raise MessageError(_NO_DELAY, f"column properties, row {int(delayed.argmax())}")
    limited = _has(pairs, properties.CHECK_IMMUNITY_SEC)
    if limited.any():
        raise MessageError(
            f"{properties.CHECK_IMMUNITY_SEC} limits the time of a commit: remove it",
            f"column properties, row {int(limited.argmax())}",
        )
    text = properties.format({properties.TRANSACTION_PREPARED: "true", properties.PRODUCER_GROUP: group})
    text += "" if text.endswith(properties.PAIR_END) else properties.PAIR_END
    return _joined(pairs, _constant(text.encode())), np.ones(len(pairs), np.bool_)


def _properties(batch: pa.RecordBatch, ids: Ids) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Return the properties string of each row, and a mask of the rows that cannot be sent in a batch."""
    unique = ids.pairs(len(batch))
    pieces = [unique]
    alone: npt.NDArray[np.bool_] | None = None
    given = _given_properties(batch)
    if given is not None:
        theirs, has_id, alone = given
        if has_id.any():
            pieces = [pc.if_else(pa.array(has_id), _NOTHING, unique)]
        pieces.append(theirs)
    for name, column in (("tags", properties.TAGS), ("keys", properties.KEYS)):
        texts = _words(batch, name)
        if texts is not None:
            pieces.append(_pair(column, texts, name))
    for name, column, texts in _delays(batch):
        pieces.append(_pair(column, texts, name))
        later = ~_booleans(texts.is_null())
        alone = later if alone is None else alone | later
    if alone is not None and not alone.any():
        alone = None
    return (_joined(*pieces) if len(pieces) > 1 else pieces[0]), alone


def _pair(name: str, values: pa.Array, column: str) -> pa.Array:
    """Return ``name 0x01 value 0x02`` of each row; empty for a row without a value."""
    _refuse_separators(values, f"column {column}")
    values = pc.if_else(pc.equal(pc.binary_length(values), 0), None, values)
    pair = pc.binary_join_element_wise(
        pa.scalar(name.encode() + b"\x01", pa.binary()), values, pa.scalar(b"\x02", pa.binary()), _NOTHING
    )
    return pair.fill_null(b"") if pair.null_count else pair


def _delays(batch: pa.RecordBatch) -> list[tuple[str, str, pa.Array]]:
    """Yield each way to delay a delivery: the column, the property, and its value or null."""
    found: list[tuple[str, str, pa.Array]] = []
    level = _numbers(batch, "delayLevel", 0, DELAY_LEVEL_MAX + 1)
    if level is not None:
        if len(level) and level.min() < 0:
            row = int(level.argmin())
            raise MessageError(f"{level[row]} is below 0", f"column delayLevel, row {row}")
        found.append(("delayLevel", properties.DELAY_LEVEL, _digits(level)))
    moment = _numbers(batch, "deliverTimestamp", 0, 1 << 62)
    if moment is not None:
        found.append(("deliverTimestamp", properties.TIMER_DELIVER_MS, _digits(moment)))
    return found


def _digits(numbers: Ints) -> pa.Array:
    """Return numbers as text; null for 0."""
    column = pa.array(numbers)
    return pc.if_else(pc.equal(column, 0), None, column.cast(pa.string())).cast(pa.binary())


_DELAYING: Final = (properties.DELAY_LEVEL, *properties.DELIVERY_TIMES)


def _given_properties(batch: pa.RecordBatch) -> tuple[pa.Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None:
    """Return the column ``properties`` as strings, a mask of the rows with an id there, and one of the rows that go
    alone.

    A sink refuses transactions: a half message that nobody decides would never be seen.
    """
    column = _column(batch, "properties")
    if column is None:
        return None
    if pa.types.is_map(column.type):
        texts = _strings_of_maps(column)
    else:
        texts = column.cast(pa.binary()).fill_null(b"")
        open_ended = pc.and_(pc.not_equal(pc.binary_length(texts), 0), pc.invert(pc.ends_with(texts, b"\x02")))
        texts = _joined(texts, pc.if_else(open_ended, pa.scalar(b"\x02", pa.binary()), _NOTHING))
    prepared = _has(texts, properties.TRANSACTION_PREPARED)
    if prepared.any():
        row = int(prepared.argmax())
        raise MessageError(
            f"{properties.TRANSACTION_PREPARED} is for producers of transactions", f"column properties, row {row}"
        )
    alone = np.logical_or.reduce([_has(texts, name) for name in _DELAYING])
    return texts, _has(texts, properties.UNIQUE_KEY), alone


def _strings_of_maps(maps: pa.Array) -> pa.Array:
    """Return maps as properties strings; pairs without a value are left out."""
    offsets = np.asarray(maps.offsets).astype(np.int32)
    first, last = int(offsets[0]), int(offsets[-1])
    keys = maps.keys.slice(first, last - first).cast(pa.binary())
    items = maps.items.slice(first, last - first).cast(pa.binary()).fill_null(b"")
    for texts, part in ((keys, "name"), (items, "value")):
        _refuse_separators(texts, f"column properties, a {part}")
    if (_lengths(keys) == 0).any():
        raise MessageError("a property has an empty name", "column properties")
    pairs = _joined(keys, _constant(b"\x01"), items, _constant(b"\x02"))
    pairs = pc.if_else(pc.equal(pc.binary_length(items), 0), _NOTHING, pairs)
    lists = pa.ListArray.from_arrays(pa.array(offsets - first), pairs)
    return pc.binary_join(lists, _NOTHING).cast(pa.binary())


def _has(texts: pa.Array, name: str) -> npt.NDArray[np.bool_]:
    """Tell whether each properties string has a pair of this name."""
    pair = name.encode() + b"\x01"
    first = pc.starts_with(texts, pair)
    return _booleans(pc.or_(first, pc.match_substring(texts, b"\x02" + pair)))


def _refuse_separators(texts: pa.Array, place: str) -> None:
    """Raise MessageError if a text holds one of the two bytes that separate properties."""
    data = texts.buffers()[2]
    if data is None or not np.isin(np.frombuffer(data, np.uint8), _TEXT_ENDS).any():
        return
    found = [pc.match_substring(texts, end) for end in (b"\x01", b"\x02")]
    held = _booleans(pc.or_(*found).fill_null(False))
    if held.any():
        row = int(held.argmax())
        text = texts[row].as_py().decode("utf-8", "replace")
        raise MessageError(f"{text!r} contains a separator (0x01 or 0x02)", place)


# --- topics and queues ---------------------------------------------------------------------------------


def _topics(batch: pa.RecordBatch, topic: str | None) -> tuple[list[str], Ints]:
    column = _column(batch, "topic")
    if column is None:
        assert topic is not None
        topics, numbers = [topic], np.zeros(len(batch), np.int64)
    else:
        if column.null_count:
            if topic is None:
                place = _place(column.is_null(), "topic")
                raise MessageError("the row has no topic, and there is no option topic", place)
            column = column.fill_null(topic)
        encoded = column.dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    for name in topics:
        fault = validate_topic(name)
        if fault is not None:
            raise MessageError(fault, "column topic" if column is not None else "option topic")
    return topics, numbers


def _order(batch: pa.RecordBatch, order_key: str | None) -> Ints | None:
    """Return the hash that chooses the queue of each row: Java's hash of its key, as Java clients use it.

    It is -1 for a row without a key.
    """
    column = _column(batch, order_key or "orderKey")
    if column is None:
        return None
    encoded = column.dictionary_encode()
    hashes = [_order_hash(key) for key in encoded.dictionary.to_pylist()]
    numbers = encoded.indices.fill_null(len(hashes)).to_numpy(zero_copy_only=False)
    order: Ints = np.array([*hashes, -1], np.int64)[numbers]
    return order


def _order_hash(key: str | bytes | int) -> int:
    """Java: SelectMessageQueueByHash, the absolute value of hashCode()."""
    text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)
    return abs(java_hash(text))


# --- columns ----------------------------------------------------------------------------------


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    place = batch.schema.get_field_index(name)
    return None if place < 0 else batch.column(place)


def _bytes(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name).cast(pa.binary())


def _words(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    column = _column(batch, name)
    if column is None or column.null_count == len(column):
        return None
    if not pa.types.is_list(column.type):
        return column.cast(pa.binary())
    # A null among the words would make all of them null.
    words = column.values.cast(pa.binary()).fill_null(b"")
    return pc.binary_join(pa.ListArray.from_arrays(column.offsets, words), b" ")


def _numbers(batch: pa.RecordBatch, name: str, default: int, end: int) -> Ints | None:
    """Return a column of numbers (timestamps in ms); None if it is missing or has only nulls."""
    column = _column(batch, name)
    if column is None or column.null_count == len(column):
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    column = column.cast(pa.int64()).fill_null(default)
    numbers: Ints = column.to_numpy(zero_copy_only=False)
    if numbers.max() >= end:
        row = int(numbers.argmax())
        raise MessageError(f"{numbers[row]} is not below {end}", f"column {name}, row {row}")
    return numbers


def _lengths(texts: pa.Array) -> Ints:
    lengths: Ints = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _booleans(column: pa.Array) -> npt.NDArray[np.bool_]:
    values: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return values


def _place(where: pa.Array, column: str = "body") -> str:
    """Return the place that an error names: the first row of a mask."""
    return f"column {column}, row {int(_booleans(where).argmax())}"


def _constant(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def _joined(*columns: Any) -> pa.Array:
    return pc.binary_join_element_wise(*columns, _NOTHING)


def _fixed(data: npt.NDArray[np.uint8], width: int) -> pa.Array:
    """Return bytes as an array of items of one width."""
    count = len(data) // width
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
