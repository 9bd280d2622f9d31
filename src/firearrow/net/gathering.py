"""Gathering of requests over a turn of the event loop, where several cost little more than one.

The requests come from all sockets that one turn has read. Each code is gathered separately, also if requests of other
codes come in between. The requests of one peer stay in order: a request of another code first causes the answers to the
peer's gathered ones. At the end of the turn the handler of several gets the requests of one code and size. It may leave
each of them to the handler of one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

from firearrow.net.lateness import Lateness
from firearrow.wire.frame import AnyCommand

GATHERED_BYTES_MAX: Final = 512 * 1024  # more do not get cheaper, and stay in one file
WAITING_REQUEST_BYTES: Final = 600  # memory of a waiting request, without its body


def size_of_waiting(request: AnyCommand) -> int:
    """Return the memory that a request uses while it waits."""
    return len(request.body) + WAITING_REQUEST_BYTES


Answers = Sequence[bytes | None] | None
"""Answers to several requests, in order. None for one of them, or instead of all, leaves it to the handler of one."""


class Asking(Protocol):
    """Peer as the gathering of its requests sees it.

    ``gathered_code`` is the code of its gathered requests, 0 if there are none.
    """

    address: str
    received_ms: int
    gathered_code: int

    def take(self, requests: list[AnyCommand]) -> None:
        """Answer requests one by one."""
        ...

    def take_answered(self, requests: list[AnyCommand], answers: Sequence[bytes | None]) -> None:
        """Send the existing answers to requests of one code, and answer the other requests."""
        ...

    def without_late(self, requests: list[AnyCommand], waited_ms: int) -> list[AnyCommand]:
        """Refuse requests that have waited for too long; return the others."""
        ...


PeerT = TypeVar("PeerT", bound=Asking)


class Gathering(Generic[PeerT]):
    """Gathered requests of some codes.

    ``answers`` has the handlers of several requests, by code. ``plan`` schedules a call of `answer` at the end of the
    turn.
    """

    def __init__(
        self,
        codes: Container[int],
        answers: Callable[[int, Sequence[tuple[PeerT, AnyCommand]]], Answers],
        lateness: Lateness,
        now_ms: Callable[[], int],
        plan: Callable[[], None],
    ) -> None:
        self._codes = codes
        self._answers = answers
        self._lateness = lateness
        self._now_ms = now_ms
        self._plan = plan
        self._requests: dict[int, list[tuple[PeerT, AnyCommand]]] = {}
        self._bytes = 0

    def take(self, peer: PeerT, requests: list[AnyCommand]) -> bool:
        """Keep the requests of one read until all sockets are read, if several can be answered together. Otherwise
        return False.
        """
        code = requests[0].code
        if code not in self._codes:
            return False
        bytes_more = len(requests) * WAITING_REQUEST_BYTES
        for request in requests:
            if request.code != code or request.flag:
                return False
            bytes_more += len(request.body)
        if peer.gathered_code and peer.gathered_code != code:
            self.answer()  # the gathered requests of this peer came first
        self._plan()
        peer.gathered_code = code
        self._requests.setdefault(code, []).extend([(peer, request) for request in requests])
        self._bytes += bytes_more
        if self._bytes > GATHERED_BYTES_MAX:
            self.answer()
        return True

    def answer(self) -> None:
        """Answer the gathered requests, grouped by their size."""
        if not self._requests:
            return
        gathered, self._requests, self._bytes = self._requests, {}, 0
        is_late = self._now_ms() > self._lateness.late_at_ms
        for of_code in gathered.values():
            for peer, _ in of_code:
                peer.gathered_code = 0
        for code, of_code in gathered.items():
            timely = self._without_late(of_code) if is_late else of_code
            if len(timely) == 1:  # a single request must cost nothing
                peer, request = timely[0]
                peer.take([request])
                continue
            if len({len(request.body) for _, request in timely}) == 1:  # nearly always, and faster
                self._answer_alike(code, timely)
                continue
            for _, alike in groupby(timely, _body_bytes):
                self._answer_alike(code, list(alike))

    def _answer_alike(self, code: int, asked: list[tuple[PeerT, AnyCommand]]) -> None:
        answers = self._answers(code, asked) if len(asked) > 1 else None
        assert answers is None or len(answers) == len(asked), "each request has its answer"
        at = 0
        for peer, group in groupby(asked, _peer_of):
            own = [request for _, request in group]
            if answers is None:
                peer.take(own)
            else:
                peer.take_answered(own, answers[at : at + len(own)])
                at += len(own)

    def _without_late(self, gathered: list[tuple[PeerT, AnyCommand]]) -> list[tuple[PeerT, AnyCommand]]:
        stalled_ms, now_ms = self._lateness.stalled_ms(), self._now_ms()
        if not stalled_ms:
            return gathered
        kept: list[tuple[PeerT, AnyCommand]] = []
        for peer, group in groupby(gathered, _peer_of):
            waited_ms = min(stalled_ms, now_ms - peer.received_ms)
            requests = peer.without_late([request for _, request in group], waited_ms)
            kept += [(peer, request) for request in requests]
        return kept


def _body_bytes(peer_request: tuple[Asking, AnyCommand]) -> int:
    return len(peer_request[1].body)


_peer_of: Final = itemgetter(0)  # in C, of a peer and its request
