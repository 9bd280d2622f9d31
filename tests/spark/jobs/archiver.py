"""A process that archives a store again and again, to be killed: by itself a program.

It keeps one process that has everything imported and forks one that archives for each line it is
given, so that a round costs no start of Python. Prints the pid of each.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from threading import Event

from firearrow.spark.jobs.archive import Settings, follow, source
from firearrow.spark.jobs.delta import Archive
from firearrow.spark.jobs.upkeep import Upkeep
from firearrow.spark.jobs.workers import local_workers

STEP_ROWS = 1500
FILES_MIN = 5


def archive_for_ever(store: str, root: str) -> None:
    """Follow a store, and join files, until the process ends."""
    opener, _ = source({"path": store, "subscribe": "T", "splitBytes": "100k"})
    settings = Settings(step_rows_max=STEP_ROWS)
    with local_workers(2, "fork") as workers:
        upkeep = Upkeep(workers, Archive(root), files_min=FILES_MIN)
        follow(
            workers, opener, Archive(root), settings, stop=Event(), interval_seconds=0.02,
            upkeep=upkeep,
        )  # fmt: skip


def main() -> None:
    """Fork an archiver for each line."""
    import_module("deltalake")
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                archive_for_ever(*sys.argv[1:])
            finally:  # os._exit would end without a word
                traceback.print_exc()
                os._exit(1)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os.waitpid(child, 0)
        sys.stdout.write("gone\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
