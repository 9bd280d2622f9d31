"""Celery's pool of processes, of which hard time limits kill some."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kombu import pools

from firearrow.testing import EmbeddedCluster

ROUNDS = 3
CHILDREN = 8
WITHIN = 60
WORKER = f"-m celery -A tests.integrations.limited worker -P prefork -c {CHILDREN} -l warning -Q celery"


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The application, with a cluster of its own and its worker."""
    (tmp_path / "results").mkdir()
    with EmbeddedCluster() as cluster:
        monkeypatch.setenv("LIMITED_BROKER", f"rocketmq://{cluster.name_server}")
        monkeypatch.setenv("LIMITED_RESULTS", f"file://{tmp_path / 'results'}")
        app = importlib.import_module("tests.integrations.limited").app
        worker = subprocess.Popen([sys.executable, *WORKER.split()])
        try:
            yield app
            worker.terminate()
            assert worker.wait(WITHIN) == 0
        finally:
            worker.kill()
            worker.wait()
            app.close()
            pools.reset()


def test_a_worker_goes_on_when_a_child_was_killed_while_it_sent(limited: Any) -> None:
    """A thread of the client may take a signal that the pool needs, or hold a lock for good."""
    for number in range(ROUNDS):
        for killed in [limited.tasks["send_for_ever"].delay() for _ in range(CHILDREN)]:
            with pytest.raises(Exception, match="TimeLimitExceeded"):
                killed.get(timeout=WITHIN)
        assert limited.tasks["answer"].delay(number).get(timeout=WITHIN) == number
