"""Calls of a server to its clients: answers reach their callers, in any order, or an error has the reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from firearrow.net.server import CALLS_MAX, Handler, Peer, Server
from firearrow.wire.codes import FLAG_ONEWAY
from firearrow.wire.command import Command, Response, request
from firearrow.wire.frame import FRAME_BYTES_MAX, AnyCommand, encode_response
from tests.net.conftest import Run
from tests.net.talker import Talker, question, talking
from tests.net.test_server import ECHO, HANDLERS, LATE, round_trip, serving


@asynccontextmanager
async def called() -> AsyncIterator[tuple[Peer, Talker, Server]]:
    """Yield a peer of a server, and the client at its other end."""
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    handlers: dict[int, Handler] = {LATE: lambda peer, request: peers.put_nowait(peer)}
    async with serving({**HANDLERS, **handlers}) as (server, port), talking(port) as talker:
        talker.ask(Command(LATE, {}, FLAG_ONEWAY))
        yield await peers.get(), talker, server


def answers(*requests: AnyCommand) -> bytes:
    """Return a client's answers to requests: their content."""
    return b"".join(encode_response(Response(fields=it.ext, body=it.body), it.opaque) for it in requests)


def test_a_client_is_asked_and_its_answers_find_who_asked(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, _):
            calls = [peer.call(request(39, {"n": n}, b"body"), 10) for n in range(10)]
            asked = [await talker.answer() for _ in range(10)]
            assert [(it.code, it.is_response, it.is_oneway) for it in asked] == [(39, False, False)] * 10
            talker.write(answers(*reversed(asked)) + answers(*asked))  # the second time without a waiter
            assert [(await call).ext for call in calls] == [{"n": str(n)} for n in range(10)]
            await round_trip(talker)

    run(main())


def test_numbers_of_both_sides_do_not_meet(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, _):
            call = peer.call(request(39), 10)
            asked = await talker.answer()
            talker.ask(question(ECHO, asked.opaque, n="1"))
            assert (await talker.answer()).ext == {"n": "1"}
            assert not call.done()
            talker.write(answers(asked))
            assert (await call).is_response

    run(main())


def test_a_client_that_is_late_stays_connected(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, _):
            patient = peer.call(request(39), 10)
            call = peer.call(request(40), 0.01)
            first, second = await talker.answer(), await talker.answer()
            late = f"^{talker.address} did not answer in 0.01 s$"
            with pytest.raises(TimeoutError, match=late):
                await call
            talker.write(answers(second, first))
            assert (await patient).code == 0
            await round_trip(talker)

    run(main())


def test_calls_end_with_the_connection(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, server):
            call = peer.call(request(39), 10)
            await talker.answer()
            await server.stop()
            with pytest.raises(ConnectionError, match=f"connection to {talker.address} is lost"):
                await call
            gone = f"^{talker.address} is not connected any more$"
            with pytest.raises(ConnectionError, match=gone):
                await peer.call(request(39), 10)

    run(main())


def test_a_client_that_says_no_more_is_not_waited_for(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, _):
            call = peer.call(request(39), 10)
            peer.owed += 1  # so the connection stays
            talker.write_end()
            with pytest.raises(ConnectionError, match="is lost: it sends nothing more"):
                await call
            assert peer.is_open
            with pytest.raises(ConnectionError, match="is not connected any more"):
                await peer.call(request(39), 10)

    run(main())


def test_calls_to_one_client_have_a_limit(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, _):
            calls = [peer.call(request(39), 10) for _ in range(CALLS_MAX)]
            with pytest.raises(ConnectionError, match=f"^{CALLS_MAX} calls to {talker.address}"):
                await peer.call(request(39), 10)
            talker.write(answers(await talker.answer()))
            await calls[0]
            calls[0] = peer.call(request(39), 10)
        for call in calls:
            with pytest.raises(ConnectionError, match=f"to {talker.address} is lost"):
                await call

    run(main())


def test_a_slow_reader_is_not_asked(run: Run) -> None:
    async def main() -> None:
        async with called() as (peer, talker, _):
            peer.send(encode_response(Response(body=bytes(FRAME_BYTES_MAX)), 1))
            with pytest.raises(ConnectionError, match="does not read its pending answers"):
                await peer.call(request(39), 10)
            await talker.answer()

    run(main())
