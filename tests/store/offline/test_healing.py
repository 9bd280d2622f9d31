"""What is damaged in the log is had from a replica, byte for byte, or left as it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import StoreError
from firearrow.store.offline import Action, Layout, Outcome, Replica, StoreView, apply, diff, plan
from tests.store.offline.damage import (
    FILE_BYTES,
    LOG_END,
    a_message,
    database_store,
    golden_store,
    in_record,
    messages,
    read,
    write,
)


class Twin:
    """A store, and a replica of its log."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.root = root
        self.other = directory / "replica"
        shutil.copytree(root, self.other)
        self.asked = 0
        self.log_end = LOG_END

    @property
    def replica(self) -> Replica:
        return Replica("there:1", self._fetch)

    def _fetch(self, physical_offset: int, size: int) -> bytes:
        self.asked += 1
        with StoreView(Layout(self.other)) as view:
            return view.log_bytes(physical_offset, min(size, self.log_end - physical_offset))

    def repair(self) -> Outcome:
        return apply(Layout(self.root), SystemClock(), replica=self.replica)

    @property
    def is_same(self) -> bool:
        logs = [
            {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
            for root in (self.root, self.other)
        ]
        return logs[0] == logs[1] and diff(Layout(self.root), Layout(self.other)).same


@pytest.fixture
def twin(tmp_path: Path) -> Twin:
    return Twin(tmp_path, golden_store(tmp_path))


def flip(root: Path, name: str, position: int, bit: int) -> None:
    [byte] = read(root, name, position, 1)
    write(root, name, position, bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("store", [golden_store, database_store])
@pytest.mark.parametrize("seed", range(2))
def test_bits_that_flip_anywhere_in_bodies_are_as_they_were(tmp_path: Path, store: type, seed: int) -> None:
    twin, random = Twin(tmp_path, store(tmp_path)), Random(seed)
    for message in random.sample(messages(twin.root), 12):
        base = message.physical_offset // FILE_BYTES * FILE_BYTES
        at = message.physical_offset - base + 88 + random.randrange(len(message.body))
        flip(twin.root, f"commitlog/{base:020d}", at, random.randrange(8))
    outcome = twin.repair()
    assert outcome.verdict.findings == []
    assert all("as the replica there:1 has them" in step.what for step in outcome.steps)
    assert twin.is_same


HEADS = [(0, 0), (0, 84), (-1, 0), (-1, 84), *((1, at) for at in (3, 4, 12, 20, 31, 36, 39, 87))]


@pytest.mark.parametrize(("number", "position"), HEADS)
def test_a_damaged_head_is_as_it_was(twin: Twin, number: int, position: int) -> None:
    in_record(twin.root, messages(twin.root)[number], position, b"\xee\xee")
    twin.repair()
    assert twin.is_same


def test_many_records_that_are_gone_come_back(twin: Twin) -> None:
    hit = messages(twin.root)[400:440]
    start = hit[0].physical_offset
    base = start // FILE_BYTES * FILE_BYTES
    size = min(hit[-1].physical_offset, base + FILE_BYTES) - start
    write(twin.root, f"commitlog/{base:020d}", start - base, bytes(size))
    outcome = twin.repair()
    assert outcome.verdict.sound
    assert twin.is_same


def test_where_the_replica_is_damaged_too_it_is_as_without_one(twin: Twin) -> None:
    message = a_message(twin.root)
    for root in (twin.root, twin.other):
        in_record(root, message, 90, b"\xee\xee")
    alone = plan(Layout(twin.root))
    with_replica = plan(Layout(twin.root), replica=twin.replica)
    [refusal, *rest] = with_replica.steps
    assert rest == alone.steps
    assert refusal.action is Action.LEAVE
    assert refusal.what == "the replica there:1 does not help: its bytes are damaged, too"
    before = (twin.root / "commitlog").stat()
    assert not twin.repair().verdict.sound
    assert (twin.root / "commitlog").stat() == before


def test_another_log_is_no_replica(twin: Twin) -> None:
    message, next_one = messages(twin.root)[500:502]
    in_record(twin.root, message, 90, b"\xee\xee")
    in_record(twin.other, next_one, 90, b"\xee\xee")  # near it, a difference that is not ours
    [refusal, *_] = plan(Layout(twin.root), replica=twin.replica).steps
    assert refusal.what == "the replica there:1 does not help: its log is another one there"


def test_a_record_of_another_place_is_not_taken(twin: Twin) -> None:
    """It is sound by itself, but another one, which is sound as well, has its queue offset."""
    message = a_message(twin.root)
    in_record(twin.root, message, 90, b"\xee\xee")
    in_record(twin.other, message, 20, (message.queue_offset - 1).to_bytes(8, "big"))
    [refusal, *_] = plan(Layout(twin.root), replica=twin.replica).steps
    assert refusal.what == "the replica there:1 does not help: its bytes are damaged, too"


def test_a_replica_that_ends_before_or_does_not_answer(twin: Twin) -> None:
    message = a_message(twin.root)
    in_record(twin.root, message, 90, b"\xee\xee")
    twin.log_end = message.physical_offset
    [refusal, *_] = plan(Layout(twin.root), replica=twin.replica).steps
    assert refusal.what.endswith(f"does not help: its log ends at {message.physical_offset}")

    def silent(physical_offset: int, size: int) -> bytes:
        raise StoreError("there:1: Connection refused")

    [refusal, *_] = plan(Layout(twin.root), replica=Replica("there:1", silent)).steps
    assert refusal.what == ("the replica there:1 does not help: there:1: Connection refused")


def test_a_torn_end_is_had_from_the_replica(twin: Twin) -> None:
    last = messages(twin.root)[-1]
    base = last.physical_offset // FILE_BYTES * FILE_BYTES
    at = last.physical_offset - base
    write(twin.root, f"commitlog/{base:020d}", at + 60, bytes(last.store_size - 60))
    assert twin.repair().verdict.sound
    assert twin.is_same


def test_a_sound_store_asks_nobody(twin: Twin) -> None:
    assert plan(Layout(twin.root), replica=twin.replica).steps == []
    assert twin.asked == 0
