"""A server for tests of a client."""

from __future__ import annotations

import asyncio

from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Handler, Peer
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.command import request as command
from firearrow.wire.frame import AnyCommand

ECHO, SILENT, REFUSE, HANG_UP, TALK_ROT, LAST_FIRST, GO_AWAY, ASK_BACK, LEAVE = range(1, 10)


class Counterpart:
    """A server that a test of a client controls."""

    def __init__(self) -> None:
        self.held: list[tuple[Peer, AnyCommand]] = []
        self.heard: list[AnyCommand] = []
        self.peers: set[Peer] = set()
        self.leaves = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            ECHO: self.echo,
            SILENT: lambda peer, request: None,
            REFUSE: self.refuse,
            HANG_UP: lambda peer, request: peer.abort(),
            TALK_ROT: lambda peer, request: peer.send(b"\xff" * 8),
            LAST_FIRST: self.last_first,
            GO_AWAY: lambda peer, request: Response(ResponseCode.GO_AWAY, "bye"),
            ASK_BACK: self.ask_back,
            LEAVE: self.leave,
        }

    def echo(self, peer: Peer, request: AnyCommand) -> Answer:
        self.heard.append(request)
        self.peers.add(peer)
        return Response(fields=request.ext, body=request.body)

    def refuse(self, peer: Peer, request: AnyCommand) -> Answer:
        raise BrokerError(ResponseCode.NO_PERMISSION, "not you")

    def last_first(self, peer: Peer, request: AnyCommand) -> Answer:
        self.held.append((peer, request))
        if len(self.held) == 10:
            for held_peer, held in reversed(self.held):
                held_peer.reply(held, Response(fields=held.ext))
        return None

    def leave(self, peer: Peer, request: AnyCommand) -> Answer:
        """Announce once that this server goes away."""
        self.leaves += 1
        if self.leaves == 1:
            return Response(ResponseCode.GO_AWAY, "bye")
        return self.echo(peer, request)

    def ask_back(self, peer: Peer, request: AnyCommand) -> Answer:
        """Send the client the request that its request contains, and return the client's answer."""

        def answered(answer: asyncio.Future[AnyCommand]) -> None:
            told = answer.result()
            peer.reply(request, Response(told.code, told.remark, told.ext, told.body))

        asked = command(int(request.ext["code"]), request.ext, request.body)
        peer.call(asked, 10).add_done_callback(answered)
        return None
