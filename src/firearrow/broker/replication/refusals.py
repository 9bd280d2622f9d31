"""Refusals by role.

A slave has its master's messages and state, and takes no others. A master refuses messages at once while too few
brokers are in sync with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from firearrow.broker.admission import Check, Condition
from firearrow.broker.flowcontrol import REJECTED
from firearrow.broker.replication.replicas import Replicas
from firearrow.errors import BrokerError
from firearrow.net.server import Peer
from firearrow.store.config import StoreConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import SendMessage, SendMessageV2
from firearrow.wire.requests import Row, Trait

_NO_CHANGE: Final = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
_NO_RESET: Final = "Can not reset offset in slave broker"
_NO_PUT: Final = "the broker is a slave: only its master takes messages"
_NO_POP_NOW: Final = (
    "the broker is a slave: it notes pops only while it acts for its master, with enableRemoteEscape=true"
)
_NO_POP_IN_DATABASE: Final = (
    "the broker is a slave that notes pops in RocksDB (popConsumerKVServiceInit), which no other "
    "broker sees: only its master takes pops"
)
_NO_ACTING_PUT: Final = ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT
SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
_POPS: Final = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
TABLE_CHANGES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    }
)


def refused_by_acting_slave(takes_pops: Callable[[], bool], has_database: bool) -> Condition:
    """Refuse requests in a slave that may act for its master: producers should try another master.

    Pops are taken while they can be noted at another master; with ``has_database`` they are noted in RocksDB here, and
    so refused.
    """
    why = _NO_POP_IN_DATABASE if has_database else _NO_POP_NOW

    def condition(row: Row) -> Check | None:
        refusal = _refused(row, _NO_ACTING_PUT if row.code in SENDS else None)
        if refusal is None or row.code not in _POPS:
            return refusal

        def check(peer: Peer, request: AnyCommand) -> None:
            if not takes_pops():
                raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, why)

        return check

    return condition


def refused_by_slave(row: Row) -> Check | None:
    """Return a slave's check, which refuses requests for masters only.

    Java: has the remark on topics and groups, in AdminBrokerProcessor#validateSlave, but never gives it. A change on a
    slave is lost when the slave asks its master the next time.
    """
    return _refused(row, None)


def _refused(row: Row, otherwise: tuple[ResponseCode, str] | None) -> Check | None:
    if Trait.MASTERS not in row.traits:
        return None
    code, remark = otherwise or _refusal(row.code)

    def check(_: Peer, __: AnyCommand) -> None:
        raise BrokerError(code, remark)

    return check


def _refusal(code: RequestCode) -> tuple[ResponseCode, str]:
    if code in SENDS:
        return ResponseCode.SYSTEM_BUSY, REJECTED
    if code in TABLE_CHANGES:
        return ResponseCode.SYSTEM_ERROR, _NO_CHANGE
    if code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
        return ResponseCode.SYSTEM_ERROR, _NO_RESET
    if code in (RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE):
        return ResponseCode.SLAVE_NOT_AVAILABLE, _NO_PUT
    return ResponseCode.SERVICE_NOT_AVAILABLE, _NO_PUT


_WAITS_FOR_NOBODY: Final = "WAIT\x01false"
_HEADERS: Final[dict[int, type[SendMessage | SendMessageV2] | None]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.CONSUMER_SEND_MSG_BACK: None,
}


def refused_alone(needed: Callable[[], int], in_sync_count: Callable[[], int], key: str) -> Condition:
    """Return a master's condition, which admits messages only if enough brokers are in sync, itself among them.

    ``needed`` returns their number, which the configuration sets by ``key``. Messages with ``WAIT=false`` wait for no
    other broker, and are taken.

    Java: CommitLog#asyncPutMessage.
    """

    def condition(row: Row) -> Check | None:
        if row.code not in _HEADERS:
            return None
        header = _HEADERS[row.code]

        def check(_: Peer, request: AnyCommand) -> None:
            count, least = in_sync_count(), needed()
            if count >= least:
                return
            if header is not None and _WAITS_FOR_NOBODY in fields_of(request, header).properties:
                return
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"in-sync replicas not enough: {count}, {key} is {least}")

        return check

    return condition


def refused_by_acting_master(replicas: Replicas, config: StoreConfig) -> Condition:
    """Return the condition for a synchronous master whose slaves act for it."""
    key = "minInSyncReplicas" if config.enable_auto_in_sync_replicas else "inSyncReplicas"
    return refused_alone(replicas.needed, lambda: replicas.in_sync_count, key)
