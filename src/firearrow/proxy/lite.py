"""Subscriptions to lite topics: `SyncLiteSubscription`.

A consumer of lite topics subscribes to each of them, at every broker of the parent topic. RocketMQ's proxy serves them
in cluster mode only.

Source: RocketMQ's ``LiteSubscriptionActivity``, ``LiteSubscriptionService``.
"""

from __future__ import annotations

from typing import Final

from firearrow.auth.model import Action
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.net.replies import run
from firearrow.proxy.access import Users
from firearrow.proxy.brokers import Brokers, Link
from firearrow.proxy.calls import Context
from firearrow.proxy.clients import Client, Clients
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import (
    Code,
    LiteSubscriptionAction,
    OffsetOption,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
)
from firearrow.proxy.settings import LITE_BIND_TOPIC, check_bound, lite_quota
from firearrow.proxy.statuses import ProxyError, status
from firearrow.proxy.validation import check_group, check_lite_topic, check_topic
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import LiteAction, LiteSubscription, LiteSubscriptionChanges
from firearrow.wire.client_bodies import OffsetOption as RemotingOption
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import request as remoting_request

CALL_MS_MAX: Final = 2000
MORE_THAN_QUOTA: Final = 300
"""Lite topics of one request beyond the quota, whose excess the broker refuses itself."""

_ACTIONS: Final[dict[int, LiteAction]] = {
    LiteSubscriptionAction.PARTIAL_ADD: "PARTIAL_ADD",
    LiteSubscriptionAction.PARTIAL_REMOVE: "PARTIAL_REMOVE",
    LiteSubscriptionAction.COMPLETE_ADD: "COMPLETE_ADD",
    LiteSubscriptionAction.COMPLETE_REMOVE: "COMPLETE_REMOVE",
}


_POLICIES: Final = (OffsetOption.Policy.LAST, OffsetOption.Policy.MIN, OffsetOption.Policy.MAX)


class LiteSubscriptions:
    """Handler of changes of subscriptions."""

    def __init__(self, brokers: Brokers, users: Users, clients: Clients, config: ProxyConfig, clock: Clock) -> None:
        self._brokers = brokers
        self._users = users
        self._clients = clients
        self._config = config
        self._clock = clock
        self._second = 0
        self._additions = 0  # requests in that second
        clients.stream_lost.append(self._remove_all)
        clients.left.append(self._remove_all)

    async def sync(self, context: Context, request: SyncLiteSubscriptionRequest) -> SyncLiteSubscriptionResponse:
        """Change the lite topics of a client at all brokers; the first that refuses decides the answer."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        action = _ACTIONS.get(request.action)
        if action is None:
            raise ProxyError(Code.BAD_REQUEST, f"lite subscription action {request.action} is not known")
        topics = list(request.lite_topic_set)
        if action == "PARTIAL_ADD":
            for name in topics:
                check_lite_topic(name, self._config)
        self._users.check_group(context.user, context.address, request.group.name)
        self._users.check_topic(context.user, context.address, request.topic.name, Action.SUB)
        group = await self._brokers.group(request.group.name)
        if group is None:
            raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {request.group.name}")
        check_bound(request.group.name, group.attributes.get(LITE_BIND_TOPIC, ""), request.topic.name)
        quota = lite_quota(group)
        if len(topics) > quota + MORE_THAN_QUOTA:
            raise ProxyError(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {quota}")
        if action == "PARTIAL_ADD":
            self._count(context, request)
        client = self._clients.of(context)
        change = LiteSubscription(
            action,
            context.client_id,
            request.group.name,
            request.topic.name,
            topics,
            _option(request.offset_option) if request.HasField("offset_option") and action == "PARTIAL_ADD" else None,
            request.version,
        )
        # The broker's requests about a subscription come by the link that it came by.
        link = context.link if client is None or client.link is None else client.link
        await self._tell(link, request.topic.name, change)
        return SyncLiteSubscriptionResponse(status=status(Code.OK))

    def _count(self, context: Context, request: SyncLiteSubscriptionRequest) -> None:
        """Refuse additions beyond the rate of all clients."""
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second, self._additions = second, 0
        self._additions += 1
        if self._additions > self._config.max_sync_lite_subscription_rate:
            raise ProxyError(
                Code.TOO_MANY_REQUESTS,
                f"Too many syncLiteSubscription requests, topic={request.topic.name}, group={request.group.name}, "
                f"clientId={context.client_id}",
            )

    async def _tell(self, link: Link, topic: str, change: LiteSubscription) -> None:
        body = fastjson.dumps(LiteSubscriptionChanges([change]))
        replies = [
            (
                name,
                link.call(
                    name, remoting_request(RequestCode.LITE_SUBSCRIPTION_CTL, {"bname": name}, body), CALL_MS_MAX
                ),
            )
            for name in await self._brokers.readable(topic)
        ]
        for name, reply in replies:
            answer = await reply
            if answer.code:
                raise BrokerError.of(answer.code, answer.remark, name)

    def _remove_all(self, client: Client) -> None:
        """Remove the subscriptions of a client that is gone, or whose stream is lost: nobody can tell it about
        messages.
        """
        link = client.link
        if link is None or not client.is_lite or not client.topics:
            return
        topic = client.topics[0]
        change = LiteSubscription("COMPLETE_REMOVE", client.client_id, client.group, topic, [], None, 0)
        run(self._tell(link, topic, change), lambda _: None, lambda _: None)


def _option(option: OffsetOption) -> RemotingOption:
    """Return the place where a group begins with a lite topic, as brokers know it."""
    kind = option.WhichOneof("offset_type")
    if kind == "policy" and option.policy in _POLICIES:
        return RemotingOption("POLICY", option.policy)
    if kind == "offset":
        return RemotingOption("OFFSET", option.offset)
    if kind == "tail_n":
        return RemotingOption("TAIL_N", option.tail_n)
    if kind == "timestamp":
        return RemotingOption("TIMESTAMP", option.timestamp)
    raise ProxyError(Code.BAD_REQUEST, "the offset option has no known type")
