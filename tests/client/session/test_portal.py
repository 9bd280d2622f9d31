"""An event loop in a thread."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from firearrow.client.session.portal import LoopThread


def test_nothing_is_waited_for_for_ever() -> None:
    ended = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread = LoopThread("test", 0.01)
    with pytest.raises(TimeoutError, match=r"no result after 0\.01 s"):
        thread.run(never())
    assert ended.wait(10)
    [own] = [it for it in threading.enumerate() if it.name == "test"]
    thread.close()
    own.join(10)
    assert not own.is_alive()


def test_a_time_out_of_the_coroutine_is_its_own() -> None:
    async def late() -> None:
        raise TimeoutError("the broker")

    thread = LoopThread("test", 10)
    with pytest.raises(TimeoutError, match="the broker"):
        thread.run(late())
    thread.close()


MASKED = """
import os, signal, subprocess, sys
from firearrow.client.session.portal import LoopThread, leaving_signals

thread = LoopThread("test", 30)
blocked = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"

async def started_there():
    def start():
        return subprocess.run([sys.executable, "-c", blocked], capture_output=True).stdout
    return await asyncio.to_thread(leaving_signals(start))

import asyncio
print(int(thread.run(started_there())))  # and a thread of the loop's pool stays, without work
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigtimedwait({signal.SIGTERM}, 30).si_signo == signal.SIGTERM)
"""


def test_its_threads_leave_signals_to_the_program() -> None:
    """One that the program blocks for a moment would end it in a thread that does not; processes
    that the application starts inherit nothing of that."""
    ran = subprocess.run([sys.executable, "-c", MASKED], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "0\nTrue\n"), ran.stderr


def test_a_thread_that_can_not_start_leaves_the_signals_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        with pytest.raises(RuntimeError, match="can't start"):
            LoopThread("test")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_last_coroutine_runs_before_the_end() -> None:
    done: list[str] = []

    async def last() -> None:
        done.append(threading.current_thread().name)

    thread = LoopThread("test", 10)
    thread.close(last)
    assert done == ["test"]


def test_a_finalizer_on_the_own_thread_ends_it() -> None:
    thread = LoopThread("test", 10)
    [own] = [it for it in threading.enumerate() if it.name == "test"]

    async def finalize() -> None:
        thread.close(nothing)

    async def nothing() -> None:
        pass

    thread.run(finalize())
    own.join(10)
    assert not own.is_alive()
