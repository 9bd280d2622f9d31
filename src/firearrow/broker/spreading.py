"""A topic that a send creates is created on all masters of the cluster (`autoCreateTopicOnAll`).

RocketMQ creates it on the broker that the send came to. Its clients then learn that the topic is
there, and nowhere else: all its messages stay with one broker. Here that broker asks the name
servers for the other masters, and has those create it that lack it. It is done behind the answer to
the send; a master that can't be asked creates the topic when a send comes to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from firearrow.broker.access import access_of
from firearrow.broker.events import TopicMade
from firearrow.broker.registration import addresses_of
from firearrow.broker.state.settings import Settings
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.services import Service
from firearrow.wire import fastjson
from firearrow.wire.bodies import ClusterInfo, TopicConfig
from firearrow.wire.codes import RequestCode

log = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Topics that are still to be spread; of further ones nothing is told to others."""
CALL_SECONDS_MAX: Final = 3.0
_MASTER: Final = 0


def spreading_of(settings: Settings, address: str) -> Spreading:
    """Make it for a broker that serves clients at an address."""
    config = settings.broker
    return Spreading(
        lambda: settings.broker.auto_create_topic_on_all,
        addresses_of(config.namesrv_addr),
        config.broker_cluster_name,
        address,
        access_of(config),
    )


class Spreading(Service):
    """Has other masters create topics.

    ``is_wanted`` is asked each time. ``name_servers``, the cluster's name and the own address say
    who the others are; ``access`` is how to get in there, and as whom.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        name_servers: Sequence[str],
        cluster: str,
        address: str,
        access: Access = OPEN,
    ) -> None:
        super().__init__("spreading of topics")
        self._is_wanted = is_wanted
        self._name_servers = name_servers
        self._cluster = cluster
        self._address = address
        self._client = Client(access=access)
        self._waiting: deque[TopicConfig] = deque()
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Ask no more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    def made(self, made: TopicMade) -> None:
        """Have the others create a topic soon, if that is wanted."""
        if self._name_servers and self._is_wanted() and len(self._waiting) < WAITING_MAX:
            self._waiting.append(made.config)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._spread())

    async def _spread(self) -> None:
        while self._waiting:
            config = self._waiting.popleft()
            try:
                for address in await self._others():
                    await self._create(address, config)
            except (OSError, FirearrowError) as error:
                log.warning(
                    "topic is not created on all brokers",
                    extra={"topic": config.topic_name, "error": error},
                )

    async def _others(self) -> list[str]:
        """The masters of the cluster but this one."""
        answer = await self._client.call(
            self._name_servers[0],
            RequestCode.GET_BROKER_CLUSTER_INFO,
            timeout_seconds=CALL_SECONDS_MAX,
        )
        info = fastjson.decode(answer.body, ClusterInfo)
        names = info.cluster_addr_table.get(self._cluster, [])
        brokers = (info.broker_addr_table[name] for name in names if name in info.broker_addr_table)
        masters = (broker.broker_addrs.get(_MASTER) for broker in brokers)
        return [address for address in masters if address and address != self._address]

    async def _create(self, address: str, config: TopicConfig) -> None:
        """Have a master create a topic that it lacks; one that it has stays as it is."""
        topic = {"topic": config.topic_name or ""}
        try:
            await self._client.call(
                address, RequestCode.GET_TOPIC_CONFIG, topic, timeout_seconds=CALL_SECONDS_MAX
            )
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
