"""Entries in the order of the log."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.spark.planning import commitlogorder
from firearrow.spark.planning.commitlogorder import EntriesInOrder, Wanted
from firearrow.store.reading.entries import Entries

Row = tuple[int, int, int, int]


def in_order(rows: list[list[tuple[int, int]]]) -> EntriesInOrder:
    """Of each part its places and sizes."""
    parts = [
        Entries(
            np.arange(len(part)),
            np.array([place for place, _ in part], np.int64),
            np.array([size for _, size in part], np.int64),
            np.zeros(len(part), np.int64),
        )
        for part in rows
    ]
    return EntriesInOrder(Wanted.of(parts))


def read(entries: EntriesInOrder) -> list[list[Row]]:
    return [list(zip(*(c.tolist() for c in piece), strict=True)) for piece in entries.pieces()]


def places(high: int) -> st.SearchStrategy[list[list[tuple[int, int]]]]:
    entry = st.tuples(st.integers(0, high), st.integers(91, 5000))
    return st.lists(st.lists(entry, max_size=20), min_size=1, max_size=4)


@pytest.mark.parametrize("piece_rows", [1, 3, 1 << 15])
@given(parts=places(40) | places(1 << 62), ends=st.tuples(st.integers(0, 45), st.integers(0, 45)))
def test_entries_come_in_order_and_those_of_one_place_together(
    piece_rows: int, parts: list[list[tuple[int, int]]], ends: tuple[int, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commitlogorder, "PIECE_ROWS", piece_rows)
        entries = in_order(parts)
        expected = [
            (offset, place, size, number)
            for number, part in enumerate(parts)
            for offset, (place, size) in enumerate(part)
        ]
        pieces = read(entries)
        found = [row for piece in pieces for row in piece]
        assert sorted(found) == sorted(expected)
        assert [row[1] for row in found] == sorted(row[1] for row in expected)
        for piece, after in pairwise(pieces):
            assert piece[-1][1] < after[0][1]
        start, end = min(ends), max(ends)
        some = entries.between(start, end)
        inside = [row for row in found if start <= row[1] < end]
        assert sorted(row for piece in read(some) for row in piece) == sorted(inside)
        assert len(some) == len(inside)
        assert entries.count_before(end) == sum(row[1] < end for row in found)


def test_ends_and_sizes() -> None:
    entries = in_order([[(100, 200), (900, 91)], [(300, 600)]])
    assert (entries.first, entries.last, entries.size_max) == (100, 900, 600)
    assert (entries.between(200, 900).first, entries.between(200, 900).last) == (300, 300)
    assert len(in_order([[]])) == 0
