"""Requests that come in one write, compared with the same requests one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from firearrow.net.server import Server
from firearrow.wire.command import Command, FieldValue, request
from tests.broker.serving import Caller, Serving, in_virtual_time

Fields = dict[str, FieldValue]
Ask = tuple[int, Fields]
"""A code and the fields of a request."""
LATER_SECONDS: Final = 5
"""What is written in a while, is written by then."""

Left = tuple[list[tuple[int, str | None, Any]], bytes, dict[str, tuple[int, int]], Any]


def is_the_same_together(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Serving, Caller], Awaitable[Sequence[Ask]]],
    also: Callable[[Serving], Any],
    at_once: int,
    **options: Any,
) -> int:
    """Have two brokers asked the same, each request alone and many in one write, and compare the
    answers, every byte of the log, what was counted, and what ``also`` gives.

    Returns how many requests were answered by the handlers of several.
    """
    together = 0
    several = Server._answers_of_several

    def counted(self: Server, code: int, asked: Any) -> Any:
        nonlocal together
        answers = several(self, code, asked)
        together += sum(answer is not None for answer in answers or ())
        return answers

    monkeypatch.setattr(Server, "_answers_of_several", counted)

    def left(name: str, *, alone: bool) -> Left:
        found: list[Left] = []

        async def main(served: Serving, caller: Caller) -> None:
            monkeypatch.setattr(served.broker._chance, "randrange", lambda count: count - 1)
            asked = await prepare(served, caller)
            commands = [request(*ask, b"", opaque=at) for at, ask in enumerate(asked)]
            answers: list[Command[Any]] = []
            step = 1 if alone else at_once
            for first in range(0, len(commands), step):
                some = commands[first : first + step]
                caller.talker.ask(*some)
                answers += [await caller.talker.answer() for _ in some]
            await asyncio.sleep(LATER_SECONDS)
            by_opaque = sorted(answers, key=lambda answer: answer.opaque)
            assert [answer.opaque for answer in by_opaque] == [*range(len(asked))]
            store, topics = served.broker.store, served.broker.stats._topics
            log = store.log.segments
            found.append(
                (
                    [(answer.code, answer.remark, answer.ext) for answer in by_opaque],
                    b"".join(file.map[:] for file in log.files),
                    {name: (it.put_count, it.put_bytes) for name, it in topics.items()},
                    (store.log_end_offset, also(served)),
                )
            )

        in_virtual_time(tmp_path / name, main, **options)
        return found[0]

    one_by_one, before = left("alone", alone=True), together
    assert not before
    assert left("together", alone=False) == one_by_one
    return together
