"""Remoting clients of a proxy in cluster mode. The proxy is their name server and all their brokers.

A route names the proxy in place of each broker. A request names its broker, and goes there unchanged by a connection
that belongs to the client: the broker checks the client's own signature, knows the client by its heartbeat, and sends
its requests to the client back the same way. So consumers of both protocols, behind any proxy or none, are in one list
of members. RocketMQ's proxy keeps that list itself, see `proxy.heartbeatsync`.

A request to a broker that is not connected yet follows the client's last heartbeat there. A one-way request is sent
with an answer, so that a broker that stops can refuse it, and another connection can take it.

Requests of administrators are refused: the proxy is no way around a firewall in front of the brokers.

Source: RocketMQ's ``RemotingProtocolServer``, ``AbstractRemotingActivity``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from firearrow.client.session.inbound import CODES
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.message import properties
from firearrow.net.access import Access
from firearrow.net.address import endpoint
from firearrow.net.replies import Reply, Running, run
from firearrow.net.server import ConnectionClosed, Handler, Peer, Server
from firearrow.proxy.brokers import Asked
from firearrow.proxy.cluster import BEAT_SECONDS_MAX, BROKERS_ASKED_MAX, ClusterBrokers, ClusterLink
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.heartbeatsync import HeartbeatSync, LocalMember
from firearrow.proxy.messages import Code
from firearrow.proxy.messagetypes import check_type
from firearrow.proxy.routes import topic_type
from firearrow.proxy.statuses import ProxyError
from firearrow.wire import fastjson
from firearrow.wire.bodies import Route, is_standard_json_wanted, route_body
from firearrow.wire.client_bodies import (
    AssignmentQuery,
    CheckClient,
    ConsumerData,
    ConsumerIdList,
    Heartbeat,
    LockRequest,
    body_of,
)
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.command import request as remoting_request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import RouteHeader

CALL_SECONDS: Final = 10.0  # a copy to a slave, or a write to a disk, may take five
WAIT_MS_MAX: Final = 300_000
QUESTION_SECONDS: Final = 10.0
REQUEST_BYTES: Final = 1024  # of a pending request, besides its body

_BROKER: Final = "bname"
_NAMED_BY_LETTER: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_FORWARDED: Final = (
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
_WAITS: Final = ("suspendTimeoutMillis", "pollTime")
_CODES: Final = {
    Code.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Code.UNAUTHORIZED: ResponseCode.NO_PERMISSION,
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: ResponseCode.MESSAGE_ILLEGAL,
    Code.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
}


class RemotingLink(ClusterLink):
    """Link of one remoting client to the brokers, by its own connections."""

    _questions = CODES

    def __init__(
        self,
        brokers: ClusterBrokers,
        address: str,
        asked: Callable[[Asked], None],
        lost: Callable[[], object],
        now: float,
    ) -> None:
        unsigned = Access(tls=brokers.access.tls)  # requests have the client's signatures
        super().__init__(brokers, address, asked, lost, now, unsigned)
        self.heartbeat: AnyCommand | None = None
        """The last one, None without a group."""
        self.member: LocalMember = LocalMember("", "", 0, "", "")
        self.groups: Mapping[str, ConsumerData] = {}
        """Its memberships, by the names of the groups."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the last heartbeat."""
        return 0 if self.heartbeat is None else len(self.heartbeat.body)

    @property
    def names(self) -> list[str]:
        """Names of the brokers that the client has used."""
        return list(dict.fromkeys(self._names.values()))

    def _greet(self, address: str) -> None:
        """Let the first request on a new connection be the last heartbeat."""
        if self.heartbeat is not None and self._own is not None:
            with suppress(ConnectionError):  # the connection is lost again
                heartbeat = msgspec.structs.replace(self.heartbeat)
                self._own.begin_now(Reply(), address, heartbeat, BEAT_SECONDS_MAX)


_Answering = Callable[[RemotingLink, Peer, AnyCommand], Running[Response]]
"""Answers a request of a client."""


