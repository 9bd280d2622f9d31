"""An event loop in a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from firearrow.client.loopthread import LoopThread


def test_nothing_is_waited_for_for_ever() -> None:
    ended = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread = LoopThread("test", 0.01)
    with pytest.raises(TimeoutError, match=r"nothing came of it in 0\.01 s"):
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
