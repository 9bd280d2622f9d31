"""Administration of topics: on one broker, or in the name servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from firearrow.client.admin.calls import Part
from firearrow.client.session.answers import usable_route
from firearrow.errors import TopicNotFound
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.wire import fastjson, headers
from firearrow.wire.bodies import QueueData, Route, TopicConfig, TopicConfigTable, TopicList
from firearrow.wire.codes import RequestCode as Code

if TYPE_CHECKING:  # methods import the bodies of clients, which `topic list` does not need
    from firearrow.wire.client_bodies import TopicStats

PAGE_TOPICS: Final = 2000  # in one answer, as in RocketMQ's tools


class Topics(Part):
    """Topics of a cluster."""

    async def create(self, address: str, topic: TopicConfig) -> None:
        """Create a topic, or change it; a name among its attributes is ``+name`` to set one or ``-name`` to drop it."""
        header = headers.CreateTopic(
            topic.topic_name or "",
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
            AUTO_CREATE_TOPIC,
            topic.topic_filter_type,
            topic.topic_sys_flag,
            topic.order,
            changes_text(topic.attributes),
            None,
        )
        await self._calls.call(address, Code.UPDATE_AND_CREATE_TOPIC, header)

    async def create_all(self, address: str, topics: Sequence[TopicConfig]) -> None:
        """Create or change many topics in one request."""
        from firearrow.wire.client_bodies import TopicConfigList

        code, body = Code.UPDATE_AND_CREATE_TOPIC_LIST, fastjson.dumps(TopicConfigList(list(topics)))
        await self._calls.call(address, code, body=body, about=f"{len(topics)} topics")

    async def delete_from_broker(self, address: str, topic: str) -> None:
        """Delete a topic with its messages."""
        await self._calls.call(address, Code.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic))

    async def delete_from_name_server(self, address: str, topic: str, cluster: str | None = None) -> None:
        """Delete the routes of a topic from the name server of this address, in one cluster or in all."""
        await self._calls.call(address, Code.DELETE_TOPIC_IN_NAMESRV, headers.TopicHeader(topic, cluster))

    async def route(self, topic: str) -> Route:
        """Give the route of a topic. Raises TopicNotFound if no broker has registered it."""
        try:
            found = await self._calls.read_any(Code.GET_ROUTEINFO_BY_TOPIC, Route, headers.RouteHeader(topic))
        except TopicNotFound as error:
            why = f"topic {topic!r} has no route: no broker has registered it"
            raise TopicNotFound(error.code, why, error.address) from None
        return usable_route(found, topic)

    async def delete_routes(self, address: str, topic: str, broker: str, cluster: str) -> None:
        """Delete the route of a topic to one broker from the name server of this address.

        No request does that. So the routes in the broker's cluster are deleted, and the others registered again.
        """
        found = await self.queues_at(address, topic)
        await self.delete_from_name_server(address, topic, cluster)
        if others := [queues for queues in found if queues.broker_name != broker]:
            body = fastjson.dumps(Route(others))
            await self._calls.call(address, Code.REGISTER_TOPIC_IN_NAMESRV, headers.TopicHeader(topic), body)

    async def queues_at(self, address: str, topic: str) -> list[QueueData]:
        """Give the queues of a topic on each broker, as the name server of this address knows them."""
        try:
            found = await self._calls.read(address, Code.GET_ROUTEINFO_BY_TOPIC, Route, headers.RouteHeader(topic))
        except TopicNotFound:
            return []
        return found.queue_datas

    async def names(self) -> list[str]:
        """List the names of all topics that a name server knows, in its order."""
        return (await self._calls.read_any(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, TopicList)).topic_list

    async def names_in_cluster(self, cluster: str) -> list[str]:
        """List the names of the topics of a cluster."""
        header = headers.ClusterHeader(cluster)
        return (await self._calls.read_any(Code.GET_TOPICS_BY_CLUSTER, TopicList, header)).topic_list

    async def system_names(self, address: str) -> list[str]:
        """List the names of a broker's system topics."""
        return (await self._calls.read(address, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, TopicList)).topic_list

    async def stats(self, address: str, topic: str) -> TopicStats:
        """Give the first and last offsets of a topic's queues."""
        from firearrow.wire.client_bodies import TopicStats

        return await self._calls.read(address, Code.GET_TOPIC_STATS_INFO, TopicStats, headers.TopicHeader(topic))

    async def config(self, address: str, topic: str) -> TopicConfig:
        """Give a broker's configuration of a topic. Raises TopicNotFound if it has none."""
        return await self._calls.read(address, Code.GET_TOPIC_CONFIG, TopicConfig, headers.TopicHeader(topic))

    async def configs(self, address: str) -> TopicConfigTable:
        """Give a broker's configurations of all topics, page by page; start again if they change meanwhile."""
        pages = await self._calls.pages(
            address,
            Code.GET_ALL_TOPIC_CONFIG,
            TopicConfigTable,
            lambda first, version: headers.GetAllTopicConfig(first, PAGE_TOPICS, version),
            lambda page: page.topic_config_table,
            "totalTopicNum",
        )
        found: dict[str, TopicConfig] = {}
        for page in pages:
            found.update(page.topic_config_table)
        return TopicConfigTable(pages[-1].data_version, found)

    async def groups(self, address: str, topic: str) -> list[str]:
        """List the groups that consume a topic or have consumed it."""
        from firearrow.wire.client_bodies import GroupList

        header = headers.TopicHeader(topic)
        return (await self._calls.read(address, Code.QUERY_TOPIC_CONSUME_BY_WHO, GroupList, header)).group_list


def changes_text(attributes: Mapping[str, str]) -> str:
    """Write changes of attributes as on the wire: ``+a=b,-c``."""
    return ",".join(f"{name}={value}" if value else name for name, value in attributes.items())
