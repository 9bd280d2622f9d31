"""``kill -9`` under load: nothing that was acknowledged is lost, doubled or altered."""

import os
from pathlib import Path

import pytest

from tests.crash.victim import Victim

ROUNDS = int(os.environ.get("FIREARROW_KILL_ROUNDS", "10"))


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_killed_broker_keeps_what_it_acknowledged(tmp_path: Path, flush: str) -> None:
    victim = Victim(ROUNDS, tmp_path / "store")
    for _ in range(-(-ROUNDS // 2)):
        victim.round(f"flushDiskType={flush}")
    victim.compare_all()
    assert sum(map(len, victim.kept)) > 100
