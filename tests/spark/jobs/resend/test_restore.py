"""What an archive holds comes back into topics of a broker, once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import ConfigError, CorruptStore
from firearrow.spark.jobs.archive.archiving import archive
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend.plans import ResendReport
from firearrow.spark.jobs.resend.restore import restore, routes_of
from firearrow.spark.jobs.workers import local_workers
from tests.interop.servers import Server
from tests.spark.brokers import serving, stored
from tests.spark.jobs.inline import Inline
from tests.spark.origins import MemoryOrigin

A0, A2, B0 = Queue("T", "one", 0), Queue("T", "one", 2), Queue("T", "two", 0)
DEAD, RETRY = Queue("%DLQ%g", "one", 0), Queue("%RETRY%g", "one", 0)
HELD = {A0: Bound(5, 905), A2: Bound(0, 7), B0: Bound(100, 400), DEAD: Bound(0, 3)}


def filled(root: Path) -> Archive:
    origin = MemoryOrigin(HELD | {RETRY: Bound(0, 2)})
    archive(Inline(), lambda: origin, Archive(root))
    return Archive(root)


def to(server: Server, **options: str) -> dict[str, str]:
    return {"nameServer": server.namesrv} | options


def bodies(queue: Queue) -> list[bytes]:
    bound = HELD[queue]
    return [
        f"{queue.topic}/{queue.broker}/{queue.queue_id}/{offset}".encode()
        for offset in range(bound.earliest, bound.latest)
    ]


def test_topics_come_back_into_an_empty_broker(tmp_path: Path) -> None:
    held = filled(tmp_path / "archive")
    slept: list[float] = []
    with serving(tmp_path / "broker") as server:
        job = tmp_path / "job"
        with local_workers(2) as workers:
            report = restore(workers, held, to(server), job, sleep=slept.append)
        assert report == ResendReport(4, 1210, ("%RETRY%g",))
        again = restore(Inline(), held, to(server), job, sleep=slept.append)
        assert (again, slept) == (report, [3.0])
        found = stored(server, "T", 4)
        queues: list[list[bytes]] = [[] for _ in range(4)]
        for view in found:
            assert view.queue_offset == len(queues[view.queue_id])
            queues[view.queue_id].append(view.body)
        assert queues == [bodies(A0), [], bodies(A2), bodies(B0)]
        assert (found[7].tags, found[7].keys) == ("t0", ["k12"])
        assert [view.body for view in stored(server, "%DLQ%g", 1)] == bodies(DEAD)


def test_a_job_that_goes_on_ignores_what_the_archive_got_since(tmp_path: Path) -> None:
    held = filled(tmp_path / "archive")
    with serving(tmp_path / "broker") as server:
        job = tmp_path / "job"
        first = restore(Inline(), held, to(server), job, topics=["T"])
        for ledger in (job / "queues").rglob("*.json"):
            ledger.write_bytes(ledger.read_bytes().replace(b'"done":true', b'"done":false'))
        origin = MemoryOrigin({A0: Bound(5, 1000)})
        archive(Inline(), lambda: origin, held)
        compact(Inline(), held)
        assert restore(Inline(), held, to(server), job, topics=["T"]) == first
        assert len(stored(server, "T", 4)) == first.messages == 1207


def test_queues_that_others_use_are_refused(tmp_path: Path) -> None:
    held = filled(tmp_path / "archive")
    with serving(tmp_path / "broker") as server:
        restore(Inline(), held, to(server), tmp_path / "one", topics={"T": "U"})
        with pytest.raises(ConfigError, match=r"queue 0 of topic 'U' on .* holds 900"):
            restore(Inline(), held, to(server), tmp_path / "two", topics={"T": "U"})
        with pytest.raises(ConfigError, match="belongs to another job"):
            restore(Inline(), held, to(server), tmp_path / "one", topics={"T": "V"})
        (tmp_path / "one" / "plan.json").write_bytes(b"{}")
        with pytest.raises(CorruptStore, match="is not the plan of a job"):
            restore(Inline(), held, to(server), tmp_path / "one", topics={"T": "U"})


def test_each_queue_gets_one_of_its_own() -> None:
    spans = {queue: Span(0, 1) for queue in (A0, A2, B0, RETRY)}
    places = [
        (route.queue, route.to_topic, route.to_broker, route.to_queue)
        for route in routes_of(spans, {"T": "U"}, ["two", "three"])
    ]
    assert places == [(A0, "U", "two", 0), (A2, "U", "two", 2), (B0, "U", "two", 3)]
