"""Worlds whose fate a seed decides (see ``world``); ``make simulate`` has ten million events.

A seed also decides how queues are kept, whether sends are answered before or after they are on the
disk, and whether machines fail or only processes.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.broker.popworld import POP_LIVELY, POP_OPERATIONS, PopWorld
from tests.broker.world import ENDS, scratch
from tests.store.stores import KINDS

EVENTS_OF_RUN: Final = 50_000
ENDS_A_THOUSAND: Final = 5  # of what happens
LARGER: Final[dict[str, Any]] = {
    "mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 5000, "max_index_num": 20_000,
    "mapped_file_size_timer_log": 52 * 1000, "flush_interval_commit_log": 5000,
}  # fmt: skip


class Simulation:
    """One run; without ``has_crashes`` the broker is only stopped."""

    def __init__(self, seed: int, directory: Path, *, has_crashes: bool = True) -> None:
        self.seed = seed
        self._chance = Random(seed)
        ends = dict(ENDS) if has_crashes else {"restart": ENDS["restart"]}
        self._choices = [
            (list(operations), [operation.weight for operation in operations.values()])
            for operations in (POP_LIVELY, ends)
        ]
        in_database, is_sync, has_power_losses = (bool(seed >> bit & 1) for bit in range(3))
        is_buffered, has_v2 = (bool(seed >> bit & 1) for bit in range(3, 5))
        self._world = PopWorld(
            directory, seed, kind=KINDS[in_database], is_sync=is_sync,
            has_power_losses=has_power_losses, **LARGER,
            config={"enable_pop_buffer_merge": is_buffered, "enable_retry_topic_v2": has_v2},
        )  # fmt: skip

    @property
    def events(self) -> int:
        """How many requests were sent, and messages consumed."""
        return self._world.events

    @property
    def crashes(self) -> int:
        """How often the broker crashed."""
        return len(self._world.owed.crashes)

    def run(self, events: int) -> None:
        """Have so many events happen at least, and check the end."""
        try:
            while self.events < events:
                self._happen()
            self._world.finish()
        except BaseException as failure:
            failure.add_note(f"seed {self.seed}, event {self.events}")
            raise

    def _happen(self) -> None:
        names, weights = self._choices[self._chance.randrange(1000) < ENDS_A_THOUSAND]
        [name] = self._chance.choices(names, weights)
        drawn = POP_OPERATIONS[name].arguments
        arguments = {key: self._chance.choice(values) for key, values in drawn.items()}
        getattr(self._world, name)(**arguments)


def main() -> None:
    """Simulate so many events, run after run, each with the seed behind the one before."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    events = crashes = 0
    began = time.perf_counter()
    for seed in itertools.count(given.seed):
        directory = scratch()
        try:
            simulation = Simulation(seed, directory)
            simulation.run(min(EVENTS_OF_RUN, given.events - events))
        finally:
            shutil.rmtree(directory)
        events += simulation.events
        crashes += simulation.crashes
        rate = events / (time.perf_counter() - began)
        sys.stdout.write(f"seed {seed}: {events} events, {crashes} crashes, {rate:.0f} events a second\n")
        sys.stdout.flush()
        if events >= given.events:
            return


if __name__ == "__main__":
    main()
