"""The official Go client, as a test calls it: one process for each call."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, Outgoing, Received, SendReport

# Starting, stopping and one route poll of the Go client come on top of the wait for messages.
PROCESS_TIMEOUT_S = ARRIVAL_TIMEOUT_S + 40


class GoError(Exception):
    """What the Go client reported as its error."""


class GoClient:
    """The Go client on one name server."""

    def __init__(self, program: Path, namesrv: str) -> None:
        self._program = program
        self._namesrv = namesrv

    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[SendReport]:
        """Send one after the other; the client chooses the queues."""
        answer = self._run("send", msgspec.json.encode(messages), topic=topic)
        return msgspec.json.decode(answer, type=list[SendReport])

    def consume(self, topic: str, group: str, count: int, expression: str = "*") -> list[Received]:
        """Run a push consumer until it has ``count`` messages or the time is over."""
        answer = self._run(
            "consume",
            b"",
            topic=topic,
            group=group,
            expression=expression,
            count=str(count),
            timeout=f"{ARRIVAL_TIMEOUT_S}s",
        )
        return msgspec.json.decode(answer, type=list[Received])

    def _run(self, command: str, stdin: bytes, **options: str) -> bytes:
        flags = [f"-{name}={value}" for name, value in options.items()]
        words = [str(self._program), command, f"-namesrv={self._namesrv}", *flags]
        done = subprocess.run(
            words, input=stdin, capture_output=True, timeout=PROCESS_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise GoError(done.stderr.decode(errors="replace"))
        return done.stdout
