"""Administration of consumer groups, their clients and their offsets, on one broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from firearrow.client.admin.calls import ANY_QUEUE, Part
from firearrow.wire import fastjson, headers
from firearrow.wire.admin_bodies import (
    AllConsumeStats,
    CorrectionOffsets,
    GroupReadable,
    GroupSubscription,
    ProducerTable,
    QueueTimeSpan,
    QueueTimeSpans,
)
from firearrow.wire.bodies import TopicList
from firearrow.wire.client_bodies import (
    ConsumerConnection,
    ConsumerIdList,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeStats,
    GroupConfigList,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    RequestMode,
    ResetOffsets,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from firearrow.wire.codes import RequestCode as Code

PAGE_GROUPS: Final = 2000  # in one answer, as in RocketMQ's tools
PROGRESS_SECONDS: Final = 15.0  # for all topics of a group a broker needs longer


class Groups(Part):
    """Consumer groups and clients."""

    async def create(self, address: str, group: SubscriptionGroupConfig) -> None:
        """Create a group, or change it; a name among its attributes is ``+name`` to set one or ``-name`` to drop it."""
        code, about = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, f"group {group.group_name!r}"
        await self._calls.call(address, code, body=fastjson.dumps(group), about=about)

    async def create_all(self, address: str, groups: Sequence[SubscriptionGroupConfig]) -> None:
        """Create or change many groups in one request."""
        code, body = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, fastjson.dumps(GroupConfigList(list(groups)))
        await self._calls.call(address, code, body=body, about=f"{len(groups)} groups")

    async def delete(self, address: str, group: str, *, clean_offset: bool = False) -> None:
        """Delete a group, with ``clean_offset`` also its offsets."""
        header = headers.DeleteSubscriptionGroup(group, clean_offset)
        await self._calls.call(address, Code.DELETE_SUBSCRIPTIONGROUP, header)

    async def config(self, address: str, group: str) -> SubscriptionGroupConfig:
        """Give a broker's configuration of a group.

        Raises GroupNotFound if the broker has none and creates none automatically.
        """
        code, header = Code.GET_SUBSCRIPTIONGROUP_CONFIG, headers.GetSubscriptionGroup(group)
        return await self._calls.read(address, code, SubscriptionGroupConfig, header)

    async def configs(self, address: str) -> SubscriptionGroupTable:
        """Give a broker's configurations of all groups, page by page; start again if they change meanwhile."""
        pages = await self._calls.pages(
            address,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            SubscriptionGroupTable,
            lambda first, version: headers.GetAllSubscriptionGroup(first, PAGE_GROUPS, version),
            lambda page: page.subscription_group_table,
            "totalGroupNum",
        )
        found: dict[str, SubscriptionGroupConfig] = {}
        forbidden: dict[str, dict[str, int]] = {}
        for page in pages:
            found.update(page.subscription_group_table)
            forbidden.update(page.forbidden_table)
        return SubscriptionGroupTable(pages[-1].data_version, found, forbidden)

    async def pops_waiting(self, address: str, group: str, topic: str) -> int:
        """Count the pops of a group that wait for messages of any queue of a topic."""
        return await self._calls.number(
            address, Code.POLLING_INFO, "pollingNum", headers.PollingInfo(group, topic, ANY_QUEUE)
        )

    async def topics(self, address: str, group: str) -> list[str]:
        """List the topics that a group has consumed."""
        header = headers.TopicsOfGroup(group)
        return (await self._calls.read(address, Code.QUERY_TOPICS_BY_CONSUMER, TopicList, header)).topic_list

    async def subscription(self, address: str, group: str, topic: str) -> GroupSubscription:
        """Give the present subscription of a group to a topic."""
        header = headers.GroupAndTopic(group, topic)
        return await self._calls.read(address, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupSubscription, header)

    async def set_mode(self, address: str, group: str, topic: str, mode: Literal["PULL", "POP"], shared: int) -> None:
        """Make a group pull a topic, or pop it where ``shared`` more clients share each queue."""
        body = fastjson.dumps(RequestMode(group, mode, shared, topic))
        about = f"group {group!r}, topic {topic!r}"
        await self._calls.call(address, Code.SET_MESSAGE_REQUEST_MODE, body=body, about=about)

    async def readable(self, address: str, group: str, topic: str, change: bool | None = None) -> bool:
        """Tell whether a group may read a topic, after ``change`` if it is not None."""
        header = headers.ForbidGroup(group, topic, change)
        return (await self._calls.read(address, Code.UPDATE_AND_GET_GROUP_FORBIDDEN, GroupReadable, header)).readable

    async def client_ids(self, address: str, group: str) -> list[str]:
        """List the ids of a group's clients."""
        code, header = Code.GET_CONSUMER_LIST_BY_GROUP, headers.ConsumerGroupHeader(group)
        return (await self._calls.read(address, code, ConsumerIdList, header)).consumer_id_list

    async def consumers(self, address: str, group: str, *, with_changes: bool = False) -> ConsumerConnection:
        """Give the clients of a consumer group and their subscriptions.

        ``with_changes`` adds the clients that joined and left lately, which RocketMQ's brokers do not record. Then a
        group without clients is no error.
        """
        code, header = Code.GET_CONSUMER_CONNECTION_LIST, headers.ConsumersOfGroup(group, with_changes or None)
        return await self._calls.read(address, code, ConsumerConnection, header)

    async def producers(self, address: str, group: str) -> ProducerConnection:
        """Give the clients of a producer group."""
        code, header = Code.GET_PRODUCER_CONNECTION_LIST, headers.ProducerGroupHeader(group)
        return await self._calls.read(address, code, ProducerConnection, header)

    async def all_producers(self, address: str) -> ProducerTable:
        """Give the clients of all producer groups."""
        return await self._calls.read(address, Code.GET_ALL_PRODUCER_INFO, ProducerTable)

    async def running_info(
        self, address: str, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Give a consumer's report about itself, with the stacks of its threads if requested."""
        header = headers.AskConsumer(group, client_id, stacks)
        return await self._calls.read(address, Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfo, header)


class Offsets(Part):
    """Offsets of groups, and first and last offsets of queues."""

    async def progress(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Give the progress of a group, in one topic or in all."""
        code, header = Code.GET_CONSUME_STATS, headers.GetConsumeStats(group, topic)
        return await self._calls.read(address, code, ConsumeStats, header, seconds=PROGRESS_SECONDS)

    async def all_progress(self, address: str, *, ordered: bool, seconds: float) -> AllConsumeStats[ConsumeStats]:
        """Give the progress of all groups, in all topics or in ordered ones."""
        code, kind = Code.GET_BROKER_CONSUME_STATS, AllConsumeStats[ConsumeStats]
        return await self._calls.read(address, code, kind, headers.AllProgress(ordered), seconds=seconds)

    async def positions(self, address: str, seconds: float) -> list[tuple[str, MessageQueue, OffsetWrapper]]:
        """Give the position of each group in each of its queues."""
        return [
            (group, queue, at)
            for groups in (await self.all_progress(address, ordered=False, seconds=seconds)).consume_stats_list
            for group, parts in groups.items()
            for stats in parts
            for queue, at in stats.offset_table.items()
        ]

    async def commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group in a queue."""
        header = headers.UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
        await self._calls.call(address, Code.UPDATE_CONSUMER_OFFSET, header)

    async def reset(
        self, address: str, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        """Reset the offsets of a group to a time, -1 for the end; without ``force`` only back.

        Gives the new offsets. The broker notifies connected consumers.
        """
        return await self._reset(address, headers.ResetOffset(group, topic, timestamp_ms, offset=-1, is_force=force))

    async def reset_queue(
        self, address: str, group: str, topic: str, queue_id: int, offset: int
    ) -> dict[MessageQueue, int]:
        """Reset the offset of a group in one queue. The broker notifies connected consumers."""
        return await self._reset(address, headers.ResetOffset(group, topic, 0, queue_id, offset))

    async def _reset(self, address: str, header: headers.ResetOffset) -> dict[MessageQueue, int]:
        return (await self._calls.read(address, Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsets, header)).offset_table

    async def clone(self, address: str, group: str, to: str, topic: str = "", *, offline: bool = False) -> None:
        """Copy the offsets of a group to another, in one topic or in all."""
        await self._calls.call(address, Code.CLONE_GROUP_OFFSET, headers.CloneGroupOffset(group, to, topic, offline))

    async def at_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Give the offset of a queue's first message that is stored at a time or later."""
        header = headers.SearchOffset(queue.topic, queue.queue_id, timestamp_ms)
        return await self._calls.number(address, Code.SEARCH_OFFSET_BY_TIMESTAMP, "offset", header)

    async def latest(self, address: str, queue: MessageQueue) -> int:
        """Give the offset behind a queue's last message."""
        return await self._of_queue(address, Code.GET_MAX_OFFSET, "offset", queue)

    async def earliest(self, address: str, queue: MessageQueue) -> int:
        """Give the offset of a queue's first message."""
        return await self._of_queue(address, Code.GET_MIN_OFFSET, "offset", queue)

    async def earliest_ms(self, address: str, queue: MessageQueue) -> int:
        """Give the store time of a queue's first message, in ms; -1 if it has none."""
        return await self._of_queue(address, Code.GET_EARLIEST_MSG_STORETIME, "timestamp", queue)

    async def _of_queue(self, address: str, code: Code, name: str, queue: MessageQueue) -> int:
        return await self._calls.number(address, code, name, headers.QueueHeader(queue.topic, queue.queue_id))

    async def time_spans(self, address: str, group: str, topic: str) -> list[QueueTimeSpan]:
        """Give the store times of each queue's messages: the first, the last, the last consumed one."""
        code, header = Code.QUERY_CONSUME_TIME_SPAN, headers.GroupAndTopic(group, topic)
        return (await self._calls.read(address, code, QueueTimeSpans, header)).consume_time_span_set

    async def corrections(self, address: str, topic: str, group: str) -> dict[int, int]:
        """Give the offset in each queue that a group would have at the position of the slowest group."""
        code, header = Code.QUERY_CORRECTION_OFFSET, headers.CorrectionOffset(topic, group)
        return (await self._calls.read(address, code, CorrectionOffsets, header)).correction_offsets

    async def of_consumers(
        self, address: str, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Give the offsets that the consumers of a group report, by client."""
        code, header = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.ConsumerStatusHeader(topic, group, client_id)
        return (await self._calls.read(address, code, ConsumerStatus, header)).consumer_table
