"""Tag codes and index keys of many records at once, out of their property strings.

Both are Java's ``String.hashCode`` (h = 31 h + c over UTF-16 units, 32-bit wrap). Over a batch that
is a sum of bytes times powers of 31, so it is computed for all keys together; only text beyond
ASCII takes the way through ``java_hash``. ``topic#key`` is never built: the hash of a concatenation
is ``hash(topic#) * 31**len(key) + hash(key)``.

Index keys of a record, in the order in which they are put: ``topic#UNIQ_KEY``, ``topic#k`` for each
word of KEYS, ``topic#T#TAGS``; none for a rollback record.
Source: upstream ``IndexService#buildIndex``, ``MessageExtBrokerInner#tagsString2tagsCode``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.message.names import java_hash
from firearrow.message.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from firearrow.store.scan import Columns, Ints

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

_PAIR_END: Final = 2
_NAME_END: Final = 1
_SPACE: Final = 0x20
_PADDING: Final = bytes(16)


def _name_word(name: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(name.ljust(8, b"\0"), "little"))


_UNIQUE: Final = _name_word(b"UNIQ_KEY")
_KEYS: Final = _name_word(b"KEYS\x01")
_TAGS: Final = _name_word(b"TAGS\x01")
_FIVE_BYTES: Final = np.uint64((1 << 40) - 1)
_TAG_MARK: Final = b"T#"


class Spans(NamedTuple):
    """Pieces of a text: which record each belongs to, where it starts and how long it is."""

    record: Ints
    start: Ints
    size: Ints

    def take(self, chosen: npt.NDArray[np.bool_] | Ints) -> Spans:
        """Some of the pieces."""
        return Spans(self.record[chosen], self.start[chosen], self.size[chosen])


class IndexKeys(NamedTuple):
    """Keys to put into the index, in order: the number of their record, and their hash (>= 0)."""

    record: Ints
    hash: Ints


class Properties:
    """The properties of a batch of records as one text, with the three that the store derives
    from: unique key, keys, tags."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        strings = columns.slices(columns.properties_start, columns.properties_size)
        text = b"\x02".join(strings)
        self._text: Bytes = np.frombuffer(text + _PADDING, dtype=np.uint8)
        self._high = not text.isascii()
        ends = np.flatnonzero(self._text[: len(text)] == _PAIR_END)
        start = np.concatenate((np.zeros(1, np.int64), ends + 1))
        size = np.append(ends, len(text)) - start
        words: npt.NDArray[np.uint64] = np.ndarray(
            (len(text) + 1,), np.dtype("<u8"), self._text.data, 0, (1,)
        )[start]
        record_start = np.concatenate(
            (np.zeros(1, np.int64), np.cumsum(columns.properties_size + 1)[:-1])
        )
        short = words & _FIVE_BYTES
        unique = np.flatnonzero((words == _UNIQUE) & (self._text[start + 8] == _NAME_END))
        self.unique = self._values(start, size, unique, 9, record_start)
        self.keys = self._values(start, size, np.flatnonzero(short == _KEYS), 5, record_start)
        self.tags = self._values(start, size, np.flatnonzero(short == _TAGS), 5, record_start)

    def _values(
        self, start: Ints, size: Ints, pairs: Ints, name_bytes: int, record_start: Ints
    ) -> Spans:
        """The values of some pairs; of a name that a record repeats the last counts."""
        pairs = pairs[size[pairs] > name_bytes]  # no value means no pair
        at = start[pairs] + name_bytes
        length = size[pairs] - name_bytes
        record = np.searchsorted(record_start, at, side="right") - 1
        keep = np.append(record[1:] != record[:-1], True)[: len(record)]
        return Spans(record[keep], at[keep], length[keep])

    def tag_codes(self) -> Ints:
        """The ConsumeQueue's tag code of each record: the hash of its TAGS, 0 without."""
        codes = np.zeros(len(self._columns), dtype=np.int64)
        codes[self.tags.record] = self._hash(self.tags).astype(np.int32)
        return codes

    def index_keys(self, topics: list[bytes], topic_number: Ints) -> IndexKeys:
        """The index keys of the records, given the topics and the number of each record's."""
        mask = self._columns.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        kinds = [self.unique, self._split(self.keys), self.tags]
        if not mask.all():
            kinds = [kind.take(mask[kind.record]) for kind in kinds]
        prefixes = _prefix_column(topics, topic_number, b"")
        tag_prefixes = _prefix_column(topics, topic_number, _TAG_MARK)
        parts = [
            self._prefixed(spans, column)
            for spans, column in zip(kinds, (prefixes, prefixes, tag_prefixes), strict=True)
        ]
        record = np.concatenate([kind.record for kind in kinds])
        order = np.argsort(record, kind="stable")
        hashes = np.abs(np.concatenate(parts).view(np.int32).astype(np.int64))
        hashes[hashes == 1 << 31] = 0
        return IndexKeys(record[order], hashes[order])

    def _prefixed(self, spans: Spans, prefixes: Words) -> Words:
        """Hashes of prefix + value."""
        if not len(spans.record):
            return np.empty(0, np.uint32)
        hashes = self._hash(spans)
        lengths = self._utf16_lengths(spans)
        return prefixes[spans.record] * _powers(int(lengths.max()))[lengths] + hashes

    def _split(self, spans: Spans) -> Spans:
        """KEYS values as their words, in order."""
        if not len(spans.record) or not (self._text == _SPACE).any():
            return spans
        record, start, size = [], [], []
        text = self._text.tobytes()
        for number, at, length in zip(*(column.tolist() for column in spans), strict=True):
            for word in text[at : at + length].split(b" "):
                if word:
                    record.append(number)
                    start.append(at)
                    size.append(len(word))
                at += len(word) + 1
        return Spans(
            np.array(record, np.int64), np.array(start, np.int64), np.array(size, np.int64)
        )

    def _hash(self, spans: Spans) -> Words:
        """The hash of each piece, as unsigned 32 bits."""
        if not len(spans.record):
            return np.empty(0, np.uint32)
        longest = int(spans.size.max())
        if longest == int(spans.size.min()):
            hashes = self._hash_equal(spans.start, longest)
        else:
            hashes = self._hash_ragged(spans, longest)
        if self._high:
            self._rehash_unicode(spans, hashes)
        return hashes

    def _hash_equal(self, start: Ints, size: int) -> Words:
        piece = np.dtype((np.void, size))
        room = len(self._text) - size + 1
        pieces = np.ndarray((room,), piece, self._text.data, 0, (1,))[start]
        matrix = pieces.view(np.uint8).reshape(len(start), size)
        hashes: Words = matrix.astype(np.uint32) @ _powers(size)[:size][::-1]
        return hashes

    def _hash_ragged(self, spans: Spans, longest: int) -> Words:
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(spans.size)[:-1]))
        place = np.arange(int(spans.size.sum())) - np.repeat(first, spans.size)
        power = _powers(longest)[np.repeat(spans.size, spans.size) - 1 - place]
        terms = self._text[np.repeat(spans.start, spans.size) + place] * power
        hashes: Words = np.add.reduceat(terms, first, dtype=np.uint32)
        return hashes

    def _rehash_unicode(self, spans: Spans, hashes: Words) -> None:
        """Hash the pieces that are not ASCII again, by their UTF-16 units."""
        for number, piece in self._unicode_pieces(spans):
            hashes[number] = java_hash(piece) & 0xFFFFFFFF

    def _utf16_lengths(self, spans: Spans) -> Ints:
        if not self._high:
            return spans.size
        lengths = spans.size.copy()
        for number, piece in self._unicode_pieces(spans):
            lengths[number] = len(piece.encode("utf-16-be")) // 2
        return lengths

    def _unicode_pieces(self, spans: Spans) -> list[tuple[int, str]]:
        text = self._text.tobytes()
        pieces = [
            text[a : a + n] for a, n in zip(spans.start.tolist(), spans.size.tolist(), strict=True)
        ]
        return [
            (number, piece.decode("utf-8", "replace"))
            for number, piece in enumerate(pieces)
            if not piece.isascii()
        ]


@lru_cache(maxsize=64)
def _power_table(bits: int) -> Words:
    powers = np.ones(1 << bits, np.uint32)
    for n in range(bits):
        half = 1 << n
        powers[half : 2 * half] = powers[:half] * np.uint32(pow(31, half, 1 << 32))
    return powers


def _powers(longest: int) -> Words:
    """31**n mod 2**32 for n = 0 .. at least ``longest``."""
    return _power_table(max(6, longest.bit_length()))


@lru_cache(maxsize=8192)
def _prefix_hash(topic: bytes, mark: bytes) -> int:
    return java_hash((topic + b"#" + mark).decode("utf-8", "replace")) & 0xFFFFFFFF


def _prefix_column(topics: list[bytes], topic_number: Ints, mark: bytes) -> Words:
    hashes = np.array([_prefix_hash(topic, mark) for topic in topics], dtype=np.uint32)
    return hashes[topic_number]
