"""Workers that die, and workers whose master dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from firearrow.spark.jobs.workers import WorkersLost, local_workers

MASTER = """
import os
from operator import methodcaller
from firearrow.spark.jobs.workers import local_workers

if __name__ == "__main__":
    with local_workers(1) as workers:
        (child,) = workers.run(eval, ["__import__('os').getpid()"])
        print(child, flush=True)
        os.kill(os.getpid(), 9)
"""

WAITING = """
import threading
from firearrow.spark.jobs.workers import local_workers

def wait(line):
    print(line, flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    with local_workers(1) as workers:
        workers.run(wait, ["begun"])
"""


def _square(number: int) -> int:
    return number * number


def _die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_results_come_in_order_and_a_death_is_an_error() -> None:
    with local_workers(1) as workers:
        assert workers.run(_square, range(5)) == [0, 1, 4, 9, 16]
        with pytest.raises(WorkersLost, match="a worker process has died"):
            workers.run(_die, [1])


def test_workers_end_with_a_master_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "master.py"
    script.write_text(MASTER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as master:
        assert master.stdout is not None
        assert int(master.stdout.readline()) > 0
        assert master.stdout.read() == b""  # ends once the worker, which holds it too, has ended
        assert master.wait(30) == -signal.SIGKILL


def test_an_interrupted_master_waits_for_no_piece(tmp_path: Path) -> None:
    script = tmp_path / "master.py"
    script.write_text(WAITING)
    command = [sys.executable, str(script)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True) as master:
        assert master.stdout is not None
        assert master.stdout.readline() == b"begun\n"
        master.send_signal(signal.SIGINT)  # to it alone, as a supervisor would
        try:
            said = master.communicate(timeout=30)[1]
        finally:
            with suppress(ProcessLookupError):  # the worker may be there still
                os.killpg(master.pid, signal.SIGKILL)
    assert said.strip().endswith(b"KeyboardInterrupt")
    assert master.returncode == -signal.SIGINT
