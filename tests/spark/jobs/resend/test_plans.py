"""What a job keeps of its queues is in its own directory, whatever their names are."""

from pathlib import Path

import pytest

from firearrow.client.queues import Queue
from firearrow.spark.jobs.resend.plans import _ledger


@pytest.mark.parametrize("name", ["..", ".", "../../x", "/abs", "a\0b", "T"])
def test_a_ledger_is_in_the_directory_of_its_job(name: str, tmp_path: Path) -> None:
    path = _ledger(tmp_path, Queue(name, name, 0)).resolve()
    assert path.parent.parent == (tmp_path / "queues").resolve()
