"""Administration of lite topics, on one broker."""

from __future__ import annotations

from firearrow.client.admin.calls import Part
from firearrow.wire import headers
from firearrow.wire.admin_bodies import LiteBrokerInfo, LiteClientInfo, LiteGroupInfo, LiteParentInfo, LiteTopicInfo
from firearrow.wire.codes import RequestCode as Code


class Lite(Part):
    """Lite topics."""

    async def broker(self, address: str) -> LiteBrokerInfo:
        """Give the totals of a broker's lite topics."""
        return await self._calls.read(address, Code.GET_BROKER_LITE_INFO, LiteBrokerInfo)

    async def parent(self, address: str, topic: str) -> LiteParentInfo:
        """Give the totals of a parent topic."""
        return await self._calls.read(address, Code.GET_PARENT_TOPIC_INFO, LiteParentInfo, headers.LiteParent(topic))

    async def topic(self, address: str, parent: str, lite_topic: str) -> LiteTopicInfo:
        """Give the state of a lite topic, and its subscribers."""
        header = headers.LiteTopic(parent, lite_topic)
        return await self._calls.read(address, Code.GET_LITE_TOPIC_INFO, LiteTopicInfo, header)

    async def client(self, address: str, parent: str, group: str, client_id: str) -> LiteClientInfo:
        """Give the subscriptions of a client."""
        header = headers.LiteClient(parent, group, client_id)
        return await self._calls.read(address, Code.GET_LITE_CLIENT_INFO, LiteClientInfo, header)

    async def group(self, address: str, group: str, lite_topic: str | None = None, top: int = 0) -> LiteGroupInfo:
        """Give the lag of a group, in one lite topic or in the ``top`` worst."""
        header = headers.LiteGroup(group, lite_topic or "", top)
        return await self._calls.read(address, Code.GET_LITE_GROUP_INFO, LiteGroupInfo, header)

    async def dispatch(self, address: str, group: str, client_id: str | None = None) -> None:
        """Dispatch all lite topics that are ready to a group or to one of its clients."""
        await self._calls.call(address, Code.TRIGGER_LITE_DISPATCH, headers.LiteDispatch(group, client_id or ""))
