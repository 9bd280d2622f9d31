"""Executors as workers of the offline tools."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.cli.main import main
from firearrow.spark.jobs.storework import Executors, layout_of
from firearrow.store.offline import Layout, StoreView
from tests.store.offline.damage import a_message, golden_store, in_record
from tests.store.stores import contents


def _place(view: StoreView, number: int) -> tuple[int, int, bool, int | None]:
    return number, os.getpid(), view.live, view.holder


@pytest.mark.parametrize("at_once", [None, 1, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 9, 40])
def test_results_come_in_order(spark: SparkSession, at_once: int | None, count: int, tmp_path: Path) -> None:
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


def test_the_command_has_executors_read(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("firearrow.cli.pipeline.jobs._started", lambda *_: nullcontext(spark))
    root = golden_store(tmp_path)

    def said(*arguments: object) -> tuple[int, str]:
        return main(["store", *map(str, arguments)]), capsys.readouterr().out

    assert said("verify", root, "--spark", "local[2]") == said("verify", root)
    code, text = said("rebuild", root, "--to", tmp_path / "made", "--spark", "local[2]")
    assert (code, text.splitlines()[1]) == (0, "from 952 records")
    queue = root / "consumequeue" / "GoldenPlain"
    before = contents(queue)
    shutil.rmtree(queue)
    code, text = said("verify", root, "--spark", "local[2]", "--json")
    assert (code, {finding["topic"] for finding in json.loads(text)["findings"]}) == (1, {"GoldenPlain"})
    assert said("rebuild", root, "--only", "queues", "--spark", "local[2]")[0] == 0
    assert contents(queue) == before
    assert said("verify", root, "--spark", "local[2]")[0] == 0
    in_record(root, a_message(root), 88, b"\0")
    assert said("verify", root, "--spark", "local[2]", "--progress")[0] == 1
