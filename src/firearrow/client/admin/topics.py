"""Administration of topics: on one broker, or in the name servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from firearrow.client.admin.calls import Calls
from firearrow.client.session.answers import usable_route
from firearrow.errors import TopicNotFound
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.wire import fastjson, headers
from firearrow.wire.bodies import Route, TopicConfig, TopicConfigTable, TopicList
from firearrow.wire.client_bodies import GroupList, TopicConfigList, TopicStats
from firearrow.wire.codes import RequestCode as Code

PAGE_TOPICS: Final = 2000  # of one answer, as upstream's tools ask for them


class Topics:
    """Topics of a cluster; an address is that of a broker unless it is said to be another."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, address: str, topic: TopicConfig) -> None:
        """Make a topic, or change it; of its attributes each is ``+name`` to set or ``-name``."""
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
        about = f"topic {topic.topic_name!r}"
        await self._calls.call(address, Code.UPDATE_AND_CREATE_TOPIC, header, about=about)

    async def create_all(self, address: str, topics: Sequence[TopicConfig]) -> None:
        """Make or change many topics in one request."""
        body = fastjson.dumps(TopicConfigList(list(topics)))
        about = f"{len(topics)} topics"
        await self._calls.call(address, Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body, about=about)

    async def delete_from_broker(self, address: str, topic: str) -> None:
        """Delete a topic with its messages."""
        header = headers.TopicHeader(topic)
        about = f"topic {topic!r}"
        await self._calls.call(address, Code.DELETE_TOPIC_IN_BROKER, header, about=about)

    async def delete_from_name_server(self, address: str, topic: str, cluster: str | None = None) -> None:
        """Have a name server forget the routes of a topic, in one cluster or in all."""
        header = headers.TopicHeader(topic, cluster)
        about = f"topic {topic!r}"
        await self._calls.call(address, Code.DELETE_TOPIC_IN_NAMESRV, header, about=about)

    async def route(self, topic: str) -> Route:
        """Give the route of a topic. Raises TopicNotFound if no broker has registered it."""
        about = f"topic {topic!r}"
        try:
            found = await self._calls.read_any(
                Code.GET_ROUTEINFO_BY_TOPIC, Route, headers.RouteHeader(topic), about=about
            )
        except TopicNotFound as error:
            why = f"topic {topic!r} has no route: no broker has registered it"
            raise TopicNotFound(error.code, why, error.address) from None
        return usable_route(found, topic)

    async def names(self) -> list[str]:
        """The names of all topics that name servers know, in their order."""
        found = await self._calls.read_any(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, TopicList)
        return found.topic_list

    async def names_in_cluster(self, cluster: str) -> list[str]:
        """The names of the topics of a cluster."""
        header = headers.ClusterHeader(cluster)
        about = f"cluster {cluster!r}"
        found = await self._calls.read_any(Code.GET_TOPICS_BY_CLUSTER, TopicList, header, about=about)
        return found.topic_list

    async def system_names(self, address: str) -> list[str]:
        """The names of the topics that a broker has for itself."""
        found = await self._calls.read(address, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, TopicList)
        return found.topic_list

    async def stats(self, address: str, topic: str) -> TopicStats:
        """The ends of a topic's queues."""
        header = headers.TopicHeader(topic)
        return await self._calls.read(address, Code.GET_TOPIC_STATS_INFO, TopicStats, header, about=f"topic {topic!r}")

    async def config(self, address: str, topic: str) -> TopicConfig:
        """Give a broker's configuration of a topic. Raises TopicNotFound if it has none."""
        header = headers.TopicHeader(topic)
        return await self._calls.read(address, Code.GET_TOPIC_CONFIG, TopicConfig, header, about=f"topic {topic!r}")

    async def configs(self, address: str) -> TopicConfigTable:
        """Give a broker's configurations of all topics, page by page; again if they change meanwhile."""
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
        """The groups that consume a topic, or have done so."""
        header = headers.TopicHeader(topic)
        found = await self._calls.read(
            address, Code.QUERY_TOPIC_CONSUME_BY_WHO, GroupList, header, about=f"topic {topic!r}"
        )
        return found.group_list


def changes_text(attributes: Mapping[str, str]) -> str:
    """Changes of attributes as they are on the wire: ``+a=b,-c``."""
    return ",".join(f"{name}={value}" if value else name for name, value in attributes.items())
