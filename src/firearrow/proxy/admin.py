"""The Admin service: a method for each RPC.

Its clients are tools and consoles, so a call may lack a client id. A broker checks the rights of the call's user as it
does for RocketMQ's command line. Two calls that concern the proxy alone need rights on the cluster.

Source: ``admin.proto`` of rocketmq-apis; no open server of RocketMQ serves it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from firearrow.clock import Clock
from firearrow.net.grpc import Call, Method
from firearrow.net.replies import Running, run
from firearrow.proxy import messages as m
from firearrow.proxy.access import Users
from firearrow.proxy.adminasking import Asking
from firearrow.proxy.admingroups import GroupAdmin
from firearrow.proxy.adminmessages import MessageAdmin
from firearrow.proxy.adminservers import Activity, ServerAdmin
from firearrow.proxy.brokers import Brokers
from firearrow.proxy.calls import REQUEST_BYTES_MAX, Answered, CallLimit, Context, Door, failure, read, table_of, unary
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.producing import Producing
from firearrow.proxy.statuses import ProxyError

SERVICE: Final = "apache.rocketmq.v2.Admin"

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Answered)


class Admin:
    """The Admin service of a proxy."""

    def __init__(
        self,
        brokers: Brokers,
        users: Users,
        producing: Producing,
        activity: Activity,
        config: ProxyConfig,
        clock: Clock,
    ) -> None:
        self._brokers = brokers
        self._users = users
        self._limit = CallLimit(config.grpc_client_manager_thread_queue_capacity)
        self._sizes = {"AdminSendMessage": config.grpc_max_inbound_message_size}
        self._groups = GroupAdmin(activity.clients)
        self._messages = MessageAdmin(producing, clock)
        self._servers = ServerAdmin(activity, config, clock)

    def methods(self, door: Door) -> Mapping[bytes, Method]:
        """Methods by their paths."""
        groups, messages, servers = self._groups, self._messages, self._servers
        table: list[tuple[str, Any, Any, Any]] = [
            ("DescribeTopicStatus", m.DescribeTopicStatusRequest, m.DescribeTopicStatusResponse, servers.topic_status),
            ("ListSubscription", m.ListSubscriptionRequest, m.ListSubscriptionResponse, groups.subscriptions),
            (
                "DescribeSubscription",
                m.DescribeSubscriptionRequest,
                m.DescribeSubscriptionResponse,
                groups.client_subscriptions,
            ),
            ("DeleteSubscription", m.DeleteSubscriptionRequest, m.DeleteSubscriptionResponse, groups.delete),
            (
                "DescribeGroupAccumulation",
                m.DescribeGroupAccumulationRequest,
                m.DescribeGroupAccumulationResponse,
                groups.accumulation,
            ),
            (
                "ListConsumerConnection",
                m.ListConsumerConnectionRequest,
                m.ListConsumerConnectionResponse,
                groups.connections,
            ),
            ("ResetGroupOffset", m.ResetGroupOffsetRequest, m.ResetGroupOffsetResponse, groups.reset),
            ("QueryMessage", m.ListMessageRequest, m.ListMessageResponse, messages.query),
            (
                "PrintThreadStackTrace",
                m.PrintThreadStackTraceRequest,
                m.PrintThreadStackTraceResponse,
                groups.stack_trace,
            ),
            ("VerifyMessage", m.VerifyMessageRequest, m.VerifyMessageResponse, messages.verify),
            ("AdminSendMessage", m.AdminSendMessageRequest, m.AdminSendMessageResponse, messages.send),
            (
                "GetConsumerRunningInfo",
                m.GetConsumerRunningInfoRequest,
                m.GetConsumerRunningInfoResponse,
                groups.running_info,
            ),
            ("GetTopicRoute", m.GetTopicRouteRequest, m.GetTopicRouteResponse, servers.route),
            ("QueryTimeSpan", m.QueryTimeSpanRequest, m.QueryTimeSpanResponse, groups.time_spans),
            ("GetProxyRuntimeStats", m.GetProxyRuntimeStatsRequest, m.GetProxyRuntimeStatsResponse, servers.stats),
        ]
        sizes = self._sizes
        methods = [
            unary(
                name, kind, answer, door, self._limit, self._asking(serve), bytes_max=sizes.get(name, REQUEST_BYTES_MAX)
            )
            for name, kind, answer, serve in table
        ]
        return table_of([*methods, self._change_log_level(door)], SERVICE)

    def _asking(
        self, serve: Callable[[Asking, Request], Running[Answer]]
    ) -> Callable[[Context, Request], Running[Answer]]:
        brokers, users = self._brokers, self._users
        return lambda context, request: serve(Asking(context, brokers, users), request)

    def _change_log_level(self, door: Door) -> Method:
        """Make the one method whose answer has no status: a failure is its remark."""
        name = "ChangeLogLevel"
        serve = self._asking(self._servers.log_level)  # type: ignore[type-var]

        def handle(call: Call, data: bytes) -> bytes | None:
            def answer(message: m.ChangeLogLevelResponse, code: int = m.Code.OK) -> None:
                call.answer(message.SerializeToString())
                if door.meter is not None:
                    door.meter.count(name, code, call.received_ms)

            def failed(error: Exception) -> None:
                outcome = failure(call, error)
                answer(m.ChangeLogLevelResponse(remark=f"{outcome.code}: {outcome.message}"), outcome.code)

            try:
                run(serve(door.open(call), read(m.ChangeLogLevelRequest, data)), answer, failed)
            except ProxyError as error:
                failed(error)
            return None

        return Method(name, handle)
