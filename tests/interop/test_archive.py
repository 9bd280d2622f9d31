"""The original's messages archived, restored into it and replayed, each job done twice."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

from firearrow.message.batch import encode_batch
from firearrow.message.compress import LEVEL
from firearrow.message.model import MessageView
from firearrow.spark.jobs.archive.archiving import archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend.replay import Selection, replay
from firearrow.spark.jobs.resend.restore import restore
from firearrow.spark.jobs.resend.sources import ArchiveMessages
from firearrow.spark.source.origin import Origin
from firearrow.wire.codes import RequestCode
from tests.broker.serving import send_fields
from tests.interop.servers import Server, serve
from tests.interop.waiting import wait_until
from tests.net.rawclient import RawClient
from tests.spark.brokers import create_topic, stored
from tests.spark.jobs.inline import Inline

QUEUES = 3
IN_A_QUEUE = 400
LARGE = [
    (b"x" * (4 << 20), 0),  # a body's largest size, and bodies that are larger once decompressed
    *((zlib.compress(b"%d" % n * (5 << 20), LEVEL), 0x301) for n in range(2)),
]
ALL = QUEUES * IN_A_QUEUE + len(LARGE)
DISPATCH_TIMEOUT_S = 30


def fill(server: Server) -> None:
    """Send some hundred messages to each queue of topic T."""
    create_topic(server, "T", QUEUES)
    client = RawClient()
    for queue_id in range(QUEUES):
        for start in range(0, IN_A_QUEUE, 100):
            batch = encode_batch(
                [
                    (7, b"%d/%d" % (queue_id, n), b"TAGS\x01t%d\x02KEYS\x01k%d\x02" % (n % 4, n))
                    for n in range(start, start + 100)
                ]
            )
            fields = send_fields("T", queue_id, m=True)
            client.call(server.broker, RequestCode.SEND_BATCH_MESSAGE, fields, batch)
    create_topic(server, "Large", 1)
    for body, sys_flag in LARGE:
        fields = send_fields("Large", 0, f=sys_flag)
        client.call(server.broker, RequestCode.SEND_MESSAGE_V2, fields, body)
    client.close()


def essence(views: list[MessageView]) -> list[tuple[int, int, bytes, int, str | None, list[str]]]:
    """What a restore brings back."""
    return [(v.queue_id, v.queue_offset, v.body, v.flag, v.tags, v.keys) for v in views]


def held(origin: Origin) -> int:
    """How many messages can be read: an acknowledged one is, a moment later."""
    return sum(bound.latest - bound.earliest for bound in origin.bounds().values())


def forget(job: Path, ledger: bytes) -> None:
    """Make a job know no more than that it has begun."""
    for path in (job / "queues").rglob("*.json"):
        path.write_bytes(ledger)


def test_the_originals_messages_come_and_go(tmp_path: Path) -> None:
    begun = b'{"nextOffset":0,"targetOffset":0,"sent":0,"done":false}'
    kept = Archive(tmp_path / "archive")
    with serve("real", tmp_path / "store", tmp_path / "logs") as server:
        fill(server)
        opener, settings = source({"nameServer": server.namesrv, "subscribe": "T,Large"})
        wait_until(lambda: held(opener()) == ALL, DISPATCH_TIMEOUT_S, "all queued")
        assert archive(Inline(), opener, kept, settings).rows == ALL
        to = {"nameServer": server.namesrv}
        back = tmp_path / "back"
        for _ in range(2):
            report = restore(Inline(), kept, to, back, topics={"T": "U", "Large": "AsLarge"})
            assert report.messages == ALL
            forget(back, begun)
        assert essence(stored(server, "U", QUEUES)) == essence(stored(server, "T", QUEUES))
        again = stored(server, "AsLarge", 1)
        assert [(view.body, view.sys_flag) for view in again] == LARGE

        create_topic(server, "again", 2)
        job = tmp_path / "job"
        for _ in range(2):
            messages, chosen = ArchiveMessages.of(kept), Selection(tags=("t1",))
            report = replay(Inline(), messages, chosen, to | {"topic": "again"}, job)
            assert report.messages == QUEUES * IN_A_QUEUE // 4
            forget(job, begun)
        bodies = Counter(view.body for view in stored(server, "again", 2))
        assert (len(bodies), max(bodies.values())) == (QUEUES * IN_A_QUEUE // 4, 1)
