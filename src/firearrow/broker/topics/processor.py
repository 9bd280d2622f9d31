"""Requests of administrators about topics. Source: RocketMQ's ``AdminBrokerProcessor``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Final

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel
from firearrow.broker.lite import facts
from firearrow.broker.state.attributes import MESSAGE_TYPE, parse_changes
from firearrow.broker.topics.table import QUEUE_NUMS_MAX
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names
from firearrow.net.server import Answer, Steps
from firearrow.wire import fastjson
from firearrow.wire.bodies import QUEUE_TYPE, DataVersion, TopicConfig, TopicConfigTable, TopicList
from firearrow.wire.client_bodies import (
    GroupList,
    MessageQueue,
    TopicConfigList,
    TopicNames,
    TopicOffset,
    TopicStats,
    body_of,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import CreateTopic, GetAllTopicConfig, TopicHeader

PAGE_MAX: Final = 2000  # RocketMQ: splitMetadataSize
PERM_MAX: Final = 15
STEP_LITE_TOPICS: Final = 100  # deleted at once; some milliseconds
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class TopicAdminProcessor:
    """17, 18, 21, 202, 215, 300, 305, 351."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._clients = context.clients
        self._store = context.store
        self._stats = context.stats

    def put(self, _: ClientChannel, request: AnyCommand) -> Response:
        """17: create a topic or change it."""
        header = fields_of(request, CreateTopic)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type or FILTER_TYPES[0],
            header.topic_sys_flag or 0,
            header.order,
            parse_changes(header.attributes),
        )
        self._check(config)
        self._topics.put(config)
        return Response()

    def put_list(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """18: create or change topics, all or none.

        Java: AdminBrokerProcessor#updateAndCreateTopicList ends at the first unchanged one.
        """
        configs = body_of(request, TopicConfigList).topic_config_list
        for config in configs:
            self._check(config)
            yield
        self._topics.put_all(configs)
        return Response()

    def _check(self, config: TopicConfig) -> None:
        fault = names.validate_topic(config.topic_name or "") or _fault_of(config)
        if fault is not None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        self._check_not_system(config.topic_name or "")
        is_mixed = config.attributes.get(f"+{MESSAGE_TYPE}") == "MIXED"
        if is_mixed and not self._settings.broker.enable_mixed_message_type:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        if config.attributes.get(f"+{QUEUE_TYPE}") == "BatchCQ":
            self._check_batches(config.topic_name or "")

    def _check_batches(self, topic: str) -> None:
        """Refuse queues of batches where queues of an earlier topic of the name exist.

        After a power failure soon after the deletion of a topic, a start makes its queues again, from the log. Java:
        ConsumeQueueStore#doFindOrCreateConsumeQueue continues such queues in their earlier form.
        """
        if topic not in self._topics.table and not self._store.admit_batches(topic):
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic} can't be created with {QUEUE_TYPE}=BatchCQ: there are messages of "
                f"an earlier topic of this name without it; delete topic {topic} first",
            )

    def _check_not_system(self, topic: str) -> None:
        guarded = self._settings.broker.validate_system_topic_when_update_topic
        if guarded and self._topics.is_system(topic):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")

    def delete(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """215: delete a topic with its offsets, its queues and the retry topics of its POP groups.

        A topic that does not exist is no error: queues of it may exist. An impossible name is an error: the files of a
        topic are in a directory of its name. Java: AdminBrokerProcessor#deleteTopic refuses only a blank name.
        """
        topic = fields_of(request, TopicHeader).topic
        self._check_deletable(topic)
        yield from self._delete(topic)
        return Response()

    def delete_all(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """5002: delete topics, as 215 does; RocketMQ has it from 5.5.1 on.

        If one of the names can't be deleted, none is.
        """
        topics = body_of(request, TopicNames).topic_list
        for topic in topics:
            self._check_deletable(topic)
        for topic in topics:
            yield from self._delete(topic)
        return Response()

    def _check_deletable(self, topic: str) -> None:
        fault = _fault_of_name(topic)
        if fault is not None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        self._check_not_system(topic)

    def _delete(self, topic: str) -> Iterator[None]:
        takes_retries = self._settings.broker.clear_retry_topic_when_delete_topic
        retries = [
            name
            for group in (self._offsets.groups_of(topic) if takes_retries else ())
            for name in (names.pop_retry_topic(topic, group), names.pop_retry_topic(topic, group, v2=True))
            if self._topics.get(name) is not None
        ]
        known = self._topics.get(topic)
        yield from self._store.dispatch_in_steps()  # so that few messages are left to dispatch
        for name in (*retries, topic):
            self._store.delete_topic(name)  # a full disk refuses it: then the topic stays unchanged
            self._topics.delete(name, self._store.log_end_offset)
            self._offsets.delete_topic(name)
            self._stats.delete_topic(name)
            yield
        if known is not None and facts.is_parent(known):
            yield from self._delete_lite_topics(topic)

    def _delete_lite_topics(self, parent: str) -> Iterator[None]:
        groups = facts.groups_of(self._groups.table, parent)
        found = self._store.topics_from(names.lite_queue(parent, ""))
        while some := list(islice(found, STEP_LITE_TOPICS)):
            queues = [queue for queue in some if queue is not None]
            self._store.delete_lmqs(queues)
            for group, queue in product(groups, queues):
                self._offsets.forget(group, queue)
            yield

    def list_all(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """21: all topics, or a page of them.

        Pages are of one data version: a client with another version starts again with the first page.
        """
        header = fields_of(request, GetAllTopicConfig)
        table = self._topics.table
        page = page_of(
            table.keys(),
            header.topic_seq,
            header.max_topic_num,
            same=is_version(header.data_version, self._topics.data_version),
        )
        body = TopicConfigTable(
            self._topics.data_version,
            {topic: table[topic] for topic in page},
            DataVersion(timestamp=self._stats.boot_ms),
            {},
            {},
        )
        return answer_in_steps(body, {"totalTopicNum": len(table)})

    def get(self, _: ClientChannel, request: AnyCommand) -> Response:
        """351: the config of a topic."""
        topic = fields_of(request, TopicHeader).topic
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return Response(body=fastjson.dumps(config))

    def status(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """202: the ends of the queues of a topic."""
        topic = fields_of(request, TopicHeader).topic
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        broker_name = self._settings.broker.broker_name
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        table: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(queue_nums):
            table[MessageQueue(topic, broker_name, queue_id)] = self._ends(topic, queue_id)
            yield
        return (yield from answer_in_steps(TopicStats(table, self._stats.topic_put_tps(topic))))

    def _ends(self, topic: str, queue_id: int) -> TopicOffset:
        least = max(0, self._store.min_queue_offset(topic, queue_id))
        most = max(0, self._store.max_queue_offset(topic, queue_id))
        stored = self._store.store_time_of(topic, queue_id, most - 1) if most > 0 else 0
        return TopicOffset(least, most, max(0, stored))

    def consumers(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """300: the groups that subscribe to a topic now, or have an offset in it."""
        topic = fields_of(request, TopicHeader).topic
        groups = self._clients.consumers_of(topic) | self._offsets.groups_of(topic)
        return answer_in_steps(GroupList(sorted(groups)))

    def system_topics(self, _: ClientChannel, __: AnyCommand) -> Response:
        """305: the system topics of the broker."""
        return Response(body=fastjson.dumps(TopicList(self._topics.system_topics())))


def _fault_of_name(topic: str) -> str | None:
    """Return the fault of the name of a topic to delete."""
    if not topic.strip():
        return "The specified topic is blank."
    if names.is_pop_retry_v2(topic):
        topic = topic.replace("+", "_", 1)  # the broker's own separator between group and topic
    return names.validate_topic(topic)


def _fault_of(config: TopicConfig) -> str | None:
    """Return the fault of the counts. Java: accepts any, and then serves such a topic badly.

    An administrator forbids sends or reads by ``perm``, not by the counts.
    """
    nums = (config.read_queue_nums, config.write_queue_nums)
    if not all(1 <= num <= QUEUE_NUMS_MAX for num in nums):
        return f"the numbers of queues {nums} are not from 1 to {QUEUE_NUMS_MAX}"
    if not 0 <= config.perm <= PERM_MAX:
        return f"perm {config.perm} is not from 0 to {PERM_MAX}"
    if config.topic_filter_type not in FILTER_TYPES:
        return f"topicFilterType = [{config.topic_filter_type}] value invalid"
    return None


def page_of(names_in_order: Iterable[str], start: int | None, most: int | None, *, same: bool) -> list[str]:
    """Return a page of the names of a table; all of them without a start.

    ``same``: the client's earlier pages were of the present data version.
    """
    if start is None:
        return list(names_in_order)
    first = max(0, start) if same else 0
    size = PAGE_MAX if most is None or not 0 < most < PAGE_MAX else most
    return list(islice(names_in_order, first, first + size))


def is_version(text: str | None, version: DataVersion) -> bool:
    """Tell whether a header's data version, JSON or nothing, is this one."""
    if not text:
        return False
    try:
        return fastjson.decode(text, DataVersion, fastjson.REQUEST_LIMITS) == version
    except MessageError:
        return False
