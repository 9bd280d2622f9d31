"""Ctrl-C ends a command at once: one line, no traceback, and no process that it has started."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from tests.store.stores import append, opened

SECONDS_MAX = 5  # two where nothing else runs
GONE_SECONDS_MAX = 1.0
MARK = "FIREARROW_TEST_MARK"
CHILDREN = """
import subprocess, sys, time
from firearrow.cli.interrupt import ending_at_once
with ending_at_once() as ending:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", code + "; p.wait()"], start_new_session=True, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    from pathlib import Path
    ending.temporary.append(Path(sys.argv[1]))
    ending.elsewhere.append(Path(sys.argv[1]).with_name("told").touch)
    print("ready", file=sys.stderr, flush=True)
    try:
        while True:
            child.wait()
    except BaseException:
        print("swallowed", file=sys.stderr, flush=True)
"""


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, whose descendants can be told from others."""
    environment = {**os.environ, MARK: tempfile.mktemp(prefix="")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        with process:
            try:
                yield process
            except BaseException:
                process.kill()  # else it is waited for
                raise
        wait_for_end(descendants(environment[MARK]))
        assert descendants(environment[MARK]) == []
    finally:
        for pid in descendants(environment[MARK]):
            os.kill(pid, signal.SIGKILL)


def wait_for_end(pids: list[int]) -> None:
    """Wait a moment for processes: who was killed is there until the system has taken it away."""
    for pid in pids:
        with suppress(ProcessLookupError):
            end = os.pidfd_open(pid)
            select.select([end], [], [], GONE_SECONDS_MAX)
            os.close(end)


def descendants(mark: str) -> list[int]:
    """The processes that have a mark in their environment; the dead have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def interrupted(process: subprocess.Popen[bytes], moment: bytes) -> str:
    """What is said after Ctrl-C at the moment at which something stands on standard error: a
    pattern, since a second may be left out where the machine is busy."""
    assert process.stderr is not None
    said = b""
    while not re.search(moment, said):
        more = os.read(process.stderr.fileno(), 1 << 16)
        assert more, said.decode()
        said += more
    begin_ms = SystemClock().now_ms()
    os.killpg(process.pid, signal.SIGINT)
    said += process.stderr.read()
    assert process.wait() == 130
    assert SystemClock().now_ms() - begin_ms < 1000 * SECONDS_MAX
    return re.split(moment, said)[-1].decode()


def test_children_and_theirs_are_ended(tmp_path: Path) -> None:
    directory = tmp_path / "temporary"
    directory.mkdir()
    with started(sys.executable, "-c", CHILDREN, str(directory)) as process:
        assert interrupted(process, b"ready\n") == "firearrow: interrupted\n"
    assert not directory.exists()
    assert (tmp_path / "told").exists()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("job", "moment"),
    [
        (["backlog"], rb"Spark starts, [1-9]\d* s"),
        pytest.param(["archive", "--follow", "--to", "lake"], b" tasks, ", marks=pytest.mark.slow),
        pytest.param(["watch", "--alert", "lag > 1"], rb"watch, (?:[3-9]|\d\d+) s", marks=pytest.mark.slow),
    ],
    ids=["JVM starts", "a job runs", "a stream runs"],
)
def test_a_pipeline_leaves_nothing(job: list[str], moment: bytes, tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        append(store, b"body", "Orders", 0)
    lines = [str(tmp_path / word) if word == "lake" else word for word in job]
    command = [sys.executable, "-m", "firearrow", "pipeline", *lines, "--progress"]
    with started(*command, "--path", str(tmp_path / "store")) as process:
        after = interrupted(process, moment)
    assert after.rpartition("\x1b[K")[2] == "firearrow: interrupted\n"
    assert "Traceback" not in after
