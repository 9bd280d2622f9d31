"""Messages from the brokers of a cluster: the origin that ``nameServer`` names.

Queues and their ends come from the brokers by way of the name servers' routes; messages are pulled
(``firearrow.spark.pulls``) as any consumer does, so that they cost the brokers what a consumer
costs them. An answer holds records as they are stored, which the file source reads, too: the rows
are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final
from weakref import finalize

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from firearrow.clock import Clock, SystemClock
from firearrow.errors import (
    BrokerError,
    ConfigError,
    NotPermitted,
    NotSupported,
    RemoteProtocolError,
    TopicNotFound,
)
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.net.blocking import Pending
from firearrow.net.cluster import Cluster, address_of, read_body
from firearrow.spark.access import cluster_of
from firearrow.spark.batches import Batches
from firearrow.spark.filters import Narrow
from firearrow.spark.nearsearch import first_true
from firearrow.spark.options import Options
from firearrow.spark.origin import NOT_STORED, Bound, Queue, Span, Stored
from firearrow.spark.pulls import ATTEMPTS_MAX, TRY_AGAIN, Asking, Pulls, pause
from firearrow.store.batchqueue import inner_counts
from firearrow.store.scan import Columns, Stop, scan
from firearrow.wire.bodies import PERM_READ, KVTable, Route, TopicConfig
from firearrow.wire.client_bodies import TopicStats
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue

log = logging.getLogger(__name__)

GROUP: Final = "firearrow-spark"  # who pulls, if the options don't say
SAMPLE_ROWS: Final = 16  # messages of each queue that are looked at for their size
UNKNOWN_BYTES: Final = 1024.0  # the size of a message, where none can be looked at
ROUTE_SECONDS_MAX: Final = 30.0  # as RocketMQ's clients have it
UNDER_WAY_MAX: Final = 256  # questions about queues on their way at once


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a queue to pull, and where its broker was when that was planned."""

    queue: Queue
    span: Span
    address: str


class BrokerPartition(InputPartition):
    """Ranges of queues of one broker."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        super().__init__(parts)
        self.parts = parts


@dataclass(frozen=True, slots=True)
class _Broker:
    """What of a broker its batches' errors name."""

    broker: str
    root: str


