"""Columns of texts that repeat."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.spark.columns.textcolumns import Texts, constant, of_one_size


@given(st.lists(st.text(max_size=70), min_size=1, max_size=5), st.data())
def test_texts_by_number(texts: list[str], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=20))
    column = Texts(texts).take(np.array(numbers, np.int64))
    column.validate(full=True)
    assert column.type == pa.string()
    assert column.to_pylist() == [texts[number] for number in numbers]


@pytest.mark.parametrize("text", ["", "broker-a", "münchen"])
@pytest.mark.parametrize("count", [0, 1, 5, 40_000])
def test_one_text_for_all_rows(text: str, count: int) -> None:
    column = constant(text, count)
    column.validate(full=True)
    assert column.to_pylist() == [text] * count


def test_items_of_one_size() -> None:
    column = of_one_size(pa.binary(), np.frombuffer(b"abcdef", "V2"))
    column.validate(full=True)
    assert column.to_pylist() == [b"ab", b"cd", b"ef"]
