"""The network between brokers fails in every way, see `tests.crash.cuts`.

Each time some faults come in turn; ``FIREARROW_CUT_ROUNDS`` is how many come besides all, as
``FIREARROW_CUT_SEED`` decides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.crash import actingcuts, controlledcuts
from tests.crash.actingcuts import ActingCuts
from tests.crash.controlledcuts import BROKERS, ControlledCuts
from tests.crash.cuts import Cuts
from tests.crash.wires import OUTSIDE
from tests.interop.controllers import controllers, name_server, name_server_process

ROUNDS: Final = int(os.environ.get("FIREARROW_CUT_ROUNDS", "0"))
SEED: Final = int(os.environ.get("FIREARROW_CUT_SEED", "7"))

pytestmark = pytest.mark.timeout(600 + 20 * ROUNDS)


async def run(cuts: Cuts, few: list[str], last: Callable[[], Awaitable[None]]) -> None:
    for name in list(cuts.faults) if ROUNDS else few:
        await cuts.round(name)
    for _ in range(ROUNDS):
        await cuts.round()
    await last()


def check_counts(cuts: Cuts) -> None:
    history = cuts.clients.history
    assert sum(map(len, history.kept)) > 100
    assert sum(cuts.clients.acknowledged.values()) > 100


@pytest.mark.parametrize("seed", [SEED])
def test_controllers_and_brokers_are_cut_off_from_each_other(tmp_path: Path, seed: int) -> None:
    few = ["master_alone", "slaves_are_not_heard", "doubled"]

    async def main() -> None:
        names = {it.popen.pid: name for name, it in group.processes.items()}
        async with cuts.started(names, BROKERS):
            await run(cuts, few, cuts.lose_leader_and_master)

    with (
        controllers("firearrow", tmp_path, 3, host=OUTSIDE, **controlledcuts.CONTROLLER_KEYS) as group,
        name_server(tmp_path) as namesrv,
    ):
        cuts = ControlledCuts(seed, tmp_path, group, namesrv)
        asyncio.run(main())
    check_counts(cuts)


@pytest.mark.parametrize("seed", [SEED])
def test_slaves_act_for_a_master_that_is_cut_off(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with cuts.started({pid: actingcuts.NAME_SERVER}, actingcuts.BROKERS):
            await run(cuts, ["master_alone"], cuts.lose_master)

    with name_server_process(tmp_path, **actingcuts.NAME_SERVER_KEYS) as (namesrv, pid):
        cuts = ActingCuts(seed, tmp_path, namesrv)
        asyncio.run(main())
    check_counts(cuts)
