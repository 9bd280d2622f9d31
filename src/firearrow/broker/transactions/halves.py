"""Halves: messages of transactions that wait for the decision of their producer.

A send with ``TRAN_MSG=true`` becomes a half: a record in queue 0 of ``RMQ_SYS_TRANS_HALF_TOPIC``, whose ``REAL_TOPIC``
and ``REAL_QID`` are its destination. A commit (37) makes a record of the real topic of it, which names the half's
physical offset. To check its producer, a half is put again at the end of its queue, with one more in
``TRANSACTION_CHECK_TIMES``, so that the offset of the queue can move on behind it. Such a copy has in
``TRAN_PREPARED_QUEUE_OFFSET`` the queue offset of the first half, its *root*, which shows that all copies belong to one
transaction.

Java: TransactionalMessageBridge#renewHalfMessageInner gives only copies of halves with
``CHECK_IMMUNITY_TIME_IN_SECONDS`` a root, and loses the flag of the application.
Source: RocketMQ ``TransactionalMessageBridge``, ``TransactionalMessageUtil``,
``EndTransactionProcessor#endMessageTransaction``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from firearrow.broker.sending.puts import (
    PutResult,
    Puts,
    Redirection,
    UnstoredMessage,
    again,
    asks_nothing,
    draft_of,
    wait_elsewhere,
)
from firearrow.broker.state.settings import Settings
from firearrow.errors import BrokerError
from firearrow.message import names, properties
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.model import MessageView
from firearrow.message.record import Content, decode_record, encode_record
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED, transaction_type
from firearrow.store import ConsumeQueue, NewMessage
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Command, FieldValue, request

HALF_TOPIC: Final = names.TRANS_HALF_TOPIC
OP_TOPIC: Final = names.TRANS_OP_HALF_TOPIC
GIVEN_UP_TOPIC: Final = names.TRANS_CHECK_MAX_TIME_TOPIC
QUEUE_ID: Final = 0

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_REAL_TOPIC: Final = b"\x02REAL_TOPIC\x01"
_REAL_PLACE: Final = re.compile(rb"REAL_TOPIC\x01([\x03-\x7f]+)\x02REAL_QID\x01([+-]?[0-9]{1,18})\x02")
_IMMUNITY: Final = properties.CHECK_IMMUNITY_SEC.encode()
_producer_group: Final = properties.finder(properties.PRODUCER_GROUP)
_ROOT: Final = properties.TRANSACTION_PREPARED_QUEUE_OFFSET
# Properties that the broker adds to halves; from a client that forwards a message they would belong to another half.
_NOTES: Final = (_ROOT, properties.TRANSACTION_CHECK_TIMES, properties.INNER_MULTI_QUEUE_OFFSET)


class Half(NamedTuple):
    """Stored half; ``root`` is the queue offset of the first half of its transaction."""

    view: MessageView
    root: int

    @property
    def queue_offset(self) -> int:
        """Offset in the queue of halves."""
        return self.view.queue_offset

    @property
    def born_timestamp_ms(self) -> int:
        """Time when the producer made it."""
        return self.view.born_timestamp_ms

    @property
    def real_topic(self) -> str:
        """Topic of the message."""
        return self.view.properties[properties.REAL_TOPIC]

    @property
    def producer_group(self) -> str:
        """Producer group to check."""
        return self.view.properties.get(properties.PRODUCER_GROUP, "")

    @property
    def check_times(self) -> int:
        """Count of the earlier checks of its producer."""
        return _number(self.view.properties.get(properties.TRANSACTION_CHECK_TIMES), -1, absent=0)

    @property
    def immunity(self) -> str | None:
        """Seconds without a check, as its sender wrote them."""
        return self.view.properties.get(properties.CHECK_IMMUNITY_SEC)


class PlainHalf(msgspec.Struct, frozen=True, gc=False):
    """Half without copies whose properties ask only for a decision; ``stored`` are the properties of its message."""

    queue_offset: int
    born_timestamp_ms: int
    producer_group: str
    real_topic: str
    real_queue_id: int
    stored: bytes
    content: Content

    @property
    def root(self) -> int:
        """Its own offset: it is the first half of its transaction."""
        return self.queue_offset

    @property
    def immunity(self) -> None:
        """None: it may be checked like any other."""
        return


AnyHalf = Half | PlainHalf


def plain_half(content: Content) -> PlainHalf | None:
    """Return a message as a plain half; None if it may be another one, or none.

    Nearly all halves are plain: the properties that the broker has added are cut off. To decode all of them, and encode
    them again for a commit, takes as long as the rest of the commit.
    """
    if content.topic != HALF_TOPIC:
        return None
    text = content.properties
    at = text.rfind(_REAL_TOPIC) + 1
    place = _place(text[at:]) if at else None
    if place is None:
        return None
    stored = text[:at]
    if not asks_nothing(stored) or stored.find(_IMMUNITY) >= 0:
        return None
    return PlainHalf(
        content.queue_offset,
        content.born_timestamp_ms,
        str(_producer_group(stored) or b"", "utf-8", "replace"),
        *place,
        stored,
        content,
    )


@lru_cache(maxsize=256)  # queues
def _place(tail: bytes) -> tuple[str, int] | None:
    """Return the topic and queue that properties end with."""
    found = _REAL_PLACE.fullmatch(tail)
    return None if found is None else (str(found[1], "ascii"), int(found[2]))


def stored_as_half(text: bytes, unique: bytes, topic: str, queue_id: int) -> bytes:
    """Return the properties of a half, as `waits_as_half` makes them.

    ``text`` has the sender's properties and the broker's, and ends with a pair.
    """
    return b"%b__transactionId__\x01%b\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (
        text,
        unique,
        topic.encode(),
        queue_id,
    )


def half_of(record: bytes | None) -> Half | None:
    """Return the half of a record, None if the record is none."""
    return None if record is None else as_half(decode_record(record))


def as_half(view: MessageView) -> Half | None:
    """Return a message as a half, None if it is none."""
    found = view.properties
    queue_id = found.get(properties.REAL_QUEUE_ID, "")
    if view.topic != HALF_TOPIC or not found.get(properties.REAL_TOPIC):
        return None
    if not _NUMBER.fullmatch(queue_id):
        return None
    root = noted_root(view)
    assert root is not None, "of a half it is its own offset, if no other"
    return Half(view, root)


def noted_root(view: MessageView) -> int | None:
    """Return the root of the transaction of a half, or of a half that was given up."""
    own = view.queue_offset if view.topic == HALF_TOPIC else None
    root = _number(view.properties.get(_ROOT), -1)
    return root if root >= 0 and (own is None or root < own) else own


def waits_as_half(settings: Settings) -> Redirection:
    """Return the redirection of transactional messages; it raises BrokerError if the configuration forbids them."""

    def redirect(draft: UnstoredMessage, now_ms: int) -> None:
        if not _is_transactional(draft):
            return
        broker = settings.broker
        if broker.reject_transaction_message:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.broker_ip1}] sending transaction message is forbidden (rejectTransactionMessage)",
            )
        found = draft.properties
        for name in _NOTES:
            found.pop(name, None)
        if properties.UNIQUE_KEY in found:
            found[properties.TRANSACTION_ID] = found[properties.UNIQUE_KEY]
        draft.sys_flag &= ~TRANSACTION_MASK
        wait_elsewhere(draft, HALF_TOPIC, QUEUE_ID)

    return redirect


def _is_transactional(draft: UnstoredMessage) -> bool:
    """Return whether a message becomes a half: it is one of a transaction, not committed, and not a failed one that is
    redelivered (clients before 4.6.1 leave the property in those)."""
    found = draft.properties
    if found.get(properties.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    if transaction_type(draft.sys_flag) == TRANSACTION_COMMIT:
        return False
    if draft.reconsume_times <= 0:
        return True
    waits = _delay_level(found) > 0 or names.is_retry(draft.topic) or names.is_dlq(draft.topic)
    return not waits


def copied(half: Half, check_times: int) -> UnstoredMessage:
    """Return a half for another put."""
    noted = {_ROOT: str(half.root)}
    if check_times:
        noted[properties.TRANSACTION_CHECK_TIMES] = str(check_times)
    return _draft(half.view, HALF_TOPIC, half.view.properties | noted)


def resumed(view: MessageView, root: int | None) -> UnstoredMessage:
    """Return a message of a transaction for a put as a half without checks."""
    noted = {properties.TRANSACTION_CHECK_TIMES: "0"}
    if root is not None:
        noted[_ROOT] = str(root)
    return _draft(view, HALF_TOPIC, view.properties | noted)


def moved(half: Half) -> UnstoredMessage:
    """Return a half as the message that its producer sent, for another broker."""
    view = half.view
    found = _as_sent(view.properties) | {properties.TRANSACTION_PREPARED: "true"}
    for name in (*_NOTES, properties.TRANSACTION_ID):
        found.pop(name, None)
    queue_id = int(found.pop(properties.REAL_QUEUE_ID))
    draft = _draft(view, found.pop(properties.REAL_TOPIC), found)
    draft.queue_id = queue_id
    draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED
    return draft


def given_up(half: Half) -> UnstoredMessage:
    """Return a half for a put into the topic of halves that nobody decided."""
    return _draft(half.view, GIVEN_UP_TOPIC, half.view.properties)


def _draft(view: MessageView, topic: str, found: dict[str, str]) -> UnstoredMessage:
    draft = draft_of(view)
    draft.topic, draft.queue_id, draft.properties = topic, QUEUE_ID, found
    return draft


def put_committed(puts: Puts, half: AnyHalf, now_ms: int) -> None:
    """Put the message of a committed half; raise the same as `Puts.put`."""
    if not isinstance(half, PlainHalf):
        puts.put(committed(half), now_ms)
        return
    queue = puts.queue(half.real_topic, half.real_queue_id)
    puts.put_again(plain_committed(half, queue), now_ms)


def plain_committed(half: PlainHalf, queue: ConsumeQueue) -> NewMessage:
    """Return the message of a committed plain half, in its real queue."""
    content = half.content
    return again(
        queue,
        content,
        half.stored,
        content.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        content.reconsume_times,
        content.physical_offset,
    )


def committed(half: Half) -> UnstoredMessage:
    """Return the message of a committed half."""
    view = half.view
    found = _as_sent(view.properties)
    queue_id = int(found.pop(properties.REAL_QUEUE_ID))
    draft = _draft(view, found.pop(properties.REAL_TOPIC), found)
    if _delay_level(found) > 0 or not found.keys().isdisjoint(properties.DELIVERY_TIMES):
        found.pop(properties.TRANSACTION_PREPARED, None)  # RocketMQ: in the topic where it waits once more
    draft.queue_id = queue_id
    draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    draft.prepared_transaction_offset = view.physical_offset
    return draft


def check_request(
    half: Half, draft: UnstoredMessage, placed: PutResult, store_host: bytes, broker_name: str
) -> Command[dict[str, str]]:
    """Return the request (39) that checks the producer of a half, which was put again as ``draft``."""
    view = half.view
    found = _as_sent(draft.properties)
    body = encode_record(
        half.real_topic,
        view.body,
        properties.encode(found),
        int(found[properties.REAL_QUEUE_ID]),
        placed.queue_offset,
        placed.physical_offset,
        view.flag,
        draft.sys_flag,
        view.born_timestamp_ms,
        draft.born_host,
        view.store_timestamp_ms,
        store_host,
        view.reconsume_times,
    )
    fields: dict[str, FieldValue] = {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": placed.queue_offset,
        "commitLogOffset": placed.physical_offset,
        "offsetMsgId": encode_offset_id(unpack_host(store_host), placed.physical_offset),
        "bname": broker_name,
    }
    unique = found.get(properties.UNIQUE_KEY)
    if unique:
        fields |= {"msgId": unique, "transactionId": unique}
    return request(RequestCode.CHECK_TRANSACTION_STATE, fields, body, oneway=True)


def _as_sent(found: dict[str, str]) -> dict[str, str]:
    """Return properties without the root, which clients know only from halves that are not checked at once."""
    kept = found.copy()
    if properties.CHECK_IMMUNITY_SEC not in kept:
        kept.pop(_ROOT, None)
    return kept


def answer_limit_ms(immunity: str, timeout_ms: int) -> int:
    """Return the highest age of a half that its producer may decide without a check.

    Java: TransactionalMessageUtil#getImmunityTime.
    """
    return max(_number(immunity, 0) * 1000, timeout_ms)


def check_age_ms(immunity: str | None, timeout_ms: int) -> int:
    """Return the lowest age of a half that is checked.

    Java: TransactionalMessageServiceImpl#getImmunityTime, which knows no minimum.
    """
    seconds = _number(immunity, -1)
    return timeout_ms if seconds == -1 else seconds * 1000


def _delay_level(found: dict[str, str]) -> int:
    return _number(found.get(properties.DELAY_LEVEL), 0)


def _number(text: str | None, otherwise: int, *, absent: int | None = None) -> int:
    """Return the number in a text, as Java reads it; ``otherwise`` if there is none."""
    if text is None and absent is not None:
        return absent
    return int(text) if text is not None and _NUMBER.fullmatch(text) else otherwise
