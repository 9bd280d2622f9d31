"""Transaction ids, which carry the place of the message whose transaction they name.

So a transaction can be ended at any time, through any proxy, also after a restart. RocketMQ's proxy keeps the place in
memory for 30 s, and a later decision must wait for the check by the broker.

An id is the Base64 for URLs of four words: ``v1``, the offset in the queue of open transactions, the offset in the log,
and the broker's name. It is not signed: the broker checks that the place has an open transaction of the topic.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from firearrow.errors import MessageError
from firearrow.javanumbers import LONG_MAX

_VERSION: Final = "v1"
_CHARS_MAX: Final = 1024


class TransactionId(NamedTuple):
    """Place of a message whose transaction is open."""

    broker: str
    queue_offset: int
    log_offset: int

    def __str__(self) -> str:
        """Text of the id."""
        return urlsafe_b64encode(f"{_VERSION} {self.queue_offset} {self.log_offset} {self.broker}".encode()).decode()

    @staticmethod
    def parse(text: str) -> TransactionId:
        """Read an id; MessageError if it is none."""
        try:
            version, queue_offset, log_offset, broker = urlsafe_b64decode(text[:_CHARS_MAX]).decode().split(" ", 3)
            places = int(queue_offset), int(log_offset)
        except ValueError:
            version, broker, places = "", "", (0, 0)
        if version != _VERSION or not all(0 <= place <= LONG_MAX for place in places):
            raise MessageError(f"not a transaction id of this proxy: {text[:200]!r}")
        return TransactionId(broker, *places)
