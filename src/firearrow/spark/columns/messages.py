"""Stored records as Arrow batches of the table ``messages``, with the requested columns only.

Both origins use it: files and pull answers hold the same bytes, and ``firearrow.store.scan`` has read their fixed
fields. Arrow copies bodies, topics and properties, not Python (``propertytext.cut``). A host is formatted once for all
its records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import MessageError
from firearrow.message.compress import decompress
from firearrow.message.hosts import unpack_host
from firearrow.message.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from firearrow.spark.columns.propertytext import PropertyText, as_text, as_utf8, cut
from firearrow.spark.columns.textcolumns import Texts, constant, of_one_size
from firearrow.spark.tables import TIMESTAMP
from firearrow.store.scan import Columns, Ints

Mask = npt.NDArray[np.bool_]

BATCH_BYTES_MAX: Final = 1 << 30  # Arrow counts the bytes of a column in 31 bits

_BORN_HOST_AT: Final = 48
_STORE_HOST_AT: Final = 64
_HOSTS_MAX: Final = 1 << 16  # hosts whose texts are cached
_MS_MAX: Final = (1 << 63) // 1000 - 1


class BatchTooLarge(Exception):
    """Decompressed bodies are too large for one batch; half of the records may fit."""


class UndecodableRows(Exception):
    """Some bodies cannot be decompressed: ``rows`` are their numbers, ``reason`` is that of the first."""

    def __init__(self, rows: list[int], reason: str) -> None:
        super().__init__(reason)
        self.rows = rows
        self.reason = reason

    def among(self, count: int) -> Mask:
        """Return a mask of these rows among ``count`` records."""
        found = np.zeros(count, np.bool_)
        found[self.rows] = True
        return found


class MessageColumns:
    """Records of one broker; each column is made when it is used.

    The records must be in order in their buffer, and valid (``Columns.valid``).
    """

    def __init__(
        self, columns: Columns, broker: str, *, decompress: bool = True, topic: pa.Array | None = None
    ) -> None:
        """``topic`` is the column of topics if it is known already."""
        self.columns = columns
        self._broker = broker
        self._topic = topic
        self._decompress = decompress
        self._base = int(columns.position[0]) if len(columns) else 0
        end = int(columns.position[-1] + columns.size[-1]) if len(columns) else 0
        self._data = pa.py_buffer(memoryview(columns.buffer)[self._base : end])

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch of exactly these columns.

        Raises UndecodableRows or BatchTooLarge if there is a column ``body`` that cannot be made.
        """
        arrays = [self.column(field.name, field.type) for field in schema]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(self.columns)))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return one column; for ``properties`` the type decides between string and map."""
        if name == "properties" and pa.types.is_map(kind):
            return self.properties.as_map().cast(kind)
        return _COLUMNS[name](self)

    def _cut(self, start: Ints, size: Ints) -> pa.Array:
        start = start - self._base
        return cut(self._data, start, start + size)

    # --- texts ---

    @cached_property
    def topic(self) -> pa.Array:
        """The topic of each record."""
        if self._topic is not None:
            return self._topic
        return as_text(self._cut(self.columns.topic_start, self.columns.topic_size))

    @cached_property
    def _stored_properties(self) -> pa.Array:
        return self._cut(self.columns.properties_start, self.columns.properties_size)

    @cached_property
    def _text_properties(self) -> pa.Array | None:
        """Return the properties as strings, None if some of them are not UTF-8."""
        return as_utf8(self._stored_properties)

    @property
    def _raw_properties(self) -> pa.Array:
        texts = self._text_properties
        return as_text(self._stored_properties) if texts is None else texts

    @cached_property
    def properties(self) -> PropertyText:
        """Properties of the records, for look-ups by name."""
        texts = self._text_properties
        return PropertyText.of(self._stored_properties if texts is None else texts)

    @cached_property
    def unique_key(self) -> pa.Array:
        """Unique id that the sender gave; null for a message without one."""
        return self.properties.values("UNIQ_KEY")

    @cached_property
    def tags(self) -> pa.Array:
        """Property TAGS; null for a message without one."""
        return self.properties.values("TAGS")

    @cached_property
    def keys(self) -> pa.Array:
        """Property KEYS; null for a message without one."""
        return self.properties.values("KEYS")

    # --- ids and hosts ---

    def _message_id(self) -> pa.Array:
        unique = self.unique_key
        return unique if not unique.null_count else pc.coalesce(unique, self.offset_id)

    @cached_property
    def offset_id(self) -> pa.Array:
        """Id that holds the place of each record."""
        columns = self.columns
        if np.count_nonzero(columns.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)):
            return self._mixed_offset_ids()
        hosts, places = columns.store_host, columns.physical_offset
        digits = np.empty((len(columns), 8), np.uint32)
        pairs = digits.view(np.uint64)
        if len(hosts) and (hosts == hosts[0]).all():
            pairs[:, 0], pairs[:, 1] = _hex_table()[_as_words(hosts[:1])].view(np.uint64)[0]
        else:
            digits[:, :4] = _hex_table()[_as_words(hosts)]
        high = places >> 32
        if len(high) and (high == high[0]).all():
            pairs[:, 2] = _hex_table()[_as_words(high[:1].astype(">i8"))].view(np.uint64)[0, 1]
        else:
            digits[:, 4:6] = _hex_table()[_as_words(high.astype(">i8"))[:, 2:]]
        digits[:, 6] = _hex_table()[places >> 16 & 0xFFFF]
        digits[:, 7] = _hex_table()[places & 0xFFFF]
        return of_one_size(pa.string(), digits.view("V32").reshape(-1))

    def _mixed_offset_ids(self) -> pa.Array:
        six = self.columns.sys_flag & STORE_HOST_V6 != 0
        hosts = self.columns.slices(self._store_host_at, np.where(six, 20, 8))
        places = self.columns.physical_offset.astype(">i8").tobytes()
        ids = [(host + places[8 * n : 8 * n + 8]).hex().upper() for n, host in enumerate(hosts)]
        return pa.array(ids, pa.string())

    @property
    def _store_host_at(self) -> Ints:
        columns = self.columns
        at = columns.position + _STORE_HOST_AT
        six = columns.sys_flag & BORN_HOST_V6 != 0
        return at + 12 * six if np.count_nonzero(six) else at

    def _born_host(self) -> pa.Array:
        columns = self.columns
        six = columns.sys_flag & BORN_HOST_V6 != 0
        if np.count_nonzero(six):
            return self._mixed_hosts(columns.position + _BORN_HOST_AT, six)
        return _hosts(columns.born_host)

    def _store_host(self) -> pa.Array:
        columns = self.columns
        if np.count_nonzero(columns.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)):
            six = columns.sys_flag & STORE_HOST_V6 != 0
            return self._mixed_hosts(self._store_host_at, six)
        return _hosts(columns.store_host)

    def _mixed_hosts(self, at: Ints, six: Mask) -> pa.Array:
        raws = self.columns.slices(at, np.where(six, 20, 8))
        hosts = pa.array(raws, pa.binary()).dictionary_encode()
        texts = [_host_text(piece) for piece in hosts.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(hosts.indices)

    # --- bodies ---

    def _body(self) -> pa.Array:
        columns = self.columns
        stored = self._cut(columns.body_start, columns.body_size)
        packed = columns.sys_flag & COMPRESSED != 0
        if not self._decompress or not np.count_nonzero(packed):
            return stored
        plain = self._plain(packed.nonzero()[0].tolist())
        return pc.replace_with_mask(stored, pa.array(packed), pa.array(plain, pa.binary()))

    def _plain(self, rows: list[int]) -> list[bytes]:
        columns = self.columns
        packed = columns.slices(columns.body_start[rows], columns.body_size[rows])
        flags = columns.sys_flag[rows].tolist()
        plain: list[bytes] = []
        bad: list[int] = []
        reason = ""
        room = BATCH_BYTES_MAX - int(columns.body_size.sum())
        for row, flag, body in zip(rows, flags, packed, strict=True):
            try:
                plain.append(decompress(body, flag))
            except MessageError as error:
                bad.append(row)
                reason = reason or str(error)
                continue
            room -= len(plain[-1])
            if room < 0 and len(columns) > 1:
                raise BatchTooLarge
        if bad:
            raise UndecodableRows(bad, reason)
        return plain


def _hosts(raw: npt.NDArray[np.uint64]) -> pa.Array:
    """Return addresses of eight bytes as text."""
    if len(raw) and (raw == raw[0]).all():
        return constant(_host_text(raw[:1].tobytes()), len(raw))
    hosts = pa.array(raw).dictionary_encode()
    pieces = [number.to_bytes(8, sys.byteorder) for number in hosts.dictionary.to_pylist()]
    texts = Texts([_host_text(piece) for piece in pieces])
    return texts.take(np.asarray(hosts.indices))


@lru_cache(maxsize=_HOSTS_MAX)
def _host_text(raw: bytes) -> str:
    host = unpack_host(raw)
    return f"{host.ip}:{host.port}"


def _as_words(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of eight bytes as four numbers of 16 bits each, in the order of their bytes."""
    return np.ascontiguousarray(values).view(">u2").reshape(len(values), 4)


