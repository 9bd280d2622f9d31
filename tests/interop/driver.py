"""Talk to the Java process that runs the official clients (``java/…/Driver.java``)."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from tests.interop.toolchain import DRIVER, java_command

T = TypeVar("T")

CALL_TIMEOUT_S = 120


class _Error(msgspec.Struct):
    type: str
    code: int
    text: str


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: _Error | None = None


class JavaError(Exception):
    """An exception that the official client raised: its class, response code (or -1) and text."""

    def __init__(self, error: _Error) -> None:
        super().__init__(f"{error.type} {error.code}: {error.text}")
        self.type = error.type
        self.code = error.code


class Driver:
    """The running process of a program. Calls are answered one after the other; it logs to ``log``."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes], kill: Callable[[], None], log: Path) -> None:
        self._requests = requests
        self.kill = kill
        self.log = log
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._unanswered = 0
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def _read(self, answers: IO[bytes]) -> None:
        for line in answers:
            self._answers.put(line)
        self._answers.put(b"")

    def call(self, op: str, result: type[T], /, **arguments: object) -> T:
        """Run an operation and return its result as ``result``; raise `JavaError` as Java did."""
        request = msgspec.json.encode({"op": op, "arguments": arguments})
        self._requests.write(request + b"\n")
        self._requests.flush()
        self._unanswered += 1
        while self._unanswered:  # answers to calls that were given up come first
            line = self._answers.get(timeout=CALL_TIMEOUT_S)
            self._unanswered -= 1
        assert line, f"the process ended during {op}: see {self.log}"
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error is not None:
            raise JavaError(answer.error)
        return msgspec.json.decode(answer.result, type=result)

    def finish(self) -> None:
        """End the input, which ends the process, and wait until all its output is read."""
        self._requests.close()
        self._reader.join()


@contextmanager
def running_driver(directory: Path, *options: str) -> Iterator[Driver]:
    """Run the Java process for a ``with`` block, with its own files and log in ``directory``, and
    further options of the JVM."""
    jvm = (
        *options,
        "-Xmx1g",
        f"-Duser.home={directory}",
        f"-Drocketmq.client.localOffsetStoreDir={directory / 'offsets'}",
        "-Dcom.rocketmq.sendMessageWithVIPChannel=false",
        "-Dcom.rocketmq.remoting.client.connect.timeout=30000",
    )
    with driving(java_command(DRIVER, jvm=jvm), directory) as driver:
        yield driver


@contextmanager
def driving(command: list[str], directory: Path, **environment: str) -> Iterator[Driver]:
    """Run a program for a ``with`` block, with its own files and log in ``directory``."""
    pipe = subprocess.PIPE
    with (
        (directory / "driver.log").open("wb") as log,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, cwd=directory, env={**os.environ, **environment}
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        driver = Driver(process.stdin, process.stdout, process.kill, directory / "driver.log")
        try:
            yield driver
        finally:
            driver.finish()
