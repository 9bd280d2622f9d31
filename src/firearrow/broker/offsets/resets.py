"""Resets (222): the offset at which a group goes on, and the notices to its consumers.

With ``useServerSideResetOffset`` off, which was RocketMQ's way before 5.0, the broker changes
nothing: each consumer that is online is sent the new offsets (220), drops what it has of these
queues and commits the offsets itself. So there has to be one.

Source: upstream ``Broker2Client#resetOffset``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ConsumerGroup
from firearrow.errors import BrokerError
from firearrow.net.server import Steps
from firearrow.store import Boundary, MessageStore
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import QueueOffset, ResetOffsetList
from firearrow.wire.client_bodies import MessageQueue, ResetOffsets
from firearrow.wire.codes import LanguageCode, RequestCode, ResponseCode
from firearrow.wire.command import request
from firearrow.wire.headers import ResetOffset

log = logging.getLogger(__name__)

VERSION_MIN: Final = 28
"""V3_0_7_SNAPSHOT: clients before it don't know what 220 is."""


def offset_at(store: MessageStore, topic: str, queue_id: int, time_ms: int) -> int:
    """Give the offset at which a group goes on in a queue that is reset to a store time; below 0: its end."""
    if time_ms < 0:
        return max(0, store.max_queue_offset(topic, queue_id))
    return max(0, store.search_offset(topic, queue_id, time_ms, Boundary.LOWER))


class ClientResets:
    """Has consumers go on elsewhere."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._offsets = context.offsets
        self._clients = context.clients
        self._store = context.store

    def reset(self, header: ResetOffset, language: str | int | None) -> Steps:
        """Tell the members of a group of their new offsets in a topic; answers these.

        Without ``isForce`` offsets only go back. Consumers in C++ are told by a list, which is what
        an administrator with a tool in C++ says that they are. All or none are told.
        """
        topic, group = header.topic, header.group
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}",
            )
        if not self._offsets.queues(group, topic):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the consumer group <{group}> not exist: it has no offset in topic {topic}"
            )
        starts: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            start = self._start(header, queue_id)
            if start is not None:
                starts[queue_id] = start
            yield
        members = self._members(header)
        broker_name = self._settings.broker.broker_name
        table = {MessageQueue(topic, broker_name, queue_id): at for queue_id, at in starts.items()}
        command = request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"topic": topic, "group": group, "timestamp": header.timestamp, "isForce": False, "queueId": -1},
            _body_for(language, table),
            oneway=True,
        )
        for channel in list(members.members):
            channel.push(command)
        log.info(
            "consumers of a group are told to reset their offsets",
            extra={"group": group, "topic": topic, "queue_offsets": starts},
        )
        return (yield from answer_in_steps(ResetOffsets(table)))

    def _start(self, header: ResetOffset, queue_id: int) -> int | None:
        """Give the offset at which the group goes on in a queue; None if it has not begun the queue and is not forced.

        Java: Broker2Client#resetOffset fails for the whole topic if a group, whose consumers have
        just come, has no offset yet in one of its queues.
        """
        start = offset_at(self._store, header.topic, queue_id, header.timestamp)
        if header.is_force:
            return start
        committed = self._offsets.query(header.group, header.topic, queue_id)
        return min(start, committed) if committed >= 0 else None

    def _members(self, header: ResetOffset) -> ConsumerGroup:
        """The group, if it has members and each of them can be told.

        Java: Broker2Client#resetOffset has told some when it finds one that can't.
        """
        found = self._clients.consumer_group(header.group)
        if found is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "Consumer not online, so can not reset offset, "
                f"Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        for member in found.members.values():
            if member.version < VERSION_MIN:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. client={member.client_id} version={member.version}",
                )
        return found


def _body_for(language: str | int | None, table: Mapping[MessageQueue, int]) -> bytes:
    if language not in (LanguageCode.CPP, LanguageCode.CPP.name):
        return fastjson.dumps(ResetOffsets(dict(table)))
    offsets = [QueueOffset(queue.topic, queue.broker_name, queue.queue_id, at) for queue, at in table.items()]
    return fastjson.dumps(ResetOffsetList(offsets))
