"""Chosen messages come again, marked with where they come from, and never twice."""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from socket import gethostname

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firearrow.client.producer.drafts import send_fields
from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError, TopicNotFound
from firearrow.message.model import MessageView
from firearrow.message.sysflag import INNER_BATCH
from firearrow.spark.jobs.archive.archiving import archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend.replay import Selection, replay
from firearrow.spark.jobs.resend.restore import restore
from firearrow.spark.jobs.resend.sources import SENT, ArchiveMessages, MessageSource, OriginMessages
from firearrow.wire.codes import RequestCode
from tests.golden import expected, extract
from tests.interop.servers import Server
from tests.net.rawclient import RawClient
from tests.spark.brokers import create_topic, serving, stored
from tests.spark.jobs.inline import Elsewhere, Inline
from tests.spark.origins import MemoryOrigin

LARGE_BYTES = 4 << 20  # a body's largest size
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


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({"start_ms": BASE_MS, "end_ms": BASE_MS - 1}, "is not after"),
        ({"start_ms": BASE_MS, "end_ms": BASE_MS}, "is not after"),
        ({"start_ms": BASE_MS // 1000}, "looks like seconds"),
        ({"end_ms": BASE_MS * 1000}, "looks like microseconds"),
    ],
)
def test_times_that_select_nothing_are_refused(times: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^selection: \d+ {reason}"):
        Selection(start_ms=times.get("start_ms"), end_ms=times.get("end_ms"))


def test_a_file_can_say_which(tmp_path: Path) -> None:
    rows = [{"topic": "T", "broker": "a", "queueId": q, "queueOffset": n} for q, n in [(0, 7), (1, 9), (1, 39)]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chosen.parquet")
    assert chosen(Selection(chosen=tmp_path / "chosen.parquet")) == ["0/7", "1/39"]


def test_an_archive_and_a_store_give_the_same(tmp_path: Path) -> None:
    archive(Inline(), origin, Archive(tmp_path))
    kept, live = ArchiveMessages.of(Archive(tmp_path)), OriginMessages.of(origin)
    assert kept.spans == live.spans
    for queue in live.spans:
        for start in (0, 25, 70):
            one, other = (pa.Table.from_batches(source.read(queue, start), SENT) for source in (kept, live))
            assert one.equals(other)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: there is no archive, or it is empty"):
        ArchiveMessages.of(Archive(tmp_path / "nowhere"))
    archive(Inline(), origin, Archive(tmp_path))
    with pytest.raises(ConfigError, match=r"archive .* has no topic 'U'; it has T"):
        ArchiveMessages.of(Archive(tmp_path), ["T", "U"])


@pytest.mark.parametrize(
    ("name", "value"), [("tags", "a"), ("keys", "k"), ("startingTimestamp", "0"), ("visibility", "log")]
)
def test_options_that_would_be_forgotten_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^option .*{name}|^option .*timestamp"):
        OriginMessages.at({"path": "unused", name: value})


def to(server: Server, topic: str = "again") -> dict[str, str]:
    return {"nameServer": server.namesrv, "topic": topic}


def test_what_is_chosen_comes_again_and_says_where_from(tmp_path: Path) -> None:
    selection = Selection(tags=("t1",))
    messages = OriginMessages.of(origin)
    with serving(tmp_path) as server:
        create_topic(server, "again", 2)
        run = functools.partial(replay, Inline(), messages, selection, to(server), tmp_path / "job", sleep=float)
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
    assert sorted((view.properties["REPLAY_ID"], sha256(view.body).hexdigest()) for view in found) == sorted(
        (line["uniqKey"], line["bodySha256"]) for line in expected("batch-queues")
    )


GOLDEN = "file-cq-clean"


def ids(found: Iterable[MessageView]) -> list[str]:
    return sorted(view.properties["REPLAY_ID"] for view in found)


def test_what_consumers_saw_is_replayed_and_more_if_asked(tmp_path: Path) -> None:
    """The originals of delayed messages, half messages and retries have the tags, too."""
    root, tags = extract(GOLDEN, tmp_path), ("D", "T", "Tx", "TagB")
    messages = OriginMessages.at({"path": str(root)})
    lines = [line for line in expected(GOLDEN) if line["properties"].get("TAGS") in tags]
    seen = [line for line in lines if line["topic"].startswith("Golden")]
    assert len(lines) > len(seen) + 30
    with serving(tmp_path) as server:
        for topic, selection, wanted in (
            ("again", Selection(tags=tags), seen),
            ("everything", Selection(tags=tags, all_topics=True), lines),
        ):
            create_topic(server, topic, 2)
            job, sink = tmp_path / topic, to(server, topic)
            report = replay(Inline(), messages, selection, sink, job)
            assert report.messages == len(wanted)
            assert ids(stored(server, topic, 2)) == sorted(line["uniqKey"] for line in wanted)
            left_out = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
            assert set(left_out) <= set(report.skipped) or selection.all_topics


@pytest.mark.parametrize("is_archived", [False, True])
def test_bodies_are_sent_as_they_were_stored(is_archived: bool, tmp_path: Path) -> None:
    root = extract(GOLDEN, tmp_path)
    options = {"path": str(root), "subscribe": "GoldenPlain"}
    messages: MessageSource = OriginMessages.at(options)
    if is_archived:
        archive(Inline(), source(options)[0], Archive(tmp_path / "archive"))
        messages = ArchiveMessages.of(Archive(tmp_path / "archive"))
    with serving(tmp_path) as server:
        create_topic(server, "again", 4)
        replay(Inline(), messages, Selection(tags=("Zip",)), to(server), tmp_path / "job")
        found = stored(server, "again", 4)
    sent = {line["uniqKey"]: line for line in expected(GOLDEN)}
    assert {view.sys_flag for view in found} == {0x101, 0x201, 0x301}
    for view in found:
        line = sent[view.properties["REPLAY_ID"]]
        assert view.sys_flag & ~1 == line["sysFlag"]
        assert view.body_crc == line["bodyCRC"] or is_archived  # an archive has not the very bytes
        assert sha256(view.body_decompressed()).hexdigest() == line["bodySha256"]


def test_bodies_that_no_batch_holds_are_sent_alone(tmp_path: Path) -> None:
    """One has the size that brokers allow at most, one is larger than that when decompressed."""
    large, packed = b"x" * LARGE_BYTES, zlib.compress(b"y" * (LARGE_BYTES + 1))
    with serving(tmp_path) as server:
        for topic in ("T", "again", "restored"):
            create_topic(server, topic, 1)
        client = RawClient()
        for body, sys_flag in ((b"small", 0), (large, 0), (packed, 0x301)):
            fields = send_fields("p", Queue("T", "broker-a", 0), 1, batch=False) | {"f": sys_flag}
            fields |= {"h": 7, "i": "KEYS\x01k\x02UNIQ_KEY\x01\u00fc\x02"}
            client.call(server.broker, RequestCode.SEND_MESSAGE_V2, fields, body)
        client.close()
        place = {"nameServer": server.namesrv, "subscribe": "T"}
        archive(Inline(), source(place)[0], Archive(tmp_path / "archive"))
        replay(Inline(), OriginMessages.at(place), Selection(), to(server), tmp_path / "job")
        restore(Inline(), Archive(tmp_path / "archive"), to(server), tmp_path / "back", topics={"T": "restored"})
        for topic in ("again", "restored"):
            found = stored(server, topic, 1)
            assert [view.sys_flag for view in found] == [0, 0, 0x301]
            assert [view.body_decompressed() for view in found] == [b"small", large, b"y" * (LARGE_BYTES + 1)]
            assert {(view.flag, view.properties["UNIQ_KEY"]) for view in found} == {(7, "\u00fc")}


def test_a_job_keeps_to_its_source_and_its_selection(tmp_path: Path) -> None:
    one, other = extract(GOLDEN, tmp_path / "one"), extract(GOLDEN, tmp_path / "other")
    job = tmp_path / "job"
    with serving(tmp_path) as server:
        create_topic(server, "again", 1)

        def run(options: dict[str, str], selection: Selection) -> int:
            messages = OriginMessages.at(options)
            sink = to(server)
            return replay(Inline(), messages, selection, sink, job, sleep=float).messages

        tagged = Selection(tags=("TagA",))
        count = run({"path": str(one)}, tagged)
        assert run({"path": f"{one}/../{one.name}"}, tagged) == count > 0
        for options, selection, complaint in (
            ({"path": str(other)}, tagged, f"path was '{one}' and is '{other}'"),
            ({"path": str(one), "subscribe": "GoldenPlain"}, tagged, "subscribe was not given"),
            ({"path": str(one)}, Selection(tags=("TagB",)), "tags was 'TagA' and is 'TagB'"),
            ({"path": str(one)}, Selection(tags=("TagA",), all_topics=True), "allTopics was not"),
        ):
            with pytest.raises(ConfigError, match=f"belongs to another job: {re.escape(complaint)}"):
                run(options, selection)
        assert len(stored(server, "again", 1)) == count


def test_a_job_that_was_ended_sends_only_the_rest(tmp_path: Path) -> None:
    """The ledger says that nothing is known: the topic itself tells what is there."""
    messages = OriginMessages.of(origin)
    with serving(tmp_path) as server:
        create_topic(server, "again", 1)
        job = tmp_path / "job"
        run = functools.partial(replay, Inline(), messages, Selection(), to(server), job, sleep=float)
        run()
        for ledger in (job / "queues").rglob("*.json"):
            ledger.write_bytes(b'{"nextOffset":0,"targetOffset":0,"sent":0,"done":false}')
        assert run().messages == 90
        assert max(Counter(view.body for view in stored(server, "again", 1)).values()) == 1


def test_a_job_whose_directory_a_worker_does_not_share_sends_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        create_topic(server, "again", 2)
        for other in ("nowhere", "another"):
            job = tmp_path / other / "job"
            if other == "another":
                replay(Inline(), OriginMessages.of(lambda: MemoryOrigin()), Selection(), to(server), job, sleep=float)
            with pytest.raises(ConfigError, match=rf"job on {gethostname()} is not the directory where the job"):
                replay(
                    Elsewhere("directory", job),
                    OriginMessages.of(origin),
                    Selection(),
                    to(server),
                    tmp_path / "job",
                    sleep=float,
                )
        assert stored(server, "again", 2) == []


def test_a_replay_needs_a_topic_that_is_there(tmp_path: Path) -> None:
    messages = OriginMessages.of(origin)
    with pytest.raises(ConfigError, match="option topic is missing: messages are replayed"):
        replay(Inline(), messages, Selection(), {"nameServer": "127.0.0.1:1"}, tmp_path)
    with serving(tmp_path) as server, pytest.raises(TopicNotFound, match="'nowhere' has no route"):
        replay(Inline(), messages, Selection(), to(server, "nowhere"), tmp_path / "job")
