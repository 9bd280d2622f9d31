"""Admission: the conditions that a request must meet before its handler is called.

The handlers of the codes are in the features (``broker.feature``), the facts about each code in ``wire.requests``. The
server answers a code without a handler with 3, and ``unserved`` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from firearrow.errors import BrokerError
from firearrow.net.gathering import Answers as BulkAnswers
from firearrow.net.server import NO_REASONS, Answer, BulkHandler, Handler, Peer, PeerRequest
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import not_supported
from firearrow.wire.frame import AnyCommand
from firearrow.wire.requests import REQUESTS, Row

Check = Callable[[Peer, AnyCommand], None]
"""Raises the BrokerError by which a request is refused before its handler is called."""
Condition = Callable[[Row], Check | None]
"""Returns the check for the requests of a code, once; None if they need none."""


class Admission:
    """Decides by conditions, in their order, whether a request is handled at all.

    Where no condition has a check for a code, its handler is called directly: then admission costs a message nothing.
    """

    def __init__(self, conditions: Sequence[Condition] = ()) -> None:
        self._conditions = tuple(conditions)

    def before(
        self, handlers: Mapping[int, Handler], unserved: Mapping[int, str] = NO_REASONS
    ) -> Mapping[int, Handler]:
        """Return handlers that are called only for admitted requests.

        A sender that is not admitted does not learn the reasons for ``unserved`` codes either.
        """
        if not self._conditions:
            return handlers
        answers = {code: _answer_unserved(code, why) for code, why in unserved.items()}
        return {code: self._guarded(code, it) for code, it in (answers | {**handlers}).items()}

    def before_bulk(self, handlers: Mapping[int, BulkHandler]) -> Mapping[int, BulkHandler]:
        """Return bulk handlers that are called only for admitted requests. If one of several requests is not admitted,
        each is handled separately, and refused there.
        """
        if not self._conditions:
            return handlers
        return {code: self._guarded_bulk(code, handler) for code, handler in handlers.items()}

    def _check_of(self, code: int) -> Check | None:
        """Return all checks of a code, which must have a row."""
        row = REQUESTS[RequestCode(code)]
        checks = [check for it in self._conditions if (check := it(row)) is not None]
        if len(checks) < 2:
            return checks[0] if checks else None

        def check_all(peer: Peer, request: AnyCommand) -> None:
            for check in checks:
                check(peer, request)

        return check_all

    def _guarded(self, code: int, handler: Handler) -> Handler:
        check = self._check_of(code)
        if check is None:
            return handler

        def handle(peer: Peer, request: AnyCommand) -> Answer:
            check(peer, request)
            return handler(peer, request)

        return handle

    def _guarded_bulk(self, code: int, handler: BulkHandler) -> BulkHandler:
        check = self._check_of(code)
        if check is None:
            return handler

        def handle(requests: Sequence[PeerRequest]) -> BulkAnswers:
            try:
                for peer, request in requests:
                    check(peer, request)
            except BrokerError:
                return None
            return handler(requests)

        return handle


def _answer_unserved(code: int, reason: str) -> Handler:
    def answer(_: Peer, __: AnyCommand) -> Answer:
        return not_supported(code, reason)

    return answer


# --- RocketMQ's requests without a handler ---


_TIMER: Final = "there is one kind of timer, in files"
_USERS: Final = (
    "there are no users and no permissions, because neither authenticationEnabled is true nor an "
    "authenticationMetadataProvider is set"
)
_CONTROLLED: Final = "the broker is not in controller mode (enableControllerMode)"
_ALONE: Final = "no slave acts as master here: enableSlaveActingMaster is false"
_COLD: Final = "reads of old messages are not limited, so there is nothing to configure"
NOT_YET: Final[Mapping[int, str]] = {
    RequestCode.SWITCH_TIMER_ENGINE: _TIMER,
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
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _ALONE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _ALONE,
    RequestCode.GET_BROKER_EPOCH_CACHE: _CONTROLLED,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLED,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "there are no static topics",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "a broker that stops leaves JSON files beside its databases",
}
"""Reasons for request codes of RocketMQ that a broker does not serve."""
