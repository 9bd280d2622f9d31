"""Answers of a name server: one method for each request code, and the table of them.

Clients request the route of a topic (105) all the time: its encoded form is kept until the tables change. Clients since
4.9.4, and clients that request it, get standard JSON. Older clients get integer keys without quotes, as they always
did.

Source: RocketMQ's ``DefaultRequestProcessor``, ``ClientRequestProcessor``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

import msgspec

from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.message.names import ORDER_NAMESPACE
from firearrow.namesrv.config import KEY_GROUPS, NamesrvConfig
from firearrow.namesrv.kv import KvConfig
from firearrow.namesrv.routes import UNIT_FLAG, UNIT_SUB_FLAG, RouteTables
from firearrow.net.server import Answer, Handler, Peer, Steps
from firearrow.net.serverconfig import changed, save, text_of
from firearrow.wire import fastjson, headers
from firearrow.wire.bodies import (
    DataVersion,
    KVTable,
    MemberGroupBody,
    Route,
    TopicList,
    is_standard_json_wanted,
    route_body,
)
from firearrow.wire.client_bodies import body_of
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.registerbody import RegisterBody, body_crc32

_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class Processor:
    """Handlers that answer requests from the tables.

    ``config`` is replaced when a client changes it. A handler takes the peer and its request. It raises BrokerError
    with the code and remark to refuse it.
    """

    def __init__(self, config: NamesrvConfig, clock: Clock, routes: RouteTables, kv: KvConfig) -> None:
        self.config: NamesrvConfig = config
        self._clock = clock
        self._routes = routes
        self._kv = kv
        self._started_at = clock.monotonic()
        self._encoded: dict[tuple[str, bool], Response] = {}
        self._encoded_of = (-1, -1)

    def handlers(self) -> Mapping[int, Handler]:
        """The table: request code to handler."""
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._topics_with_flags(UNIT_FLAG),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._topics_with_flags(UNIT_SUB_FLAG),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._topics_with_flags(UNIT_SUB_FLAG, UNIT_FLAG),
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_member_group,
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
        }

    # --- brokers ----------------------------------------------------------------------------

    def register_broker(self, peer: Peer, request: AnyCommand) -> Steps:
        """103."""
        header = fields_of(request, headers.RegisterBroker)
        if header.body_crc32 not in (0, body_crc32(request.body)):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = RegisterBody()
        if request.body:
            body = yield from _registration_in(request, header.compressed)
        registered = yield from self._routes.register_in_steps(header, body, peer)
        fields = {"haServerAddr": registered.ha_server_addr, "masterAddr": registered.master_addr}
        return Response(
            fields={name: value for name, value in fields.items() if value is not None}, body=self._order_config()
        )

    def _order_config(self) -> bytes:
        pairs = self._kv.pairs(ORDER_NAMESPACE)
        if pairs is None or not self.config.return_order_topic_config_to_broker:
            return b""
        return fastjson.dumps(KVTable(pairs))

    def unregister_broker(self, peer: Peer, request: AnyCommand) -> Answer:
        """104."""
        header = fields_of(request, headers.UnregisterBroker)
        self._routes.unregister(header.cluster_name, header.broker_name, header.broker_addr, header.broker_id)
        return Response()

    def query_data_version(self, peer: Peer, request: AnyCommand) -> Answer:
        """322: tell whether this server's data of the broker are outdated; it renews the lease."""
        header = fields_of(request, headers.QueryDataVersion)
        theirs = body_of(request, DataVersion)
        ours = self._routes.data_version(header.cluster_name, header.broker_addr)
        self._routes.touch(header.cluster_name, header.broker_addr)
        body = b"" if ours is None else fastjson.dumps(ours)
        return Response(fields={"changed": ours != theirs}, body=body)

    def heartbeat(self, peer: Peer, request: AnyCommand) -> Answer:
        """904."""
        header = fields_of(request, headers.BrokerHeartbeat)
        self._routes.touch(header.cluster_name, header.broker_addr)
        return Response()

    def get_member_group(self, peer: Peer, request: AnyCommand) -> Answer:
        """901."""
        header = fields_of(request, headers.BrokerMemberGroup)
        group = self._routes.member_group(header.cluster_name, header.broker_name)
        return Response(body=fastjson.dumps(MemberGroupBody(group)))

    # --- routes -----------------------------------------------------------------------------

    def get_route(self, peer: Peer, request: AnyCommand) -> Answer:
        """105."""
        header = fields_of(request, headers.RouteHeader)
        standard = is_standard_json_wanted(request.version, header)
        self._check_ready()
        state = (self._routes.version, self._kv.version)
        if state != self._encoded_of:
            self._encoded.clear()
            self._encoded_of = state
        answer = self._encoded.get((header.topic, standard))
        if answer is None:
            answer = Response(body=route_body(self._route(header.topic), standard=standard))
            self._encoded[header.topic, standard] = answer
        return answer

    def _check_ready(self) -> None:
        waited = self._clock.monotonic() - self._started_at
        if self.config.need_wait_for_service and waited < self.config.wait_seconds_for_service:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "name server not ready")

    def _route(self, topic: str) -> Route:
        route = self._routes.route(topic)
        if route is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}{_HELP}"
            )
        if self.config.order_message_enable:
            order = self._kv.get(ORDER_NAMESPACE, topic)
            route = msgspec.structs.replace(route, order_topic_conf=order)
        return route

    def get_cluster_info(self, peer: Peer, request: AnyCommand) -> Answer:
        """106."""
        return Response(body=fastjson.dumps(self._routes.cluster_info()))

    def wipe_write_perm(self, peer: Peer, request: AnyCommand) -> Answer:
        """205."""
        header = fields_of(request, headers.BrokerNameHeader)
        count = self._routes.wipe_write_perm(header.broker_name)
        return Response(fields={"wipeTopicCount": count})

    def add_write_perm(self, peer: Peer, request: AnyCommand) -> Answer:
        """327."""
        header = fields_of(request, headers.BrokerNameHeader)
        count = self._routes.add_write_perm(header.broker_name)
        return Response(fields={"addTopicCount": count})

    def delete_topic(self, peer: Peer, request: AnyCommand) -> Answer:
        """216."""
        header = fields_of(request, headers.TopicHeader)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return Response()

    def register_topic(self, peer: Peer, request: AnyCommand) -> Answer:
        """217."""
        header = fields_of(request, headers.TopicHeader)
        route = body_of(request, Route)
        self._routes.add_topic(header.topic, route.queue_datas)
        return Response()

    # --- lists of topics --------------------------------------------------------------------

    def get_all_topics(self, peer: Peer, request: AnyCommand) -> Answer:
        """206."""
        if not self.config.enable_all_topic_list:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "disable")
        return Response(body=fastjson.dumps(TopicList(self._routes.topics())))

    def get_topics_by_cluster(self, peer: Peer, request: AnyCommand) -> Answer:
        """224."""
        self._check_topic_list()
        header = fields_of(request, headers.ClusterHeader)
        topics = self._routes.topics_of_cluster(header.cluster)
        return Response(body=fastjson.dumps(TopicList(topics)))

    def get_system_topics(self, peer: Peer, request: AnyCommand) -> Answer:
        """304."""
        return Response(body=fastjson.dumps(TopicList(*self._routes.system_topics())))

    def _topics_with_flags(self, having: int, lacking: int = 0) -> Handler:
        def handler(peer: Peer, request: AnyCommand) -> Answer:
            self._check_topic_list()
            topics = self._routes.topics_with_flags(having, lacking)
            return Response(body=fastjson.dumps(TopicList(topics)))

        return handler

    def _check_topic_list(self) -> None:
        if not self.config.enable_topic_list:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "disable")

    # --- key-value configuration ------------------------------------------------------------

    def put_kv(self, peer: Peer, request: AnyCommand) -> Answer:
        """100."""
        namespace, key, value = _kv_of(request)
        if value is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "value is null")
        self._kv.put(namespace, key, value)
        return Response()

    def get_kv(self, peer: Peer, request: AnyCommand) -> Answer:
        """101."""
        namespace, key, _ = _kv_of(request)
        value = self._kv.get(namespace, key)
        if value is None:
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return Response(fields={"value": value})

    def delete_kv(self, peer: Peer, request: AnyCommand) -> Answer:
        """102."""
        namespace, key, _ = _kv_of(request)
        self._kv.delete(namespace, key)
        return Response()

    def get_kv_list(self, peer: Peer, request: AnyCommand) -> Answer:
        """219."""
        namespace = fields_of(request, headers.KvNamespace).namespace
        pairs = self._kv.pairs(namespace)
        if pairs is None:
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return Response(body=fastjson.dumps(KVTable(pairs)))

    # --- the server's own configuration -----------------------------------------------------

    def get_config(self, peer: Peer, request: AnyCommand) -> Answer:
        """319: all keys, sorted, one ``key=value`` a line."""
        return Response(body=text_of(self.config))

    def update_config(self, peer: Peer, request: AnyCommand) -> Answer:
        """318: change keys and save the configuration, all or none."""
        config = changed(request, self.config, self._black_list(), servers=KEY_GROUPS)
        if config is not None:
            save(config, config.config_store_path)
            self.config = config
            self._encoded.clear()
        return Response()

    def _black_list(self) -> set[str]:
        # A change of the list can't free the list itself or the paths.
        always = ("configBlackList", "configStorePath", "kvConfigPath")
        return {*always, *self.config.config_black_list.split(";")}


def _registration_in(request: AnyCommand, compressed: bool) -> Generator[None, None, RegisterBody]:
    try:
        return (yield from RegisterBody.decode_in_steps(request.body, compressed))
    except MessageError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"request {request.code} has a bad body: {error}") from None


def _kv_of(request: AnyCommand) -> tuple[str, str, str | None]:
    header = fields_of(request, headers.KvHeader)
    if header.namespace is None or header.key is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
    return header.namespace, header.key, header.value
