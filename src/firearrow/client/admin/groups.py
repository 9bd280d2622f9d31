"""Administration of consumer groups and their clients, on one broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from firearrow.client.admin.calls import Calls
from firearrow.client.session.answers import read_number
from firearrow.wire import fastjson, headers
from firearrow.wire.admin_bodies import GroupReadable, GroupSubscription, ProducerTable
from firearrow.wire.bodies import TopicList
from firearrow.wire.client_bodies import (
    ConsumerConnection,
    ConsumerIdList,
    ConsumerRunningInfo,
    GroupConfigList,
    ProducerConnection,
    RequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from firearrow.wire.codes import RequestCode as Code

PAGE_GROUPS: Final = 2000  # of one answer, as upstream's tools ask for them


class Groups:
    """Consumer groups and clients; an address is that of a broker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, address: str, group: SubscriptionGroupConfig) -> None:
        """Make a group, or change it; of its attributes each is ``+name`` to set or ``-name``."""
        body = fastjson.dumps(group)
        about = f"group {group.group_name!r}"
        code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._calls.call(address, code, body=body, about=about)

    async def create_all(self, address: str, groups: Sequence[SubscriptionGroupConfig]) -> None:
        """Make or change many groups in one request."""
        body = fastjson.dumps(GroupConfigList(list(groups)))
        code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        await self._calls.call(address, code, body=body, about=f"{len(groups)} groups")

    async def delete(self, address: str, group: str, *, clean_offset: bool = False) -> None:
        """Delete a group, and if asked for what it has consumed."""
        header = headers.DeleteSubscriptionGroup(group, clean_offset)
        about = f"group {group!r}"
        await self._calls.call(address, Code.DELETE_SUBSCRIPTIONGROUP, header, about=about)

    async def config(self, address: str, group: str) -> SubscriptionGroupConfig:
        """Give a broker's configuration of a group. Raises GroupNotFound if it has none and makes none
        automatically."""
        header = headers.GetSubscriptionGroup(group)
        return await self._calls.read(
            address, Code.GET_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupConfig, header, about=f"group {group!r}"
        )

    async def configs(self, address: str) -> SubscriptionGroupTable:
        """Give a broker's configurations of all groups, page by page; again if they change meanwhile."""
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
        """The pops of a group that wait for messages of any queue of a topic."""
        header = headers.PollingInfo(group, topic, -1)
        about = f"group {group!r}, topic {topic!r}"
        answer = await self._calls.call(address, Code.POLLING_INFO, header, about=about)
        return read_number(answer, "pollingNum", address)

    async def topics(self, address: str, group: str) -> list[str]:
        """The topics that a group has consumed."""
        header = headers.TopicsOfGroup(group)
        found = await self._calls.read(
            address, Code.QUERY_TOPICS_BY_CONSUMER, TopicList, header, about=f"group {group!r}"
        )
        return found.topic_list

    async def subscription(self, address: str, group: str, topic: str) -> GroupSubscription:
        """Give the present subscription of a group to a topic."""
        header = headers.GroupAndTopic(group, topic)
        return await self._calls.read(
            address,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
            GroupSubscription,
            header,
            about=f"group {group!r}, topic {topic!r}",
        )

    async def set_mode(self, address: str, group: str, topic: str, mode: Literal["PULL", "POP"], shared: int) -> None:
        """Have a group pull a topic, or pop it with each queue shared by so many more clients."""
        body = fastjson.dumps(RequestMode(group, mode, shared, topic))
        about = f"group {group!r}, topic {topic!r}"
        await self._calls.call(address, Code.SET_MESSAGE_REQUEST_MODE, body=body, about=about)

    async def readable(self, address: str, group: str, topic: str, change: bool | None = None) -> bool:
        """Tell whether a group may read a topic, after the change if one is asked for."""
        header = headers.ForbidGroup(group, topic, change)
        found = await self._calls.read(
            address,
            Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
            GroupReadable,
            header,
            about=f"group {group!r}, topic {topic!r}",
        )
        return found.readable

    async def client_ids(self, address: str, group: str) -> list[str]:
        """The ids of a group's clients."""
        header = headers.ConsumerGroupHeader(group)
        found = await self._calls.read(
            address, Code.GET_CONSUMER_LIST_BY_GROUP, ConsumerIdList, header, about=f"group {group!r}"
        )
        return found.consumer_id_list

    async def consumers(self, address: str, group: str, *, with_changes: bool = False) -> ConsumerConnection:
        """The clients of a consumer group and what they subscribe to.

        ``with_changes``: and who joined and left lately, as far as the broker knows; RocketMQ's
        brokers don't. Then a group without clients is no error.
        """
        header = headers.ConsumersOfGroup(group, with_changes or None)
        return await self._calls.read(
            address, Code.GET_CONSUMER_CONNECTION_LIST, ConsumerConnection, header, about=f"group {group!r}"
        )

    async def producers(self, address: str, group: str) -> ProducerConnection:
        """The clients of a producer group."""
        header = headers.ProducerGroupHeader(group)
        return await self._calls.read(
            address, Code.GET_PRODUCER_CONNECTION_LIST, ProducerConnection, header, about=f"producer group {group!r}"
        )

    async def all_producers(self, address: str) -> ProducerTable:
        """The clients of all producer groups."""
        return await self._calls.read(address, Code.GET_ALL_PRODUCER_INFO, ProducerTable)

    async def running_info(
        self, address: str, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Give a consumer's report about itself, with the stacks of its threads if requested."""
        header = headers.AskConsumer(group, client_id, stacks)
        return await self._calls.read(
            address,
            Code.GET_CONSUMER_RUNNING_INFO,
            ConsumerRunningInfo,
            header,
            about=f"group {group!r}, client {client_id!r}",
        )
