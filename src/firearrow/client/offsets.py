"""What brokers know of queue offsets: the ends of queues, offsets by time, how far a group is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from firearrow.client.answers import read_body, read_number
from firearrow.client.partitionpoint import partition_point
from firearrow.client.pulls import Asking
from firearrow.client.queues import NOT_STORED, Bound, Mark, Queue, Stored
from firearrow.client.routes import Routes
from firearrow.errors import BrokerError, MessageError, RemoteProtocolError, TopicNotFound
from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.net.blocking import Pending
from firearrow.wire.bodies import PERM_READ, KVTable, Route
from firearrow.wire.client_bodies import TopicStats
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue

log = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 256  # questions about queues on their way at once


class Offsets:
    """Asks brokers on behalf of a consumer group."""

    def __init__(self, routes: Routes, group: str) -> None:
        self._routes = routes
        self._client = routes.cluster.client
        self._asking = Asking(group)

    def ends(self, routes: Iterable[tuple[str, Route]]) -> Iterator[tuple[Queue, Bound]]:
        """The queues of topics that can be read, by their routes, and what each holds now."""
        asked = list(self._begin_ends(routes))
        for topic, broker, queues, pending in asked:
            try:
                answer = pending.result()
            except TopicNotFound:
                continue  # the broker has just lost it, or not heard of it yet
            stats = read_body(answer, TopicStats, "ends of queues")
            for place, ends in stats.offset_table.items():
                if place.queue_id < queues:
                    latest = max(ends.min_offset, ends.max_offset)
                    bound = Bound(ends.min_offset, latest, ends.last_update_timestamp)
                    yield Queue(topic, broker, place.queue_id), bound

    def _begin_ends(self, routes: Iterable[tuple[str, Route]]) -> Iterator[tuple[str, str, int, Pending]]:
        """Ask the brokers of each topic; with the number of queues that can be read there."""
        for topic, route in routes:
            for queues in route.queue_datas:
                if queues.perm & PERM_READ:
                    address = self._routes.address(queues.broker_name)
                    code, fields = RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
                    pending = self._client.begin(address, code, fields)
                    yield topic, queues.broker_name, queues.read_queue_nums, pending

    # --- times ---

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """The first offset of a message stored at or after a time; None if there is none.

        Brokers before 5.0 answer with the message that is nearest in time, and any of several that
        were stored in the same millisecond: so the answer is only where to begin to look.
        """
        first = self._offset(queue, RequestCode.GET_MIN_OFFSET)
        end = self._offset(queue, RequestCode.GET_MAX_OFFSET)
        guess = self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=timestamp_ms)
        found = partition_point(lambda offset: self._stored_ms(queue, offset) >= timestamp_ms, first, end, guess)
        return found if found < end else None

    def offsets_at(self, queues: Iterable[Queue], timestamp_ms: int) -> dict[Queue, int]:
        """The offset of a time in each queue, as brokers answer it: only about right.

        See ``offset_at``.
        """
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        asked = in_turns(queues, lambda queue: self._begin(queue, code, timestamp=timestamp_ms))
        return {queue: self._number(queue, pending) for queue, pending in asked}

    def _begin(self, queue: Queue, code: int, **more: FieldValue) -> Pending:
        fields = {"topic": queue.topic, "queueId": queue.queue_id, **more}
        return self._client.begin(self._routes.address_of(queue), code, fields)

    def _offset(self, queue: Queue, code: int, **more: FieldValue) -> int:
        return self._number(queue, self._begin(queue, code, **more))

    def _number(self, queue: Queue, pending: Pending) -> int:
        return read_number(pending.result(), "offset", self._routes.address_of(queue))

    def _stored_ms(self, queue: Queue, queue_offset: int) -> int:
        """When a message was stored; -1 if it is deleted."""
        fields = self._asking.fields(queue, queue_offset, 1)
        address = self._routes.address_of(queue)
        answer = self._client.begin(address, RequestCode.PULL_MESSAGE, fields).answer()
        record = _first_record(answer.body, address)
        return -1 if record is None else record.store_timestamp_ms

    def marks(self, places: Mapping[Queue, int]) -> dict[Queue, Mark]:
        """The marks of the messages at queue offsets, of those that are there."""

        def ask(queue: Queue) -> Pending:
            fields = self._asking.fields(queue, places[queue], 1)
            address = self._routes.address_of(queue)
            return self._client.begin(address, RequestCode.PULL_MESSAGE, fields)

        found: dict[Queue, Mark] = {}
        for queue, pending in in_turns(places, ask):
            record = _first_record(pending.answer().body, self._routes.address_of(queue))
            if record is not None and record.queue_offset <= places[queue]:  # or of an inner batch
                found[queue] = Mark(record.physical_offset, record.store_timestamp_ms)
        return found

    def stored_at(self, broker: str, physical_offset: int) -> Stored | None:
        """What a broker's log has at a place: ``NOT_STORED`` where no record begins there, and None
        where the broker does not answer that, or the place is deleted."""
        address = self._routes.address(broker)
        fields: dict[str, FieldValue] = {"offset": physical_offset}
        try:
            answer = self._client.call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                return None
            return NOT_STORED if self._has_place(address, physical_offset) else None
        record = _first_record(answer.body, address)
        if record is None or record.physical_offset != physical_offset:
            return NOT_STORED
        return Stored(record.store_timestamp_ms, record.born_timestamp_ms)

    def _has_place(self, address: str, physical_offset: int) -> bool:
        """Whether the log still has a place, as far as the broker answers that."""
        try:
            answer = self._client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        except BrokerError:
            return False
        facts = read_body(answer, KVTable, "facts of a broker").table
        start = facts.get("commitLogMinOffset", "")
        return start.isdecimal() and int(start) <= physical_offset

    # --- progress ---

    def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Commit to the brokers how far the group has read.

        What can't be committed is logged: the next commit repeats it, or has gone beyond it.
        """
        group, asked = self._asking.group, list[tuple[Queue, Pending]]()
        for queue, queue_offset in offsets.items():
            code = RequestCode.UPDATE_CONSUMER_OFFSET
            try:
                begun = self._begin(queue, code, consumerGroup=group, commitOffset=queue_offset)
            except (OSError, BrokerError) as error:
                log.warning("offset is not committed", extra={**queue.fields, "error": error})
            else:
                asked.append((queue, begun))
        for queue, pending in asked:
            try:
                pending.result()
            except (OSError, BrokerError) as error:
                log.warning("offset is not committed", extra={**queue.fields, "error": error})


def in_turns(queues: Iterable[Queue], ask: Callable[[Queue], Pending]) -> Iterator[tuple[Queue, Pending]]:
    """Ask about each queue, some hundred at a time, and give what is under way, in order."""
    left = list(queues)
    for first in range(0, len(left), UNDER_WAY_MAX):
        yield from [(queue, ask(queue)) for queue in left[first : first + UNDER_WAY_MAX]]


def _first_record(records: bytes, address: str) -> MessageView | None:
    try:
        return next(iter_records(records), None)
    except MessageError as error:
        raise RemoteProtocolError(f"{address} sent bytes that are not messages: {error}") from None
