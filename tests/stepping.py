"""Measure the steps of a handler: during a step, all other requests wait.

The measure is processor time of the thread, so that a busy machine does no harm. The limit is far above the
time of any correct step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from firearrow.errors import FirearrowError
from firearrow.net.server import Answer, Handler
from firearrow.wire.command import FieldValue, Response, request
from tests.cputime import nothing_collected

STEP_SECONDS_MAX: Final = 1.0  # what is not limited, or not in steps, takes several
LONG: Final = "x" * 200_000
LARGE_BODIES: Final = (
    b'{"x":[' + b"0," * 500_000 + b"0]}",
    b"{" + b'1:"",' * 100_000 + b"}",
    b"{'a':" * 50_000,
    b"[" * 1_000_000,
    b"a=b\n" * 200_000,
    bytes(1_000_000),
)


class Stepping:
    """Caller of handlers for one connection, which runs each request to its end."""

    def __init__(self, handlers: Mapping[int, Handler], channel: Any) -> None:
        self._handlers = handlers
        self._channel = channel
        self.asked: set[int] = set()
        self._longest: list[tuple[float, int, str]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Assert that no step of the requests within the block takes long."""
        self._longest.clear()
        with nothing_collected():  # a server collects only now and then
            yield
        assert [slow for slow in self._longest if slow[0] > STEP_SECONDS_MAX] == []

    def longest_of(self, code: int, fields: Mapping[str, FieldValue], body: bytes) -> float:
        """Handle a request to its end; return the seconds of its longest step."""
        with nothing_collected():
            self.ask(code, fields, body)
        return self._longest.pop()[0]

    def ask(self, code: int, fields: Mapping[str, FieldValue], body: Any = b"") -> Answer:
        """Handle a request to its end."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        command = request(code, fields, data)
        step: Callable[[], Answer] = partial(self._handlers[code], self._channel, command)
        longest = 0.0
        answer: Answer = None
        while True:
            start = time.thread_time()
            try:
                answer = step() or answer
            except StopIteration as end:
                answer = end.value
            except FirearrowError as error:
                answer = Response(1, str(error))
            longest = max(longest, time.thread_time() - start)
            if not isinstance(answer, Generator):
                break
            step = answer.__next__
        self.asked.add(code)
        self._longest.append((longest, code, f"{data[:40]!r} of {len(data)} bytes: {answer!r:.80}"))
        return answer
