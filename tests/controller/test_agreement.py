"""A controller whose disk refuses, or that is told what it can't know, takes no part any more."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from firearrow.controller.agreement import Agreement
from firearrow.errors import CorruptStore, MessageError
from firearrow.raft import LogEntry, LogFile, OsFile, Saved, StateSnapshot
from firearrow.testing.loop import VirtualLoop


class Notes:
    """Keeps what is agreed on."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def check(self, changes: Iterable[bytes], state: bytes) -> None:
        if b"odd" in (*changes, state):
            raise MessageError("that is odd")

    def apply(self, data: bytes) -> None:
        if data == b"unknown":
            raise ValueError("what is that?")
        if data:
            self.all.append(data)

    def restore(self, data: bytes) -> None:
        self.all = data.split()

    def snapshot(self) -> bytes:
        return b" ".join(self.all)


class Refusing(OsFile):
    """A disk that is full from some time on."""

    is_full = False

    def sync(self) -> None:
        if self.is_full:
            raise OSError(errno.EIO, "Input/output error")
        super().sync()


async def begun(directory: Path) -> tuple[Agreement, Notes, Refusing]:
    notes, file = Notes(), Refusing(directory / "raft.log")
    agreement = Agreement("g", "n0", {"n0": "h:1"}, LogFile(file), notes, lambda most: 0)
    await agreement.start()
    await asyncio.sleep(0.1)
    assert agreement.leads
    return agreement, notes, file


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def proposed(agreement: Agreement, data: bytes) -> bool:
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    agreement.propose(data, answer.set_result)
    return await asyncio.wait_for(answer, 5)


def test_what_is_proposed_is_agreed_on_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        agreement, notes, file = await begun(tmp_path)
        answers = await asyncio.gather(*(proposed(agreement, b"%d" % n) for n in range(5)))
        assert all(answers)
        assert notes.all == [b"0", b"1", b"2", b"3", b"4"]
        file.close()
        agreement, again, file = await begun(tmp_path)
        assert again.all == notes.all
        file.close()

    run(main)


def test_who_can_not_remember_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After an error nobody knows what the disk has."""

    async def main() -> None:
        agreement, notes, file = await begun(tmp_path)
        file.is_full = True
        assert not await proposed(agreement, b"lost")
        assert not agreement.leads
        assert agreement.trouble == "OSError: [Errno 5] Input/output error"
        file.is_full = False
        for _ in range(100):
            agreement.tick()
        await asyncio.sleep(1)
        assert not agreement.leads
        assert notes.all == []
        file.close()

    run(main)
    assert "takes no part any more" in caplog.text


def test_who_does_not_know_what_was_agreed_on_says_nothing(tmp_path: Path) -> None:
    """A controller of a later release may have led."""
    file = OsFile(tmp_path / "raft.log")
    log = LogFile(file)
    log.load()
    log.append(Saved(1, "n0", [LogEntry(1, 1, b"unknown")]))
    log.sync()
    file.close()

    async def main() -> None:
        file = OsFile(tmp_path / "raft.log")
        agreement = Agreement("g", "n0", {"n0": "h:1"}, LogFile(file), Notes(), lambda most: 0)
        await agreement.start()
        await asyncio.sleep(1)
        assert not agreement.leads
        assert agreement.trouble == "ValueError: what is that?"
        file.close()

    run(main)


@pytest.mark.parametrize(
    "saved", [Saved(1, "n0", [LogEntry(1, 1, b"odd")]), Saved(1, "n0", [], StateSnapshot(1, 1, b"odd"))]
)
def test_a_file_with_what_can_not_be_read_is_refused_with_the_way_back(tmp_path: Path, saved: Saved) -> None:
    file = OsFile(tmp_path / "raft.log")
    log = LogFile(file, "raft.log")
    log.load()
    log.append(saved)
    log.sync()
    agreement = Agreement("g", "n0", {"n0": "h:1"}, log, Notes(), lambda most: 0)
    with pytest.raises(CorruptStore, match=r"^raft\.log has .* that is odd\. Stop all controllers"):
        asyncio.run(agreement.start())
    file.close()
