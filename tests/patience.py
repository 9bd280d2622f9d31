"""Make clients wait a minute where they wait some seconds for users.

Examples of the documentation are about other things than time, and a slow machine must not fail them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from firearrow.client import Producer
from firearrow.net import client
from firearrow.net.futures import FutureCalls
from firearrow.testing.loop import VirtualLoop
from firearrow.wire.calls import AnswerWaiter
from firearrow.wire.frame import AnyCommand
from tests.pages import ROOT

SECONDS: Final = 60.0


def be_patient(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make clients of this process wait. In virtual time, they wait as always: no machine is slow there."""
    begin_for, ready, options = FutureCalls.begin_for, client.Client._ready, Producer.__init__.__kwdefaults__

    def begin_late(calls: FutureCalls, waiting: AnswerWaiter, command: AnyCommand, now: float, seconds: float) -> bytes:
        is_real = not isinstance(calls._loop, VirtualLoop)
        return begin_for(calls, waiting, command, now, max(seconds, SECONDS) if is_real else seconds)

    async def ready_late(caller: client.Client, address: str, seconds: float) -> Any:
        return await ready(caller, address, max(seconds, SECONDS))

    patch(FutureCalls, "begin_for", begin_late)
    patch(client.Client, "_ready", ready_late)
    patch(client, "CONNECT_SECONDS_MAX", SECONDS)
    patch(Producer.__init__, "__kwdefaults__", {**(options or {}), "timeout_seconds": SECONDS})


def patient_environment(directory: Path) -> dict[str, str]:
    """Environment in which programs of Python are patient; a module that they import goes into a directory."""
    (directory / "sitecustomize.py").write_text("from tests.patience import be_patient\n\nbe_patient()\n")
    paths = (str(directory), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
