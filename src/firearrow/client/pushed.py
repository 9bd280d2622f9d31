"""Requests of brokers to a push consumer, and its answers.

40 has it divide its queues anew, 220 go on elsewhere, 221 say where it is, 307 tell of itself, and
309 consume one message.

Source: upstream ``ClientRemotingProcessor``, ``MQClientInstance#resetOffset``.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from firearrow.client.handlers import Failure
from firearrow.client.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.client.runninginfo import running_info
from firearrow.errors import BrokerError
from firearrow.message.record import decode_record
from firearrow.net.client import Asked
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import (
    CONSUME_PASSIVELY,
    PAUSED,
    ConsumerStatus,
    DirectResult,
    MessageQueue,
    ResetOffsets,
    body_of,
)
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response

RESET_SECONDS_MAX: Final = 10.0  # for handlers of queues that go on elsewhere


class Resettable(Protocol):
    """A push consumer, as far as it is asked."""

    member: Member
    started_ms: int

    async def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Have a queue go on at an offset."""

    def divide_soon(self) -> None:
        """Divide the queues anew."""


class Answers:
    """Answers for one consumer."""

    def __init__(self, consumer: Resettable) -> None:
        self._consumer = consumer
        self._member = consumer.member

    def register(self) -> None:
        """Answer from now on; the session forgets it with the group."""
        session, group = self._member.calls.session, self._member.group
        session.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.members_changed, group)
        session.on(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self.reset, group)
        session.on(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.status, group)
        session.on(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, group)
        session.on(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume, group)

    def members_changed(self, _: Asked) -> None:
        """40: divide the queues anew."""
        self._consumer.divide_soon()

    async def reset(self, asked: Asked) -> None:
        """220: some queues go on elsewhere, which may be before where they are."""
        table = body_of(asked.command, ResetOffsets).offset_table
        resets = []
        for key, queue_offset in table.items():
            assigned = self._member.queues.get(Queue(key.topic, key.broker_name, key.queue_id))
            if assigned is not None:
                resets.append(self._consumer.reset(assigned, queue_offset))
        await asyncio.gather(*resets)
        self._consumer.divide_soon()

    def status(self, asked: Asked) -> Response:
        """221: where the consumer is in the queues of a topic."""
        topic = asked.command.ext.get("topic", "")
        member = self._member
        for assigned in member.queues.values():
            member.note_progress(assigned)
        found = {MessageQueue(*queue): at for queue, at in member.offsets.of_topic(topic).items()}
        return Response(body=fastjson.dumps(ConsumerStatus(found)))

    def running_info(self, asked: Asked) -> Response:
        """307: how the consumer is set, what it wants and what it has."""
        member = self._member
        settings = {
            "PROP_CONSUMEORDERLY": str(member.is_ordered).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(
                max((one.concurrency for one in member.registrations.values()), default=0)
            ),
            "maxReconsumeTimes": str(member.reconsume_times_max),
            PAUSED: str(member.is_paused).lower(),
        }
        queues = member.queues.values()
        for assigned in queues:
            member.note_progress(assigned)
        started_ms = self._consumer.started_ms
        return running_info(member, CONSUME_PASSIVELY, started_ms, settings, queues, asked)

    async def consume(self, asked: Asked) -> Response:
        """309: have the handler consume a message, whatever becomes of it."""
        member = self._member
        session = member.calls.session
        view = decode_record(asked.command.body)
        broker = asked.command.ext.get("brokerName") or ""
        message = Message.received(view, broker, session.namespace)
        registration = member.registrations.get(session.topic(message.topic))
        if registration is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"group {member.group!r} of this client does not consume topic {message.topic!r}",
            )
        began = asyncio.get_running_loop().time()
        failure = await registration.handle([message])
        spent_ms = int((asyncio.get_running_loop().time() - began) * 1000)
        return Response(body=fastjson.dumps(self._result(failure, spent_ms)))

    def _result(self, failure: Failure | None, spent_ms: int) -> DirectResult:
        if failure is None:
            return DirectResult(self._member.is_ordered, "CR_SUCCESS", None, spent_ms)
        why = f"{type(failure.error).__name__}: {failure.error}"
        return DirectResult(self._member.is_ordered, "CR_THROW_EXCEPTION", why, spent_ms)
