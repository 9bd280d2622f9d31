"""A message whose consumer says itself when it is consumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import astuple

from firearrow.client.handlers import Failure, RetryLater
from firearrow.client.message import Message
from firearrow.errors import ClientError


class RolledBack(RetryLater):
    """All that a queue in order has given, and that was not acknowledged, is to come again."""


class Source(Protocol):
    """A source of messages, which learns of their fate.

    It is dropped when it is another consumer's: what is left of it is not consumed here.
    """

    @property
    def keeps_order(self) -> bool:
        """Tell whether its messages are consumed one behind the other, so that all can come again."""

    def may_begin(self, message: Message) -> bool:
        """Tell whether a message is still to be consumed; none of a source that is dropped is."""

    def done(self, messages: Sequence[Message]) -> None:
        """Messages are consumed; nobody needs to know if the source is dropped."""

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        """Messages are to come again, which they do anyway if the source is dropped."""


class Delivery(Message, eq=False, gc=True):
    """A message that counts as consumed once ``ack`` was called, and comes again after ``retry``.

    Until one of them is called it takes its place in the consumer's memory, and what comes behind
    it is consumed but not committed. In order, ``ack`` is for all that came before as well, and
    ``roll_back`` has all come again that was not acknowledged.
    """

    _source: Source | None = None

    @classmethod
    def of(cls, message: Message, source: Source) -> Delivery:
        """Make one of a message that a source has given."""
        delivery = cls(*astuple(message))
        delivery._source = source
        return delivery

    @property
    def is_settled(self) -> bool:
        """Tell whether it was said what becomes of it."""
        return self._source is None

    def ack(self) -> None:
        """It is consumed."""
        if self._source is not None:
            source, self._source = self._source, None
            source.done([self])

    async def retry(self, *, level: int = 0) -> None:
        """Have it come again, by a delay level (see `RetryLater`)."""
        await self.fail(Failure(RetryLater(level=level)))

    async def roll_back(self, *, seconds: float | None = None) -> None:
        """In order: have all come again that the queue gave and that was not acknowledged, in so
        many seconds (0.01 to 30; by default the consumer's ``suspend``). It counts as no failure.

        ClientError for a consumer in any order, which has nothing to roll back to. Source: upstream
        ``ConsumeOrderlyStatus#ROLLBACK`` without ``autoCommit``.
        """
        if self._source is not None and not self._source.keeps_order:
            raise ClientError(
                f"message {self.message_id} of topic {self.topic!r} can't be rolled back: its consumer keeps no order"
            )
        await self.fail(Failure(RolledBack(seconds=seconds)))

    async def fail(self, failure: Failure) -> None:
        """It failed, unless it is settled."""
        if self._source is not None:
            source, self._source = self._source, None
            await source.failed([self], failure)
