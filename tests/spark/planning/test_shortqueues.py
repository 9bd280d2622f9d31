"""Tasks of many short queues carry the entries, or open the queues: the rows are the same."""

from __future__ import annotations

import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.queues import Span
from firearrow.errors import CorruptStore
from firearrow.spark.options import parse
from firearrow.spark.planning import shortqueues, splits
from firearrow.spark.planning.commitlogorder import EntriesInOrder, Wanted
from firearrow.spark.planning.splits import Looks, cut
from firearrow.spark.source.datasource import MessageReader
from firearrow.spark.tables import MESSAGES
from firearrow.store.reading.entries import QueueKey
from firearrow.store.reading.queues import FileQueues
from firearrow.store.reading.storage import LocalStorage
from tests import golden
from tests.spark import logs
from tests.spark.source.test_files import by_place, read
from tests.store.stores import append, opened, settle

ALWAYS, NEVER = 1 << 50, 0  # entries that a task can carry for each queue
MANY = [logs.Sent(f"t{number % 40}", number % 3, b"%d" % number) for number in range(500)]


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small stores are read as very many queues are."""
    monkeypatch.setattr(shortqueues, "OPENING", ALWAYS)


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Counter[QueueKey]:
    """Counts how often each queue is opened."""
    found: Counter[QueueKey] = Counter()
    open_queue = FileQueues.open

    def counted(self: FileQueues, key: QueueKey) -> Any:
        found[key] += 1
        return open_queue(self, key)

    monkeypatch.setattr(FileQueues, "open", counted)
    return found


def both_ways(root: Path, **options: Any) -> Iterator[list[dict[str, Any]]]:
    for opening in (ALWAYS, NEVER):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shortqueues, "OPENING", opening)
            yield by_place(read(root, **options))


def opened_by_tasks(root: Path, opens: Counter[QueueKey], **options: Any) -> int:
    """How much more often queues are opened by tasks that open them than by tasks that carry their entries."""
    counts: list[int] = []
    opens.clear()
    for _ in both_ways(root, **options):
        counts.append(opens.total())
        opens.clear()
    return counts[1] - counts[0]


@given(sent=logs.stores, split=st.integers(1, 3000))
def test_a_task_carries_the_entries_of_its_queues(sent: list[logs.Sent], split: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        counts = logs.write(Path(home) / "s", sent)
        queues = FileQueues(LocalStorage(f"{home}/s"))
        tasks = cut(Looks(queues.open), [(key, Span(0, count)) for key, count in counts.items()], split, 1)
        for parts, carried in tasks:
            assert carried is not None
            assert carried.parts == len(parts)
            wanted = Wanted.of([queues.open(part[:2]).entries(*part[2:]) for part in parts])
            assert rows_of(carried.unpacked(parts)) == rows_of(wanted)


def rows_of(wanted: Wanted) -> list[list[int]]:
    return [[row.tolist() for row in piece] for piece in EntriesInOrder(wanted).pieces()]


@pytest.mark.parametrize("name", [*golden.golden_names, "batch-queues", "light-file"])
@pytest.mark.parametrize("split", ["128m", "3k"])
def test_golden_stores_are_the_same_both_ways(name: str, split: str, tmp_path: Path) -> None:
    one, other = both_ways(golden.extract(name, tmp_path), splitBytes=split)
    assert len(one) > 0
    assert one == other


def test_tasks_open_no_queue(opens: Counter[QueueKey], tmp_path: Path) -> None:
    counts = logs.write(tmp_path / "s", MANY)
    options = parse({"path": str(tmp_path / "s"), "splitBytes": "10k"})
    tasks = MessageReader(options, MESSAGES).partitions()
    assert len(tasks) > 3
    opens.clear()
    assert sum(batch.num_rows for task in tasks for batch in MessageReader(options, MESSAGES).read(task)) == 500
    assert not opens
    assert opened_by_tasks(tmp_path / "s", opens) == len(counts)


def test_tasks_of_many_queues_are_small_enough_to_carry_all(
    opens: Counter[QueueKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.write(tmp_path / "s", MANY)
    monkeypatch.setattr(shortqueues, "OPENING", 1)
    monkeypatch.setattr(shortqueues, "CARRIED_MAX", 100)  # fewer than the queues
    options = parse({"path": str(tmp_path / "s"), "splitBytes": "1m"})
    tasks = MessageReader(options, MESSAGES).partitions()
    assert len(tasks) > 5
    opens.clear()
    assert sum(batch.num_rows for task in tasks for batch in MessageReader(options, MESSAGES).read(task)) == 500
    assert not opens


@pytest.mark.parametrize("options", [{"tags": "A"}, {"subscribe": "t1", "keys": "k"}])
def test_messages_with_a_tag_are_chosen_by_their_entries(
    options: dict[str, str], opens: Counter[QueueKey], tmp_path: Path
) -> None:
    sent = [it._replace(properties=b"TAGS\x01%c\x02KEYS\x01k\x02" % b"AB"[n % 2]) for n, it in enumerate(MANY)]
    logs.write(tmp_path / "s", sent)
    one, other = both_ways(tmp_path / "s", **options)
    assert len(one) > 0
    assert one == other
    assert (opened_by_tasks(tmp_path / "s", opens, **options) == 0) == ("tags" in options)


def test_a_task_may_have_long_queues_too(
    opens: Counter[QueueKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "SHORT_MAX", 10)
    counts = logs.write(tmp_path / "s", [*MANY, *[logs.Sent("long")] * 100])
    one, other = both_ways(tmp_path / "s", splitBytes="30k")
    assert len(one) == 600
    assert one == other
    assert opened_by_tasks(tmp_path / "s", opens) == len(counts) - 1


def test_records_of_transactions_that_no_queue_has_are_left_out(opens: Counter[QueueKey], tmp_path: Path) -> None:
    sent = [it._replace(is_visible=number % 5 > 0) for number, it in enumerate(MANY)]
    counts = logs.write(tmp_path / "s", sent)
    one, other = both_ways(tmp_path / "s")
    assert [row["body"] for row in one] == [it.body for it in sent if it.is_visible]
    assert one == other
    assert opened_by_tasks(tmp_path / "s", opens) == len(counts)


@pytest.mark.parametrize("kind", ["default", "defaultRocksDB"])
@pytest.mark.parametrize("split", ["1m", "2k"])
def test_a_topic_that_was_made_again_has_its_new_messages(kind: str, split: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root, background=False, store_type=kind) as store:
        for number in range(60):
            if number == 30:
                settle(store)
                store.delete_topic("T")
            append(store, b"%d" % number, "TU"[number % 2])
        settle(store)
    one, other = both_ways(root, splitBytes=split)
    assert [int(row["body"]) for row in one] == [number for number in range(60) if number % 2 or number >= 30]
    assert one == other


def test_a_damaged_entry_is_told(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", MANY)
    path = tmp_path / "s" / "consumequeue" / "t1" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 20, 90_000)
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=r"message 1 in queue 1 of topic 't1'|message 1 of topic 't1'"):
        read(tmp_path / "s")
    one, other = both_ways(tmp_path / "s", onCorrupt="skip")
    assert len(one) == 499
    assert one == other
