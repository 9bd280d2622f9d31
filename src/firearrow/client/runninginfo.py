"""Report of a consumer about itself (307): its settings, subscriptions, queues and rates.

Source: upstream ``MQClientInstance#consumerRunningInfo``, and that of each kind of consumer.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Final

from firearrow.client.member import AssignedQueue, Member
from firearrow.net.client import Asked
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerRunningInfo, MessageQueue, ProcessQueueInfo
from firearrow.wire.codes import PROTOCOL_VERSION, version_name
from firearrow.wire.command import Response

MiB: Final = 1024 * 1024


def running_info(
    member: Member,
    consume_type: str,
    started_ms: int,
    settings: Mapping[str, str],
    queues: Iterable[AssignedQueue],
    asked: Asked,
) -> Response:
    """Answer 307; ``settings`` are those that only consumers of its kind have."""
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


# Where all threads and tasks of a process are, as text: what RocketMQ's tools call a jstack.
#
# Source: upstream ``UtilAll#jstack``.


def stacks_text() -> str:
    """The stacks of all threads and of all tasks of the running loop, the innermost call first."""
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
    """A coroutine and those that it waits for, of which ``Task.get_stack`` gives only the first."""
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
