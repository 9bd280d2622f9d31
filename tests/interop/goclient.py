"""The official Go client, as a test calls it: one process for each call."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, Outgoing, Received, SendReport

# Starting, stopping and one route poll of the Go client come on top of the wait for messages.
PROCESS_TIMEOUT_S = ARRIVAL_TIMEOUT_S + 40


class GoError(Exception):
    """What the Go client reported as its error."""


class Half(msgspec.Struct, frozen=True):
    """A message of a transaction, what is decided at once, and what each time that is asked."""

    message: Outgoing
    local: str
    checks: list[str] = []


class Transacted(msgspec.Struct, frozen=True):
    """What became of halves, and those that were asked about, as often as they were."""

    reports: list[SendReport]
    checked: list[Received]


class GoClient:
    """The Go client on one name server."""

    def __init__(self, program: Path, namesrv: str) -> None:
        self._program = program
        self._namesrv = namesrv

    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[SendReport]:
        """Send one after the other; the client chooses the queues."""
        answer = self._run("send", msgspec.json.encode(messages), topic=topic)
        return msgspec.json.decode(answer, type=list[SendReport])

    def consume(
        self,
        topic: str,
        group: str,
        count: int,
        expression: str = "*",
        *,
        failures: int = 0,
        level: int = 0,
        times_max: int = -1,
        orderly: bool = False,
        sql: bool = False,
    ) -> list[Received]:
        """Run a push consumer until it has ``count`` messages or the time is over. Each message
        fails ``failures`` times, and comes again by a delay level."""
        answer = self._run(
            "consume",
            b"",
            topic=topic,
            group=group,
            expression=expression,
            count=count,
            failures=failures,
            level=level,
            times_max=times_max,
            orderly=orderly,
            sql=sql,
            timeout=f"{ARRIVAL_TIMEOUT_S}s",
        )
        return msgspec.json.decode(answer, type=list[Received])

    @contextmanager
    def transacting(self, topic: str, group: str, halves: Sequence[Half]) -> Iterator[Transacted]:
        """Send halves one after the other, each when the one before was asked about as often as
        was to be. The client ends with the context, by when it should have sent its decisions."""
        words = self._words("transact", topic=topic, group=group, timeout=f"{ARRIVAL_TIMEOUT_S}s")
        with self._started(words) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(halves))
            process.stdin.flush()
            if answer := process.stdout.readline():
                yield msgspec.json.decode(answer, type=Transacted)

    def request(self, topic: str, group: str, body: bytes) -> bytes:
        """Send a request, again while nobody answers, and give the answer's body."""
        answer = self._run("request", body, topic=topic, group=group, timeout=f"{ARRIVAL_TIMEOUT_S}s")
        return msgspec.json.decode(answer, type=bytes)

    @contextmanager
    def replying(self, topic: str, group: str) -> Iterator[list[Received]]:
        """Have a push consumer answer what comes; its messages are in the list at the end."""
        asked: list[Received] = []
        with self._started(self._words("reply", topic=topic, group=group)) as process:
            yield asked
            out, _ = process.communicate(timeout=PROCESS_TIMEOUT_S)
            asked += msgspec.json.decode(out or b"[]", type=list[Received])

    @contextmanager
    def _started(self, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A process that ends when its input does."""
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                yield process
            finally:
                _, err = process.communicate(timeout=PROCESS_TIMEOUT_S)
        if process.returncode != 0:
            raise GoError(err.decode(errors="replace"))

    def _words(self, command: str, **options: str | int) -> list[str]:
        flags = [f"-{name.replace('_', '-')}={option}" for name, option in options.items()]
        return [str(self._program), command, f"-namesrv={self._namesrv}", *flags]

    def _run(self, command: str, stdin: bytes, **options: str | int) -> bytes:
        words = self._words(command, **options)
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=PROCESS_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise GoError(done.stderr.decode(errors="replace"))
        return done.stdout