class RemotingClients:
    """The remoting clients of a proxy, which is ``at()`` in routes."""

    def __init__(
        self,
        server: Server,
        brokers: ClusterBrokers,
        config: ProxyConfig,
        clock: Clock,
        at: Callable[[], tuple[str, int]],
    ) -> None:
        self._server = server
        self._brokers = brokers
        self._config = config
        self._at = at
        self._links: dict[Peer, RemotingLink] = {}
        self._sync = HeartbeatSync(config, brokers.access, clock, self._members_changed)

    def __len__(self) -> int:
        return len(self._links)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of requests by their codes."""
        answers: dict[int, _Answering] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self._check,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._ask_for_group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._ask_for_group,
            RequestCode.QUERY_ASSIGNMENT: self._assign,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._lock,
            **dict.fromkeys(_SENDS, self._send),
            **dict.fromkeys(_FORWARDED, self._forward),
        }
        return {int(code): partial(self._handle, answer) for code, answer in answers.items()}

    def closed(self, happened: ConnectionClosed) -> None:
        """Close the connections of a client that has gone."""
        link = self._forget(happened.peer)
        if link is not None:
            link.close()

    def _forget(self, peer: Peer) -> RemotingLink | None:
        link = self._links.pop(peer, None)
        if link is not None:
            peer.keep(-link.kept_bytes)
            for data in link.groups.values():
                self._sync.left(link.member, data)
        return link

    async def stop(self) -> None:
        """Let other proxies know that the consumers have gone; the server has stopped before."""
        await self._sync.stop()

    def _members_changed(self, group: str) -> None:
        """Let the members of a group divide its queues again."""
        notice = remoting_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, oneway=True)
        for peer, link in self._links.items():
            if group in link.groups:
                peer.push(notice)

    # --- requests of clients ---

    def _handle(self, answer: _Answering, peer: Peer, request: AnyCommand) -> None:
        size = REQUEST_BYTES + len(request.body)
        peer.keep(size)
        peer.owed += 1

        def done(found: Response) -> None:
            peer.owed -= 1
            peer.keep(-size)
            peer.reply(request, found)

        def failed(error: Exception) -> None:
            done(self._server.refusals.of(request, peer.address, _as_refusal(error)))

        run(self._answered(answer, peer, request), done, failed)

    async def _answered(self, answer: _Answering, peer: Peer, request: AnyCommand) -> Response:
        rights = self._brokers.rights
        if rights is not None:
            await rights.admit(
                peer, request, lambda place: self._brokers.message_at(place, _broker_of(request), CALL_SECONDS)
            )
        return await answer(self._link_of(peer), peer, request)

    def _link_of(self, peer: Peer) -> RemotingLink:
        link = self._links.get(peer)
        if link is None:
            if not peer.is_open:
                raise ConnectionError(f"{peer.address} is not connected any more")
            ask, lost = partial(self._ask, peer), partial(self._forget, peer)
            link = RemotingLink(self._brokers, peer.address, ask, lost, self._server.loop.time())
            self._links[peer] = link
        return link

    async def _to(self, link: RemotingLink, broker: str, request: AnyCommand) -> Response:
        """Send a request to a broker, and return the answer."""
        waits = [int(text) for name in _WAITS if (text := request.ext.get(name, "")).isdecimal()]
        seconds = CALL_SECONDS + min(max(waits, default=0), WAIT_MS_MAX) / 1000
        answer = await link.call_own(broker, msgspec.structs.replace(request, flag=0), seconds)
        fields = {**answer.ext, "TRACE_ON": self._config.trace_on}
        if self._config.region_id:
            fields["MSG_REGION"] = self._config.region_id
        return Response(answer.code, answer.remark, fields, answer.body)

    async def _to_any(self, link: RemotingLink, brokers: Iterable[str], request: AnyCommand) -> Response:
        """Send a request to brokers in turn until one can answer it."""
        found: Response | None = None
        failure: Exception = BrokerError(ResponseCode.SYSTEM_ERROR, "no broker has this topic or group")
        for broker in list(brokers)[:BROKERS_ASKED_MAX]:
            try:
                found = await self._to(link, broker, request)
            except OSError as error:
                failure = error
            else:
                if not found.code:
                    return found
        if found is None:
            raise failure
        return found

    async def _forward(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        return await self._to(link, _broker_of(request), request)

    async def _send(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        is_short = request.code in _NAMED_BY_LETTER
        topic = request.ext.get("b" if is_short else "topic", "")
        if self._config.enable_topic_message_type_check:
            config = await self._brokers.topic(topic)
            if config is not None:  # otherwise the broker may create it
                text = request.ext.get("i" if is_short else "properties", "")
                check_type(topic, topic_type(config), properties.parse(text))
        answer = await self._forward(link, peer, request)
        if not answer.code:
            self._brokers.created(topic)
        return answer

    async def _route(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        header = fields_of(request, RouteHeader)
        route = await self._brokers.remoting_route(header.topic)
        address = endpoint(*self._at())
        brokers = [
            msgspec.structs.replace(broker, broker_addrs=dict.fromkeys(broker.broker_addrs, address))
            for broker in route.broker_datas
        ]
        found: Route = msgspec.structs.replace(route, broker_datas=brokers)
        return Response(body=route_body(found, standard=is_standard_json_wanted(request.version, header)))

    async def _heartbeat(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        heartbeat = body_of(request, Heartbeat)
        peer.keep(len(request.body))
        kept = msgspec.structs.replace(request, flag=0)
        peer.keep(-link.kept_bytes)
        link.heartbeat = kept
        link.groups = {data.group_name: data for data in heartbeat.consumer_data_set}
        topics = dict.fromkeys(it.topic for data in link.groups.values() for it in data.subscription_data_set)
        names = dict.fromkeys([*await self._brokers.brokers_of(topics), *link.names])
        await self._brokers.register(link, kept, list(names))
        if link.groups:
            language = request.language if isinstance(request.language, str) else "OTHER"
            proxy = endpoint(*self._at())
            link.member = LocalMember(heartbeat.client_id, language, request.version, peer.address, proxy)
            self._sync.start()
            for data in link.groups.values():
                self._sync.joined(link.member, data)
        return Response()

    async def _unregister(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        peer.keep(-link.kept_bytes)
        link.heartbeat = None  # the next one comes without the group
        group = request.ext.get("consumerGroup", "")
        if group in link.groups:
            self._sync.left(link.member, link.groups[group])
            link.groups = {name: data for name, data in link.groups.items() if name != group}
        for broker in link.names:
            with suppress(OSError):  # it has lost the client with the connection
                await self._to(link, broker, request)
        return Response()

    async def _check(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        subscription = body_of(request, CheckClient).subscription_data
        brokers = [] if subscription is None else await self._brokers.brokers_of([subscription.topic])
        return await self._to_any(link, brokers, request) if brokers else Response()

    async def _ask_for_group(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        group = request.ext.get("consumerGroup", "")
        data = link.groups.get(group)
        topics = [] if data is None else [it.topic for it in data.subscription_data_set]
        brokers = await self._brokers.brokers_of(topics) or await self._brokers.names()
        answer = await self._to_any(link, brokers, request)
        others = self._sync.members(group)
        if others and request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and not answer.code:
            ids = fastjson.decode(answer.body, ConsumerIdList).consumer_id_list
            answer.body = fastjson.dumps(ConsumerIdList(list(dict.fromkeys([*ids, *others]))))
        return answer

    async def _assign(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        topic = body_of(request, AssignmentQuery).topic
        return await self._to_any(link, await self._brokers.brokers_of([topic]), request)

    async def _lock(self, link: RemotingLink, peer: Peer, request: AnyCommand) -> Response:
        brokers = {queue.broker_name for queue in body_of(request, LockRequest).mq_set}
        if len(brokers) != 1:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the queues of a request must be of one broker")
        return await self._to(link, brokers.pop(), request)

    # --- requests of brokers ---

    def _ask(self, peer: Peer, asked: Asked) -> None:
        """Hand a request of a broker to the client, and the answer back."""
        command = msgspec.structs.replace(asked.command)
        if command.is_oneway:
            peer.push(command)
            return

        def answered(answer: asyncio.Future[AnyCommand]) -> None:
            if answer.cancelled():
                return
            error = answer.exception()
            if error is None:
                found = answer.result()
                asked.answer(Response(found.code, found.remark, found.ext, found.body))
            else:
                asked.answer(Response(ResponseCode.SYSTEM_ERROR, str(error)))

        try:
            peer.call(command, QUESTION_SECONDS).add_done_callback(answered)
        except ConnectionError as error:
            asked.answer(Response(ResponseCode.SYSTEM_ERROR, str(error)))


def _broker_of(request: AnyCommand) -> str:
    """Return the name of the broker that a request is for; BrokerError if it names none, as before RocketMQ 5."""
    name = request.ext.get("n" if request.code in _NAMED_BY_LETTER else _BROKER)
    if not name:
        raise BrokerError(ResponseCode.VERSION_NOT_SUPPORTED, f"Request doesn't have field {_BROKER}")
    return str(name)


def _as_refusal(error: Exception) -> Exception:
    if isinstance(error, ProxyError):
        return BrokerError(_CODES.get(error.code, ResponseCode.SYSTEM_ERROR), error.message)
    if isinstance(error, OSError):
        return BrokerError(ResponseCode.SYSTEM_ERROR, str(error) or type(error).__name__)
    return error
