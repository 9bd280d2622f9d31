"""Chosen messages come again, marked with where they come from, and never twice."""

from __future__ import annotations

import functools
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firearrow.errors import ConfigError, TopicNotFound
from firearrow.message.sysflag import INNER_BATCH
from firearrow.spark.jobs.archive import archive, source
from firearrow.spark.jobs.manifest import Archive
from firearrow.spark.jobs.replay import Selection, replay
from firearrow.spark.jobs.sources import SENT, ArchiveMessages, OriginMessages
from firearrow.spark.origin import Bound, Queue
from tests.golden import expected, extract
from tests.interop.servers import Server
from tests.spark.brokers import create_topic, serving, stored
from tests.spark.jobs.inline import Inline
from tests.spark.origins import MemoryOrigin

A, B = Queue("T", "a", 0), Queue("T", "a", 1)
BASE_MS = MemoryOrigin().base_ms


def origin() -> MemoryOrigin:
    return MemoryOrigin({A: Bound(0, 60), B: Bound(10, 40)}, scrambled=True)


def chosen(selection: Selection) -> list[str]:
    messages = OriginMessages.of(origin)
    return [
        f"{queue.queue_id}/{offset}"
        for queue in messages.spans
        for batch in messages.read(queue, 0)
        for offset in selection(batch).column("queueOffset").to_pylist()
    ]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(start_ms=BASE_MS + 57_001), ["0/58", "0/59"]),
        (Selection(end_ms=BASE_MS + 2000), ["0/0", "0/1"]),
        (Selection(tags=("t2", "x"), end_ms=BASE_MS + 9000), ["0/2", "0/5", "0/8"]),
        (Selection(keys=("k3", "ID1-11")), ["0/3", "1/11"]),
        (Selection(keys=("k12",)), ["0/12", "1/12"]),
    ],
)
def test_a_selection_is_what_all_of_it_says(selection: Selection, expected: list[str]) -> None:
    assert chosen(selection) == expected


def test_a_file_can_say_which(tmp_path: Path) -> None:
    rows = [
        {"topic": "T", "broker": "a", "queueId": q, "queueOffset": n}
        for q, n in [(0, 7), (1, 9), (1, 39)]
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chosen.parquet")
    assert chosen(Selection(chosen=tmp_path / "chosen.parquet")) == ["0/7", "1/39"]


def test_an_archive_and_a_store_give_the_same(tmp_path: Path) -> None:
    archive(Inline(), origin, Archive(tmp_path))
    kept, live = ArchiveMessages.of(Archive(tmp_path)), OriginMessages.of(origin)
    assert kept.spans == live.spans
    for queue in live.spans:
        for start in (0, 25, 70):
            one, other = (
                pa.Table.from_batches(source.read(queue, start), SENT) for source in (kept, live)
            )
            assert one.equals(other)
    assert ArchiveMessages.of(Archive(tmp_path), ["U"]).spans == {}


def to(server: Server, topic: str = "again") -> dict[str, str]:
    return {"nameServer": server.namesrv, "topic": topic}


def test_what_is_chosen_comes_again_and_says_where_from(tmp_path: Path) -> None:
    selection = Selection(tags=("t1",))
    messages = OriginMessages.of(origin)
    with serving(tmp_path) as server:
        create_topic(server, "again", 2)
        run = functools.partial(
            replay, Inline(), messages, selection, to(server), tmp_path / "job", sleep=float
        )
        report = run()
        assert (report.queues, report.messages) == (2, 30)
        assert run() == report
        found = stored(server, "again", 2)
        assert len(found) == 30
        assert [view.body for view in found if view.queue_id == 0] == [
            f"T/a/0/{offset}".encode() for offset in range(1, 60, 3)
        ]
        first = found[0].properties
        assert (first["REPLAY_TOPIC"], first["REPLAY_OFFSET"]) == ("T", "1")
        assert (first["REPLAY_ID"], first["KEYS"]) == ("ID0-1", "k1")
        assert len({view.properties["REPLAY_JOB"] for view in found}) == 1


def test_messages_of_inner_batches_come_one_by_one(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    messages = OriginMessages.of(source({"path": str(root)})[0])
    with serving(tmp_path) as server:
        create_topic(server, "again", 2)
        assert replay(Inline(), messages, Selection(), to(server), tmp_path / "job").messages == 80
        found = stored(server, "again", 2)
    assert {view.sys_flag & INNER_BATCH for view in found} == {0}
    assert sorted(
        (view.properties["REPLAY_ID"], sha256(view.body).hexdigest()) for view in found
    ) == sorted((line["uniqKey"], line["bodySha256"]) for line in expected("batch-queues"))


def test_a_job_that_was_ended_sends_only_the_rest(tmp_path: Path) -> None:
    """The ledger says that nothing is known: the topic itself tells what is there."""
    messages = OriginMessages.of(origin)
    with serving(tmp_path) as server:
        create_topic(server, "again", 1)
        job = tmp_path / "job"
        run = functools.partial(
            replay, Inline(), messages, Selection(), to(server), job, sleep=float
        )
        run()
        for ledger in (job / "queues").rglob("*.json"):
            ledger.write_bytes(b'{"nextOffset":0,"targetOffset":0,"sent":0,"done":false}')
        assert run().messages == 90
        assert max(Counter(view.body for view in stored(server, "again", 1)).values()) == 1


def test_a_replay_needs_a_topic_that_is_there(tmp_path: Path) -> None:
    messages = OriginMessages.of(origin)
    with pytest.raises(ConfigError, match="option topic is missing: messages are replayed"):
        replay(Inline(), messages, Selection(), {"nameServer": "127.0.0.1:1"}, tmp_path)
    with serving(tmp_path) as server, pytest.raises(TopicNotFound, match="'nowhere' has no route"):
        replay(Inline(), messages, Selection(), to(server, "nowhere"), tmp_path / "job")