@cache
def _hex_table() -> npt.NDArray[np.uint32]:
    """Return four digits for each number of 16 bits, as four bytes of text."""
    return np.frombuffer(b"".join([b"%04X" % number for number in range(1 << 16)]), np.uint32)


def timestamps(times_ms: Ints) -> pa.Array:
    """Return times in ms as timestamps for Spark."""
    if len(times_ms) and (times_ms.max() > _MS_MAX or times_ms.min() < -_MS_MAX):
        times_ms = np.clip(times_ms, -_MS_MAX, _MS_MAX)
    micros = times_ms * 1000
    return pa.Array.from_buffers(TIMESTAMP, len(micros), [None, pa.py_buffer(micros)])


def _i32(values: Ints) -> pa.Array:
    return pa.array(values.astype(np.int32))


_COLUMNS: Final[dict[str, Callable[[MessageColumns], pa.Array]]] = {
    "broker": lambda m: constant(m._broker, len(m.columns)),
    "topic": lambda m: m.topic,
    "queueId": lambda m: _i32(m.columns.queue_id),
    "queueOffset": lambda m: pa.array(m.columns.queue_offset),
    "commitLogOffset": lambda m: pa.array(m.columns.physical_offset),
    "storeSize": lambda m: _i32(m.columns.size),
    "msgId": MessageColumns._message_id,
    "offsetMsgId": lambda m: m.offset_id,
    "flag": lambda m: _i32(m.columns.flag),
    "sysFlag": lambda m: _i32(m.columns.sys_flag),
    "bornTimestamp": lambda m: timestamps(m.columns.born_ms),
    "bornHost": MessageColumns._born_host,
    "storeTimestamp": lambda m: timestamps(m.columns.store_ms),
    "storeHost": MessageColumns._store_host,
    "reconsumeTimes": lambda m: _i32(m.columns.reconsume_times),
    "preparedTransactionOffset": lambda m: pa.array(m.columns.prepared_offset),
    "bodyCrc": lambda m: _i32(m.columns.body_crc),
    "tags": lambda m: m.tags,
    "keys": lambda m: m.keys,
    "properties": lambda m: m._raw_properties,
    "body": MessageColumns._body,
}
