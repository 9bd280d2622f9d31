"""Whether property strings are as senders and brokers write them, of many records at once.

A string is pairs of a name, 01, a value, 02; the last 02 may be missing. All strings of a batch are
one text (``firearrow.store.scan.joined``), and only its separators are looked at: each pair that is
not empty has one 01, not at its beginning. So it does not matter how many pairs there are, or
whether they end.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from firearrow.message.properties import fault_of, is_utf8
from firearrow.store.scan import PADDING, Bytes, Columns, joined

_NAME_END: Final = 1
_PAIR_END: Final = 2


def faults(columns: Columns) -> list[tuple[int, str]]:
    """The numbers of the records whose properties are odd, and what is odd about them."""
    text, row_bytes = joined(columns)
    text = text[: -len(PADDING)]
    if _is_sound(text, row_bytes):
        return []
    texts = columns.slices(columns.properties_start, columns.properties_size)
    found = ((number, fault_of(text)) for number, text in enumerate(texts))
    return [(number, fault) for number, fault in found if fault]


def _is_sound(text: Bytes, row_bytes: int) -> bool:
    """Tell whether all pairs of a text are in order; ``row_bytes`` is the length of equal strings."""
    if row_bytes and _is_repeated(text, row_bytes):
        return fault_of(text[: row_bytes - 1].tobytes()) is None
    return (int(text.max()) < 128 or is_utf8(text.tobytes())) and _pairs_are_sound(text)


def _is_repeated(text: Bytes, row_bytes: int) -> bool:
    """Tell whether all rows are ASCII and have their separators where the first has them."""
    rows = text.reshape(-1, row_bytes)
    odd = (rows <= _PAIR_END) | (rows > 127)
    first = rows[0]
    if first.max() > 127 or odd.tobytes() != odd[0].tobytes() * len(rows):
        return False
    marks = odd[0].nonzero()[0]
    return bool((rows[:, marks] == first[marks]).all())


def _pairs_are_sound(text: Bytes) -> bool:
    """Tell whether each pair that is not empty has one 01, not at its beginning."""
    place = ((text == _NAME_END) | (text == _PAIR_END)).nonzero()[0]
    ends = text[place] == _PAIR_END
    after_end = np.append(True, ends[:-1])  # whether the separator before is a pair's end
    distance = np.diff(place, prepend=-1)
    # A name's end follows a pair's end, and not at once; a pair's end follows a name's end, or at
    # once the end of the pair before.
    sound = np.where(ends, ~after_end | (distance == 1), after_end & (distance > 1))
    return bool(sound.all())
