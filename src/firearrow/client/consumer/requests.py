"""Answer the requests of brokers to a push consumer.

They are: rebalance (40), reset offsets (220), offsets (221), running info (307), and consume one message (309).

Source: RocketMQ's ``ClientRemotingProcessor``, ``MQClientInstance#resetOffset``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Final, Protocol

from firearrow.client.consumer.handlers import Failure
from firearrow.client.consumer.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.client.queues import Queue
from firearrow.errors import BrokerError
from firearrow.message.record import decode_record
from firearrow.net.client import ServerRequest
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import (
    CONSUME_PASSIVELY,
    PAUSED,
    ConsumerRunningInfo,
    ConsumerStatus,
    DirectResult,
    MessageQueue,
    ProcessQueueInfo,
    ResetOffsets,
    body_of,
)
from firearrow.wire.codes import PROTOCOL_VERSION, RequestCode, ResponseCode, version_name
from firearrow.wire.command import Response

RESET_SECONDS_MAX: Final = 10.0  # for handlers of reset queues


class Resettable(Protocol):
    """Push consumer, for its requests."""

    member: Member
    started_ms: int

    async def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Continue a queue at an offset."""

    def divide_soon(self) -> None:
        """Rebalance soon."""


class ConsumerRequests:
    """Handlers of brokers' requests for one consumer."""

    def __init__(self, consumer: Resettable) -> None:
        self._consumer = consumer
        self._member = consumer.member

    def register(self) -> None:
        """Answer from now on; the session removes the handlers with the group."""
        session, group = self._member.calls.session, self._member.group
        session.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.members_changed, group)
        session.on(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self.reset, group)
        session.on(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.status, group)
        session.on(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, group)
        session.on(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume, group)

    def members_changed(self, _: ServerRequest) -> None:
        """Rebalance (40)."""
        self._consumer.divide_soon()

    async def reset(self, asked: ServerRequest) -> None:
        """Reset some queues to offsets, which may be earlier ones (220)."""
        table = body_of(asked.command, ResetOffsets).offset_table
        resets = []
        for key, queue_offset in table.items():
            assigned = self._member.queues.get(Queue(key.topic, key.broker_name, key.queue_id))
            if assigned is not None:
                resets.append(self._consumer.reset(assigned, queue_offset))
        await asyncio.gather(*resets)
        self._consumer.divide_soon()

    def status(self, asked: ServerRequest) -> Response:
        """Offsets of the consumer in the queues of a topic (221)."""
        topic = asked.command.ext.get("topic", "")
        member = self._member
        for assigned in member.queues.values():
            member.note_progress(assigned)
        found = {MessageQueue(*queue): at for queue, at in member.offsets.of_topic(topic).items()}
        return Response(body=fastjson.dumps(ConsumerStatus(found)))

    def running_info(self, asked: ServerRequest) -> Response:
        """Settings, subscriptions and queues of the consumer (307)."""
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

    async def consume(self, asked: ServerRequest) -> Response:
        """Call the handler with one message; its result changes no offset (309)."""
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


# --- running info (307): settings, subscriptions, queues and rates of a consumer ---
#
# Source: RocketMQ's ``MQClientInstance#consumerRunningInfo``, and the one of each kind of consumer.


MiB: Final = 1024 * 1024


def running_info(
    member: Member,
    consume_type: str,
    started_ms: int,
    settings: Mapping[str, str],
    queues: Iterable[AssignedQueue],
    asked: ServerRequest,
) -> Response:
    """Answer 307; ``settings`` belong to the kind of consumer."""
    session = member.calls.session
    all_settings = {
        "PROP_NAMESERVER_ADDR": ";".join(session.name_servers.addresses) + ";",
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CLIENT_VERSION": version_name(PROTOCOL_VERSION),
        "consumerGroup": member.group,
        "messageModel": "CLUSTERING" if member.is_clustering else "BROADCASTING",
        "consumeFromWhere": member.settings.start_from.value,
        **settings,
    }
    rates, topics = member.rates, sorted(member.subscriptions)
    now = asyncio.get_running_loop().time()
    wants_stacks = asked.command.ext.get("jstackEnable") == "true"
    ordered = sorted(queues, key=lambda one: one.queue)
    info = ConsumerRunningInfo(
        all_settings,
        list(member.subscriptions.values()),
        {MessageQueue(*one.queue): _of_queue(member, one, now) for one in ordered},
        status_table={} if rates is None else {it: rates.status(it, now) for it in topics},
        jstack=stacks_text() if wants_stacks else None,
    )
    return Response(body=fastjson.dumps(info))


def _of_queue(member: Member, assigned: AssignedQueue, now: float) -> ProcessQueueInfo:
    cache = assigned.cache
    now_ms = member.calls.session.clock.now_ms()
    first = cache.first_offset
    return ProcessQueueInfo(
        commit_offset=member.offsets.get(assigned.queue),
        cached_msg_min_offset=first or 0,
        cached_msg_max_offset=0 if first is None else cache.next_offset - 1,
        cached_msg_count=len(cache),
        cached_msg_size_in_mib=cache.bytes // MiB,
        locked=assigned.is_locked,
        droped=assigned.is_dropped,
        last_lock_timestamp=now_ms - int((now - assigned.last_lock) * 1000),
        last_pull_timestamp=now_ms - int((now - assigned.last_pull) * 1000),
        last_consume_timestamp=now_ms - int((now - assigned.last_consumed) * 1000),
    )


# Stacks of all threads and tasks of a process as text, which RocketMQ's tools call a jstack.
#
# Source: RocketMQ's ``UtilAll#jstack``.


def stacks_text() -> str:
    """Stacks of all threads and of all tasks of the running loop, the innermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        _stack_text(names.get(ident) or f"thread {ident}", f"TID: {ident}", _frames_of(frame))
        for ident, frame in sys._current_frames().items()
    ]
    parts += [
        _stack_text(task.get_name(), "TASK", reversed(_frames_of_task(task)))
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    ]
    return "\n".join(parts)


def _frames_of(frame: FrameType) -> list[FrameType]:
    return [one for one, _ in traceback.walk_stack(frame)]


def _frames_of_task(task: asyncio.Task[Any]) -> list[FrameType]:
    """Frames of a coroutine and of the coroutines that it awaits; ``Task.get_stack`` gives only the first."""
    found: list[FrameType] = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.append(frame)
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _stack_text(name: str, what: str, frames: Iterable[FrameType]) -> str:
    lines = [
        f"{name:<40}{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})\n" for frame in frames
    ]
    return f"{name:<40}{what}\n{''.join(lines)}"
