"""The services of the proxy: a method for each RPC.

Source: RocketMQ's ``GrpcMessagingApplication``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from firearrow.clock import Clock
from firearrow.net.grpc import Call, GrpcLimits, GrpcPeer, Method
from firearrow.proxy.access import Users
from firearrow.proxy.admin import SERVICE as ADMIN
from firearrow.proxy.admin import Admin
from firearrow.proxy.adminservers import Activity
from firearrow.proxy.brokers import Asked, Brokers, Link
from firearrow.proxy.calls import (
    SERVICE,
    CallLimit,
    Context,
    Door,
    client_id_of,
    read,
    streaming,
    table_of,
    text_of,
    unary,
)
from firearrow.proxy.clientmetrics import SERVICE as OTLP
from firearrow.proxy.clientmetrics import ClientMetrics
from firearrow.proxy.clients import TELEMETRY_BYTES_MAX, Clients
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.consuming import Consuming, fail_receive
from firearrow.proxy.health import SERVICE as HEALTH
from firearrow.proxy.health import Health
from firearrow.proxy.lite import LiteSubscriptions
from firearrow.proxy.messages import (
    AckMessageRequest,
    AckMessageResponse,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    GetOffsetRequest,
    GetOffsetResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    PullMessageRequest,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    ReceiveMessageRequest,
    SendMessageRequest,
    SendMessageResponse,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
    TelemetryCommand,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)
from firearrow.proxy.meter import CallMeter
from firearrow.proxy.offsets import Offsets, fail_pull
from firearrow.proxy.producing import Producing
from firearrow.proxy.reflection import Reflection
from firearrow.proxy.routes import Routes
from firearrow.proxy.statuses import ProxyError, status_of
from firearrow.wire.http2 import STREAMS_MAX


def limits_of(config: ProxyConfig) -> GrpcLimits:
    """Return the limits of connections by the proxy's configuration."""
    return GrpcLimits(
        config.grpc_max_inbound_message_size,
        min(config.grpc_max_concurrent_calls_per_connection, STREAMS_MAX),
        config.grpc_client_idle_time_mills / 1000,
    )


