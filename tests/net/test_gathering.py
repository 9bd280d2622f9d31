"""Requests that are gathered together, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from firearrow.clock import SystemClock
from firearrow.net import gathering
from firearrow.net.gathering import Answers
from firearrow.net.server import Peer, PeerRequest, Server
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand, encode_request, encode_response
from tests.net.talker import question, talking

ECHO, RAW = 1, 2


@pytest.mark.parametrize("most", [0, 6000])
def test_what_is_gathered_is_bounded(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHERED_BYTES_MAX", most)
    together: list[int] = []

    def noted(asked: Sequence[PeerRequest]) -> Answers:
        together.append(len(asked))
        return [b""] * len(asked)

    async def main() -> None:
        server = Server({}, SystemClock(), bulk_handlers={ECHO: noted})
        server.loop = asyncio.get_running_loop()
        for peer in (Peer(server), Peer(server)):
            requests = [question(ECHO, opaque) for opaque in range(2)]
            for request in requests:
                request.body = b"x" * 2000
            peer.data_received(b"".join(map(encode_request, requests)))
        assert together == ([4] if most else [2, 2])

    asyncio.run(main())


def test_each_code_is_gathered_by_itself() -> None:
    """Also with requests of other codes between; the requests of one peer wait for its first."""
    order: list[list[int]] = []

    def noted(asked: Sequence[PeerRequest]) -> Answers:
        order.append([request.opaque for _, request in asked])
        return [b""] * len(asked)

    async def main() -> None:
        bulk_handlers = {ECHO: noted, RAW: noted}
        server = Server({}, SystemClock(), bulk_handlers=bulk_handlers)
        server.loop = asyncio.get_running_loop()
        peers = [Peer(server) for _ in range(4)]
        for opaque, (peer, code) in enumerate(zip(peers, [ECHO, RAW, ECHO, RAW], strict=True)):
            peer.data_received(encode_request(question(code, opaque)))
        assert order == []
        peers[0].data_received(encode_request(question(RAW, 4)))
        assert order == [[0, 2], [1, 3]]
        peers[1].data_received(encode_request(question(RAW, 5)))
        server.gathering.answer()
        assert order[2:] == [[4, 5]]

    asyncio.run(main())


def test_one_of_several_may_be_left_to_the_handler_of_one() -> None:
    def alone(peer: Peer, request: AnyCommand) -> Response:
        return Response(remark="alone")

    def some(asked: Sequence[PeerRequest]) -> Answers:
        return [
            None if "alone" in request.ext else encode_response(Response(remark="one of some"), request.opaque)
            for _, request in asked
        ]

    async def main() -> None:
        server = Server({ECHO: alone}, SystemClock(), bulk_handlers={ECHO: some})
        port = await server.start("127.0.0.1", 0)
        async with talking(port) as talker:
            talker.ask(question(ECHO, 1), question(ECHO, 2, alone="yes"), question(ECHO, 3))
            answers = [await talker.answer() for _ in range(3)]
        await server.stop()
        found = [(answer.opaque, answer.remark) for answer in answers]
        assert found == [(1, "one of some"), (2, "alone"), (3, "one of some")]

    asyncio.run(main())


def test_those_that_are_left_are_handled_together() -> None:
    """So slow requests are left for later turns, as if they had not been gathered."""
    left: list[list[int]] = []

    class Noting(Peer):
        def take(self, requests: list[AnyCommand]) -> None:
            left.append([request.opaque for request in requests])

    def some(asked: Sequence[PeerRequest]) -> Answers:
        return [None if request.opaque % 4 else b"" for _, request in asked]

    async def main() -> None:
        server = Server({}, SystemClock(), bulk_handlers={ECHO: some})
        server.loop = asyncio.get_running_loop()
        for peer in (Noting(server), Noting(server)):
            peer.data_received(b"".join(encode_request(question(ECHO, n)) for n in range(7)))
        server.gathering.answer()
        assert left == [[1, 2, 3], [5, 6]] * 2

    asyncio.run(main())
