"""A process that archives a store again and again, to be killed: by itself a program.

It keeps one process that has everything imported and forks one that archives for each line it is
given, so that a round costs no start of Python. Prints the pid of each. `forking` starts it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import NamedTuple

from firearrow.lake.catalogs import LakeCatalog
from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, follow, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.upkeep import Upkeep
from firearrow.spark.jobs.workers import local_workers

STEP_ROWS = 1500
FILES_MIN = 5


class Forks(NamedTuple):
    """Starts processes that archive, and kills them."""

    process: subprocess.Popen[str]

    def start(self) -> int:
        """Have one begin; gives its pid."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def kill(self, pid: int) -> None:
        """Kill it, or a worker of it, which ends it too, and wait until it is gone."""
        assert self.process.stdout is not None
        os.kill(pid, signal.SIGKILL)
        assert self.process.stdout.readline() == "gone\n"


@contextmanager
def forking(store: Path, root: str, log: Path, work: str = "archive_for_ever") -> Iterator[Forks]:
    """The program, which does ``work``; whatever it has started is gone in the end, whoever fails."""
    command = [sys.executable, "-m", "tests.spark.jobs.archiver", work, str(store), root]
    with (
        log.open("a") as file,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield Forks(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def archive_for_ever(store: str, root: str) -> None:
    """Follow a store, and join files, until the process ends."""
    opener, _ = source({"path": store, "subscribe": "T", "splitBytes": "100k"})
    settings = ArchiveSettings(step_rows_max=STEP_ROWS)
    with local_workers(2, "fork") as workers:
        upkeep = Upkeep(workers, Archive(root), files_min=FILES_MIN)
        follow(workers, opener, Archive(root), settings, stop=Event(), interval_seconds=0.02, upkeep=upkeep)


def fill_for_ever(store: str, root: str) -> None:
    """Keep the table of a topic fresh until the process ends."""
    spec = TableSpec(topics="orders", schema="number long", lag=0.03)
    lake = Lake({"path": store, "maxOffsetsPerTrigger": "60", "splitBytes": "2k"}, root, (spec,))
    with local_workers(2, "fork") as workers:
        LakeFilling(workers, lake).follow(Event())


def publish_for_ever(store: str, root: str) -> None:
    """Do the same for an Iceberg table, in a catalog beside the lake."""
    place = Path(root).parent
    catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}
    spec = TableSpec(topics="orders", schema="number long", lag=0.03, format="iceberg")
    options = {"path": store, "maxOffsetsPerTrigger": "60", "splitBytes": "2k"}
    lake = Lake(options, root, (spec,), catalog=LakeCatalog.of({"namespace": "lake", **catalog}))
    with local_workers(2, "fork") as workers:
        LakeFilling(workers, lake).follow(Event())


def main() -> None:
    """Fork a process that works for each line."""
    works = {each.__name__: each for each in (archive_for_ever, fill_for_ever, publish_for_ever)}
    work = works[sys.argv[1]]
    import_module("deltalake")
    import_module("pandas")  # Arrow imports it for its first array: each worker would, in half a second
    if work is publish_for_ever:
        import_module("pyiceberg.catalog.sql")
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                work(*sys.argv[2:])
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
