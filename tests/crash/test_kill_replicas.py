"""``kill -9`` of a master, its slave or both under load, see `tests.crash.replicas`.

``FIREARROW_REPLICAS_KILL_ROUNDS`` is how often.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.crash.replicas import Replicas
from tests.store.stores import KINDS

ROUNDS: Final = int(os.environ.get("FIREARROW_REPLICAS_KILL_ROUNDS", "5"))
ALL: Final = [(kind, is_sync) for is_sync in (True, False) for kind in KINDS]
CASES: Final = ALL if ROUNDS > 5 else [ALL[0], ALL[3]]


@pytest.mark.timeout(120 + 20 * ROUNDS)
@pytest.mark.parametrize(("number", "kind", "is_sync"), [(at, *it) for at, it in enumerate(CASES)])
def test_whoever_is_killed_the_logs_are_the_same(tmp_path: Path, number: int, kind: str, is_sync: bool) -> None:
    replicas = Replicas(ROUNDS + number, tmp_path, kind, is_sync=is_sync)
    for _ in range(number, ROUNDS, len(CASES)):
        replicas.round()
    replicas.end()
    count = sum(map(len, replicas.kept))
    assert count > 100
