"""Refusals of a master while too few others are in sync with it: it refuses messages at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from firearrow.broker.admission import Check, Condition
from firearrow.broker.replication.replicas import Replicas
from firearrow.errors import BrokerError
from firearrow.net.server import Peer
from firearrow.store.config import StoreConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import SendMessage, SendMessageV2
from firearrow.wire.requests import Row

_WAITS_FOR_NOBODY: Final = "WAIT\x01false"
_HEADERS: Final[dict[int, type[SendMessage | SendMessageV2] | None]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.CONSUMER_SEND_MSG_BACK: None,
}


def refused_alone(needed: Callable[[], int], in_sync_count: Callable[[], int], key: str) -> Condition:
    """Give the condition by which a master takes messages only if as many as are needed, itself
    among them, are in sync; ``key`` says how many. Those with ``WAIT=false`` wait for nobody.

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
    """Give it for a synchronous master whose slaves act for it."""
    key = "minInSyncReplicas" if config.enable_auto_in_sync_replicas else "inSyncReplicas"
    return refused_alone(replicas.needed, lambda: replicas.in_sync_count, key)
