"""Administration of groups' offsets and queues' ends, on one broker."""

from __future__ import annotations

from firearrow.client.admin.calls import Calls
from firearrow.client.session.answers import read_number
from firearrow.wire import headers
from firearrow.wire.admin_bodies import AllConsumeStats, CorrectionOffsets, QueueTimeSpan, QueueTimeSpans
from firearrow.wire.client_bodies import ConsumerStatus, ConsumeStats, MessageQueue, ResetOffsets
from firearrow.wire.codes import RequestCode as Code

PROGRESS_SECONDS = 15.0  # of all topics of a group, which takes a broker longer


class Offsets:
    """Offsets; an address is that of a broker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def progress(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Give the progress of a group, in one topic or in all."""
        about = f"group {group!r}" + (f", topic {topic!r}" if topic else "")
        header = headers.GetConsumeStats(group, topic)
        return await self._calls.read(
            address, Code.GET_CONSUME_STATS, ConsumeStats, header, about=about, seconds=PROGRESS_SECONDS
        )

    async def all_progress(self, address: str, *, ordered: bool, seconds: float) -> AllConsumeStats[ConsumeStats]:
        """Give the progress of all groups, in all topics or in ordered ones."""
        header = headers.AllProgress(ordered)
        code = Code.GET_BROKER_CONSUME_STATS
        kind = AllConsumeStats[ConsumeStats]
        return await self._calls.read(address, code, kind, header, seconds=seconds)

    async def commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Have a group go on at an offset of a queue."""
        header = headers.UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
        about = f"group {group!r}, {_named(queue)}"
        await self._calls.call(address, Code.UPDATE_CONSUMER_OFFSET, header, about=about)

    async def reset(
        self, address: str, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        """Have a group go on at a time, -1 for the end; without ``force`` only back.

        Gives where it goes on. Consumers that are there are told.
        """
        header = headers.ResetOffset(group, topic, timestamp_ms, offset=-1, is_force=force)
        return await self._reset(address, header)

    async def reset_queue(
        self, address: str, group: str, topic: str, queue_id: int, offset: int
    ) -> dict[MessageQueue, int]:
        """Have a group go on at an offset of one queue; consumers that are there are told."""
        header = headers.ResetOffset(group, topic, 0, queue_id, offset)
        return await self._reset(address, header)

    async def _reset(self, address: str, header: headers.ResetOffset) -> dict[MessageQueue, int]:
        about = f"group {header.group!r}, topic {header.topic!r}"
        code = Code.INVOKE_BROKER_TO_RESET_OFFSET
        found = await self._calls.read(address, code, ResetOffsets, header, about=about)
        return found.offset_table

    async def clone(self, address: str, group: str, to: str, topic: str = "", *, offline: bool = False) -> None:
        """Give a group another's offsets, in one topic or in all."""
        header = headers.CloneGroupOffset(group, to, topic, offline)
        about = f"groups {group!r} and {to!r}"
        await self._calls.call(address, Code.CLONE_GROUP_OFFSET, header, about=about)

    async def at_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of a queue's first message that is stored at a time or later."""
        header = headers.SearchOffset(queue.topic, queue.queue_id, timestamp_ms)
        return await self._number(address, Code.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)

    async def latest(self, address: str, queue: MessageQueue) -> int:
        """The offset behind a queue's last message."""
        header = headers.QueueHeader(queue.topic, queue.queue_id)
        return await self._number(address, Code.GET_MAX_OFFSET, header, queue)

    async def earliest(self, address: str, queue: MessageQueue) -> int:
        """The offset of a queue's first message."""
        header = headers.QueueHeader(queue.topic, queue.queue_id)
        return await self._number(address, Code.GET_MIN_OFFSET, header, queue)

    async def earliest_ms(self, address: str, queue: MessageQueue) -> int:
        """Give the store time of a queue's first message, in ms; -1 if it has none."""
        header = headers.QueueHeader(queue.topic, queue.queue_id)
        code = Code.GET_EARLIEST_MSG_STORETIME
        return await self._number(address, code, header, queue, "timestamp")

    async def _number(
        self, address: str, code: Code, header: headers.Header, queue: MessageQueue, name: str = "offset"
    ) -> int:
        answer = await self._calls.call(address, code, header, about=_named(queue))
        return read_number(answer, name, address)

    async def time_spans(self, address: str, group: str, topic: str) -> list[QueueTimeSpan]:
        """Give the store times of each queue's messages: the first, the last, the last consumed one."""
        header = headers.GroupAndTopic(group, topic)
        about = f"group {group!r}, topic {topic!r}"
        found = await self._calls.read(address, Code.QUERY_CONSUME_TIME_SPAN, QueueTimeSpans, header, about=about)
        return found.consume_time_span_set

    async def corrections(self, address: str, topic: str, group: str) -> dict[int, int]:
        """Give the offsets that a group would have in each queue if it were as far as the slowest group."""
        header = headers.CorrectionOffset(topic, group)
        about = f"group {group!r}, topic {topic!r}"
        found = await self._calls.read(address, Code.QUERY_CORRECTION_OFFSET, CorrectionOffsets, header, about=about)
        return found.correction_offsets

    async def of_consumers(
        self, address: str, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Give the offsets that the consumers of a group report, by client."""
        header = headers.ConsumerStatusHeader(topic, group, client_id)
        about = f"group {group!r}, topic {topic!r}"
        code = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        found = await self._calls.read(address, code, ConsumerStatus, header, about=about)
        return found.consumer_table


def _named(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker_name}"
