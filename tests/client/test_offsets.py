"""Ends of queues, offsets by time and places in the log, as a broker of ours tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from firearrow.client.offsets import UNDER_WAY_MAX, Offsets, in_turns
from firearrow.client.pulls import Asking, Pulls
from firearrow.client.queues import NOT_STORED, Bound, Queue, Span, Stored
from firearrow.client.routes import Cluster, Routes
from firearrow.clock import SystemClock
from firearrow.errors import RemoteProtocolError
from firearrow.message.record import iter_records
from firearrow.net.blocking import BlockingClient, Pending
from firearrow.net.server import Handler
from firearrow.wire.bodies import QueueData, Route
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue, Response
from tests.broker.serving import send_fields, serving
from tests.loglines import told
from tests.net.background import answering, in_thread

COUNT = 40
QUEUE = Queue("T", "broker-a", 1)
EMPTY = Queue("T", "broker-a", 0)


@contextmanager
def asking(address: str) -> Iterator[tuple[Offsets, Routes, BlockingClient]]:
    """Offsets of a broker at an address; there is no name server."""
    client = BlockingClient()
    routes = Routes(Cluster(client, ["127.0.0.1:1"]), SystemClock())
    routes.assume("broker-a", address)
    try:
        yield Offsets(routes, "g"), routes, client
    finally:
        client.close()


@asynccontextmanager
async def broker(root: Path) -> AsyncIterator[str]:
    async with serving(root) as served:
        yield f"127.0.0.1:{served.port}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with messages in queue 1 of T."""
    with in_thread(lambda: broker(tmp_path_factory.mktemp("broker"))) as address:
        client = BlockingClient()
        for number in range(COUNT):
            client.call(address, RequestCode.SEND_MESSAGE_V2, send_fields("T", 1), b"%d" % number)
        client.close()
        yield address


def test_ends_of_the_queues_that_can_be_read(address: str) -> None:
    route = Route([QueueData("broker-a", 2, 2, 6), QueueData("shut", 2, 2, 2)], [])
    with asking(address) as (offsets, _, _):
        found = dict(offsets.ends([("T", route), ("Gone", route)]))
        assert found == {EMPTY: Bound(0, 0), QUEUE: Bound(0, COUNT)}
        readable = Route([QueueData("unknown", 1, 1, 6)], [])
        with pytest.raises(ConnectionError, match="no name server knows where broker 'unknown' is"):
            dict(offsets.ends([("T", readable)]))


def test_offsets_by_time_and_places_in_the_log(address: str) -> None:
    with asking(address) as (offsets, routes, client):
        pulls = Pulls(client, routes, Asking("g"), QUEUE, Span(0, COUNT))
        views = [view for records in pulls for view in iter_records(records)]
        times = [view.store_timestamp_ms for view in views]
        for moment in {0, *times, *(time + 1 for time in times)}:
            first = next((n for n, time in enumerate(times) if time >= moment), None)
            assert offsets.offset_at(QUEUE, moment) == first
            assert offsets.offsets_at([QUEUE, EMPTY], moment) == {QUEUE: COUNT if first is None else first, EMPTY: 0}
        assert offsets.offset_at(EMPTY, 0) is None
        for view in views:
            stored = Stored(view.store_timestamp_ms, view.born_timestamp_ms)
            assert offsets.stored_at("broker-a", view.physical_offset) == stored
            assert offsets.stored_at("broker-a", view.physical_offset + 1) == NOT_STORED


def test_a_group_is_told_how_far_it_is(address: str, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = Queue("T", "gone", 1)
    with asking(address) as (offsets, _, client):
        client.call(address, RequestCode.PULL_MESSAGE, Asking("g").fields(QUEUE, 0, 1))
        offsets.commit({QUEUE: 7, QUEUE._replace(queue_id=99): 1, nowhere: 1})
        fields: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": 1}
        answer = client.call(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert answer.ext["offset"] == "7"
    lines = [line for line in told(caplog) if line["event"] == "offset is not committed"]
    assert [(line["broker_name"], line["queue_id"]) for line in lines] == [("gone", 1), ("broker-a", 99)]


def test_answers_that_can_not_be_read() -> None:
    handlers: dict[int, Handler] = {
        RequestCode.GET_MIN_OFFSET: lambda peer, request: Response(fields={"offset": "first"}),
        RequestCode.VIEW_MESSAGE_BY_ID: lambda peer, request: Response(body=b"no message"),
        RequestCode.GET_TOPIC_STATS_INFO: lambda peer, request: Response(body=b"{"),
    }
    with in_thread(lambda: answering(handlers)) as address, asking(address) as (offsets, _, _):
        with pytest.raises(RemoteProtocolError, match=f"^{address} sent offset='first'$"):
            offsets.offset_at(QUEUE, 1)
        with pytest.raises(RemoteProtocolError, match=f"^{address} sent bytes that are not mess"):
            offsets.stored_at("broker-a", 7)
        with pytest.raises(RemoteProtocolError, match=r"^a server sent no ends of queues: "):
            dict(offsets.ends([("T", Route([QueueData("broker-a", 1, 1, 6)], []))]))


def test_no_more_is_asked_at_once_than_a_limit() -> None:
    held: list[int] = []
    with in_thread(lambda: answering({1: lambda peer, request: Response()})) as address:
        client = BlockingClient()
        queues = [Queue("T", "broker-a", n) for n in range(2 * UNDER_WAY_MAX + 5)]
        begun: list[Queue] = []

        def ask(queue: Queue) -> Pending:
            begun.append(queue)
            return client.begin(address, 1)

        for number, (queue, pending) in enumerate(in_turns(queues, ask)):
            assert queue == queues[number]
            pending.result()
            held.append(len(begun) - number)
        client.close()
    assert max(held) == UNDER_WAY_MAX
