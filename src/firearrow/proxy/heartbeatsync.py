"""Members of consumer groups, told to RocketMQ's proxies in the same cluster and learnt from them.

RocketMQ's proxies do not register their clients at brokers. Each sends its consumers' heartbeats to a topic of the
cluster (``heartbeatSyncerTopicName``), and all proxies read it. This proxy does the same, so that remoting consumers
behind either kind of proxy divide the queues of a group among all of them. Other proxies of Firearrow do not need the
messages: brokers know all of their clients. So nothing happens before the topic exists, which the first of RocketMQ's
proxies creates.

Source: RocketMQ's ``HeartbeatSyncer``, ``HeartbeatSyncerData``, ``RemoteChannelSerializer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from firearrow.client.producer.producer import Producer
from firearrow.client.pull.pullconsumer import PullConsumer
from firearrow.client.session.session import Session
from firearrow.clock import Clock
from firearrow.errors import FirearrowError, MessageError, TopicNotFound
from firearrow.logs import Log
from firearrow.net.access import Access
from firearrow.net.tasks import Tasks
from firearrow.proxy.config import ProxyConfig
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerData

log: Final = Log(__name__)

LOOK_SECONDS: Final = 10.0
"""Pause between looks for the topic, and for new queues of it."""
MEMBERS_MAX: Final = 100_000
STOP_SECONDS_MAX: Final = 2.0

_REGISTER: Final = "REGISTER"
_UNREGISTER: Final = "UNREGISTER"
_SENDER: Final = "sender"
_OWN: Final = "firearrow"


class LocalMember(NamedTuple):
    """A remoting consumer of this proxy; both addresses are ``host:port``."""

    client_id: str
    language: str
    version: int
    address: str
    proxy: str


class HeartbeatSync:
    """Sends heartbeats to other proxies, and knows the members that they have sent. ``changed`` gets a group whose
    members have changed.
    """

    def __init__(self, config: ProxyConfig, access: Access, clock: Clock, changed: Callable[[str], None]) -> None:
        self._config = config
        self._access = access
        self._clock = clock
        self._changed = changed
        self._topic = config.heartbeat_syncer_topic_name
        self._expires_seconds = config.channel_expired_timeout / 1000
        self._tasks = Tasks()
        self._sends = Tasks()
        self._has_begun = False
        self._producer: Producer | None = None
        self._members: dict[tuple[str, str], float] = {}  # group and client id, with the time of expiry

    def start(self) -> None:
        """Begin to look for the topic, unless that has begun."""
        if not self._has_begun:
            self._has_begun = True
            self._tasks.every(LOOK_SECONDS, self._look, "members of other proxies", first_seconds=0)

    async def stop(self) -> None:
        """End; messages that leave now have some seconds."""
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._sends.settled()
        except TimeoutError:
            log.warning("other proxies are not told of all consumers that have left")
        await self._sends.close()
        await self._tasks.close()

    def members(self, group: str) -> list[str]:
        """Return the client ids of a group's members behind other proxies."""
        now = self._clock.monotonic()
        return [client_id for (name, client_id), expires in self._members.items() if name == group and expires > now]

    def joined(self, member: LocalMember, data: ConsumerData) -> None:
        """Tell other proxies that a member is alive."""
        more = {
            "consumeType": data.consume_type,
            "messageModel": data.message_model,
            "consumeFromWhere": data.consume_from_where,
            "subscriptionDataSet": data.subscription_data_set,
        }
        self._tell(_REGISTER, member, data, more)

    def left(self, member: LocalMember, data: ConsumerData) -> None:
        """Tell other proxies that a member has left its group."""
        self._tell(_UNREGISTER, member, data, {})

    def _tell(self, kind: str, member: LocalMember, data: ConsumerData, more: Mapping[str, Any]) -> None:
        if self._producer is None:
            return
        host = member.proxy.rpartition(":")[0]
        channel = {
            "remoteProxyIp": host,
            "remoteAddress": member.address,
            "localAddress": member.proxy,
            "type": "REMOTING",
            "extendAttribute": fastjson.dumps(data.subscription_data_set).decode(),
        }
        body = {
            "heartbeatType": kind,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
            "lastUpdateTimestamp": self._clock.now_ms(),
            "group": data.group_name,
            "localProxyId": f"{host}%{self._config.remoting_listen_port}%{self._config.grpc_server_port}",
            "channelData": fastjson.dumps(channel).decode(),
            _SENDER: _OWN,
            **more,
        }
        self._sends.begin(self._send(self._producer, fastjson.dumps(body)), "heartbeat for other proxies")

    async def _send(self, producer: Producer, body: bytes) -> None:
        try:
            await producer.send(self._topic, body)
        except (OSError, FirearrowError) as error:
            log.warning("other proxies are not told of a consumer", extra={"topic": self._topic, "error": error})

    # --- members of other proxies ---

    async def _look(self) -> None:
        """Read the topic while it exists."""
        access = self._access
        async with AsyncExitStack() as stack:
            session = Session(
                self._config.namesrv_addr, credentials=access.credentials, tls=access.tls or False, clock=self._clock
            )
            await stack.enter_async_context(session)
            try:
                await session.refresh(self._topic)
            except TopicNotFound:
                return
            producer = await stack.enter_async_context(Producer(session, group=f"PID_{self._topic}"))
            reader = PullConsumer(session, group=f"CID_{self._topic}_{_OWN}", auto_commit=False)
            await stack.enter_async_context(reader)
            self._producer = producer
            try:
                await self._read(reader)
            finally:
                self._producer = None

    async def _read(self, reader: PullConsumer) -> None:
        while True:
            known = set(reader.assigned)
            reader.assign(await reader.queues(self._topic))
            await reader.seek_to_end(*(set(reader.assigned) - known))
            until = self._clock.monotonic() + LOOK_SECONDS
            while (left := until - self._clock.monotonic()) > 0:
                for message in await reader.poll(left):
                    self._take(message.body)
            self._expire()

    def _take(self, body: bytes) -> None:
        """Take a heartbeat from another proxy; a malformed one is logged."""
        try:
            found = fastjson.loads(body)
            group, client_id, kind = found["group"], found["clientId"], found["heartbeatType"]
            if found.get(_SENDER) == _OWN:
                return
            key = str(group), str(client_id)
        except (MessageError, KeyError, TypeError, AttributeError) as error:
            log.warning("heartbeat of another proxy can't be read", extra={"topic": self._topic, "error": repr(error)})
            return
        is_known = key in self._members
        if kind == _UNREGISTER:
            self._members.pop(key, None)
        elif is_known or len(self._members) < MEMBERS_MAX:
            self._members[key] = self._clock.monotonic() + self._expires_seconds
        if is_known == (kind == _UNREGISTER):
            self._changed(key[0])

    def _expire(self) -> None:
        now = self._clock.monotonic()
        expired = [key for key, expires in self._members.items() if expires <= now]
        for key in expired:
            del self._members[key]
        for group in {group for group, _ in expired}:
            self._changed(group)
