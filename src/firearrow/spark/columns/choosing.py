"""Choose the messages with the tags and keys that the options name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.spark.options import Choice

Mask = npt.NDArray[np.bool_]


def chosen_rows(choice: Choice, tags: pa.Array, keys: pa.Array, ids: Callable[[], pa.Array]) -> Mask:
    """Tell which messages have one of the tags, and one of the keys, where some are named.

    A key may also be the ``msgId``, which ``ids`` gives.
    """
    chosen = np.ones(len(tags), np.bool_)
    if choice.tags:
        chosen &= _as_mask(pc.is_in(tags, pa.array(choice.tags, pa.string())))
    if choice.keys:
        wanted = pa.array(choice.keys, pa.string())
        found = _as_mask(pc.is_in(ids(), wanted))
        words = pc.utf8_split_whitespace(keys)
        row = np.asarray(pc.list_parent_indices(words))
        found[row[_as_mask(pc.is_in(pc.list_flatten(words), wanted))]] = True
        chosen &= found
    return chosen


def _as_mask(values: pa.Array) -> Mask:
    """Arrow's truth values; null is false."""
    mask: Mask = np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    return mask
