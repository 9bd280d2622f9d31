"""The memory that peers use is limited, and well-behaved peers are served nevertheless."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.clock import SystemClock
from firearrow.events import Events
from firearrow.net.budget import LARGE_BYTES, LIMIT_BYTES_MIN, LOOK_SECONDS, PATIENCE_SECONDS, Budget, Holder, MiB
from firearrow.net.server import Answer, ConnectionClosed, Peer, Server
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Command, Response
from firearrow.wire.frame import AnyCommand, encode_request
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.talker import Talker, question, talking

READ_BYTES = 256 * 1024
FRAME_BYTES = 16 * MiB


class Client:
    """One simulated connection, which sends requests or leaves answers unread.

    It moves ``speed`` bytes a step. It stops its request at ``stops_at``, and never reads ``unread`` bytes.
    """

    def __init__(self, name: str, requests: list[int], speed: int, stops_at: int | None) -> None:
        self.address = name
        self.requests = requests
        self.speed = speed
        self.stops_at = stops_at
        self.unfinished_bytes = 0
        self.unread_bytes = 0
        self.requests_begun = 0
        self.kept_bytes = 0
        self.is_waiting = False
        self.reason = ""

    @property
    def missing_bytes(self) -> int:
        return self.requests[0] - self.unfinished_bytes if self.unfinished_bytes else 0

    def hold(self, *, waits: bool) -> None:
        self.is_waiting = waits

    def drop(self, reason: str) -> None:
        self.reason = reason
        self.unfinished_bytes = self.unread_bytes = 0

    @property
    def is_done(self) -> bool:
        return bool(self.reason) or not self.requests

    def step(self, budget: Budget) -> None:
        """Take one turn: a read of at most `READ_BYTES`, if the peer is not paused."""
        if self.is_waiting or self.is_done:
            return
        size = min(self.speed, READ_BYTES, self.requests[0] - self.unfinished_bytes)
        if self.stops_at is not None:
            size = min(size, self.stops_at - self.unfinished_bytes)
        if size <= 0:
            return
        self.requests_begun += not self.unfinished_bytes
        self.unfinished_bytes += size
        if self.unfinished_bytes == self.requests[0]:
            self.requests.pop(0)
            self.unfinished_bytes = 0
        else:
            budget.took(self, size)


class World:
    """Peers and a budget under a clock that the test moves."""

    def __init__(self, limit: int = LIMIT_BYTES_MIN) -> None:
        self.clients: set[Client] = set()
        self.seconds = 0.0
        self.planned: list[tuple[float, Callable[[], None]]] = []
        self.budget = Budget(limit, self.clients, lambda: self.seconds, self.later)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.planned.append((self.seconds + seconds, call))

    def add(self, *requests: int, speed: int = READ_BYTES, stops_at: int | None = None) -> Client:
        client = Client(f"peer {len(self.clients)}", list(requests), speed, stops_at)
        self.clients.add(client)
        return client

    @property
    def held(self) -> int:
        return sum(client.unfinished_bytes + client.unread_bytes for client in self.clients)

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        due = [call for at, call in self.planned if at <= self.seconds]
        self.planned = [(at, call) for at, call in self.planned if at > self.seconds]
        for call in due:
            call()
        for client in [client for client in self.clients if client.reason]:
            self.clients.discard(client)


sizes = st.integers(1, 16).map(lambda count: count * MiB)
speeds = st.integers(1, 4).map(lambda parts: READ_BYTES // parts)
honest_ones = st.lists(st.tuples(st.lists(sizes, min_size=1, max_size=2), speeds), min_size=1, max_size=6)
stuck_ones = st.lists(st.tuples(sizes, speeds), max_size=12)


@settings(max_examples=25)
@given(honest_ones, stuck_ones, st.lists(sizes, max_size=4))
def test_whoever_behaves_is_served_and_the_limit_holds(
    honest_ones: list[tuple[list[int], int]], stuck_ones: list[tuple[int, int]], unread: list[int]
) -> None:
    """A well-behaved peer that is closed connects again, as clients do."""
    world = World()
    for stop, speed in stuck_ones:
        world.add(FRAME_BYTES, speed=speed, stops_at=stop - 1)
    honest = [world.add(*requests, speed=speed) for requests, speed in honest_ones]
    for size in unread:
        world.add(1, stops_at=0).unread_bytes = size
        world.budget.gave(size)
        assert world.held <= world.budget.limit_bytes
    while any(client.requests for client in honest):
        before = [client.unfinished_bytes for client in honest]
        for client in sorted(world.clients, key=lambda client: client.address):
            client.step(world.budget)
        assert world.held <= world.budget.limit_bytes
        moved = before != [client.unfinished_bytes for client in honest]
        world.pass_time(0.001 if moved else LOOK_SECONDS)
        for client in honest:
            if client.reason:
                assert "it holds" in client.reason
                client.reason = ""
                world.clients.add(client)
        assert world.seconds < PATIENCE_SECONDS * 30, "a deadlock"


def stuffed(world: World, count: int, size: int, of: int = FRAME_BYTES) -> list[Client]:
    """Return peers that have sent ``size`` bytes of a request and stop there."""
    found = [world.add(of, stops_at=size) for _ in range(count)]
    for _ in range(size // READ_BYTES + 1):
        for client in found:
            client.step(world.budget)
    return found


def test_nothing_happens_while_there_is_room() -> None:
    world = World()
    senders = stuffed(world, 2, 15 * MiB)
    assert not any(client.is_waiting or client.reason for client in senders)
    assert world.planned == []


def test_large_requests_wait_when_memory_is_tight_and_small_ones_do_not() -> None:
    world = World()
    senders = stuffed(world, 5, 10 * MiB)
    assert any(client.is_waiting for client in senders)
    small = world.add(LARGE_BYTES, LARGE_BYTES, speed=LARGE_BYTES // 2)
    for _ in range(4):
        small.step(world.budget)
    assert small.is_done
    assert not small.reason


def test_a_turn_ends() -> None:
    world = World()
    stuck = stuffed(world, 5, 10 * MiB)
    honest = world.add(FRAME_BYTES)
    honest.step(world.budget)
    assert honest.is_waiting
    for _ in range(200):
        world.pass_time(LOOK_SECONDS)
        honest.step(world.budget)
    assert honest.is_done
    assert not honest.reason
    dropped = [client.reason for client in stuck if client.reason]
    assert dropped
    assert set(dropped) == {"memory for requests is short, and its request is incomplete after its turn"}


def test_who_finishes_and_begins_again_has_no_second_turn_at_once() -> None:
    world = World()
    stuffed(world, 5, 10 * MiB)
    pair = [world.add(2 * MiB, 2 * MiB, 2 * MiB) for _ in range(2)]
    for client in pair:
        client.step(world.budget)
    while not all(client.is_done for client in pair):
        world.pass_time(LOOK_SECONDS)
        for _ in range(8):
            for client in pair:
                client.step(world.budget)
        assert world.seconds < 60
    assert {client.reason for client in pair} == {""}


def test_who_reads_nothing_is_closed_and_who_reads_slowly_is_not() -> None:
    world = World()
    idle, slow = world.add(1), world.add(1)
    idle.unread_bytes = slow.unread_bytes = 20 * MiB
    world.budget.gave(40 * MiB)
    while world.seconds < PATIENCE_SECONDS + 1:
        slow.unread_bytes -= 1
        world.pass_time(LOOK_SECONDS)
    assert idle.reason == (f"memory for requests is short, and it leaves {20 * MiB} bytes of answers unread")
    assert not slow.reason


def test_the_greediest_are_closed_when_it_is_full() -> None:
    world = World()
    modest, greedy = world.add(1), world.add(1)
    modest.unread_bytes, greedy.unread_bytes = 20 * MiB, 40 * MiB
    world.budget.gave(60 * MiB)
    assert greedy.reason == f"memory for requests is short, and it holds {40 * MiB} bytes"
    assert not modest.reason


def test_what_has_ended_hinders_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    senders = stuffed(world, 5, 10 * MiB)
    waiting = [client for client in senders if client.is_waiting]
    for client in senders:
        if not client.is_waiting:
            world.clients.discard(client)
    for client in waiting[1:]:
        world.clients.discard(client)
    world.pass_time(LOOK_SECONDS)
    world.pass_time(LOOK_SECONDS)
    assert not waiting[0].is_waiting
    assert world.planned == []
    lines = told(caplog)
    assert lines[0]["event"] == "memory for requests is tight: large requests wait"
    assert lines[0]["held_bytes"] > lines[0]["limit_bytes"] // 2  # type: ignore[operator]
    assert lines[-1]["event"] == "memory for requests is not tight any more"
    assert lines[-1]["held_bytes"] < lines[0]["held_bytes"]  # type: ignore[operator]


def test_a_look_is_worth_an_eighth_of_the_limit() -> None:
    """Looks at the peers are rare, with any traffic."""
    world = World()
    world.add(1)
    asked = 0
    look = world.budget.look

    def counted() -> None:
        nonlocal asked
        asked += 1
        look()

    world.budget.look = counted  # type: ignore[method-assign]
    for _ in range(1000):
        world.budget.gave(MiB)
    assert asked <= 1000 * MiB / (world.budget.limit_bytes / 8) + 1


# --- a server ------------------------------------------------------------------------------------

SEND, BIG = 1, 2


def stored(peer: Peer, request: AnyCommand) -> Answer:
    return Response(remark=str(len(request.body)))


def big(peer: Peer, request: AnyCommand) -> Answer:
    return Response(body=bytes(MiB))


async def answered(port: int, frame: bytes) -> Command[Any]:
    """Return the answer for a client that retries when it is closed: on a busy machine, a turn is short."""
    while True:
        async with talking(port) as honest:
            honest.write(frame)
            try:
                answer = await honest.answer()
            except (asyncio.IncompleteReadError, ConnectionError):
                continue
            if answer.code == 0:
                return answer


def test_peers_that_stop_within_large_requests_are_limited_together(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firearrow.net.budget.PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr("firearrow.net.budget.LOOK_SECONDS", 0.01)
    frame = encode_request(Command(SEND, {}, opaque=7, body=bytes(15 * MiB)))

    async def main() -> None:
        server = Server({SEND: stored}, SystemClock(), memory_bytes_max=1)
        assert server.budget.limit_bytes == LIMIT_BYTES_MIN
        port = await server.start("127.0.0.1", 0)
        held = [0]
        took = server.budget.took

        def noted(holder: Holder, size: int) -> None:
            took(holder, size)
            held.append(sum(peer.unfinished_bytes for peer in server.peers))

        server.budget.took = noted  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as group:
            talkers = [Talker(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(6)]
            for talker in talkers:
                talker.write(frame[:-1])
            ends = [group.create_task(talker.end()) for talker in talkers]
            assert (await answered(port, frame)).remark == str(15 * MiB)
            for end in asyncio.as_completed(ends):
                told = await end
                if told:
                    break
            for talker in talkers:
                await talker.close()
        await server.stop()
        assert LIMIT_BYTES_MIN // 2 < max(held) <= LIMIT_BYTES_MIN
        assert f'"code":{ResponseCode.SYSTEM_BUSY:d}'.encode() in told
        assert b"memory for requests is short" in told

    run(main())
    assert any("its request is incomplete after its turn" in line for line in reasons(caplog))


def test_peers_that_read_no_answers_are_limited_together(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        closed = asyncio.Event()
        events = Events()
        events.listen(ConnectionClosed, lambda _: closed.set())
        server = Server({SEND: stored, BIG: big}, SystemClock(), events=events, memory_bytes_max=1)
        port = await server.start("127.0.0.1", 0)
        talkers = [Talker(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(30)]
        for talker in talkers:
            talker.ask(*(question(BIG, opaque) for opaque in range(20)))
        async with talking(port) as honest:
            async with asyncio.timeout(20):
                await closed.wait()
            for opaque in range(30):
                honest.ask(question(SEND, opaque))
                assert (await honest.answer()).opaque == opaque
                held = sum(peer.unread_bytes for peer in server.peers)
                assert held <= LIMIT_BYTES_MIN + 2 * MiB
        for talker in talkers:
            await talker.close()
        await server.stop()

    run(main())
    assert any("memory for requests is short, and it holds" in line for line in reasons(caplog))


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the reasons for closed connections."""
    return [str(line["reason"]) for line in told(caplog) if line["event"] == "connection is closed"]
