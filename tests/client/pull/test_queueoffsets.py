"""Ends of queues, offsets by time and places in the log, from a broker of Firearrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.pull.queueoffsets import IN_FLIGHT_MAX, QueueOffsets, in_turns, partition_point
from firearrow.client.pull.rangereader import PullOptions, RangeReader
from firearrow.client.queues import NOT_STORED, Bound, Queue, RecordTimes, Span
from firearrow.client.routing.nameservers import NameServers
from firearrow.client.routing.routes import Routes
from firearrow.clock import SystemClock
from firearrow.errors import RemoteProtocolError
from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.net.futures import Pending
from firearrow.net.server import Handler
from firearrow.wire.bodies import QueueData, Route
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue, Response
from tests.broker.serving import send_fields, serving
from tests.loglines import told
from tests.net.background import answering, in_thread
from tests.net.rawclient import RawClient

COUNT = 40
QUEUE = Queue("T", "broker-a", 1)
EMPTY = Queue("T", "broker-a", 0)


Use = Callable[[QueueOffsets, Routes, Client], Awaitable[None]]


def asking(address: str, use: Use) -> None:
    """Use the offsets of a broker at an address; there is no name server."""

    async def main() -> None:
        client = Client()
        routes = Routes(NameServers(client, ["127.0.0.1:1"]), SystemClock())
        routes.assume("broker-a", address)
        try:
            await use(QueueOffsets(client, routes, "g"), routes, client)
        finally:
            await client.close()

    asyncio.run(main())


@asynccontextmanager
async def broker(root: Path) -> AsyncIterator[str]:
    async with serving(root) as served:
        yield f"127.0.0.1:{served.port}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with messages in queue 1 of T."""
    with in_thread(lambda: broker(tmp_path_factory.mktemp("broker"))) as address:
        client = RawClient()
        for number in range(COUNT):
            client.call(address, RequestCode.SEND_MESSAGE_V2, send_fields("T", 1), b"%d" % number)
        client.close()
        yield address


def test_ends_of_the_queues_that_can_be_read(address: str) -> None:
    route = Route([QueueData("broker-a", 2, 2, 6), QueueData("shut", 2, 2, 2)], [])
    readable = Route([QueueData("unknown", 1, 1, 6)], [])

    async def use(offsets: QueueOffsets, routes: Routes, client: Client) -> None:
        found = await offsets.ends([("T", route), ("Gone", route)])
        assert found == {EMPTY: Bound(0, 0), QUEUE: Bound(0, COUNT)}
        with pytest.raises(ConnectionError, match="no name server knows where broker 'unknown' is"):
            await offsets.ends([("T", readable)])

    asking(address, use)


def test_offsets_by_time_and_places_in_the_log(address: str) -> None:
    async def use(offsets: QueueOffsets, routes: Routes, client: Client) -> None:
        reader = RangeReader(client, routes, PullOptions("g"), QUEUE, Span(0, COUNT))
        views = list(iter_records(b"".join(await reader.read(1 << 20))))
        times = [view.store_timestamp_ms for view in views]
        assert len(times) == COUNT
        for moment in {0, *times, *(time + 1 for time in times)}:
            first = next((n for n, time in enumerate(times) if time >= moment), None)
            assert await offsets.offset_at(QUEUE, moment) == first
            found = await offsets.offsets_at([QUEUE, EMPTY], moment)
            assert found == {QUEUE: COUNT if first is None else first, EMPTY: 0}
        assert await offsets.offset_at(EMPTY, 0) is None
        for view in views:
            stored = RecordTimes(view.store_timestamp_ms, view.born_timestamp_ms)
            assert await offsets.stored_at("broker-a", view.physical_offset) == stored
            assert await offsets.stored_at("broker-a", view.physical_offset + 1) == NOT_STORED

    asking(address, use)


def test_a_group_is_told_how_far_it_is(address: str, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = Queue("T", "gone", 1)
    answers: list[str] = []

    async def use(offsets: QueueOffsets, routes: Routes, client: Client) -> None:
        await client.call(address, RequestCode.PULL_MESSAGE, PullOptions("g").fields(QUEUE, 0, 1))
        await offsets.commit({QUEUE: 7, QUEUE._replace(queue_id=99): 1, nowhere: 1})
        fields: dict[str, FieldValue] = {"consumerGroup": "g", "topic": "T", "queueId": 1}
        answers.append((await client.call(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext["offset"])

    asking(address, use)
    assert answers == ["7"]
    lines = [line for line in told(caplog) if line["event"] == "offset is not committed"]
    assert [(line["broker_name"], line["queue_id"]) for line in lines] == [("gone", 1), ("broker-a", 99)]


def test_answers_that_can_not_be_read() -> None:
    handlers: dict[int, Handler] = {
        RequestCode.GET_MIN_OFFSET: lambda peer, request: Response(fields={"offset": "first"}),
        RequestCode.VIEW_MESSAGE_BY_ID: lambda peer, request: Response(body=b"no message"),
        RequestCode.GET_TOPIC_STATS_INFO: lambda peer, request: Response(body=b"{"),
    }

    async def use(offsets: QueueOffsets, routes: Routes, client: Client) -> None:
        with pytest.raises(RemoteProtocolError, match=f"^{address} sent offset='first'$"):
            await offsets.offset_at(QUEUE, 1)
        with pytest.raises(RemoteProtocolError, match=f"^{address} sent bytes that are not mess"):
            await offsets.stored_at("broker-a", 7)
        with pytest.raises(RemoteProtocolError, match=r"^a server sent no ends of queues: "):
            await offsets.ends([("T", Route([QueueData("broker-a", 1, 1, 6)], []))])

    with in_thread(lambda: answering(handlers)) as address:
        asking(address, use)


def test_no_more_is_asked_at_once_than_a_limit() -> None:
    queues = [Queue("T", "broker-a", n) for n in range(2 * IN_FLIGHT_MAX + 5)]
    held: list[int] = []

    async def use(offsets: QueueOffsets, routes: Routes, client: Client) -> None:
        begun: list[Pending] = []

        async def ask(queue: Queue) -> Pending:
            begun.append(await client.begin(routes.address("broker-a"), 1, {"n": queue.queue_id}))
            held.append(sum(not pending.done() for pending in begun))
            return begun[-1]

        answers = await in_turns(queues, ask)
        assert [(queue, int(answer.ext["n"])) for queue, answer in answers] == [(it, it.queue_id) for it in queues]

    with in_thread(lambda: answering({1: lambda peer, request: Response(fields=request.ext)})) as address:
        asking(address, use)
    assert max(held) == IN_FLIGHT_MAX


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(-10, 1010), st.integers(-5, 1010))
def test_the_place_where_a_condition_begins_to_hold_is_found_from_wherever_one_starts(
    a: int, b: int, guess: int, first: int
) -> None:
    start, end = sorted((a, b))
    asked: list[int] = []

    async def holds(number: int) -> bool:
        assert start <= number < end
        asked.append(number)
        return number >= first

    assert asyncio.run(partition_point(holds, start, end, guess)) == min(max(first, start), end)
    distance = abs(min(max(first, start), end) - min(max(guess, start), end))
    assert len(asked) <= 2 * (distance + 1).bit_length() + 4
