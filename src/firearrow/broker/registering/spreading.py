"""Creation of a topic on all masters of the cluster, after a send has created it on one (`autoCreateTopicOnAll`).

RocketMQ creates it on the broker that received the send. Its clients then learn that the topic exists only there: all
its messages stay with one broker. Here that broker asks the name servers for the other masters, and creates it on those
that lack it. That happens after the answer to the send. A master that can't be reached creates the topic when it
receives a send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from firearrow.broker.access.control import access_of
from firearrow.broker.events import TopicMade
from firearrow.broker.registering.registration import addresses_of
from firearrow.broker.state.settings import Settings
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.logs import Log
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.net.access import OPEN, Access
from firearrow.net.address import first_answer
from firearrow.net.client import Client
from firearrow.net.tasks import SerialWorker
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID, ClusterInfo, TopicConfig
from firearrow.wire.codes import RequestCode

log: Final = Log(__name__)

WAITING_MAX: Final = 10_000
"""Limit of the topics that wait for their spreading; further ones are not created on other masters."""
CALL_SECONDS_MAX: Final = 3.0


def spreading_of(settings: Settings, address: str) -> Spreading:
    """Make the spreading of a broker that serves clients at an address."""
    config = settings.broker
    return Spreading(
        lambda: settings.broker.auto_create_topic_on_all,
        addresses_of(config.namesrv_addr),
        config.broker_cluster_name,
        address,
        access_of(config),
    )


class Spreading(SerialWorker[TopicConfig]):
    """Creates topics on other masters.

    ``is_wanted`` is called each time. ``name_servers``, the cluster's name and the own address determine the other
    masters. ``access`` is the access to them, with credentials and TLS.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        name_servers: Sequence[str],
        cluster: str,
        address: str,
        access: Access = OPEN,
    ) -> None:
        super().__init__("spreading of topics", WAITING_MAX)
        self._is_wanted = is_wanted
        self._name_servers = list(name_servers)
        self._cluster = cluster
        self._address = address
        self._client = Client(access=access)

    async def stop(self) -> None:
        """Cancel the creation in progress, and drop the others."""
        await super().stop()
        await self._client.close()

    def made(self, made: TopicMade) -> None:
        """Queue the creation of a topic on the other masters, if it is wanted."""
        if self._name_servers and self._is_wanted():
            self._add(made.config)

    async def _do(self, item: TopicConfig) -> None:
        try:
            others = await self._others()
        except (OSError, FirearrowError) as error:
            _say(item, error)
            return
        for address in others:
            try:
                await self._create(address, item)
            except (OSError, FirearrowError) as error:
                _say(item, error)

    async def _others(self) -> list[str]:
        """Return the other masters of the cluster."""
        info = await first_answer(self._name_servers, self._info)
        names = info.cluster_addr_table.get(self._cluster, [])
        brokers = (info.broker_addr_table[name] for name in names if name in info.broker_addr_table)
        masters = (broker.broker_addrs.get(MASTER_ID) for broker in brokers)
        return [address for address in masters if address and address != self._address]

    async def _info(self, name_server: str) -> ClusterInfo:
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answer = await self._client.call(name_server, code, timeout_seconds=CALL_SECONDS_MAX)
        return fastjson.decode(answer.body, ClusterInfo)

    async def _create(self, address: str, config: TopicConfig) -> None:
        """Create a topic on a master that lacks it; an existing one stays unchanged."""
        topic = {"topic": config.topic_name or ""}
        try:
            await self._client.call(address, RequestCode.GET_TOPIC_CONFIG, topic, timeout_seconds=CALL_SECONDS_MAX)
        except TopicNotFound:
            await self._client.call(
                address,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {
                    **topic,
                    "readQueueNums": config.read_queue_nums,
                    "writeQueueNums": config.write_queue_nums,
                    "perm": config.perm,
                    "defaultTopic": AUTO_CREATE_TOPIC,
                    "topicFilterType": config.topic_filter_type or "SINGLE_TAG",
                    "topicSysFlag": config.topic_sys_flag,
                    "order": config.order,
                },
                timeout_seconds=CALL_SECONDS_MAX,
            )


def _say(topic: TopicConfig, error: Exception) -> None:
    log.warning("topic is not created on all brokers", extra={"topic": topic.topic_name, "error": error})
