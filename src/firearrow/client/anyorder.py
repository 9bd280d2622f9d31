"""Consumption of pulled messages in any order.

A message that failed goes back to its broker, which has it come again later (36). Where the broker
can't be asked, a copy is sent to the retry topic; where that fails as well, it is tried again here.
A client that consumes all for itself (BROADCASTING) gets no second try.

Source: upstream ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from firearrow.client.delivery import Source
from firearrow.client.handlers import Failure
from firearrow.client.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.client.retrycopy import send_retry_copy
from firearrow.errors import FirearrowError
from firearrow.net.tasks import Tasks

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0
TIMED_OUT_LEVEL: Final = 3


class QueueSource:
    """The messages of one assigned queue."""

    keeps_order = False

    def __init__(
        self, member: Member, assigned: AssignedQueue, tasks: Tasks, resubmit: Callable[[Source, list[Message]], None]
    ) -> None:
        self._member = member
        self._assigned = assigned
        self._tasks = tasks
        self._resubmit = resubmit
        self._given_up: set[int] = set()  # offsets that time ran out for, in a handler still

    @property
    def is_dropped(self) -> bool:
        """Tell whether the queue is another client's now."""
        return self._assigned.is_dropped

    def may_begin(self, _: Message) -> bool:
        """Tell whether a message is still to be consumed."""
        return not self._assigned.is_dropped

    def done(self, messages: Sequence[Message]) -> None:
        """Messages are consumed, or are where they come again from."""
        assigned, given_up = self._assigned, self._given_up
        if assigned.is_dropped:
            return
        for message in messages:
            if given_up and message.queue_offset in given_up:
                given_up.remove(message.queue_offset)
            else:
                assigned.cache.finish(message)
        assigned.made_room()

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        """Have messages come again."""
        if self.is_dropped:
            return
        if not self._member.is_clustering:
            log.warning(
                "message is given up: who consumes all for itself gets it once",
                extra={"message_id": messages[0].message_id, "topic": messages[0].topic},
            )
            self.done(messages)
            return
        left = [one for one in messages if not await self._gone_back(one, failure.level)]
        self.done([one for one in messages if one not in left] if left else messages)
        if left:
            self._tasks.start(self._again(left), "messages that can't be sent back")

    async def _gone_back(self, message: Message, level: int) -> bool:
        member = self._member
        if message.queue_offset in self._given_up:
            return True
        try:
            await member.calls.send_back(message, level, member.reconsume_times_max)
        except (OSError, FirearrowError) as error:
            fields = {**message.queue.fields, "message_id": message.message_id, "error": error}
            log.warning("message can't be sent back", extra=fields)
            return await self._is_copied(message)
        return True

    async def _is_copied(self, message: Message) -> bool:
        member = self._member
        session = member.calls.session
        try:
            await send_retry_copy(session, member.group, message, member.reconsume_times_max)
        except (OSError, FirearrowError) as error:
            fields = {"message_id": message.message_id, "error": error}
            log.warning("message can't be sent to the retry topic", extra=fields)
            return False
        return True

    async def _again(self, messages: list[Message]) -> None:
        await asyncio.sleep(AGAIN_SECONDS)
        for message in messages:
            message.reconsume_times += 1
        if not self.is_dropped:
            self._resubmit(self, messages)

    async def time_out(self, message: Message) -> None:
        """Have a message come again whose handler does not end: it holds up its queue's offset."""
        cache, at = self._assigned.cache, message.queue_offset
        if at in self._given_up or cache.first_offset != at:
            return
        if await self._gone_back(message, TIMED_OUT_LEVEL) and cache.first_offset == at:
            cache.finish(message)
            self._given_up.add(at)
            self._assigned.made_room()
