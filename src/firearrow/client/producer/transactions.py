"""Transactional messages: sent as a half message that no consumer sees, then committed or rolled back.

::

    async with producer.transaction("orders", b"...") as transaction:
        await database.save(order)              # commits at the end of the block
        if order.is_doubtful:
            transaction.roll_back()

If the block raises or the producer dies, the transaction is left open, and the broker asks for its state after a while.
Any producer of the group with a ``check`` function answers. A block that raises decides nothing, since its local
transaction may have succeeded.

Source: RocketMQ's ``DefaultMQProducerImpl#sendMessageInTransaction``, ``#checkTransactionState``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from types import TracebackType
from typing import Final, Self

from firearrow.client.message import Message
from firearrow.client.producer.drafts import Receipt, SendStatus
from firearrow.client.session.answers import read_number
from firearrow.client.session.session import Session
from firearrow.errors import ClientError
from firearrow.logs import Log
from firearrow.message import properties as keys_of
from firearrow.message.ids import decode_offset_id
from firearrow.message.record import decode_record
from firearrow.net.client import ServerRequest
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

log: Final = Log(__name__)

PREPARED: Final[Mapping[str, str]] = {keys_of.TRANSACTION_PREPARED: "true"}


class Decision(IntEnum):
    """Decision about a half message, by its number on the wire."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


Check = Callable[[Message], Awaitable[Decision]]
"""State of a message's local transaction; after UNKNOWN, the broker asks again."""

Traced = Callable[[Receipt, Decision, bool], None]


def end_fields(
    group: str, topic: str, half_offset: int, physical_offset: int, decision: Decision, *, from_check: bool
) -> dict[str, FieldValue]:
    """Fields of the request that decides a half message: its place in the queue of halves and in the log."""
    return {
        "producerGroup": group,
        "topic": topic,
        "tranStateTableOffset": half_offset,
        "commitLogOffset": physical_offset,
        "commitOrRollback": int(decision),
        "fromTransactionCheck": from_check,
    }


class Transaction:
    """Half message with its pending decision."""

    def __init__(self, receipt: Receipt, decide: Callable[[Decision], Awaitable[None]]) -> None:
        self.receipt = receipt
        self._decide = decide
        self.decision: Decision | None = None
        if receipt.status is not SendStatus.SEND_OK:
            self.decision = Decision.ROLLBACK  # as in Java: the half may be lost with its broker

    def commit(self) -> None:
        """Deliver the message to consumers at the end of the block."""
        self.decision = Decision.COMMIT

    def roll_back(self) -> None:
        """Discard the message at the end of the block."""
        self.decision = Decision.ROLLBACK

    def leave_open(self) -> None:
        """Leave the decision to a later check by the broker."""
        self.decision = Decision.UNKNOWN

    async def __aenter__(self) -> Self:
        if self.decision is Decision.ROLLBACK:
            await self._decide(Decision.ROLLBACK)
            raise ClientError(
                f"topic {self.receipt.topic!r}: the half is not safe on broker "
                f"{self.receipt.queue.broker!r} ({self.receipt.status}), so it was rolled back"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.decision = Decision.UNKNOWN
        elif self.decision is None:
            self.decision = Decision.COMMIT
        await self._decide(self.decision)


class Halves:
    """Half messages of a producer group: their decisions, and the answers to the broker's checks."""

    def __init__(self, session: Session, group: str, check: Check, traced: Traced | None) -> None:
        self._session = session
        self._group = group
        self._check = check
        self._traced = traced
        session.on(RequestCode.CHECK_TRANSACTION_STATE, self._asked, group)

    async def decide(self, topic: str, receipt: Receipt, decision: Decision) -> None:
        """Send the decision about a half to its broker; if it is lost, the broker asks."""
        place = receipt.queue_offset, decode_offset_id(receipt.offset_message_id).physical_offset
        fields = end_fields(self._group, topic, *place, decision, from_check=False) | {
            "msgId": receipt.message_id,
            "transactionId": receipt.transaction_id or receipt.message_id,
            "bname": receipt.queue.broker,
        }
        try:
            address = self._session.address_of(receipt.queue.broker)
            await self._session.client.send(address, RequestCode.END_TRANSACTION, fields)
        except OSError as error:
            extra = {"topic": topic, "broker_name": receipt.queue.broker, "error": error}
            log.warning("decision is not sent: the broker will ask", extra=extra)
        if self._traced is not None:
            self._traced(receipt, decision, False)

    async def _asked(self, asked: ServerRequest) -> None:
        """Answer a broker that asks for the state of a half (39)."""
        ext = asked.command.ext
        message = Message.received(decode_record(asked.command.body), ext.get("bname", ""), self._session.namespace)
        decision = Decision(await self._check(message))  # after an error, the broker asks again
        address = asked.address
        unique = message.properties.get(keys_of.UNIQUE_KEY) or message.offset_message_id
        half_offset = read_number(asked.command, "tranStateTableOffset", address)
        physical_offset = read_number(asked.command, "commitLogOffset", address)
        topic = message.queue.topic
        fields = end_fields(self._group, topic, half_offset, physical_offset, decision, from_check=True) | {
            "msgId": unique,
            "transactionId": ext.get("transactionId", unique),
        }
        await self._session.client.send(address, RequestCode.END_TRANSACTION, fields)
        if self._traced is not None:
            receipt = Receipt(
                message.topic,
                unique,
                message.queue,
                message.queue_offset,
                message.offset_message_id,
                transaction_id=ext.get("transactionId"),
            )
            self._traced(receipt, decision, True)