class Service:
    """The proxy without its ports: it serves calls by requests to ``brokers``. ``meter`` measures them, None if no
    metrics are wanted. ``connections`` returns the count of clients' connections.
    """

    def __init__(
        self,
        brokers: Brokers,
        users: Users,
        config: ProxyConfig,
        clock: Clock,
        meter: CallMeter | None = None,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        self.meter: Final = meter
        self._brokers = brokers
        self._users = users
        self._config = config
        self._door = Door(self._open, meter)
        self._managing = CallLimit(config.grpc_client_manager_thread_queue_capacity)
        self._receiving = CallLimit(config.grpc_consumer_thread_queue_capacity)
        self.clients: Final = Clients(brokers, users, config, clock)
        self.consuming: Final = Consuming(brokers, users, self.clients, config, clock)
        self._producing = Producing(brokers, config, clock)
        self._routes = Routes(brokers, users, config)
        self._offsets = Offsets(brokers, config)
        self._lite = LiteSubscriptions(brokers, users, self.clients, config, clock)
        activity = Activity(self.clients, self._producing.sent, self.consuming.received, connections)
        self._admin = Admin(brokers, users, self._producing, activity, config, clock)
        pushes = config.metric_collector_mode == "proxy"
        self.client_metrics: Final = ClientMetrics(self.clients, shows=meter is not None) if pushes else None
        self._services = [SERVICE, ADMIN, *([OTLP] if pushes else ())]
        self.health: Final = Health(self._services)
        self.clients.left.append(self.consuming.renewal.client_left)

    def methods(self) -> Mapping[bytes, Method]:
        """Methods of all services by their paths."""
        for_tools = Door(self._open_for_tool, self.meter)
        return {
            **table_of([*self._of_clients(), *self._of_producers(), *self._of_consumers(), *self._of_offsets()]),
            **self._admin.methods(for_tools),
            **(self.client_metrics.methods(for_tools) if self.client_metrics is not None else {}),
            **self.health.methods(),
            **Reflection([*self._services, HEALTH]).methods(),
        }

    def _of_clients(self) -> list[Method]:
        """Methods of all clients: routes, and the registration of a client."""
        one, clients, managing = self._door, self.clients, self._managing
        routing, routes = CallLimit(self._config.grpc_route_thread_queue_capacity), self._routes
        return [
            unary("QueryRoute", QueryRouteRequest, QueryRouteResponse, one, routing, routes.route),
            unary("QueryAssignment", QueryAssignmentRequest, QueryAssignmentResponse, one, routing, routes.assignment),
            unary(
                "Heartbeat",
                HeartbeatRequest,
                HeartbeatResponse,
                one,
                managing,
                clients.heartbeat,
                at_once=clients.alive,
            ),
            Method("Telemetry", self._telemetry, takes_stream=True),
            unary(
                "NotifyClientTermination",
                NotifyClientTerminationRequest,
                NotifyClientTerminationResponse,
                one,
                managing,
                clients.terminated,
            ),
            unary(
                "SyncLiteSubscription",
                SyncLiteSubscriptionRequest,
                SyncLiteSubscriptionResponse,
                one,
                managing,
                self._lite.sync,
            ),
        ]

    def _of_producers(self) -> list[Method]:
        one, config, producing = self._door, self._config, self._producing
        sending = CallLimit(config.grpc_producer_thread_queue_capacity)
        deciding = CallLimit(config.grpc_transaction_thread_queue_capacity)
        return [
            unary(
                "SendMessage",
                SendMessageRequest,
                SendMessageResponse,
                one,
                sending,
                producing.serve_send,
                bytes_max=config.grpc_max_inbound_message_size,
            ),
            unary("EndTransaction", EndTransactionRequest, EndTransactionResponse, one, deciding, producing.end),
            unary("RecallMessage", RecallMessageRequest, RecallMessageResponse, one, sending, producing.recall),
        ]

    def _of_consumers(self) -> list[Method]:
        one, consuming, receiving = self._door, self.consuming, self._receiving
        return [
            streaming("ReceiveMessage", ReceiveMessageRequest, one, receiving, consuming.receive, fail_receive),
            unary("AckMessage", AckMessageRequest, AckMessageResponse, one, receiving, consuming.ack),
            unary(
                "ForwardMessageToDeadLetterQueue",
                ForwardMessageToDeadLetterQueueRequest,
                ForwardMessageToDeadLetterQueueResponse,
                one,
                receiving,
                consuming.forward,
            ),
            unary(
                "ChangeInvisibleDuration",
                ChangeInvisibleDurationRequest,
                ChangeInvisibleDurationResponse,
                one,
                receiving,
                consuming.change,
                echoed="receipt_handle",
            ),
        ]

    def _of_offsets(self) -> list[Method]:
        one, offsets, receiving = self._door, self._offsets, self._receiving
        return [
            streaming("PullMessage", PullMessageRequest, one, receiving, offsets.pull, fail_pull),
            unary("UpdateOffset", UpdateOffsetRequest, UpdateOffsetResponse, one, receiving, offsets.update),
            unary("GetOffset", GetOffsetRequest, GetOffsetResponse, one, receiving, offsets.get),
            unary("QueryOffset", QueryOffsetRequest, QueryOffsetResponse, one, receiving, offsets.query),
        ]

    def end_waits(self) -> None:
        """Answer the calls that wait for messages, or for a change of the server's health."""
        self.health.stop()
        self.consuming.waits.end()
        self._offsets.waits.end()

    def stop(self) -> None:
        """Give back the messages that clients have not acknowledged."""
        self.clients.stop()
        self.consuming.renewal.stop()

    def _open(self, call: Call) -> Context:
        """Return the context of a call; ProxyError if its client is not known."""
        user = self._users.user_of(call)
        return Context(call, client_id_of(call), self._link, user)

    def _open_for_tool(self, call: Call) -> Context:
        """Return the context of a call whose sender may have no client id; ProxyError if it proves no user."""
        user = self._users.user_of(call)
        return Context(call, text_of(call.fields, b"x-mq-client-id"), self._link, user)

    def _link(self, peer: GrpcPeer) -> Link:
        """Return the link of a connection, which ends with it; a closed one if it has ended."""
        link: Link | None = peer.attached
        if link is None:
            opened = link = self._brokers.link(peer.address, _unasked, lambda: peer.detach(opened))
            if peer.is_open:
                peer.attached = opened
            else:
                opened.close()
        return link

    def _telemetry(self, call: Call, data: bytes) -> None:
        try:
            context = self._open(call)
            command = read(TelemetryCommand, data, TELEMETRY_BYTES_MAX)
            self._managing.check()
        except ProxyError as error:
            call.send(TelemetryCommand(status=status_of(error)).SerializeToString())
            call.end()
            return
        if call.ended is None:
            call.cancelled = lambda: self.clients.stream_ended(context, is_broken=True)
            call.ended = lambda: self._stream_ended(context)
        self.clients.telemetry(context, command, self._managing, self._count_settings)

    def _count_settings(self, call: Call, code: int) -> None:
        if self.meter is not None:
            self.meter.count("Telemetry", code, call.peer.received_ms)

    def _stream_ended(self, context: Context) -> None:
        self.clients.stream_ended(context, is_broken=False)
        context.call.end()


def _unasked(asked: Asked) -> None:
    """Take no request of a broker: this link has no registered client."""
