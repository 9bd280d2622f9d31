"""Writes what a producer has done into the message trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firearrow.client import tracerecords
from firearrow.client.drafts import Draft
from firearrow.client.receipt import Receipt
from firearrow.client.sender import Posted
from firearrow.client.session import Session
from firearrow.client.tracerecords import Kind, Record
from firearrow.client.transactions import Decision
from firearrow.message import properties as keys_of
from firearrow.message.sysflag import TRANSACTION_PREPARED

_STATES = {Decision.COMMIT: "COMMIT_MESSAGE", Decision.ROLLBACK: "ROLLBACK_MESSAGE", Decision.UNKNOWN: "UNKNOW"}


class SentRecords:
    """Makes records for ``add``."""

    def __init__(self, session: Session, group: str, add: Callable[[Record], None]) -> None:
        self._session = session
        self._group = group
        self._add = add

    def sent(self, drafts: Sequence[Draft], receipts: Sequence[Receipt], posted: Posted, sys_flag: int) -> None:
        """A message, or a batch, was taken; brokers may want no record of that."""
        whole = posted.receipt
        if not whole.trace_on:
            return
        first = drafts[0].properties
        self._add(
            tracerecords.pub(
                time_ms=posted.began_ms,
                region=whole.region,
                group=self._session.bare(self._group),
                topic=whole.topic,
                message_id=",".join(receipt.message_id for receipt in receipts),
                tags=first.get(keys_of.TAGS),
                keys=first.get(keys_of.KEYS),
                store_host=posted.address,
                body_bytes=sum(len(draft.body) for draft in drafts),
                cost_ms=posted.took_ms,
                kind=_kind_of(drafts[0], sys_flag),
                offset_message_id=whole.offset_message_id,
            )
        )

    def decided(self, receipt: Receipt, decision: Decision, from_check: bool) -> None:
        """A transaction was committed, rolled back or left open."""
        self._add(
            tracerecords.end_transaction(
                time_ms=self._session.clock.now_ms(),
                region=receipt.region,
                group=self._session.bare(self._group),
                topic=receipt.topic,
                message_id=receipt.message_id,
                tags=None,
                keys=None,
                store_host=self._session.address_of(receipt.queue.broker, any_will_do=True),
                transaction_id=receipt.transaction_id or receipt.message_id,
                state=_STATES[decision],
                from_check=from_check,
            )
        )


def _kind_of(draft: Draft, sys_flag: int) -> Kind:
    if sys_flag & TRANSACTION_PREPARED:
        return Kind.HALF
    if draft.waits:
        return Kind.DELAYED
    return Kind.ORDERED if keys_of.SHARDING_KEY in draft.properties else Kind.NORMAL
