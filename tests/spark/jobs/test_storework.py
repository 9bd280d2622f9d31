"""Executors as workers of the offline tools."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.spark.jobs.storework import Executors, layout_of
from firearrow.store.offline import Layout, StoreView
from tests.store.offline.damage import golden_store


def _place(view: StoreView, number: int) -> tuple[int, int, bool, int | None]:
    return number, os.getpid(), view.live, view.holder


@pytest.mark.parametrize("at_once", [None, 1, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 9, 40])
def test_results_come_in_order(
    spark: SparkSession, at_once: int | None, count: int, tmp_path: Path
) -> None:
    with StoreView(Layout(golden_store(tmp_path)), owned=True) as view:
        view.holder = 4711  # what this process knows is what the others go by
        found = list(Executors(spark, at_once).work(view, _place, list(range(count))))
    assert [number for number, *_ in found] == list(range(count))
    assert all(row[2:] == (True, 4711) for row in found)
    assert os.getpid() not in {pid for _, pid, *_ in found}


def test_a_store_is_named_by_its_directory_or_in_full(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path, index_slots=7)
    assert layout_of(layout) is layout
    assert layout_of(tmp_path) == layout_of(str(tmp_path)) == Layout(tmp_path)
