"""Requests of connected clients about themselves: heartbeats, members, queue locks.

Source: RocketMQ's ``ClientManageProcessor``, ``ConsumerManageProcessor`` and the connection and lock parts of
``AdminBrokerProcessor``.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import Final

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import (
    CLIENT_CHARS_MAX,
    EXPRESSION_LENGTH_MAX,
    NAME_CHARS_MAX,
    WORD_CHARS_MAX,
    ClientChannel,
    GroupMember,
    fault_of,
)
from firearrow.broker.groups.filters import ConsumerFilters, filter_of
from firearrow.broker.groups.locks import QueueLocks
from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Steps
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import GroupSubscription, ProducerInfo, ProducerTable
from firearrow.wire.client_bodies import (
    CONSUME_ACTIVELY,
    CheckClient,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    Heartbeat,
    LockRequest,
    LockResult,
    ProducerConnection,
    body_of,
    is_by_tags,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import (
    ConsumerGroupHeader,
    ConsumersOfGroup,
    GroupAndTopic,
    ProducerGroupHeader,
    UnregisterClient,
)

HEARTBEAT_GROUPS_MAX: Final = 10_000
"""Limit of the groups that one connection may announce at a time. RocketMQ has no limit. But each new one is a consumer
group and a topic that stay, and no client needs more than a few.
"""

HEARTBEAT_SUBSCRIPTIONS_MAX: Final = 50_000
"""Limit of the subscriptions of all its groups together; each takes some microseconds."""
HEARTBEAT_EXPRESSIONS_MAX: Final = 8 * EXPRESSION_LENGTH_MAX
"""Limit of the characters of expressions whose tags must be hashed here, at 2 µs a tag. RocketMQ's clients send the
hash codes.
"""


class ClientProcessor:
    """34, 35, 38, 41, 42, 46, 203, 204, 328, 345."""

    def __init__(self, context: BrokerContext, locks: QueueLocks, filters: ConsumerFilters) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._locks = locks
        self._clock = context.clock
        self._filters = filters
        self._senders = context.senders

    def heartbeat(self, peer: ClientChannel, request: AnyCommand) -> Steps:
        """34: register a client, its groups and their retry topics.

        The answer tells whether the client must send its subscriptions.
        """
        beat = body_of(request, Heartbeat)
        _check_size(beat)
        yield
        user = self._senders.user_of(request)
        member = GroupMember(peer, beat.client_id, request.language, request.version, user)
        fingerprint = beat.heartbeat_fingerprint
        without_sub = fingerprint != 0 and beat.without_sub
        must_send_all = fingerprint == 0
        for data in beat.consumer_data_set:
            yield
            registered = yield from self._register_consumer(data, member, keep=without_sub)
            if not registered or not fingerprint:
                continue
            must_send_all |= self._clients.swap_fingerprint(data.group_name, fingerprint, without_sub=without_sub)
        # Consumers announce a producer as well, even without the permission to send.
        produces = self._senders.may_publish(user, peer.ip)
        for producer in beat.producer_data_set if produces else ():
            self._clients.register_producer(producer.group_name, member)
            yield
        return Response(fields={"IS_SUPPORT_HEART_BEAT_V2": True, "IS_SUB_CHANGE": must_send_all})

    def _register_consumer(self, data: ConsumerData, member: GroupMember, *, keep: bool) -> Generator[None, None, bool]:
        rejected = self._settings.broker.reject_pull_consumer_enable
        if rejected and data.consume_type == CONSUME_ACTIVELY:
            return False
        config = self._groups.find(data.group_name)
        if config is None:
            return False
        subscribed = (self._topics.get(sub.topic) for sub in data.subscription_data_set)
        self._topics.create_retry(
            data.group_name,
            config.retry_queue_nums,
            order=any(topic is not None and topic.order for topic in subscribed),
            unit=data.unit_mode,
        )
        if not keep:
            yield from self._filters.register(data.group_name, data.subscription_data_set)
        self._clients.register_consumer(data, member, notify=config.notify_consumer_ids_changed_enable, keep=keep)
        return True

    def unregister(self, peer: ClientChannel, request: AnyCommand) -> Response:
        """35: remove a client from a producer group, a consumer group, or one of each."""
        header = fields_of(request, UnregisterClient)
        if header.producer_group is not None:
            self._clients.unregister_producer(header.producer_group, peer)
        if header.consumer_group is not None:
            config = self._groups.get(header.consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            self._clients.unregister_consumer(header.consumer_group, peer, notify=notify)
        return Response()

    def consumer_ids(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """38: the members of a consumer group, which divide the queues by it."""
        name = fields_of(request, ConsumerGroupHeader).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return answer_in_steps(ConsumerIdList(group.client_ids()))

    def lock(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """41: lock queues, or renew the locks; answers the queues that are the client's now."""
        asked = body_of(request, LockRequest)
        held = self._locks.lock(asked.consumer_group, asked.mq_set, asked.client_id)
        return answer_in_steps(LockResult(held))

    def unlock(self, _: ClientChannel, request: AnyCommand) -> Response:
        """42: unlock queues."""
        asked = body_of(request, LockRequest)
        self._locks.unlock(asked.consumer_group, asked.mq_set, asked.client_id)
        return Response()

    def check_config(self, _: ClientChannel, request: AnyCommand) -> Response:
        """46: check a subscription."""
        if not request.body:
            return Response()
        wanted = body_of(request, CheckClient).subscription_data
        if wanted is not None and not is_by_tags(wanted.expression_type):
            filter_of(self._settings.broker, wanted.sub_string, wanted.expression_type)
        return Response()

    def consumer_connections(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """203: the members of a consumer group and its subscriptions."""
        header = fields_of(request, ConsumersOfGroup)
        name = header.consumer_group
        group = self._clients.consumer_group(name)
        changes = self._clients.member_log.of(name) if header.with_changes else None
        if group is None and changes:
            return answer_in_steps(ConsumerConnection(member_changes=changes))
        if group is None:
            raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        connections = ConsumerConnection(
            [member.connection() for member in group.members.values()],
            {topic: found.data for topic, found in group.subscriptions.items()},
            group.consume_type,
            group.message_model,
            group.consume_from_where,
            changes,
        )
        return answer_in_steps(connections)

    def producer_connections(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """204: the members of a producer group."""
        name = fields_of(request, ProducerGroupHeader).producer_group
        members = self._clients.producers(name)
        if not members:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        connections = ProducerConnection([member.connection() for member in members])
        return answer_in_steps(connections)

    def producers(self, _: ClientChannel, __: AnyCommand) -> Steps:
        """328: the members of all producer groups."""
        table: dict[str, list[ProducerInfo]] = {}
        for group, members in self._clients.producer_groups():
            table[group] = [self._producer(member) for member in members]
            yield
        return (yield from answer_in_steps(ProducerTable(table)))

    def _producer(self, member: GroupMember) -> ProducerInfo:
        silent_ms = int((self._clock.monotonic() - member.heard) * 1000)
        return ProducerInfo(
            member.client_id,
            f"/{member.channel.address}",  # the form of Java for an address without a host name
            member.language,
            member.version,
            self._clock.now_ms() - silent_ms,
        )

    def subscription(self, _: ClientChannel, request: AnyCommand) -> Response:
        """345: the present subscription of a group to a topic."""
        header = fields_of(request, GroupAndTopic)
        found = self._clients.subscription(header.group, header.topic)
        data = None if found is None else found.data
        return Response(body=fastjson.dumps(GroupSubscription(header.group, header.topic, data)))


def _fault_of_names(beat: Heartbeat) -> str | None:
    """Return the fault if a name in a heartbeat is longer than any useful name."""
    words = [w for it in beat.consumer_data_set for w in (it.consume_type, it.message_model)]
    words += [it.consume_from_where for it in beat.consumer_data_set]
    groups = [it.group_name for it in beat.consumer_data_set]
    groups += [it.group_name for it in beat.producer_data_set]
    for what, texts, most in (
        ("client id", [beat.client_id], CLIENT_CHARS_MAX),
        ("name of a group", groups, NAME_CHARS_MAX),
        ("protocol field of a group", words, WORD_CHARS_MAX),
    ):
        longest = max((len(text or "") for text in texts), default=0)
        if longest > most:
            return f"a {what} is {longest} characters long, the limit is {most}"
    return None


def _check_size(beat: Heartbeat) -> None:
    """Refuse a heartbeat of a size that no client needs and that would be costly to keep."""
    group_nums = len(beat.consumer_data_set) + len(beat.producer_data_set)
    if group_nums > HEARTBEAT_GROUPS_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"the heartbeat has {group_nums} groups, the limit is {HEARTBEAT_GROUPS_MAX}",
        )
    wanted = [data for group in beat.consumer_data_set for data in group.subscription_data_set]
    if len(wanted) > HEARTBEAT_SUBSCRIPTIONS_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"the heartbeat has {len(wanted)} subscriptions, the limit is {HEARTBEAT_SUBSCRIPTIONS_MAX}",
        )
    faults = chain((_fault_of_names(beat),), map(fault_of, wanted))
    fault = next(filter(None, faults), None)
    if fault is not None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
    to_hash = sum(len(data.sub_string) for data in wanted if not data.code_set)
    if to_hash > HEARTBEAT_EXPRESSIONS_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"the heartbeat has {to_hash} characters of expressions without hash codes, the limit "
            f"is {HEARTBEAT_EXPRESSIONS_MAX}",
        )
