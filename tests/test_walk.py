"""The path of one message through the modules is as short as ARCHITECTURE.md says.

The trace records all calls from one of our modules into another, from the socket that receives a send to the
response of a pull that waited for it. The group has pulled once before.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

from tests.broker.serving import Caller, Serving, in_virtual_time, pull_fields

ROOT = Path(__file__).parent.parent
FIGURES = re.compile(
    r"that is (\d+) modules from the socket to the answer of the pull,"
    r" and (\d+) calls from one module into another"
)
WAITING = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}


class Call(NamedTuple):
    """Call from a module (or, by the event loop, from none) into another."""

    source: str
    target: str
    function: str

    def __str__(self) -> str:
        return f"{self.source:24} -> {self.target}.{self.function}"


class Trace:
    """Calls between the broker's modules, without those of its clients in this process."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._before = sys.getprofile()

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        target = _module_of(frame)
        if event != "call" or not _is_ours(target):
            return
        callers = [target]
        above = frame.f_back
        while above is not None and not callers[-1].startswith(("asyncio", "firearrow.testing")):
            callers.append(_module_of(above))
            above = above.f_back
        if any(name.startswith("tests.") for name in callers):
            return
        source = next(filter(_is_ours, callers[1:]), "")
        if source != target:
            self.calls.append(Call(_short(source), _short(target), frame.f_code.co_name))


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(module: str) -> bool:
    return module.startswith("firearrow.") and not module.startswith("firearrow.testing")


def _short(module: str) -> str:
    return module.removeprefix("firearrow.")


def test_the_way_of_a_message_is_as_short_as_is_said(tmp_path: Path) -> None:
    trace = Trace()

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"before")
        await served.dispatched()
        await caller.pull(0)
        async with served.caller() as consumer:
            consumer.tell(11, pull_fields(1, **WAITING))
            await served.holding(1)
            with trace:
                await caller.sent(b"followed")
                answer = await consumer.talker.answer()
        assert answer.code == 0
        assert b"followed" in answer.body

    in_virtual_time(tmp_path, main)
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text().split())
    [said] = FIGURES.findall(text)
    modules = list(dict.fromkeys(call.target for call in trace.calls))
    walk = "\n".join(map(str, trace.calls))
    modules_said, calls_said = map(int, said)
    assert len(modules) <= modules_said, f"{walk}\n{modules}"
    assert len(trace.calls) <= calls_said, walk
    for module in modules:
        assert f"`{module}`" in text, f"the path of a message does not mention {module}"
