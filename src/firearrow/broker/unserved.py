"""Requests that this version refuses and that clients do not tell their users of.

A transaction that is not decided waits; a consumer that can't pop gets nothing. Neither client says
so anywhere but in its own log. So the first refusal of a kind to a
group is a warning in ours, and from then on one line a minute says how many came since.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names
from firearrow.net.server import RequestUnserved
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import AnyGroup

log = logging.getLogger(__name__)

LINE_SECONDS_MIN: Final = 60.0  # between two lines of one kind and group
REMEMBERED_MAX: Final = 1000  # kinds and groups; beyond them all others are one
OTHERS: Final = "others"

_NO_POP: Final = "its consumers get no messages by POP"
_NO_REPLY: Final = "its replies reach nobody"
LOST: Final[Mapping[RequestCode, str]] = {
    RequestCode.SEND_REPLY_MESSAGE: _NO_REPLY,
    RequestCode.SEND_REPLY_MESSAGE_V2: _NO_REPLY,
    RequestCode.QUERY_ASSIGNMENT: "its consumers are not told which queues to read",
    RequestCode.POP_MESSAGE: _NO_POP,
    RequestCode.POP_LITE_MESSAGE: _NO_POP,
    RequestCode.ACK_MESSAGE: "what its consumers popped is not acknowledged",
    RequestCode.BATCH_ACK_MESSAGE: "what its consumers popped is not acknowledged",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "what its consumers popped comes again no later",
}
"""What a group goes without, by the request that is refused."""


class _Refused:
    """What is known of one kind of refusal to one group."""

    __slots__ = ("count", "said_at")

    def __init__(self, said_at: float) -> None:
        self.count = 0
        self.said_at = said_at


class Unserved:
    """Warns of requests that nothing here serves: 37, 324, 325, 370, 400, 200050, 200051,
    200053, 200070, 200151."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[RequestCode, str], _Refused] = {}

    def note(self, unserved: RequestUnserved) -> None:
        """Warn of a request that is refused, if it matters and was not said lately."""
        peer, request = unserved
        if request.code in LOST:
            code = RequestCode(request.code)
            self._note(code, _group_of(request) or peer.address.rpartition(":")[0])

    def _note(self, code: RequestCode, group: str) -> None:
        now = self._clock.monotonic()
        known = self._known.get((code, group))
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                group = OTHERS
            known = self._known.setdefault((code, group), _Refused(now - LINE_SECONDS_MIN))
        known.count += 1
        if now - known.said_at < LINE_SECONDS_MIN:
            return
        log.warning(
            "request is refused: this version does not serve it",
            extra={
                "request": code.name,
                "code": int(code),
                "group": group,
                "count": known.count,
                "effect": LOST[code],
            },
        )
        known.count, known.said_at = 0, now


def _group_of(request: AnyCommand) -> str | None:
    """The group that a request names, if it can be one: it goes into a line of the log."""
    try:
        header = fields_of(request, AnyGroup)
        found = header.group or header.consumer_group or header.producer_group
        if found is None and request.code == RequestCode.QUERY_ASSIGNMENT:
            found = fastjson.decode(request.body, AnyGroup).consumer_group
    except (BrokerError, MessageError, msgspec.MsgspecError):
        return None
    return found if found is not None and names.validate_group(found) is None else None
