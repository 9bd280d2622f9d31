"""The diagrams of the documentation are those that the tool draws, and nothing in them overlaps."""

from __future__ import annotations

from itertools import combinations

import pytest

from tools.drawings import BOX_HEIGHT, BOX_WIDTH, COLUMN, DIAGRAMS, PICTURES, ROW, as_svg


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_is_fresh(name: str) -> None:
    picture = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    assert picture == as_svg(DIAGRAMS[name]), "python -m tools.drawings"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_boxes_do_not_overlap(name: str) -> None:
    for one, other in combinations(DIAGRAMS[name].boxes, 2):
        apart = abs(one.column - other.column) * COLUMN, abs(one.row - other.row) * ROW
        assert apart[0] >= BOX_WIDTH or apart[1] >= BOX_HEIGHT, (one.name, other.name)
