"""Columns of repeated texts: one text for all rows, or some texts by number.

Such a column is as long as any other, because Spark takes no dictionaries. A text that all rows share is written once
for many batches. numpy copies texts of one size, several times as fast as Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_ROWS: Final = 1 << 15  # a batch has seldom more
_SHORT: Final = 64  # bytes; up to here numpy copies faster


def constant(text: str, count: int) -> pa.Array:
    """Return a column with the same text ``count`` times."""
    if count > _ROWS:
        return pa.repeat(pa.scalar(text, pa.string()), count)
    return _many(text).slice(0, count)


@lru_cache(maxsize=32)
def _many(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), _ROWS)


def of_one_size(kind: pa.DataType, items: npt.NDArray[Any]) -> pa.Array:
    """Return items of one size, one behind the other, as a column of type string or binary."""
    size = items.itemsize
    bounds = np.arange(0, (len(items) + 1) * size, size, dtype=np.int32)
    parts = [None, pa.py_buffer(bounds), pa.py_buffer(items)]
    return pa.Array.from_buffers(kind, len(items), parts)


class Texts:
    """A few texts that columns are made from."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.array: Final = pa.array(texts, pa.string())
        items = [text.encode() for text in texts]
        sizes = {len(item) for item in items}
        self._items: npt.NDArray[Any] | None = None
        if len(sizes) == 1 and 0 < min(sizes) <= _SHORT:
            self._items = np.frombuffer(b"".join(items), np.dtype((np.void, min(sizes))))

    def take(self, number: npt.NDArray[np.integer[Any]]) -> pa.Array:
        """Return the column of the texts with these numbers."""
        if self._items is not None:
            return of_one_size(pa.string(), self._items[number])
        return self.array.take(pa.array(number))
