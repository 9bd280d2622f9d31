"""Administration of name servers: the registered brokers, and the keys in namespaces."""

from __future__ import annotations

from collections.abc import Mapping

from firearrow.client.admin.calls import Part
from firearrow.errors import NotFound
from firearrow.wire import headers
from firearrow.wire.bodies import ClusterInfo, KVTable
from firearrow.wire.codes import RequestCode as Code


class NameServerRequests(Part):
    """Name servers of a cluster. A change of a key is made on each of them."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Their addresses."""
        return self._calls.name_servers

    async def cluster_at(self, address: str) -> ClusterInfo:
        """Give the brokers that are registered at one name server."""
        return await self._calls.read(address, Code.GET_BROKER_CLUSTER_INFO, ClusterInfo)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key in a namespace."""
        for address in self.addresses:
            await self._calls.call(address, Code.PUT_KV_CONFIG, headers.KvHeader(namespace, key, value))

    async def value(self, namespace: str, key: str) -> str:
        """Give the value of a key in a namespace; NotFound if it has none."""
        answer = await self._calls.ask(Code.GET_KV_CONFIG, headers.KvHeader(namespace, key))
        return str(answer.ext.get("value", ""))

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key in a namespace."""
        for address in self.addresses:
            await self._calls.call(address, Code.DELETE_KV_CONFIG, headers.KvHeader(namespace, key))

    async def pairs(self, namespace: str) -> dict[str, str]:
        """Give the keys of a namespace with their values."""
        header = headers.KvNamespace(namespace)
        return (await self._calls.read_any(Code.GET_KVLIST_BY_NAMESPACE, KVTable, header)).table

    async def pairs_at(self, address: str, namespace: str) -> dict[str, str]:
        """Give the keys of a namespace with their values, as one name server knows them; none without the namespace."""
        header = headers.KvNamespace(namespace)
        try:
            return (await self._calls.read(address, Code.GET_KVLIST_BY_NAMESPACE, KVTable, header)).table
        except NotFound:
            return {}

    async def config(self, address: str) -> dict[str, str]:
        """Give the configuration of a name server that is in effect."""
        return await self._calls.config(address, Code.GET_NAMESRV_CONFIG)

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration of a name server."""
        await self._calls.update_config(address, Code.UPDATE_NAMESRV_CONFIG, changes)

    async def wipe_write_perm(self, address: str, broker: str) -> int:
        """Take the write permission of a broker's topics from their routes; gives the number of topics."""
        header = headers.BrokerNameHeader(broker)
        return await self._calls.number(address, Code.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount", header)

    async def add_write_perm(self, address: str, broker: str) -> int:
        """Give the write permission back to the routes of a broker's topics; gives the number of topics."""
        header = headers.BrokerNameHeader(broker)
        return await self._calls.number(address, Code.ADD_WRITE_PERM_OF_BROKER, "addTopicCount", header)
