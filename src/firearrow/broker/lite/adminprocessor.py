"""Requests of administrators about lite topics (200074 to 200079).

Source: RocketMQ ``LiteManagerProcessor``.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappush, heappushpop
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel
from firearrow.broker.lite import facts
from firearrow.broker.lite.topics import LiteTopics
from firearrow.errors import BrokerError
from firearrow.message.names import LMQ_PREFIX, lite_parts, lite_queue
from firearrow.net.server import Steps
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import (
    LiteBrokerInfo,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLag,
    LiteParentInfo,
    LiteSubscriber,
    LiteTopicInfo,
)
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import OffsetWrapper, SubscriptionGroupConfig, TopicOffset
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import LiteClient, LiteDispatch, LiteGroup, LiteParent, LiteTopic

NAMES_MAX: Final = 10_000  # in one answer
STEP_ITEMS: Final = 500  # visited in one step; about a millisecond
UNKNOWN: Final = -1


class LiteAdminProcessor:
    """Handlers of administrators' requests (200074 to 200079)."""

    def __init__(self, context: BrokerContext, lite: LiteTopics) -> None:
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._lite = lite

    def of_broker(self, _: ClientChannel, __: AnyCommand) -> Steps:
        """200074: answer with the counts of the broker's lite topics."""
        lmqs = yield from self._count(LMQ_PREFIX)
        parents = {
            name: facts.expiration_minutes(topic)
            for name, topic in self._topics.table.items()
            if facts.is_parent(topic)
        }
        info = LiteBrokerInfo(
            cq_table_size=lmqs + len(self._topics.table),
            current_lmq_num=lmqs,
            event_map_size=self._lite.subscriptions.client_count,
            group_meta=self._groups_of_parents(),
            lite_subscription_count=self._lite.subscriptions.count,
            max_lmq_num=self._store.config.max_lmq_consume_queue_num,
            offset_table_size=len(self._offsets.committed),
            order_info_count=len(self._lite.orders),
            store_type=self._store.config.store_type,
            topic_meta=parents,
        )
        return Response(body=fastjson.dumps(info))

    def of_parent(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """200075: answer with the count of a topic's lite topics, and its groups."""
        name = fields_of(request, LiteParent).topic
        topic = self._parent(name)
        info = LiteParentInfo(
            groups=self._groups_of_parents().get(name, []),
            lite_topic_count=(yield from self._count(lite_queue(name, ""))),
            lmq_num=(yield from self._count(LMQ_PREFIX)),
            topic=name,
            ttl=facts.expiration_minutes(topic),
        )
        return Response(body=fastjson.dumps(info))

    def _count(self, prefix: str) -> Generator[None, None, int]:
        count = 0
        for number, queue in enumerate(self._store.topics_from(prefix)):
            count += queue is not None
            if number % STEP_ITEMS == 0 or queue is None:
                yield
        return count

    def _groups_of_parents(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, group in self._groups.table.items():
            parent = facts.parent_of(group)
            if parent:
                found.setdefault(parent, []).append(name)
        return found

    def of_topic(self, _: ClientChannel, request: AnyCommand) -> Response:
        """200076: answer with the subscribers of a lite topic, and its offsets."""
        header = fields_of(request, LiteTopic)
        self._parent(header.parent_topic)
        queue = lite_queue(header.parent_topic, header.lite_topic)
        subscriptions = self._lite.subscriptions
        subscribers = [LiteSubscriber(one.client_id, one.group) for one in subscriptions.of_queue(queue)]
        subscribers += [LiteSubscriber("*", one.group) for one in subscriptions.wildcards_of(queue)]
        first, end = self._store.min_queue_offset(queue, 0), self._lite.popping.end(queue)
        last_ms = self._store.store_time_of(queue, 0, end - 1) if end > 0 else 0
        info = LiteTopicInfo(
            lite_topic=header.lite_topic,
            parent_topic=header.parent_topic,
            sharding_to_broker=self._lite.sharding.is_here(header.parent_topic, header.lite_topic),
            subscriber=subscribers,
            topic_offset=TopicOffset(max(first, 0), max(end, 0), last_ms),
        )
        return Response(body=fastjson.dumps(info))

    def of_client(self, _: ClientChannel, request: AnyCommand) -> Response:
        """200077: answer with the subscriptions of a client."""
        header = fields_of(request, LiteClient)
        self._parent(header.parent_topic)
        if facts.parent_of(self._group(header.group)) != header.parent_topic:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"Subscription [{header.group}]-[{header.parent_topic}] not match."
            )
        client = self._lite.subscriptions.find(header.client_id, header.group)
        most = max(0, min(header.max_count, NAMES_MAX))
        info = LiteClientInfo(
            client_id=header.client_id,
            group=header.group,
            last_access_time=UNKNOWN if client is None else client.popped_ms,
            lite_topic_count=UNKNOWN if client is None else len(client.queues),
            lite_topic_set=None if client is None else list(client.queues)[:most],
            parent_topic=header.parent_topic,
        )
        return Response(body=fastjson.dumps(info))

    # --- lag of a group ---

    def of_group(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """200078: answer with the lag of a group, in one lite topic or in those where it is largest."""
        header = fields_of(request, LiteGroup)
        parent = self._bound_parent(header.group)
        if header.lite_topic:
            return Response(body=fastjson.dumps(self._in_one(header, parent)))
        if header.top_k < 1:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"topK is {header.top_k}, it must be 1 or more")
        most = min(header.top_k, NAMES_MAX)
        total, farthest = yield from self._in_all(header.group, parent, most)
        info = LiteGroupInfo(
            group=header.group,
            lag_count_top_k=farthest,
            lag_timestamp_top_k=[],
            parent_topic=parent,
            total_lag_count=total,
        )
        return Response(body=fastjson.dumps(info))

    def _in_one(self, header: LiteGroup, parent: str) -> LiteGroupInfo:
        queue = lite_queue(parent, header.lite_topic)
        end = self._lite.popping.end(queue)
        committed = self._offsets.query(header.group, queue, 0)
        place = None
        earliest_ms, total = UNKNOWN, UNKNOWN
        if end > 0:
            total = 0
            if committed >= 0:
                total = end - committed
                earliest_ms = self._store.store_time_of(queue, 0, committed)
                last_ms = self._store.store_time_of(queue, 0, committed - 1) if committed else 0
                place = OffsetWrapper(end, committed, 0, last_ms)
        return LiteGroupInfo(
            earliest_unconsumed_timestamp=earliest_ms,
            group=header.group,
            lite_topic=header.lite_topic,
            lite_topic_offset_wrapper=place,
            parent_topic=parent,
            total_lag_count=total,
        )

    def _in_all(self, group: str, parent: str, most: int) -> Generator[None, None, tuple[int, list[LiteLag]]]:
        """Go through the lite topics that the group has begun."""
        total = 0
        heap: list[tuple[int, str, int]] = []
        for number, queue in enumerate(self._store.topics_from(lite_queue(parent, ""))):
            if number % STEP_ITEMS == 0 or queue is None:
                yield
            parts = None if queue is None else lite_parts(queue)
            if queue is None or parts is None:
                continue
            committed = self._offsets.query(group, queue, 0)
            if committed < 0:
                continue
            lag = self._lite.popping.end(queue) - committed
            if lag > 0:
                total += lag
                item = lag, parts[1], committed
                if len(heap) < most:
                    heappush(heap, item)
                else:
                    heappushpop(heap, item)
        found: list[LiteLag] = []
        for lag, lite, committed in sorted(heap, reverse=True):
            if len(found) % STEP_ITEMS == STEP_ITEMS - 1:
                yield
            since_ms = self._store.store_time_of(lite_queue(parent, lite), 0, committed)
            found.append(LiteLag(since_ms, lag, lite))
        return total, found

    def dispatch(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """200079: offer all ready lite topics to a group, or to one client, again."""
        header = fields_of(request, LiteDispatch)
        self._bound_parent(header.group)
        for client in self._lite.subscriptions.of_group(header.group):
            if header.client_id in ("", client.client_id):
                yield from self._lite.events.look_through(client)
        return Response()

    # --- checks ---

    def _parent(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name}] not exist.")
        if not facts.is_parent(topic):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return topic

    def _group(self, name: str) -> SubscriptionGroupConfig:
        group = self._groups.find(name)
        if group is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist.")
        return group

    def _bound_parent(self, group: str) -> str:
        parent = facts.parent_of(self._group(group))
        if not parent:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return parent
