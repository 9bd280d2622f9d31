"""Frames to peers: in order, together at the end of the turn, and none lost."""

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.net.budget import LIMIT_BYTES_MIN, Budget
from firearrow.net.outgoing import HELD_BYTES_MAX, Departures, Outgoing
from firearrow.net.server import Peer
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand, encode_response
from tests.net.conftest import Run
from tests.net.talker import question, talking
from tests.net.test_server import RAW, serving

SMALL, LARGE = b"small", b"x" * (HELD_BYTES_MAX + 1)


class Socket:
    """Records the calls of a transport."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, frames: bytes) -> None:
        assert not self.is_closing()
        self.told.append(frames)

    def close(self) -> None:
        self.told.append("close")

    def is_closing(self) -> bool:
        return "close" in self.told

    def get_write_buffer_size(self) -> int:
        return 0


class World:
    """Two peers of a server, and the loop's turns, which the test takes itself."""

    def __init__(self) -> None:
        self.turns = 0
        self.budget = Budget(LIMIT_BYTES_MIN, [], lambda: 0.0, lambda seconds, call: None)
        self.departures = Departures(lambda: cast(asyncio.AbstractEventLoop, self), self.last)
        self.sockets = Socket(), Socket()
        self.one, self.other = (
            Outgoing(cast(asyncio.Transport, socket), self.departures, self.budget) for socket in self.sockets
        )
        self.late: list[bytes] = []

    def call_soon(self, call: object) -> None:
        """Stand in for the loop, of which only this method is used."""
        assert call == self.departures.leave
        self.turns += 1

    def last(self) -> None:
        for frames in self.late:
            self.one.write(frames)
        self.late = []


def test_small_answers_of_a_turn_leave_together_at_its_end() -> None:
    world = World()
    world.one.write(b"a")
    world.other.write(b"b")
    world.one.write(b"c")
    assert [socket.told for socket in world.sockets] == [[], []]
    assert world.one.unread_bytes == 2
    world.late = [b"d"]  # of requests that were gathered
    world.departures.leave()
    assert [socket.told for socket in world.sockets] == [[b"acd"], [b"b"]]
    assert world.one.unread_bytes == 0
    assert world.turns == 1


def test_what_the_last_write_plans_no_other_turn() -> None:
    world = World()
    world.departures.plan()  # as requests that are gathered do
    world.late = [b"a"]
    world.departures.leave()
    assert (world.sockets[0].told, world.turns) == ([b"a"], 1)
    world.one.write(b"b")
    assert world.turns == 2


def test_what_was_written_leaves_though_a_last_call_fails() -> None:
    world = World()
    world.other.write(b"b")

    def fail() -> None:
        world.one.write(b"a")
        raise ZeroDivisionError

    world.departures.call_last(fail)
    with pytest.raises(ZeroDivisionError):
        world.departures.leave()
    assert [socket.told for socket in world.sockets] == [[b"a"], [b"b"]]
    assert not world.departures.is_planned


def test_a_large_answer_leaves_at_once_and_after_those_before_it() -> None:
    world = World()
    world.one.write(LARGE)
    world.other.write(SMALL)
    world.other.write(LARGE)
    assert [socket.told for socket in world.sockets] == [[LARGE], [SMALL + LARGE]]
    world.departures.leave()
    assert [socket.told for socket in world.sockets] == [[LARGE], [SMALL + LARGE]]


def test_a_close_comes_after_what_was_written() -> None:
    world = World()
    world.one.write(SMALL)
    world.one.close()
    world.one.write(SMALL)
    world.departures.leave()
    assert world.sockets[0].told == [SMALL, "close"]


@given(st.lists(st.sampled_from([b"a", b"bc", LARGE, "turn"])))
def test_nothing_is_lost_or_overtaken_and_the_budget_counts_each_byte(steps: list[bytes | str]) -> None:
    world = World()
    room = world.budget.room_bytes
    written = b""
    for step in steps:
        if isinstance(step, bytes):
            world.one.write(step)
            written += step
        else:
            world.departures.leave()
    world.departures.leave()
    assert b"".join(part for part in world.sockets[0].told if isinstance(part, bytes)) == written
    assert room - world.budget.room_bytes == len(written)


def test_a_handler_that_closes_has_answered_before(run: Run) -> None:
    def answer_and_close(peer: Peer, request: AnyCommand) -> None:
        peer.send(encode_response(Response(body=b"last"), request.opaque))
        peer.close("it is enough")

    async def main() -> None:
        async with serving({RAW: answer_and_close}) as (_, port), talking(port) as talker:
            talker.ask(question(RAW, 1))
            assert (await talker.answer()).body == b"last"
            assert await talker.end() == b""

    run(main())


def test_a_server_that_stops_sends_what_it_has_answered(run: Run) -> None:
    async def main() -> None:
        async with serving() as (server, port), talking(port) as talker:
            talker.ask(question(RAW, 1))
            await talker.answer()
            [peer] = server.peers
            peer.send(encode_response(Response(body=b"late"), 2))
            await server.stop()
            assert (await talker.answer()).body == b"late"

    run(main())
