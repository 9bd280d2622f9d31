"""Property strings of many messages at once: one property of each message, or all of them as a map.

The strings are one text with the bounds of the rows in it, as Arrow stores them. Separators delimit the pairs, and
names are compared eight bytes at a time; no work is done for single messages. The rules are the same as in
``firearrow.message.properties.parse``. A pair needs a name and a value, and the last pair of a repeated name counts.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firearrow.spark.columns.textcolumns import of_one_size

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_NAME_END: Final = 1
_PAIR_END: Final = 2
_BINARY: Final = pa.binary()
_SHORT: Final = 64
_PADDING: Final = 16  # so that eight bytes can be read at any place
_NAMES_IN_WORD: Final = 62


class PropertyText:
    """The property strings of ``len(bounds) - 1`` messages."""

    def __init__(self, text: Bytes, bounds: Ints, *, is_text: bool = False) -> None:
        """``bounds`` are rising positions in ``text``; row n lies between bounds n and n + 1.

        ``is_text`` means that the text is known to be UTF-8, and so are its pieces.
        """
        self._is_text = is_text
        self._count = len(bounds) - 1
        first, end = (int(bounds[0]), int(bounds[-1])) if self._count else (0, 0)
        self._text = text = text[first:end]
        self._bounds = bounds = bounds - first if first else bounds
        is_end = text == _PAIR_END
        rows = bounds[1:][bounds[1:] > bounds[:-1]]  # ends of the strings that are not empty
        is_open = ~is_end[rows - 1]  # senders may leave the last separator out
        if opened := np.count_nonzero(is_open):
            rows = rows[is_open]
            is_end[rows - 1] = True
        self._end: Ints = is_end.nonzero()[0]
        self._start: Ints = np.zeros(len(self._end), np.int64)
        np.add(self._end[:-1], 1, out=self._start[1:])
        if opened:  # their last pairs end behind the byte that was marked
            self._end[self._end.searchsorted(rows - 1)] += 1

    @staticmethod
    def of(array: pa.Array) -> PropertyText:
        """Take the strings of an Arrow array of type binary or string without nulls."""
        _, bounds, data = array.buffers()
        if data is None or not len(array):
            return PropertyText(np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64))
        offsets = np.frombuffer(bounds, np.int32, len(array) + 1, 4 * array.offset)
        is_text = pa.types.is_string(array.type)
        text = np.frombuffer(data, np.uint8)
        return PropertyText(text, offsets.astype(np.int64), is_text=is_text)

    @cached_property
    def _words(self) -> npt.NDArray[np.uint64]:
        """The first eight bytes of each pair."""
        return self._words_at(self._start)

    def _words_at(self, places: Ints) -> npt.NDArray[np.uint64]:
        text = self._text
        if len(places) and int(places[-1]) > len(text) - 8:
            text = self._padded
        room = len(text) - 7
        everywhere: npt.NDArray[np.uint64] = np.ndarray((max(room, 0),), "<u8", text, 0, (1,))
        return everywhere[places]

    @cached_property
    def _padded(self) -> Bytes:
        """The text, padded so that eight bytes can be read at any place in it."""
        return np.concatenate((self._text, np.zeros(_PADDING, np.uint8)))

    @cached_property
    def _width(self) -> int:
        """Number of pairs of each message; 0 if it differs between messages."""
        width, left = divmod(len(self._end), max(self._count, 1))
        if left or not width or not (self._start[::width] == self._bounds[:-1]).all():
            return 0
        return width

    def values(self, name: str) -> pa.Array:
        """Return the value of a property for each message; null for a message without it."""
        head = name.encode() + b"\x01"
        named = _alike(self._words, head[:8])
        pairs = self._one_of_each(named)
        for at in range(8, len(head), 8):
            places = np.minimum(self._start[pairs] + at, len(self._text))
            alike = _alike(self._words_at(places), head[at : at + 8])
            if np.count_nonzero(alike) < len(alike):
                pairs = np.arange(len(self._start))[pairs][alike]
        start, end = self._start[pairs] + len(head), self._end[pairs]
        full = end > start
        if np.count_nonzero(full) < len(full):
            start, end = start[full], end[full]
        if len(start) == self._count and (isinstance(pairs, slice) or _one_each(start, self._bounds)):
            return self._cut(start, end)
        row = self._bounds.searchsorted(start, side="right") - 1
        last = np.append(row[1:] != row[:-1], True)[: len(row)]
        row, found = row[last], self._cut(start[last], end[last])
        place = np.full(self._count, -1, np.int32)
        place[row] = np.arange(len(row), dtype=np.int32)
        return found.take(pa.array(place, mask=place < 0))

    def _one_of_each(self, chosen: npt.NDArray[np.bool_]) -> Ints | slice:
        """Return the chosen pairs: a slice if they are the same column of every message."""
        if width := self._width:
            column = int(chosen[:width].argmax())
            if chosen[column::width].all() and np.count_nonzero(chosen) == self._count:
                return slice(column, None, width)
        found: Ints = chosen.nonzero()[0]
        return found

    def as_map(self) -> pa.Array:
        """Return all properties of each message."""
        colon = self._name_ends()
        good = (colon > self._start) & (colon + 1 < self._end)
        before = np.zeros(len(good) + 1, np.int64)
        before[1:] = good.cumsum()
        offsets = before[self._start.searchsorted(self._bounds)]
        start, colon, end = self._start[good], colon[good], self._end[good]
        names = self._cut(start, colon).dictionary_encode()
        number = np.asarray(names.indices).astype(np.int64)
        keep = _last_of_each(number, len(names.dictionary), offsets)
        if keep is not None:
            kept = np.zeros(len(keep) + 1, np.int64)
            kept[1:] = keep.cumsum()
            offsets = kept[offsets]
            number, colon, end = number[keep], colon[keep], end[keep]
        keys = names.dictionary.take(pa.array(number))
        values = self._cut(colon + 1, end)
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), keys, values)

    def _name_ends(self) -> Ints:
        """Return the end of each pair's name; the pair's end if it has no separator."""
        colons: Ints = (self._text == _NAME_END).nonzero()[0]
        if len(colons) == len(self._end) and _within(colons, self._start, self._end):
            return colons
        colons = np.append(colons, len(self._text))
        found: Ints = np.minimum(colons[colons.searchsorted(self._start)], self._end)
        return found

    def _cut(self, start: Ints, end: Ints) -> pa.Array:
        if self._is_text:
            return cut(pa.py_buffer(self._text), start, end, pa.string())
        return as_text(cut(pa.py_buffer(self._text), start, end))


def cut(data: pa.Buffer, start: Ints, end: Ints, kind: pa.DataType = _BINARY) -> pa.Array:
    """Copy pieces of a buffer into an array of type binary or string. The pieces must be in order and not overlap.

    The buffer becomes an array of pieces and gaps, and Arrow takes every second element, so the copying is Arrow's.
    numpy copies short pieces of one size, because it is faster there.
    """
    count = len(start)
    if not count:
        return pa.array([], kind)
    size = int(end[0] - start[0])
    if 0 < size <= _SHORT and (end - start == size).all():
        place: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
        return of_one_size(kind, place[start])
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = start
    bounds[1::2] = end
    parts = [None, pa.py_buffer(bounds), data]
    pieces = pa.Array.from_buffers(kind, 2 * count - 1, parts)
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def as_text(array: pa.Array) -> pa.Array:
    """Return an array of bytes as strings; bytes that are not UTF-8 become U+FFFD."""
    texts = as_utf8(array)
    if texts is not None:
        return texts
    values = array.to_pylist()
    texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
    return pa.array(texts, pa.string())


def as_utf8(array: pa.Array) -> pa.Array | None:
    """Return an array of bytes as strings; None if some of them are not UTF-8."""
    data = array.buffers()[2]
    if data is not None and not array.offset and np.frombuffer(data, np.uint8).max(initial=0) < 128:
        return pa.Array.from_buffers(pa.string(), len(array), array.buffers())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _alike(words: npt.NDArray[np.uint64], head: bytes) -> npt.NDArray[np.bool_]:
    """Tell whether words begin with up to eight bytes."""
    wanted = np.uint64(int.from_bytes(head.ljust(8, b"\0"), "little"))
    if len(head) < 8:
        words = words & np.uint64((1 << 8 * len(head)) - 1)
    alike: npt.NDArray[np.bool_] = words == wanted
    return alike


def _one_each(places: Ints, bounds: Ints) -> bool:
    return bool((places >= bounds[:-1]).all() and (places < bounds[1:]).all())


def _within(places: Ints, start: Ints, end: Ints) -> bool:
    return bool((places >= start).all() and (places < end).all())


def _last_of_each(number: Ints, names: int, offsets: Ints) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the pairs that are the last of their name in their row; None if all are."""
    if not len(number):
        return None
    size = offsets[1:] - offsets[:-1]
    if names <= _NAMES_IN_WORD:
        first = offsets[:-1][size > 0]
        bits = np.int64(1) << number
        if (np.add.reduceat(bits, first) == np.bitwise_or.reduceat(bits, first)).all():
            return None
    row = np.repeat(np.arange(len(size)), size)
    order = np.lexsort((number, row))
    same = (row[order][1:] == row[order][:-1]) & (number[order][1:] == number[order][:-1])
    if not np.count_nonzero(same):
        return None
    keep = np.ones(len(number), np.bool_)
    keep[order[:-1][same]] = False
    return keep
