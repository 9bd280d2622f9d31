"""Has all that RocksDB knows of popped messages moved to the revive topics (200056).

Source: upstream ``AdminBrokerProcessor#transferPopToFsStore``.
"""

from __future__ import annotations

import logging

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.books import Books
from firearrow.net.server import Peer, Steps
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

log = logging.getLogger(__name__)


class RollbackProcessor:
    """Moves what is noted of popped messages."""

    def __init__(self, context: BrokerContext, books: Books) -> None:
        self._clock = context.clock
        self._books = books

    def roll_back(self, peer: Peer, request: AnyCommand) -> Steps:
        """200056: answer when every pop until now is in the revive topics."""
        count = yield from self._books.moved(self._clock.now_ms())
        log.info("what is popped is noted in the revive topics now", extra={"count": count, "client": peer.address})
        return Response()
