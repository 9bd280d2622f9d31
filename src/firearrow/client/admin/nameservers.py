"""Administration of name servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.client.admin.calls import Calls
from firearrow.client.session.answers import read_number
from firearrow.config import properties
from firearrow.wire import headers
from firearrow.wire.bodies import ClusterInfo, KVTable
from firearrow.wire.codes import RequestCode as Code

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Of the queues of topics with an order, by broker."""


class NameServers:
    """The name servers of a cluster. What is changed is changed on each of them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @property
    def addresses(self) -> tuple[str, ...]:
        """Their addresses."""
        return self._calls.name_servers

    async def cluster(self) -> ClusterInfo:
        """All brokers that are registered, by name, and the names in each cluster."""
        return await self._calls.read_any(Code.GET_BROKER_CLUSTER_INFO, ClusterInfo)

    async def cluster_at(self, address: str) -> ClusterInfo:
        """The same, as one name server knows it."""
        return await self._calls.read(address, Code.GET_BROKER_CLUSTER_INFO, ClusterInfo)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key in a namespace."""
        header = headers.KvHeader(namespace, key, value)
        for address in self.addresses:
            await self._calls.call(address, Code.PUT_KV_CONFIG, header, about=f"key {key!r}")

    async def value(self, namespace: str, key: str) -> str:
        """The value of a key in a namespace; NotFound if it has none."""
        header = headers.KvHeader(namespace, key)
        answer = await self._calls.ask(Code.GET_KV_CONFIG, header, about=f"key {key!r}")
        return str(answer.ext.get("value", ""))

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key in a namespace."""
        header = headers.KvHeader(namespace, key)
        for address in self.addresses:
            await self._calls.call(address, Code.DELETE_KV_CONFIG, header, about=f"key {key!r}")

    async def pairs(self, namespace: str) -> dict[str, str]:
        """The keys of a namespace with their values."""
        header = headers.KvNamespace(namespace)
        about = f"namespace {namespace!r}"
        found = await self._calls.read_any(Code.GET_KVLIST_BY_NAMESPACE, KVTable, header, about=about)
        return found.table

    async def config(self, address: str) -> dict[str, str]:
        """The configuration of a name server as it is in effect."""
        answer = await self._calls.call(address, Code.GET_NAMESRV_CONFIG)
        return properties.loads(answer.body.decode())

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration of a name server."""
        body = properties.dumps(changes).encode()
        about = f"keys {', '.join(changes)}"
        await self._calls.call(address, Code.UPDATE_NAMESRV_CONFIG, body=body, about=about)

    async def wipe_write_perm(self, address: str, broker: str) -> int:
        """Have no one route to a broker who wants to send; gives of how many topics."""
        header = headers.BrokerNameHeader(broker)
        about = f"broker {broker!r}"
        answer = await self._calls.call(address, Code.WIPE_WRITE_PERM_OF_BROKER, header, about=about)
        return read_number(answer, "wipeTopicCount", address)

    async def add_write_perm(self, address: str, broker: str) -> int:
        """Have senders routed to a broker again; gives of how many topics."""
        header = headers.BrokerNameHeader(broker)
        about = f"broker {broker!r}"
        answer = await self._calls.call(address, Code.ADD_WRITE_PERM_OF_BROKER, header, about=about)
        return read_number(answer, "addTopicCount", address)