class BrokerOrigin:
    """The brokers of a cluster."""

    def __init__(
        self, options: Options, narrow: Narrow | None = None, clock: Clock | None = None
    ) -> None:
        _require_messages(options)
        self._options = options
        self._narrow = narrow or Narrow()
        self._clock = clock or SystemClock()
        self._routes: dict[str, tuple[Route, float]] = {}  # and until when each will do
        self._addresses: dict[str, str] = {}
        self._own_tags: dict[tuple[str, str], bool] = {}
        self._asking = Asking(
            options.access.consumer_group or GROUP,
            options.choice.tags,
            options.reading.fail_on_data_loss,
        )

    @cached_property
    def _cluster(self) -> Cluster:
        cluster = cluster_of(self._options.place, self._options.access)
        finalize(self, cluster.client.close)  # whoever plans a query just drops the origin
        return cluster

    def close(self) -> None:
        """Close all connections."""
        self._cluster.client.close()

    # --- queues ---

    def bounds(self) -> Mapping[Queue, Bound]:
        """Every queue that the options choose, and what it holds now."""
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                return self._bounds()
            except TRY_AGAIN as error:
                log.info("ends of queues are asked for again", extra={"error": error})
                self._routes.clear()
                pause(attempt)
        return self._bounds()

    def _bounds(self) -> Mapping[Queue, Bound]:
        found: dict[Queue, Bound] = {}
        asked = list(self._begin_bounds())
        for topic, broker, queues, pending in asked:
            try:
                answer = pending.result()
            except TopicNotFound:
                continue  # the broker has just lost it, or not heard of it yet
            stats = read_body(answer, TopicStats, "ends of queues")
            for place, ends in stats.offset_table.items():
                queue = Queue(topic, broker, place.queue_id)
                if place.queue_id < queues and self._wants(queue):
                    found[queue] = Bound(ends.min_offset, max(ends.min_offset, ends.max_offset))
        self._require_assigned(found)
        return found

    def _begin_bounds(self) -> Iterator[tuple[str, str, int, Pending]]:
        """Ask the brokers of each topic; with the number of queues that can be read there."""
        for topic in self._topics():
            route = self._route(topic)
            if route is None:
                continue
            for queues in route.queue_datas:
                if queues.perm & PERM_READ:
                    address = self._addresses[queues.broker_name]
                    code, fields = RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
                    pending = self._cluster.client.begin(address, code, fields)
                    yield topic, queues.broker_name, queues.read_queue_nums, pending

    def _topics(self) -> list[str]:
        """The topics that the options choose by name, else those of all that they want."""
        choice = self._options.choice
        named = [*choice.subscribe, *(topic for topic, _, _ in choice.assign)]
        found = dict.fromkeys(named) if named else self._cluster.topics()
        return [topic for topic in found if choice.wants(topic) and topic in self._narrow.topic]

    def _route(self, topic: str) -> Route | None:
        """Where a topic is; None if it can't be read and was not asked for by its name."""
        known = self._routes.get(topic)
        if known is not None and known[1] > self._clock.monotonic():
            return known[0]
        choice = self._options.choice
        is_named = bool(choice.subscribe or choice.assign)
        try:
            route = self._cluster.route(topic)
        except TopicNotFound:
            if is_named:
                raise
            return None
        if route.topic_queue_mapping_by_broker:
            raise ConfigError(f"topic {topic!r} is a static topic, whose queues can't be read")
        if is_named and not any(queues.perm & PERM_READ for queues in route.queue_datas):
            raise NotPermitted(
                ResponseCode.NO_PERMISSION, f"no broker allows reading topic {topic!r}"
            )
        brokers = {broker.broker_name: broker for broker in route.broker_datas}
        self._addresses |= {name: address_of(broker) for name, broker in brokers.items()}
        self._routes[topic] = route, self._clock.monotonic() + ROUTE_SECONDS_MAX
        return route

    def _wants(self, queue: Queue) -> bool:
        topic, broker, queue_id = queue
        chosen = self._options.place.broker_name in (None, broker)
        chosen = chosen and queue_id in self._narrow.queue_id
        return chosen and self._options.choice.wants_queue(topic, broker, queue_id)

    def _require_assigned(self, found: Mapping[Queue, Bound]) -> None:
        """Raise ConfigError for a queue of the option ``assign`` that is not there."""
        for topic, broker, queue_ids in self._options.choice.assign:
            for queue_id in queue_ids:
                queue = Queue(topic, broker, queue_id)
                if queue not in found and self._may_be_wanted(queue):
                    raise ConfigError(
                        f"option assign: topic {topic!r} has no queue {queue_id} to read on "
                        f"{broker!r}"
                    )

    def _may_be_wanted(self, queue: Queue) -> bool:
        return queue.topic in self._narrow.topic and self._wants(queue)

    def address_of(self, queue: Queue, *, anew: bool = False) -> str:
        """The address of a queue's broker."""
        if anew or queue.broker not in self._addresses:
            self._addresses.pop(queue.broker, None)
            self._routes.pop(queue.topic, None)
            self._route(queue.topic)
        try:
            return self._addresses[queue.broker]
        except KeyError:
            raise ConnectionError(
                f"no name server knows where broker {queue.broker!r} of topic {queue.topic!r} is"
            ) from None

    # --- times ---

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """The first offset of a message stored at or after a time; None if there is none.

        Brokers before 5.0 answer with the message that is nearest in time, and any of several that
        were stored in the same millisecond: so the answer is only where to begin to look.
        """
        place: dict[str, FieldValue] = {"topic": queue.topic, "queueId": queue.queue_id}
        first = self._ask_offset(queue, RequestCode.GET_MIN_OFFSET, place)
        end = self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, place)
        place["timestamp"] = timestamp_ms
        guess = self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place)
        found = first_true(
            lambda offset: self._stored_ms(queue, offset) >= timestamp_ms, first, end, guess
        )
        return found if found < end else None

    def offsets_at(self, spans: Mapping[Queue, Span], timestamp_ms: int) -> Mapping[Queue, int]:
        """About where in each span what was stored at or after a time begins.

        That is what brokers answer, see ``offset_at``.
        """
        found: dict[Queue, int] = {}
        queues = list(spans)
        for first in range(0, len(queues), UNDER_WAY_MAX):
            asked: list[tuple[Queue, Pending]] = []
            for queue in queues[first : first + UNDER_WAY_MAX]:
                place: dict[str, FieldValue] = {
                    "topic": queue.topic,
                    "queueId": queue.queue_id,
                    "timestamp": timestamp_ms,
                }
                code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
                begun = self._cluster.client.begin(self.address_of(queue), code, place)
                asked.append((queue, begun))
            found |= {queue: int(pending.result().ext["offset"]) for queue, pending in asked}
        return found

    def _ask_offset(self, queue: Queue, code: int, fields: Mapping[str, FieldValue]) -> int:
        answer = self._cluster.client.call(self.address_of(queue), code, fields)
        return int(answer.ext["offset"])

    def _stored_ms(self, queue: Queue, queue_offset: int) -> int:
        """When a message was stored; -1 if it is not there any more."""
        asking = Asking(self._asking.group)
        fields = asking.fields(queue, queue_offset, 1)
        address = self.address_of(queue)
        answer = self._cluster.client.begin(address, RequestCode.PULL_MESSAGE, fields).answer()
        columns = _columns(answer.body, address)
        return int(columns.store_ms[0]) if len(columns) else -1

    def stored_at(self, broker: str, physical_offset: int) -> Stored | None:
        """What a broker's log has at a place, see ``Logged.stored_at``; None also where the broker
        does not tell."""
        client, address = self._cluster.client, self._addresses[broker]
        fields: dict[str, FieldValue] = {"offset": physical_offset}
        try:
            answer = client.call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                return None
            return NOT_STORED if self._has_place(address, physical_offset) else None
        columns = scan(answer.body, 0, len(answer.body), 1)
        if not len(columns) or int(columns.physical_offset[0]) != physical_offset:
            return NOT_STORED
        return Stored(int(columns.store_ms[0]), int(columns.born_ms[0]))

    def _has_place(self, address: str, physical_offset: int) -> bool:
        """Whether a log has not deleted a place, as far as the broker tells."""
        try:
            answer = self._cluster.client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        except BrokerError:
            return False
        facts = read_body(answer, KVTable, "facts of a broker").table
        start = facts.get("commitLogMinOffset", "")
        return start.isdecimal() and int(start) <= physical_offset

    # --- tasks ---

    def row_bytes(self, spans: Mapping[Queue, Span]) -> dict[Queue, float]:
        """About what a message of each span takes in records: the mean of a few in its middle."""
        asking = Asking(self._asking.group)
        sizes: dict[Queue, float] = {}
        queues = list(spans)
        for first in range(0, len(queues), UNDER_WAY_MAX):
            asked: list[tuple[Queue, Pending]] = []
            for queue in queues[first : first + UNDER_WAY_MAX]:
                start, end = spans[queue]
                middle = max(start, (start + end - SAMPLE_ROWS) // 2)
                fields = asking.fields(queue, middle, SAMPLE_ROWS)
                address = self.address_of(queue)
                begun = self._cluster.client.begin(address, RequestCode.PULL_MESSAGE, fields)
                asked.append((queue, begun))
            for queue, pending in asked:
                columns = _columns(pending.answer().body, self.address_of(queue))
                sizes[queue] = _message_bytes(columns)
        return sizes

    def partitions(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        """Cut the spans into tasks of about ``splitBytes``; short ones of a broker go together."""
        reading = self._options.reading
        spans = {queue: span for queue, span in self._narrowed(spans) if span.start < span.end}
        sizes = self.row_bytes(spans)
        total = sum(sizes[queue] * (span.end - span.start) for queue, span in spans.items())
        split_bytes = min(reading.split_bytes, total / (reading.partitions_min or 1))
        tasks: list[InputPartition] = []
        task: list[Part] = []
        room = 0.0
        for queue in sorted(spans, key=lambda queue: (queue.broker, queue)):
            for piece in _pieces(spans[queue], max(1, int(split_bytes / sizes[queue]))):
                taken = (piece.end - piece.start) * sizes[queue]
                if task and (taken > room or task[-1].queue.broker != queue.broker):
                    tasks.append(BrokerPartition(tuple(task)))
                    task = []
                if not task:
                    room = split_bytes
                task.append(Part(queue, piece, self.address_of(queue)))
                room -= taken
        return [*tasks, BrokerPartition(tuple(task))] if task else tasks

    def _narrowed(self, spans: Mapping[Queue, Span]) -> Iterator[tuple[Queue, Span]]:
        low, high = self._narrow.queue_offset.ends
        for queue, (start, end) in spans.items():
            if queue.topic in self._narrow.topic and queue.queue_id in self._narrow.queue_id:
                yield queue, Span(max(start, low), min(end, high + 1))

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages of one task as batches of exactly this schema."""
        assert isinstance(partition, BrokerPartition)
        try:
            for part in partition.parts:
                self._addresses.setdefault(part.queue.broker, part.address)
                yield from self._read(part, schema)
        finally:
            self.close()

    def _read(self, part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        source = _Broker(part.queue.broker, part.address)
        batches = Batches(self._options, self._narrow, schema, source)
        pulls = Pulls(
            self._cluster.client, self, self._asking_for(part.queue), part.queue, part.span
        )
        for records in _collected(pulls, self._options.reading.batch_bytes):
            at = 0
            while at < len(records):
                columns = _columns(records, part.address, at)
                at = columns.end
                yield from batches.of_queue(columns, part.span)

    def _asking_for(self, queue: Queue) -> Asking:
        """How messages are asked for: by their tags only where the broker looks at these.

        Of a topic with queues of batches it looks at the tag of records, which have messages of
        any: so all are pulled, and chosen here. So they are where delayed messages wait: their
        entries have times in place of tags.
        """
        if queue.topic == SCHEDULE_TOPIC:
            return replace(self._asking, tags=())
        if not self._asking.tags or self._has_own_tags(queue):
            return self._asking
        return replace(self._asking, tags=())

    def _has_own_tags(self, queue: Queue) -> bool:
        """Whether each message of a topic is known to be a record of its own."""
        key = queue.topic, queue.broker
        if key not in self._own_tags:
            code, fields = RequestCode.GET_TOPIC_CONFIG, {"topic": queue.topic}
            try:
                answer = self._cluster.client.call(self.address_of(queue), code, fields)
            except NotSupported:  # by brokers that have no queues of batches either
                self._own_tags[key] = True
            except (OSError, BrokerError) as error:
                log.info(
                    "kind of a topic is not known",
                    extra={"topic": queue.topic, "error": error},
                )
                self._own_tags[key] = False
            else:
                self._own_tags[key] = not read_body(answer, TopicConfig, "a topic").wants_batches
        return self._own_tags[key]

    # --- progress ---

    def commit_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Tell the brokers up to where the group of the options has read.

        What can't be told is logged: the next time it will be, or is out of date.
        """
        asked: list[tuple[Queue, Pending]] = []
        for queue, queue_offset in offsets.items():
            fields: dict[str, FieldValue] = {
                "consumerGroup": self._asking.group,
                "topic": queue.topic,
                "queueId": queue.queue_id,
                "commitOffset": queue_offset,
            }
            try:
                address = self.address_of(queue)
                code = RequestCode.UPDATE_CONSUMER_OFFSET
                asked.append((queue, self._cluster.client.begin(address, code, fields)))
            except (OSError, BrokerError) as error:
                log.warning("offset was not told", extra={**queue.fields, "error": error})
        for queue, pending in asked:
            try:
                pending.result()
            except (OSError, BrokerError) as error:
                log.warning("offset was not told", extra={**queue.fields, "error": error})


def _require_messages(options: Options) -> None:
    """Raise ConfigError for what only files have."""
    if options.place.table != "messages":
        raise ConfigError(
            f"option table={options.place.table!r}: brokers have messages only; use path"
        )
    if options.reading.visibility == "log":
        raise ConfigError(
            "option visibility='log': brokers show what consumers see; the log needs path"
        )


def _columns(records: bytes, address: str, at: int = 0) -> Columns:
    """Records that a broker has sent, as many as one scan takes."""
    columns = scan(records, at, len(records))
    if columns.end < len(records) and columns.stop is not Stop.FULL:
        raise RemoteProtocolError(
            f"{address} sent bytes that are not messages: {columns.stop.value}"
        )
    return columns


def _message_bytes(columns: Columns) -> float:
    """What a message takes of these records, of which some may be inner batches."""
    if not len(columns):
        return UNKNOWN_BYTES
    counts = inner_counts(columns)
    messages = len(columns) if counts is None else int(counts.sum())
    return int(columns.size.sum()) / messages


def _collected(pulls: Pulls, batch_bytes: int) -> Iterator[bytes]:
    """Answers put together until they are as large as a batch."""
    pieces: list[bytes] = []
    size = 0
    for records in pulls:
        pieces.append(records)
        size += len(records)
        if size >= batch_bytes:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def _pieces(span: Span, rows_max: int) -> Iterator[Span]:
    """A span in equal pieces of at most so many rows."""
    rows = span.end - span.start
    count = -(-rows // rows_max)
    for number in range(count):
        yield Span(span.start + rows * number // count, span.start + rows * (number + 1) // count)
