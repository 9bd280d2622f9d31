"""What a log gives up is gone for good, whenever the machine fails, and all else follows it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.store import MessageStore
from firearrow.testing.fs import CrashableFileSystem, PowerLoss
from firearrow.testing.storecheck import damage_in
from tests.broker.fakes import HandClock
from tests.store.stores import BORN_MS, KINDS, KiB, append, bodies, make_store, opened, power_off, settle

SEEDS_10666 = range(12)
"""Losses of power after a cut, in which the end that was given up came back in RocketMQ's broker
(apache/rocketmq#10666)."""


def filled(root: Path, count: int, **options: Any) -> list[tuple[int, bytes]]:
    """A store with messages of two queues: the physical offsets and bodies in order of the log."""
    with opened(root, background=False, **options) as store:
        return [put(store, b"old", number) for number in range(count)]


def put(store: MessageStore, word: bytes, number: int) -> tuple[int, bytes]:
    body = b"%s %d " % (word, number) * (number % 60 * 5 + 1)
    at = append(store, body, queue_id=number % 2, properties={"KEYS": f"k{number}"}, now_ms=BORN_MS + number)
    return at, body


def reopened(root: Path, cut_at: int | None = None, **options: Any) -> MessageStore:
    store = make_store(root, **options)
    store.open(background=False, cut_at=cut_at)
    return store


def queues(store: MessageStore) -> list[list[bytes]]:
    settle(store)
    return [bodies(store, queue_id=queue_id) for queue_id in (0, 1)]


def of_queues(messages: list[tuple[int, bytes]]) -> list[list[bytes]]:
    kept = [body for _, body in messages]
    return [kept[0::2], kept[1::2]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0, 1, 100, 299, 300])
def test_queues_and_index_end_where_the_log_does_and_go_on_there(tmp_path: Path, kind: str, kept: int) -> None:
    messages = filled(tmp_path / "s", 300, store_type=kind)
    end = [*(at for at, _ in messages), 1 << 40][kept]
    store = reopened(tmp_path / "s", end, store_type=kind)
    assert store.log_end_offset == end or kept == 300
    assert queues(store) == of_queues(messages[:kept])
    now = [*messages[:kept], *(put(store, b"new", number) for number in range(kept, kept + 50))]
    assert queues(store) == of_queues(now)
    for number in (0, kept - 1, kept, kept + 49, kept + 51):
        found = store.query("T", f"k{number}", "K", 0, 1 << 60, 10)
        assert len(found) == (0 <= number < len(now)), number
    store.close()
    again = reopened(tmp_path / "s", store_type=kind)
    assert queues(again) == of_queues(now)
    again.close()


@given(count=st.integers(1, 200), kept=st.integers(0, 200), seed=st.integers(0, 1 << 30))
def test_a_cut_after_a_kill_and_one_after_another(
    count: int, kept: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("cut")
    random = Random(seed)
    messages = filled(root, count)
    for _ in range(3):
        kept = min(kept, len(messages))
        end = messages[kept][0] if kept < len(messages) else 1 << 40
        store = reopened(root, end)
        messages = messages[:kept]
        messages += [put(store, b"%d" % seed, number) for number in range(kept, kept + 20)]
        assert queues(store) == of_queues(messages)
        kept = random.randrange(len(messages) + 1)
        store.close()
    assert damage_in(store.config, store.config.message_delay_level) == []


class Power:
    """Power that fails at an operation of the file system."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, operation: str, path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerLoss


@pytest.mark.parametrize("seed", SEEDS_10666)
def test_what_was_given_up_does_not_come_back_after_a_second_crash(tmp_path: Path, seed: int) -> None:
    """The power fails at each operation of the cut, of what follows, and again."""
    random = Random(seed)
    kind = KINDS[seed % 2]
    options: dict[str, Any] = {"store_type": kind, "clock": HandClock()}
    messages = filled(tmp_path / "first", random.choice([5, 100, 300]), **options)
    kept = random.randrange(len(messages))
    end = messages[kept][0]
    others = ("consumequeue",) if kind != "default" else ()
    root, turn, has_cut = tmp_path / "first", 0, False
    while not has_cut:
        fs = CrashableFileSystem(root, Power(random.randrange(40)), others)
        store = make_store(root, fs=fs, **options)
        is_open = False
        try:
            store.open(background=False, cut_at=end)
            is_open = True
            for number in range(kept, kept + random.randrange(1, 20)):
                put(store, b"new", number)
            settle(store)
            store.flush_step()
        except PowerLoss:
            pass
        fs.before = lambda operation, path: None
        turn += 1
        left = tmp_path / str(turn)
        fs.crash(left, random.randrange(1 << 32))
        power_off(store)
        root = left
        has_cut = is_open or turn > 60
    assert is_open
    store = reopened(root, **options)
    seen = queues(store)
    store.close()
    for found, old in zip(seen, of_queues(messages[:kept]), strict=True):
        assert found[: len(old)] == old, "what the master has stays"
        assert all(body.startswith(b"new") for body in found[len(old) :])
    assert damage_in(store.config, store.config.message_delay_level) == []


def test_a_cut_where_a_file_begins_takes_the_file(tmp_path: Path) -> None:
    messages = filled(tmp_path / "s", 300)
    at = next(at for at, _ in messages if at >= 64 * KiB)
    assert at == 64 * KiB
    store = reopened(tmp_path / "s", at)
    assert store.log_end_offset == at
    assert [it.name for it in sorted((tmp_path / "s" / "commitlog").iterdir())] == ["0" * 20]
    store.close()
