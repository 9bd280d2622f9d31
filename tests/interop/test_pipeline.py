"""The pipeline's sink and source on the original's broker: messages go in and come out whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from firearrow.client.producer.batchsender import SendCounts
from firearrow.client.queues import Queue
from firearrow.errors import NotPermitted
from firearrow.net.access import Access
from firearrow.spark.options import Options, for_sink, parse
from firearrow.spark.sink import BatchWriter
from firearrow.spark.source.brokers import BrokerOrigin
from firearrow.spark.source.datasource import batch_spans
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.origin import Origin
from firearrow.spark.tables import MESSAGES
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from tests.interop.servers import AUTHENTICATED, BROKER_NAME, ROOT, Server, serve
from tests.interop.waiting import wait_until
from tests.net import rawclient
from tests.net.rawclient import RawClient

ROWS = 2000
SECRET = {"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The original, with users, which takes clients that encrypt as well as others."""
    directory = tmp_path_factory.mktemp("pipeline")
    where = directory / "store", directory / "logs"
    settings = {**AUTHENTICATED, "tls.server.mode": "permissive"}
    with serve("real", *where, settings=settings) as server:
        yield server


def write(server: Server, options: dict[str, str] = SECRET, **columns: Any) -> SendCounts:
    batch = pa.RecordBatch.from_pydict(columns)
    given = for_sink({"nameServer": server.namesrv, "sendBatch": "100", "retries": "0", **options})
    return BatchWriter(given, batch.schema, False).write(iter([batch])).sent


def read(origin: Origin, options: Options) -> pa.Table:
    tasks = origin.partitions(batch_spans(origin, options))
    batches = [batch for task in tasks for batch in origin.read(task, MESSAGES)]
    order = [("topic", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")]
    return pa.Table.from_batches(batches, MESSAGES).sort_by(order)


def pulled(server: Server, topic: str, **options: str) -> pa.Table:
    given = parse({"nameServer": server.namesrv, "subscribe": topic, **SECRET, **options})
    origin = BrokerOrigin(given)
    try:
        return read(origin, given)
    finally:
        origin.close()


def create_topic(server: Server, topic: str, queues: int) -> None:
    client = RawClient(Access(ROOT))
    rawclient.create_topic(client, server.broker, topic, queues)
    client.close()


def test_what_is_written_is_read_from_the_broker_and_from_its_files(real: Server) -> None:
    create_topic(real, "Pipeline", 4)
    sent = write(
        real,
        {**SECRET, "topic": "Pipeline"},
        body=[b"body %d" % n * (n % 90) for n in range(ROWS)],
        tags=["odd" if n % 2 else "even" for n in range(ROWS)],
        keys=[f"k{n}" for n in range(ROWS)],
        orderKey=[f"customer {n % 10}" for n in range(ROWS)],
        flag=list(range(ROWS)),
    )
    assert sent.messages == ROWS
    wait_until(lambda: pulled(real, "Pipeline").num_rows == ROWS, 20, "all to be dispatched")
    table = pulled(real, "Pipeline", splitBytes="64k")
    flags = table.column("flag").to_pylist()
    assert sorted(flags) == list(range(ROWS))
    assert table.column("body").to_pylist() == [b"body %d" % n * (n % 90) for n in flags]
    assert table.column("keys").to_pylist() == [f"k{n}" for n in flags]
    for customer in range(10):
        theirs = [n for n in flags if n % 10 == customer]
        assert theirs == sorted(theirs)
    odd = pulled(real, "Pipeline", tags="odd")
    assert sorted(odd.column("flag").to_pylist()) == list(range(1, ROWS, 2))
    files = parse({"path": str(real.store), "subscribe": "Pipeline", "brokerName": BROKER_NAME})
    assert read(FileOrigin(files), files).equals(table)


def test_a_topic_is_created_and_delays_are_kept(real: Server) -> None:
    options = {**SECRET, "topic": "PipelineDelayed"}
    sent = write(real, options, body=["now", "later", "now"], delayLevel=[None, 1, 0])
    assert (sent.messages, sent.batches) == (3, 2)
    wait_until(lambda: pulled(real, "PipelineDelayed").num_rows == 3, 30, "the delay to be over")
    table = pulled(real, "PipelineDelayed", properties="map")
    by_body = dict(zip(*(table.column(n).to_pylist() for n in ("body", "properties")), strict=True))
    assert "DELAY\x011\x02" in by_body[b"later"]
    assert "DELAY" not in by_body[b"now"]


def test_offsets_by_time_and_progress(real: Server) -> None:
    create_topic(real, "PipelineTimes", 1)
    queue = Queue("PipelineTimes", BROKER_NAME, 0)
    for n in range(20):
        write(real, {**SECRET, "topic": "PipelineTimes"}, body=[str(n)] * 3)
    wait_until(lambda: pulled(real, "PipelineTimes").num_rows == 60, 20, "all to be dispatched")
    stored = pulled(real, "PipelineTimes").column("storeTimestamp").to_pylist()
    times = [int(moment.timestamp() * 1000) for moment in stored]
    given = parse({"nameServer": real.namesrv, "subscribe": "PipelineTimes", "consumerGroup": "pipe", **SECRET})
    origin = BrokerOrigin(given)
    for moment in {0, *times, *(time + 1 for time in times)}:
        later = [n for n, time in enumerate(times) if time >= moment]
        assert origin.offset_at(queue, moment) == (later[0] if later else None)
    read(origin, given)
    origin.commit_offsets({queue: 33})
    client = RawClient(Access(ROOT))
    fields: dict[str, FieldValue] = {"consumerGroup": "pipe", "topic": queue.topic, "queueId": 0}
    answer = client.call(real.broker, RequestCode.QUERY_CONSUMER_OFFSET, fields)
    client.close()
    origin.close()
    assert answer.ext["offset"] == "33"


def test_encrypted_connections(real: Server) -> None:
    """The original makes itself a certificate that nobody vouches for."""
    create_topic(real, "PipelineSecret", 1)
    tls = {**SECRET, "tls": "true", "tlsVerify": "false"}
    body = bytes(range(256)) * 1000
    assert write(real, {**tls, "topic": "PipelineSecret"}, body=[body] * 20).messages == 20
    table = pulled(real, "PipelineSecret", tls="true", tlsVerify="false")
    assert table.column("body").to_pylist() == [body] * 20
    with pytest.raises(ConnectionError, match=r"can't be reached by TLS: .*self-signed"):
        pulled(real, "PipelineSecret", tls="true")


@pytest.mark.parametrize("options", [{}, {**SECRET, "secretKey": "another secret"}])
def test_a_wrong_secret_or_none_is_refused(real: Server, options: dict[str, str]) -> None:
    create_topic(real, "PipelineClosed", 1)
    with pytest.raises(NotPermitted, match=f"^code 16 from {real.broker}: .*1 messages .* not tak"):
        write(real, {**options, "topic": "PipelineClosed"}, body=["x"])
    assert pulled(real, "PipelineClosed").num_rows == 0
