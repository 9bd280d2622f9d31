"""Requests that this version refuses and that clients do not tell their users of.

A consumer of lite topics gets nothing, and says so nowhere but in its own log. So the first refusal
of a kind to a group is a warning in ours, and from then on one line a minute says how many came
since.
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
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import AnyGroup

log = logging.getLogger(__name__)

LINE_SECONDS_MIN: Final = 60.0  # between two lines of one kind and group
REMEMBERED_MAX: Final = 1000  # kinds and groups; beyond them all others are one
OTHERS: Final = "others"

LOST: Final[Mapping[RequestCode, str]] = {
    RequestCode.POP_LITE_MESSAGE: "its consumers get no messages of lite topics",
}
"""What a group goes without, by the request that is refused."""

_TIMER: Final = "there is one kind of timer, in files"
_POP: Final = "there is no POP"
_LITE: Final = "there are no lite topics"
_USERS: Final = "there are no users and no permissions"
_COPIES: Final = "there are no slaves: only they, masters that tell them, and controllers ask this"
_COLD: Final = "reads of old messages are not limited, so there is nothing to configure"
NOT_YET: Final[Mapping[RequestCode, str]] = {
    **LOST,
    RequestCode.SWITCH_TIMER_ENGINE: _TIMER,
    RequestCode.POP_ROLLBACK: _POP,
    RequestCode.LITE_SUBSCRIPTION_CTL: _LITE,
    RequestCode.GET_BROKER_LITE_INFO: _LITE,
    RequestCode.GET_PARENT_TOPIC_INFO: _LITE,
    RequestCode.GET_LITE_TOPIC_INFO: _LITE,
    RequestCode.GET_LITE_CLIENT_INFO: _LITE,
    RequestCode.GET_LITE_GROUP_INFO: _LITE,
    RequestCode.TRIGGER_LITE_DISPATCH: _LITE,
    RequestCode.AUTH_CREATE_USER: _USERS,
    RequestCode.AUTH_UPDATE_USER: _USERS,
    RequestCode.AUTH_DELETE_USER: _USERS,
    RequestCode.AUTH_GET_USER: _USERS,
    RequestCode.AUTH_LIST_USER: _USERS,
    RequestCode.AUTH_CREATE_ACL: _USERS,
    RequestCode.AUTH_UPDATE_ACL: _USERS,
    RequestCode.AUTH_DELETE_ACL: _USERS,
    RequestCode.AUTH_GET_ACL: _USERS,
    RequestCode.AUTH_LIST_ACL: _USERS,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _COPIES,
    RequestCode.GET_ALL_DELAY_OFFSET: _COPIES,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _COPIES,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _COPIES,
    RequestCode.GET_BROKER_HA_STATUS: _COPIES,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _COPIES,
    RequestCode.GET_BROKER_EPOCH_CACHE: _COPIES,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _COPIES,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "there are no static topics",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "a broker that stops leaves JSON files beside its "
    "databases",
}
"""Why a broker does not serve a code that RocketMQ's does."""


class _Refused:
    """What is known of one kind of refusal to one group."""

    __slots__ = ("count", "said_at")

    def __init__(self, said_at: float) -> None:
        self.count = 0
        self.said_at = said_at


class Unserved:
    """Warns of requests that nothing here serves: 200070."""

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
    except (BrokerError, MessageError, msgspec.MsgspecError):
        return None
    return found if found is not None and names.validate_group(found) is None else None
