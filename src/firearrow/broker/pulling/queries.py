"""Look-ups of messages and offsets: by key (12), by id (33), by time and at the ends (29 to 32), and the entries of a
queue (321).

Source: RocketMQ's ``QueryMessageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.filters import ConsumerFilters
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.net.server import Answer, Peer, Steps
from firearrow.store import Boundary, MessageStore
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import QueueEntries, QueueEntryData
from firearrow.wire.client_bodies import ITEMS_MAX, SubscriptionData
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import QueryConsumeQueue, QueryMessage, QueueHeader, SearchOffset, ViewMessage

_QUERY_COUNT_MAX = 64  # RocketMQ: maxMsgsNumBatch
_KEY_LENGTH_MAX = 32_767  # of all properties; hashing a longer one takes time and finds nothing


class QueryProcessor:
    """Answers look-ups."""

    def __init__(self, context: BrokerContext, filters: ConsumerFilters) -> None:
        self._store = context.store
        self._topics = context.topics
        self._clients = context.clients
        self._filters = filters

    def query_message(self, peer: Peer, request: AnyCommand) -> Answer:
        """12: records with a key, newest first."""
        header = fields_of(request, QueryMessage)
        if len(header.key) > _KEY_LENGTH_MAX:
            raise BrokerError(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message has a key of {len(header.key)} characters, the limit is {_KEY_LENGTH_MAX}",
            )
        unique = header.unique_key_query
        count = self._store.config.default_query_max_num if unique else header.max_num
        kind = header.index_type or ("U" if unique else "K")
        window = header.begin_timestamp, header.end_timestamp
        wanted = (header.topic, header.key, kind, *window)
        records = self._store.query(*wanted, min(count, _QUERY_COUNT_MAX))
        end_ms, end_offset = self._store.index_end
        fields = {"indexLastUpdateTimestamp": end_ms, "indexLastUpdatePhyoffset": end_offset}
        if not records:
            why = self._store.explain_query(*wanted)
            remark = f"can not find message, maybe time range not correct: {why}"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return Response(fields=fields, body=b"".join(records))

    def view_message(self, peer: Peer, request: AnyCommand) -> Answer:
        """33: the record at a physical offset."""
        return Response(body=record_at(self._store, fields_of(request, ViewMessage).offset))

    def search_offset(self, peer: Peer, request: AnyCommand) -> Answer:
        """29: the queue offset of a store time."""
        header = fields_of(request, SearchOffset)
        upper = (header.boundary_type or "").upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        name = header.topic
        if header.lite_topic:
            name = names.lite_queue(name, header.lite_topic)
        offset = self._store.search_offset(name, header.queue_id, header.timestamp, boundary)
        return Response(fields={"offset": offset})

    def max_offset(self, peer: Peer, request: AnyCommand) -> Answer:
        """30: the offset of the next message of a queue."""
        header = fields_of(request, QueueHeader)
        return Response(fields={"offset": self._store.max_queue_offset(header.topic, header.queue_id)})

    def min_offset(self, peer: Peer, request: AnyCommand) -> Answer:
        """31: the first offset of a queue that can be read."""
        header = fields_of(request, QueueHeader)
        return Response(fields={"offset": self._store.min_queue_offset(header.topic, header.queue_id)})

    def earliest_store_time(self, peer: Peer, request: AnyCommand) -> Answer:
        """32: the store time of a queue's first message, -1 if there is none."""
        header = fields_of(request, QueueHeader)
        earliest_ms, _ = self._store.time_span(header.topic, header.queue_id)
        return Response(fields={"timestamp": earliest_ms})

    def queue_entries(self, peer: Peer, request: AnyCommand) -> Steps:
        """321: entries of a queue, and a group's filter for its topic.

        Java: AdminBrokerProcessor#queryConsumeQueue returns any count of them, and creates a queue for any id.
        """
        header = fields_of(request, QueryConsumeQueue)
        topic, queue_id = header.topic, header.queue_id
        config = self._topics.get(topic)
        nums = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < nums:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        if header.count > ITEMS_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"the request asks for {header.count} entries, the limit is {ITEMS_MAX}"
            )
        most = self._store.max_queue_offset(topic, queue_id)
        least = self._store.min_queue_offset(topic, queue_id)
        found: list[QueueEntryData] = []
        for entry in self._store.iterate_from(topic, queue_id, header.index, header.count):
            found.append(QueueEntryData(entry.physical_offset, entry.size, entry.tag_code))
            if not len(found) % fastjson.STEP_ENTRIES:
                yield
        is_there = least <= header.index < most
        subscription, filter_data = self._subscription(header.consumer_group, topic)
        body = QueueEntries(most, least, found if is_there else None, subscription, filter_data)
        nothing = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        answer = yield from answer_in_steps(body)
        return answer if is_there else Response(remark=nothing)

    def _subscription(self, group: str | None, topic: str) -> tuple[SubscriptionData | None, str | None]:
        """Return a group's filter for a topic with the expression in the file, or the reason why it is unknown."""
        if group is None:
            return None, None
        found = self._clients.subscription(group, topic)
        if found is None:
            return None, f"{group}@{topic} is not online!"
        kept = self._filters.find(topic, group)
        row = None if kept is None else self._filters.row(kept)
        return found.data, fastjson.dumps(row, pretty=True).decode()


def record_at(store: MessageStore, physical_offset: int) -> bytes:
    """Return the record at a place of the log that a client names; BrokerError with the reason if there is none."""
    record = store.record_named_at(physical_offset)
    if record is None:
        why = store.explain_offset(physical_offset)
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}: {why}")
    return record
