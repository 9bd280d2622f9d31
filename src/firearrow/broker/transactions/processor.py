"""Requests of producers and administrators about transactions.

Source: RocketMQ ``EndTransactionProcessor``, ``AdminBrokerProcessor#resumeCheckHalfMessage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.pulling.queries import record_at
from firearrow.broker.transactions.halves import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    AnyHalf,
    PlainHalf,
    answer_limit_ms,
    as_half,
    plain_half,
)
from firearrow.broker.transactions.service import TransactionService
from firearrow.errors import BrokerError, MessageError
from firearrow.message import properties
from firearrow.message.ids import decode_offset_id
from firearrow.message.model import MessageView
from firearrow.message.record import decode_record
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from firearrow.net.server import Answer, Peer, PeerRequest
from firearrow.store import ConsumeQueue
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand, bare_frame
from firearrow.wire.headers import EndTransaction, ResumeCheck

_OUTCOMES: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)


SEVERAL_MAX: Final = 256
"""Halves that are committed at once, which takes 2 ms; the others wait for the next turn."""


class TransactionProcessor:
    """Handlers of ends and resumed checks (37, 323).

    Plain halves (``broker.transactions.halves``) that are committed together are read and put side by side, which takes
    half of the time.
    """

    def __init__(self, context: BrokerContext, transactions: TransactionService) -> None:
        self._settings = context.settings
        self._store = context.store
        self._puts = context.puts
        self._clock = context.clock
        self._transactions = transactions

    def end(self, peer: Peer, request: AnyCommand) -> Answer:
        """37: commit or roll back a half; the first such request for it counts.

        Java: EndTransactionProcessor#processRequest never answers one that leaves it open.
        """
        request.ext = header = fields_of(request, EndTransaction)
        answers = self._commit_plain(((peer, request),))
        if answers:
            return answers[0]
        if header.commit_or_rollback not in _OUTCOMES:
            raise _refused(f"commitOrRollback field wrong: {header.commit_or_rollback}")
        if header.commit_or_rollback == TRANSACTION_NONE:
            return Response()
        half = self._half_at(header.commit_log_offset)
        self._check(header, half)
        if self._transactions.is_decided(half):
            return Response()
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            self._transactions.commit(half)
        else:
            self._transactions.roll_back(half)
        return Response()

    def end_several(self, requests: Sequence[PeerRequest]) -> list[bytes | None] | None:
        """37, several in one turn: answer like ``end`` to the first of them, while they commit plain halves;
        ``end`` serves the others."""
        answers: list[bytes | None] = [*self._commit_plain(requests[:SEVERAL_MAX])]
        return answers + [None] * (len(requests) - len(answers)) if answers else None

    def _commit_plain(self, requests: Sequence[PeerRequest]) -> list[bytes]:
        """Commit halves up to the first that is not plain, or may be refused; return the answers."""
        queues: dict[tuple[str, int], ConsumeQueue] = {}
        found: dict[int, tuple[PlainHalf, ConsumeQueue]] = {}
        headers: list[EndTransaction] = []
        for _, request in requests:
            header = request.ext
            if type(header) is not EndTransaction:
                break
            if header.commit_or_rollback != TRANSACTION_COMMIT:
                break
            headers.append(header)
        contents = self._store.all_named_at([header.commit_log_offset for header in headers])
        for header, half in zip(headers, map(plain_half, contents), strict=False):
            if half is None:
                break
            try:
                place = half.real_topic, half.real_queue_id
                queue = queues.get(place)
                if queue is None:
                    queue = queues[place] = self._puts.queue(*place)
            except BrokerError:
                break
            queue_offset = half.queue_offset
            if (
                header.producer_group != half.producer_group
                or header.tran_state_table_offset != queue_offset
                or queue_offset in found
                or self._transactions.is_decided(half)
            ):
                break
            found[queue_offset] = half, queue
        if not found or not self._transactions.commit_several([*found.values()]):
            return []
        return [bare_frame(it.opaque, it.binary) for _, it in requests[: len(found)]]

    def _half_at(self, physical_offset: int) -> AnyHalf:
        """Return the half at an offset of the log, checked to the last byte; BrokerError if there is none."""
        half: AnyHalf | None
        try:
            half = plain_half(self._store.named_at(physical_offset))
            if half is None:
                half = as_half(self._store.view_at(physical_offset))
        except MessageError:
            half = None
        if half is None:
            raise _refused(
                f"Find prepared transaction message failed: there is no half at the physical offset {physical_offset}"
            )
        return half

    def _check(self, header: EndTransaction, half: AnyHalf) -> None:
        """Raise a BrokerError unless a request is for a half, and in time."""
        if half.immunity is not None and not header.from_transaction_check:
            age_ms = self._clock.now_ms() - half.born_timestamp_ms
            limit_ms = answer_limit_ms(half.immunity, self._settings.broker.transaction_time_out)
            if age_ms > limit_ms:
                raise BrokerError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the half is {age_ms} ms old, a decision must come in {limit_ms} ms: its producer will be asked",
                )
        if header.producer_group != half.producer_group:
            raise _refused("The producer group wrong")
        if header.tran_state_table_offset != half.queue_offset:
            raise _refused("The transaction state table offset wrong")

    def resume(self, peer: Peer, request: AnyCommand) -> Answer:
        """323: check a transaction again from the begin, even if it was given up.

        Java: AdminBrokerProcessor#resumeCheckHalfMessage takes any message for a half.
        """
        header = fields_of(request, ResumeCheck)
        try:
            place = decode_offset_id(header.msg_id)
        except MessageError as error:
            raise _refused(str(error)) from None
        view = decode_record(record_at(self._store, place.physical_offset))
        if not _is_of_transaction(view):
            raise _refused(f"message {header.msg_id} of topic {view.topic} is no half")
        self._transactions.resume(view)
        return Response()


def _is_of_transaction(view: MessageView) -> bool:
    """Return whether a message is a half, or was one until it was given up."""
    found = view.properties
    return (
        view.topic in (HALF_TOPIC, GIVEN_UP_TOPIC)
        and bool(found.get(properties.REAL_TOPIC))
        and found.get(properties.REAL_QUEUE_ID, "").isdecimal()
    )


def _refused(why: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, why)
