"""`make demo` does what it says, and ends by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECONDS_MAX = 280  # a minute where nothing else runs


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demonstration_runs_to_its_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ran = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--store", str(store)],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout
    assert said.startswith("A broker serves at 127.0.0.1:")
    assert said.endswith("The broker has ended. All of this works without one, but for sending.\n")
    for line in (
        "  billing         Orders  303",  # half of 607 messages, of four queues
        "  shipping        Orders             10",  # dead letters
        "sent",
        "  Orders                607",  # archived: 600, six copies, one sent again
        "| new|   306|",
        "|paid|   301|",
    ):
        assert line in said, said
    assert not (store / "abort").exists()  # the broker has ended cleanly
