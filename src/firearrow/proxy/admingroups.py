"""Admin service about consumer groups: subscriptions, members, accumulation, times and offsets.

The figures equal the ones of RocketMQ's tools and of Firearrow's command line: the brokers' answers, added up.

Source: ``admin.proto`` of rocketmq-apis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.session.answers import read_body
from firearrow.errors import FirearrowError
from firearrow.message import names
from firearrow.proxy import messages as m
from firearrow.proxy.adminasking import Asking
from firearrow.proxy.clients import Client, Clients
from firearrow.proxy.delivery import resource_of
from firearrow.proxy.settings import LITE_BIND_TOPIC
from firearrow.proxy.statuses import ProxyError, status
from firearrow.proxy.times import duration_of, set_time, time_ms
from firearrow.proxy.validation import check_group, check_topic, is_blank
from firearrow.wire.admin_bodies import LiteGroupInfo, LiteTopicInfo, QueueTimeSpan, QueueTimeSpans
from firearrow.wire.bodies import TopicList
from firearrow.wire.client_bodies import (
    SQL92,
    ClientConnection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    OffsetWrapper,
    SubscriptionData,
)
from firearrow.wire.codes import RequestCode, ResponseCode, version_name
from firearrow.wire.headers import (
    AskConsumer,
    ConsumersOfGroup,
    GetConsumeStats,
    GroupAndTopic,
    LiteGroup,
    LiteTopic,
    ResetOffset,
    TopicHeader,
    TopicsOfGroup,
)

MEMBERS_ASKED_MAX: Final = 200  # of one group, about their own subscriptions
LITE_TOPICS_MAX: Final = 1000  # of one answer: those with the largest lag
_OFFLINE: Final = (ResponseCode.CONSUMER_NOT_ONLINE,)
_MODELS: Final = {
    "CLUSTERING": m.MessageModel.CLUSTERING,
    "BROADCASTING": m.MessageModel.BROADCASTING,
    "LITE_SELECTIVE": m.MessageModel.LITE_SELECTIVE,
}


class _Member(NamedTuple):
    """Member of a group, and the broker that knows it."""

    broker: str
    connection: ClientConnection
    model: str | None


class GroupAdmin:
    """Handlers of the calls about groups."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    # --- subscriptions ---

    async def subscriptions(self, asking: Asking, request: m.ListSubscriptionRequest) -> m.ListSubscriptionResponse:
        """Return the subscriptions of a group, or of all groups to a topic."""
        topic, group = _filters(request)
        brokers = await asking.brokers_of_all(filter(None, [topic]))
        groups = [group] if group else await _groups_of(asking, brokers, topic)
        answer = m.ListSubscriptionResponse(status=status(m.Code.OK))
        for name in groups:
            answer.subscription_info.extend(await self._subscriptions_of(asking, brokers, name, topic))
        return answer

    async def _subscriptions_of(
        self, asking: Asking, brokers: Sequence[str], group: str, topic: str
    ) -> list[m.SubscriptionInfo]:
        online = await _connections(asking, brokers, group)
        found: dict[str, m.SubscriptionInfo] = {}
        for connection in online.values():
            for data in connection.subscription_table.values():
                if _is_shown(data.topic, topic):
                    found[data.topic] = _info(group, data, connection.message_model)
        if found:
            reports = (await _reports(asking, group, _members(online))).values()
            for name, info in found.items():
                info.online = True
                info.subscription_consistency = len({_expression(name, report) for report in reports}) <= 1
        for name in await _consumed_topics(asking, brokers, group):
            if _is_shown(name, topic) and name not in found:
                found[name] = m.SubscriptionInfo(
                    group=resource_of(group), topic=resource_of(name), subscription_consistency=True
                )
        return [found[name] for name in sorted(found)]

    async def client_subscriptions(
        self, asking: Asking, request: m.DescribeSubscriptionRequest
    ) -> m.DescribeSubscriptionResponse:
        """Return the subscriptions as each member has them."""
        topic, group = _filters(request)
        brokers = await asking.brokers_of_all(filter(None, [topic]))
        groups = [group] if group else await _groups_of(asking, brokers, topic)
        answer = m.DescribeSubscriptionResponse(status=status(m.Code.OK))
        known = self._known()
        for name in groups:
            members = _members(await _connections(asking, brokers, name))
            reports = await _reports(asking, name, members)
            for client_id, report in reports.items():
                member = members[client_id]
                for data in report.subscription_set:
                    if not _is_shown(data.topic, topic):
                        continue
                    info = _info(name, data, member.model)
                    info.online = True
                    info.subscription_consistency = (
                        len({_expression(data.topic, other) for other in reports.values()}) <= 1
                    )
                    answer.client_subscription_info.add(client_info=_client(member, known), subscription_info=info)
        return answer

    async def delete(self, asking: Asking, request: m.DeleteSubscriptionRequest) -> m.DeleteSubscriptionResponse:
        """Forget how far a group has consumed a topic; none of its members may subscribe to the topic now.

        A group has one subscription to a topic, so its expression does not matter.
        """
        group, topic = request.group.name, request.topic.name
        check_topic(topic)
        check_group(group)
        brokers = await asking.brokers_of(topic)
        online = await _connections(asking, brokers, group)
        if any(topic in it.subscription_table for it in online.values()):
            raise ProxyError(m.Code.PRECONDITION_FAILED, f"group {group} has members that subscribe to {topic}")
        await asking.answers(brokers, RequestCode.DELETE_SUBSCRIPTION, GroupAndTopic(group, topic))
        return m.DeleteSubscriptionResponse(status=status(m.Code.OK))

    # --- members ---

    async def connections(
        self, asking: Asking, request: m.ListConsumerConnectionRequest
    ) -> m.ListConsumerConnectionResponse:
        """Return the members of a group that subscribe to a topic, or to a lite topic of it, or all."""
        group, topic, lite_topic = request.group.name, request.topic.name, request.liteTopic
        check_group(group)
        if lite_topic and not topic:
            raise ProxyError(m.Code.BAD_REQUEST, "a lite topic needs its topic")
        brokers = await asking.brokers_of_all(filter(None, [topic]))
        online = await _connections(asking, brokers, group)
        if topic:
            online = {broker: it for broker, it in online.items() if topic in it.subscription_table}
        members = _members(online)
        if lite_topic:
            ids = await _lite_subscribers(asking, brokers, group, topic, lite_topic)
            if "*" not in ids:
                members = {client_id: member for client_id, member in members.items() if client_id in ids}
        known = self._known()
        clients = [_client(member, known) for member in members.values()]
        return m.ListConsumerConnectionResponse(status=status(m.Code.OK), client_info=clients)

    def _known(self) -> dict[str, Client]:
        """Clients of this proxy by their ids."""
        return {client.client_id: client for client in self._clients.all()}

    async def running_info(
        self, asking: Asking, request: m.GetConsumerRunningInfoRequest
    ) -> m.GetConsumerRunningInfoResponse:
        """Return the state of a consumer, as it reports it."""
        report = await report_of(asking, request.group.name, request.client_id)
        return m.GetConsumerRunningInfoResponse(status=status(m.Code.OK), consumer_running_info=_running_info(report))

    async def stack_trace(
        self, asking: Asking, request: m.PrintThreadStackTraceRequest
    ) -> m.PrintThreadStackTraceResponse:
        """Return the stacks of a consumer's threads."""
        report = await report_of(asking, request.group.name, request.client_id, stacks=True)
        return m.PrintThreadStackTraceResponse(status=status(m.Code.OK), thread_stack_trace=report.jstack or "")

    # --- accumulation ---

    async def accumulation(
        self, asking: Asking, request: m.DescribeGroupAccumulationRequest
    ) -> m.DescribeGroupAccumulationResponse:
        """Return the count of a group's messages that are not consumed, in all, by topic, or by lite topic."""
        group, topics = request.group.name, _names(request.topics)
        check_group(group)
        brokers = await asking.brokers_of_all(topics)
        if request.lite_topic:
            return await _lite_accumulation(asking, brokers, group, request.lite_topic)
        listed = ";".join(source for topic in topics for source in _sources(topic, group))
        header = GetConsumeStats(group, topic_list=listed or None, with_pops=True)
        stats = await asking.bodies(brokers, RequestCode.GET_CONSUME_STATS, header, ConsumeStats)
        positions = [(queue.topic, at) for it in stats.values() for queue, at in it.offset_table.items()]
        if not positions:
            config = await asking.brokers.group(group)
            if config is None:
                raise ProxyError(m.Code.CONSUMER_GROUP_NOT_FOUND, f"group not found: {group}")
            if config.attributes.get(LITE_BIND_TOPIC):
                return await _lite_accumulation(asking, brokers, group)
        behind = {topic for topic, at in positions if at.broker_offset > at.consumer_offset}
        delays = await _delays(asking, brokers, group, [topic for topic in behind if not names.is_retry(topic)])
        answer = m.DescribeGroupAccumulationResponse(status=status(m.Code.OK))
        _fill(answer.accumulation, [at for _, at in positions], max(delays.values(), default=0))
        for topic in topics:
            sources = _sources(topic, group)
            own = [at for source, at in positions if source in sources]
            _fill(answer.topic_accumulation[topic], own, delays.get(topic, 0))
        return answer

    async def time_spans(self, asking: Asking, request: m.QueryTimeSpanRequest) -> m.QueryTimeSpanResponse:
        """Return the store times of the messages in each queue, and of the group's last consumed one."""
        group, topics = request.group.name, _names(request.topics)
        check_group(group)
        brokers = await asking.brokers_of_all(topics)
        answer = m.QueryTimeSpanResponse(status=status(m.Code.OK))
        for topic in topics or await _consumed_topics(asking, brokers, group):
            if names.is_retry(topic):
                continue
            for broker, span in await _spans(asking, brokers, group, topic):
                queue = m.MessageQueue(
                    topic=resource_of(topic), id=span.message_queue.queue_id, broker=m.Broker(name=broker)
                )
                answer.queue_time_span_list.add(
                    message_queue=queue,
                    min_timestamp=span.min_time_stamp,
                    max_timestamp=span.max_time_stamp,
                    consume_timestamp=span.consume_time_stamp,
                    delay_time_ms=span.delay_time,
                )
        return answer

    async def reset(self, asking: Asking, request: m.ResetGroupOffsetRequest) -> m.ResetGroupOffsetResponse:
        """Make a group continue at a time, forward or back, in all queues of a topic."""
        group, topic = request.group.name, request.topic.name
        check_topic(topic)
        check_group(group)
        if not request.HasField("reset_timestamp"):
            raise ProxyError(m.Code.BAD_REQUEST, "reset timestamp is missing")
        brokers = await asking.brokers_of(topic)
        header = ResetOffset(group, topic, max(0, time_ms(request.reset_timestamp)), offset=-1, is_force=True)
        await asking.answers(brokers, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return m.ResetGroupOffsetResponse(status=status(m.Code.OK))


async def report_of(asking: Asking, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
    """Return the state of a consumer, asked by way of a broker that knows it; ProxyError if none does."""
    member = await member_of(asking, group, client_id)
    header = AskConsumer(group, client_id, stacks)
    answer = await asking.answer(member.broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert answer is not None, "no code is an absence"
    return read_body(answer, ConsumerRunningInfo, "state of a consumer")


async def member_of(asking: Asking, group: str, client_id: str) -> _Member:
    """Return a member of a group; ProxyError if it is not online."""
    check_group(group)
    if is_blank(client_id):
        raise ProxyError(m.Code.BAD_REQUEST, "client id cannot be empty")
    member = _members(await _connections(asking, await asking.brokers.names(), group)).get(client_id)
    if member is None:
        raise ProxyError(m.Code.NOT_FOUND, f"group {group} has no client {client_id[:255]} online")
    return member


def _filters(request: m.ListSubscriptionRequest | m.DescribeSubscriptionRequest) -> tuple[str, str]:
    """Return topic and group of a request; one of them may be empty."""
    topic, group = request.topic.name, request.group.name
    if not topic and not group:
        raise ProxyError(m.Code.BAD_REQUEST, "a topic or a group is needed")
    if group:
        check_group(group)
    return topic, group


def _names(resources: Iterable[m.Resource]) -> list[str]:
    return list(dict.fromkeys(resource.name for resource in resources))


def _is_shown(name: str, wanted: str) -> bool:
    return name == wanted if wanted else not names.is_retry(name)


async def _groups_of(asking: Asking, brokers: Sequence[str], topic: str) -> list[str]:
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    found = await asking.bodies(brokers, code, TopicHeader(topic), GroupList)
    return sorted({group for it in found.values() for group in it.group_list})


async def _consumed_topics(asking: Asking, brokers: Sequence[str], group: str) -> list[str]:
    """Return the topics where a group has offsets."""
    code = RequestCode.QUERY_TOPICS_BY_CONSUMER
    found = await asking.bodies(brokers, code, TopicsOfGroup(group), TopicList)
    return sorted({topic for it in found.values() for topic in it.topic_list if not names.is_lmq(topic)})


async def _connections(asking: Asking, brokers: Sequence[str], group: str) -> dict[str, ConsumerConnection]:
    """Return the members of a group by broker, without the brokers where it is offline."""
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    return await asking.bodies(brokers, code, ConsumersOfGroup(group), ConsumerConnection, _OFFLINE)


def _members(online: dict[str, ConsumerConnection]) -> dict[str, _Member]:
    return {
        connection.client_id: _Member(broker, connection, it.message_model)
        for broker, it in online.items()
        for connection in it.connection_set
    }


async def _reports(asking: Asking, group: str, members: dict[str, _Member]) -> dict[str, ConsumerRunningInfo]:
    """Ask members for their own state; those that do not answer are left out."""
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    some = list(members.items())[:MEMBERS_ASKED_MAX]
    sent = [(client_id, asking.send(member.broker, code, AskConsumer(group, client_id))) for client_id, member in some]
    found: dict[str, ConsumerRunningInfo] = {}
    for client_id, reply in sent:
        try:
            answer = await reply
            if answer.code == 0:
                found[client_id] = read_body(answer, ConsumerRunningInfo, "state of a consumer")
        except (FirearrowError, OSError):
            continue
    return found


def _client(member: _Member, known: Mapping[str, Client]) -> m.ClientInfo:
    """Return facts of a member: its own words if this proxy knows it, otherwise its broker's."""
    connection = member.connection
    client_id = connection.client_id
    client = known.get(client_id)
    host, mark, _ = client_id.partition("@")
    return m.ClientInfo(
        client_id=client_id,
        version=client.version if client else version_name(connection.version),
        language=client.language if client else connection.language or "",
        hostname=host if mark else "",
        egress_ip=connection.client_addr.rpartition(":")[0].strip("[]/"),
        message_model=_model(member.model),
    )


def _expression(topic: str, report: ConsumerRunningInfo) -> tuple[str, str] | None:
    found = (data for data in report.subscription_set if data.topic == topic)
    return next(((data.expression_type, data.sub_string) for data in found), None)


def _model(name: str | None) -> m.MessageModel:
    return _MODELS.get(name or "", m.MessageModel.MESSAGE_MODEL_UNSPECIFIED)


def _info(group: str, data: SubscriptionData, model: str | None) -> m.SubscriptionInfo:
    info = m.SubscriptionInfo(
        group=resource_of(group),
        topic=resource_of(data.topic),
        expression=_filter_of(data),
        message_model=_model(model),
    )
    if data.sub_version > 0:  # the time of the subscription by its client's clock
        set_time(info.last_update_timestamp, data.sub_version)
    return info


def _filter_of(data: SubscriptionData) -> m.FilterExpression:
    kind = m.FilterType.SQL if data.expression_type == SQL92 else m.FilterType.TAG
    return m.FilterExpression(type=kind, expression=data.sub_string)


def _running_info(report: ConsumerRunningInfo) -> m.ConsumerRunningInfo:
    info = m.ConsumerRunningInfo(properties=report.properties)
    for data in report.subscription_set:
        info.subscriptions[data.topic].CopyFrom(_filter_of(data))
    for queue, held in report.mq_table.items():
        item = info.message_queue_table.add()
        item.message_queue.topic.name = queue.topic
        item.message_queue.broker.name = queue.broker_name
        item.message_queue.id = queue.queue_id
        for field in m.ProcessQueueInfo.DESCRIPTOR.fields:
            setattr(item.process_queue_info, field.name, getattr(held, _OTHER_NAMES.get(field.name, field.name)))
    for topic, rates in report.status_table.items():
        info.consume_status_table[topic].CopyFrom(
            m.ConsumeStatus(
                receive_rt=rates.pull_rt,
                receive_tps=rates.pull_tps,
                consume_rt=rates.consume_rt,
                consume_ok_tps=rates.consume_ok_tps,
                consume_failed_tps=rates.consume_failed_tps,
                consume_failed_msgs=rates.consume_failed_msgs,
            )
        )
    return info


_OTHER_NAMES: Final = {"dropped": "droped"}  # RocketMQ's spelling


# --- figures ---


def _sources(topic: str, group: str) -> tuple[str, ...]:
    """Return a topic, and those where its messages wait for a retry by the group."""
    return topic, *(names.pop_retry_topic(topic, group, v2=is_v2) for is_v2 in (False, True))


async def _spans(asking: Asking, brokers: Sequence[str], group: str, topic: str) -> list[tuple[str, QueueTimeSpan]]:
    code, absent = RequestCode.QUERY_CONSUME_TIME_SPAN, (ResponseCode.TOPIC_NOT_EXIST,)
    found = await asking.bodies(brokers, code, GroupAndTopic(group, topic), QueueTimeSpans, absent)
    return [(broker, span) for broker, it in found.items() for span in it.consume_time_span_set]


async def _delays(asking: Asking, brokers: Sequence[str], group: str, topics: Iterable[str]) -> dict[str, int]:
    """Return the age of the first message that a group has not consumed, in ms, by topic."""
    found: dict[str, int] = {}
    for topic in topics:
        spans = await _spans(asking, brokers, group, topic)
        found[topic] = max((span.delay_time for _, span in spans), default=0)
    return found


def _fill(
    to: m.DescribeGroupAccumulationResponse.GroupAccumulation, positions: Sequence[OffsetWrapper], delay_ms: int
) -> None:
    to.inflight_messages = sum(max(0, at.pull_offset - at.consumer_offset) for at in positions)
    to.ready_messages = sum(max(0, at.broker_offset - max(at.pull_offset, at.consumer_offset)) for at in positions)
    to.accumulation = to.inflight_messages + to.ready_messages
    to.deliver_delay_time.CopyFrom(duration_of(delay_ms))
    to.last_consume_timestamp = max((at.last_timestamp for at in positions), default=0)


async def _lite_accumulation(
    asking: Asking, brokers: Sequence[str], group: str, lite_topic: str = ""
) -> m.DescribeGroupAccumulationResponse:
    """Return the accumulation in a lite topic, or in all of them and in those where it is largest."""
    header = LiteGroup(group, lite_topic, 0 if lite_topic else LITE_TOPICS_MAX)
    infos = await asking.bodies(brokers, RequestCode.GET_LITE_GROUP_INFO, header, LiteGroupInfo)
    answer = m.DescribeGroupAccumulationResponse(status=status(m.Code.OK))
    total = answer.accumulation
    for info in infos.values():
        count = max(0, info.total_lag_count)
        total.ready_messages += count
        total.accumulation += count
        if lite_topic:
            place = info.lite_topic_offset_wrapper
            if place is not None:
                total.last_consume_timestamp = max(total.last_consume_timestamp, place.last_timestamp)
        for lag in info.lag_count_top_k or ():
            own = answer.lite_topic_accumulation[lag.lite_topic]
            own.ready_messages += lag.lag_count
            own.accumulation += lag.lag_count
    if lite_topic:
        answer.lite_topic_accumulation[lite_topic].CopyFrom(total)
    return answer


async def _lite_subscribers(
    asking: Asking, brokers: Sequence[str], group: str, topic: str, lite_topic: str
) -> set[str]:
    header = LiteTopic(topic, lite_topic)
    infos = await asking.bodies(brokers, RequestCode.GET_LITE_TOPIC_INFO, header, LiteTopicInfo)
    return {one.client_id for info in infos.values() for one in info.subscriber if one.group == group}
