"""Properties of many messages at once are those that one message's parser reads."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message.properties import parse
from firearrow.spark.columns.propertytext import PropertyText, as_text, cut
from tests.spark.logs import NAMES, any_properties

rows = st.builds(
    lambda seed, count: [any_properties(chance) for chance in [Random(seed)] for _ in range(count)],
    st.integers(0, 1 << 32),
    st.integers(0, 30),
)


@given(texts=rows, before=st.integers(0, 3))
def test_each_property_and_all_of_them(texts: list[bytes], before: int) -> None:
    array = pa.array([b"x\x01y\x02"] * before + texts, pa.binary())[before:]
    found = PropertyText.of(array)
    expected = [parse(text) for text in texts]
    for name in (*NAMES, "KEY", "nowhere", "x"):
        assert found.values(name).to_pylist() == [row.get(name) for row in expected]
    pairs = found.as_map().to_pylist()
    assert [dict(row) for row in pairs] == expected
    assert [len(row) for row in pairs] == [len(row) for row in expected]


@given(texts=rows)
def test_text_that_is_known_to_be_text(texts: list[bytes]) -> None:
    sound = [text for text in texts if b"\xff" not in text]
    found = PropertyText.of(pa.array(sound, pa.binary()).cast(pa.string()))
    for name in NAMES:
        assert found.values(name).to_pylist() == [parse(text).get(name) for text in sound]


@pytest.mark.parametrize("end", ["\x02", ""])
@pytest.mark.parametrize(
    "odd", ["", "TAGS\x01b\x02LONG_NAME_1\x01\x02K\x01c", "K\x01c\x02TAGS\x01\x02K\x01d", "K\x01" * 3]
)
@pytest.mark.parametrize("place", [0, 2, 5])
def test_messages_with_the_same_names_in_the_same_order_but_one(end: str, odd: str, place: int) -> None:
    even = [f"TAGS\x01a{n}\x02LONG_NAME_1\x01{'v' * n}\x02LONG_NAME_2\x01w\x02K\x01{n}{end}" for n in range(1, 6)]
    for texts in (even, [*even[:place], odd, *even[place:]]):
        found = PropertyText.of(pa.array([text.encode() for text in texts]))
        expected = [parse(text) for text in texts]
        for name in ("TAGS", "LONG_NAME_1", "LONG_NAME_2", "LONG_NAME", "K"):
            assert found.values(name).to_pylist() == [row.get(name) for row in expected]
        assert [dict(row) for row in found.as_map().to_pylist()] == expected


def test_many_different_names() -> None:
    texts = ["".join(f"n{n}\x01{n}\x02" for n in range(start, 200)) * 2 for start in (0, 100, 199)]
    found = PropertyText.of(pa.array([text.encode() for text in texts])).as_map()
    assert [dict(row) for row in found.to_pylist()] == [parse(text) for text in texts]
    assert [len(row) for row in found.to_pylist()] == [200, 100, 1]


@pytest.mark.parametrize("sizes", [[3, 3, 3], [3, 0, 200], [0, 0], [100, 100], []])
def test_pieces_are_cut(sizes: list[int]) -> None:
    data = bytes(range(97, 123)) * 40
    start = np.array([sum(sizes[:n]) + 2 * n for n in range(len(sizes))], np.int64)
    end = start + np.array(sizes, np.int64)
    found = cut(pa.py_buffer(data), start, end)
    found.validate(full=True)
    pairs = zip(start.tolist(), end.tolist(), strict=True)
    assert found.to_pylist() == [data[a:b] for a, b in pairs]


def test_what_is_no_text_is_marked() -> None:
    assert as_text(pa.array([b"a\xff", None, b"b"])).to_pylist() == ["a\ufffd", None, "b"]
