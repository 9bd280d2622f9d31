"""Whatever is damaged: no tool makes a message unreadable, and none gives a queue offset twice."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError, MessageError
from firearrow.message.record import body_crc, decode_record
from firearrow.store.offline import Layout, Order, StoreView, apply, plan, rebuild, salvage
from firearrow.store.reading.entries import PRE_BLANK_SIZE
from tests.store.offline.damage import write
from tests.store.stores import append, opened, settle

EXAMPLES = settings.default.max_examples // 25 if settings.default else 4
QUEUES = [("A", 0), ("A", 1), ("B", 0)]
FILE_BYTES = 8 * 1024
HEAD_BYTES = 88
SIZES: dict[str, Any] = {"mapped_file_size_commit_log": FILE_BYTES, "mapped_file_size_consume_queue": 400}
Readable = set[tuple[str, int, bytes, str]]
Places = list[tuple[int, int]]
OTHER_WAYS = ["sector", "cut", "gone"]
Shape = tuple[str, int, int, int, str]


class Whole:
    """A sound store: its directory, where its records are, and what consumers can read."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        chance = random.Random(7)
        self.places: Places = []
        self.shapes: set[Shape] = set()
        with opened(root, store_type=kind, **SIZES) as store:
            for number in range(60):
                topic, queue_id = QUEUES[number % 3]
                properties = {"UNIQ_KEY": f"U{number}", "TAGS": "ab"[number % 2]}
                body = chance.randbytes(chance.randint(0, 500))
                at = append(store, body, topic, queue_id, properties=properties, now_ms=1000 + number)
                self.places.append((at, len(body)))
                self.shapes.add((topic, queue_id, number // 3, len(body), str(properties)))
            settle(store)
            self.ends = {key: store.max_queue_offset(*key) for key in QUEUES}
        table = {f"{topic}@g": {"0": end} for (topic, q), end in self.ends.items() if not q}
        (root / "config").mkdir(exist_ok=True)
        (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
        (root / "config/topics.json").write_text(
            json.dumps({"topicConfigTable": {topic: {"topicName": topic} for topic in "AB"}})
        )
        self.readable = sound(root)
        self.committed = {(topic, 0): self.ends[topic, 0] for topic in "AB"}


def sound(root: Path) -> Readable:
    """What entries of queues lead to, as consumers get it: bytes that frame, with their CRC."""
    found: Readable = set()
    with StoreView(Layout(root)) as view:
        for (topic, queue_id), queue in view.queues.items():
            for _, entries in queue.all():
                for physical, size, *_ in entries.tolist():
                    if not 0 < size < PRE_BLANK_SIZE:
                        continue
                    data = bytearray(view.log_bytes(physical, size))
                    if len(data) < size:
                        continue
                    data[:4] = size.to_bytes(4, "big")
                    for magic in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
                        data[4:8] = magic
                        try:
                            message = decode_record(bytes(data))
                        except MessageError:
                            continue
                        if message.body_crc == body_crc(message.body):
                            found.add((topic, queue_id, message.body, str(message.properties)))
    return found


class Served(NamedTuple):
    """What a broker gives out, which of it is altered, and its queues' next offsets."""

    all: Readable
    altered: Readable
    ends: dict[tuple[str, int], int]


def served(whole: Whole, root: Path, kind: str) -> Served | None:
    """What a broker gives out that starts on a copy of a store; None if it refuses to start.

    Altered is what has another body or CRC than it was stored with, and nothing else.
    """
    copy = root.with_name(root.name + "-served")
    shutil.copytree(root, copy)
    found = Served(set(), set(), {})
    try:
        with opened(copy, store_type=kind, **SIZES) as store:
            found.ends.update({key: store.max_queue_offset(*key) for key in QUEUES})
            for (topic, queue_id), end in found.ends.items():
                for at in range(store.min_queue_offset(topic, queue_id), end):
                    try:
                        message = decode_record(store.get(topic, queue_id, at, 1).records)
                    except MessageError:
                        continue
                    body, properties = message.body, str(message.properties)
                    found.all.add((topic, queue_id, body, properties))
                    shape = topic, queue_id, message.queue_offset, len(body), properties
                    if message.body_crc != body_crc(body) and shape in whole.shapes:
                        found.altered.add((topic, queue_id, body, properties))
    except (FirearrowError, OSError):
        return None
    finally:
        shutil.rmtree(copy)
    return found


def strike(whole: Whole, root: Path, chance: random.Random) -> None:
    """Damage a store once; heads of records are hit most often, then their bodies and CRCs."""
    way = chance.choice(["head"] * 6 + ["body", "crc"] * 2 + ["bytes"] * 2 + OTHER_WAYS)
    if way in ("head", "body", "crc"):
        at, body_bytes = chance.choice(whole.places)
        start, size = {"head": (0, HEAD_BYTES), "crc": (8, 4), "body": (HEAD_BYTES, body_bytes)}[way]
        first = chance.randrange(start, start + size + 1)
        data = chance.choice([chance.randbytes(1), chance.randbytes(4), bytes(8)])
        data = data if way == "head" else data[: start + size - first]
        path = root / f"commitlog/{at // FILE_BYTES * FILE_BYTES:020d}"
        if path.exists():
            hit(path, at % FILE_BYTES + first, data)
        return
    places = [root / "commitlog", *root.glob("index"), *root.glob("consumequeue/*/*")]
    files = [path for place in places for path in sorted(place.iterdir()) if path.is_file()]
    if whole.kind != "default":  # a database is trusted
        files = [path for path in files if "consumequeue" not in path.parts]
    if not files:
        return
    path = chance.choice(files)
    size = path.stat().st_size
    if way == "cut" and size:
        with path.open("r+b") as file:
            file.truncate(chance.randrange(size))
    elif way == "gone":
        path.unlink()
    elif size:
        at = chance.randrange(size)
        data = chance.choice([chance.randbytes(1), chance.randbytes(64), b"\xff" * 64])
        hit(path, at // 512 * 512, bytes(512)) if way == "sector" else hit(path, at, data)


def hit(path: Path, at: int, data: bytes) -> None:
    """Overwrite bytes within a file."""
    size = path.stat().st_size
    write(path.parent, path.name, at, data[: max(size - at, 0)])


@pytest.fixture(scope="module", params=["default", "defaultRocksDB"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole") / "store", request.param)


def damaged(whole: Whole, root: Path, seed: int) -> Path:
    """A copy of a store after some strokes."""
    chance = random.Random(seed)
    shutil.copytree(whole.root, root)
    for _ in range(chance.randint(1, 3)):
        strike(whole, root, chance)
    return root


def check_repair(whole: Whole, root: Path, _: Path) -> None:
    """`repair` leaves what could be read, and gives no queue offset twice."""
    start = served(whole, root, whole.kind)
    before = sound(root) & whole.readable
    again = plan(Layout(root)).given_again
    apply(Layout(root), SystemClock(), give_again=True)
    assert before <= sound(root)
    after = served(whole, root, whole.kind)
    if after is None:
        assert start is None
        return
    assert before | (start.altered if start else set()) <= after.all
    for key, end in whole.ends.items():
        if any(text.startswith(f"queue {key[0]}-{key[1]} ") for text in again):
            continue
        told = start.ends[key] if start else 0
        assert after.ends[key] >= min(end, max(told, whole.committed.get(key, 0))), key


def check_rebuild(whole: Whole, root: Path, _: Path) -> None:
    """`rebuild` leaves what could be read, and no queue ends before it did for a broker."""
    start = served(whole, root, whole.kind)
    before = sound(root) & whole.readable
    rebuild(Layout(root), SystemClock(), Order(index=False))
    assert before <= sound(root)
    after = served(whole, root, whole.kind)
    if start is not None and after is not None:
        assert start.altered <= after.all
        for key, end in start.ends.items():
            assert after.ends[key] >= min(end, whole.ends[key]), key


def check_salvage(whole: Whole, root: Path, to: Path) -> None:
    """`salvage` takes over what is as it was stored, and its new store gives new queue offsets."""
    before = sound(root) & whole.readable
    try:
        salvage([root], to, SystemClock(), file_bytes=FILE_BYTES, queue_file_bytes=400)
    except FirearrowError:  # nothing is left to look at
        assert not before
        return
    after = served(whole, to, whole.kind if (to / "consumequeue/CURRENT").exists() else "default")
    assert after is not None
    assert before <= after.all
    for key, end in whole.committed.items():
        assert after.ends[key] >= end, key


@pytest.mark.parametrize("check", [check_repair, check_rebuild, check_salvage])
@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 1 << 32))
def test_what_could_be_read_can_be_read_after(
    tmp_path_factory: pytest.TempPathFactory, whole: Whole, check: Callable[[Whole, Path, Path], None], seed: int
) -> None:
    place = tmp_path_factory.mktemp("damaged")
    try:
        check(whole, damaged(whole, place / "store", seed), place / "new")
    finally:
        shutil.rmtree(place)
