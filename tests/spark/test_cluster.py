"""The source on a real cluster: executors that are processes of their own, the package shipped."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.golden import expected, extract
from tests.spark.cluster import run_driver, standalone, zip_package
from tests.store.stores import contents

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GOLDEN = "file-cq-clean"
TIMEOUT_S = 340


@pytest.mark.timeout(TIMEOUT_S)
def test_two_workers_read_a_store_and_do_bulk_work_with_the_package_that_was_shipped(tmp_path: Path) -> None:
    store = extract(GOLDEN, tmp_path)
    package = zip_package(tmp_path / "firearrow.zip")
    with standalone(tmp_path / "cluster", workers=2) as master:
        seen = run_driver(master, package, store, tmp_path / "made")
    assert seen["package"] == ["./firearrow.zip/firearrow/__init__.py"]
    assert seen["tasks"] >= 2
    at_work = {name: seen[name] for name in ("readers", "verifiers", "rebuilders", "archivers")}
    assert set(at_work.values()) == {2}, at_work
    assert seen["topics"] == seen["archived"] == _totals()
    assert seen["findings"] == 0
    assert contents(tmp_path / "made/consumequeue") == contents(store / "consumequeue")
    indexes = contents(tmp_path / "made/index")
    assert all(len(name) == 17 and name.isdigit() for name in indexes)  # times of making
    assert list(indexes.values()) == list(contents(store / "index").values())


def _totals() -> dict[str, list[int]]:
    """Of each topic the number of messages and a sum over their bodies' hashes."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for message in expected(GOLDEN):
        total = totals[message["topic"]]
        total[0] += 1
        total[1] += int(message["bodySha256"][:8], 16)
    return dict(totals)
