"""Messages from the brokers of a cluster: the origin for the option ``nameServer``.

Queues come from the routes of the name servers, and their ends from the brokers. Messages are pulled
(``firearrow.client.pull.rangereader``) as by any consumer, at the same cost for the brokers. An answer holds records in
their stored form, which the file source reads too, so the rows are the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeVar
from weakref import finalize

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from firearrow.client.admin.cluster import Admin, servers_in
from firearrow.client.pull.queueoffsets import QueueOffsets
from firearrow.client.pull.rangereader import ATTEMPTS_MAX, PullOptions, RangeReader, pause
from firearrow.client.queues import Bound, Mark, Queue, RecordTimes, Span
from firearrow.client.routing.routes import Routes
from firearrow.client.session.answers import read_body
from firearrow.clock import SystemClock
from firearrow.errors import (
    MAY_PASS,
    BrokerError,
    ConfigError,
    NotPermitted,
    NotSupported,
    RemoteProtocolError,
    TopicNotFound,
)
from firearrow.logs import Log
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.spark.access import Cluster
from firearrow.spark.columns.recordbatches import Batches
from firearrow.spark.options import Options
from firearrow.spark.source.filters import PushedFilters
from firearrow.spark.source.origin import UNKNOWN_BYTES
from firearrow.store.batchqueue import inner_counts
from firearrow.store.scan import Columns, Stop, scan
from firearrow.wire.bodies import MASTER_ID, PERM_READ, Route, TopicConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue

log: Final = Log(__name__)

Answer = TypeVar("Answer")

GROUP: Final = "firearrow-spark"  # the group that pulls by default
SAMPLE_ROWS: Final = 16  # messages of each queue that are looked at for their size


@dataclass(frozen=True, slots=True)
class PullRange:
    """Range of a queue to pull, and the address of its broker at the time of planning."""

    queue: Queue
    span: Span
    address: str


class BrokerPartition(InputPartition):
    """Ranges of queues of one broker."""

    def __init__(self, parts: tuple[PullRange, ...]) -> None:
        super().__init__(parts)
        self.parts = parts


@dataclass(frozen=True, slots=True)
class _Broker:
    """Broker as the errors of its batches name it."""

    broker: str
    root: str


class BrokerOrigin:
    """The brokers of a cluster."""

    def __init__(self, options: Options, narrow: PushedFilters | None = None) -> None:
        _require_messages(options)
        self._options = options
        self._narrow = narrow or PushedFilters()
        self._own_tags: dict[tuple[str, str], bool] = {}
        self._pull_options = PullOptions(
            options.access.consumer_group or GROUP, options.choice.tags, options.reading.fail_on_data_loss
        )

    @cached_property
    def _cluster(self) -> Cluster:
        cluster = Cluster(self._options.place, self._options.access)
        finalize(self, cluster.close).atexit = False  # the planner of a query just drops the origin
        return cluster

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self._cluster.name_servers, SystemClock())

    @cached_property
    def _offsets(self) -> QueueOffsets:
        return QueueOffsets(self._cluster.client, self._routes, self._pull_options.group)

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()

    # --- queues ---

    def bounds(self) -> Mapping[Queue, Bound]:
        """Return every queue that the options choose, and its bounds now."""
        return self._cluster.run(self._persistent(self._bounds))

    async def _persistent(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Call brokers, and again if a retry may help."""
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                return await ask()
            except MAY_PASS as error:
                log.info("queues are requested from brokers again", extra={"error": error})
                self._routes.forget()
                await pause(attempt)
        return await ask()

    async def _bounds(self) -> Mapping[Queue, Bound]:
        topics = [(topic, await self._route(topic)) for topic in await self._topics()]
        ends = await self._offsets.ends((topic, route) for topic, route in topics if route is not None)
        found = {queue: bound for queue, bound in ends.items() if self._wants(queue)}
        self._require_assigned(found)
        return found

    async def _topics(self) -> list[str]:
        """Return the topics that the options name; otherwise all topics that they choose."""
        choice = self._options.choice
        named = [*choice.subscribe, *(topic for topic, _, _ in choice.assign)]
        found = dict.fromkeys(named) if named else await self._cluster.name_servers.topics()
        return [topic for topic in found if choice.wants(topic) and topic in self._narrow.topic]

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return the attributes of all topics of the cluster."""
        return self._cluster.run(self._persistent(self._attributes))

    async def _attributes(self) -> dict[str, dict[str, str]]:
        admin = Admin(self._cluster.client, self._options.place.name_servers)
        found: dict[str, dict[str, str]] = {}
        for server in servers_in(await admin.cluster()):
            if server.number == MASTER_ID:
                configs = await admin.topics.configs(server.address)
                for topic, config in configs.topic_config_table.items():
                    found.setdefault(topic, {}).update(config.attributes)
        return found

    async def _route(self, topic: str) -> Route | None:
        """Return the route of a topic; None if it cannot be read and the options do not name it."""
        choice = self._options.choice
        is_named = bool(choice.subscribe or choice.assign)
        try:
            route = await self._routes.route(topic)
        except TopicNotFound:
            if is_named:
                raise
            return None
        if is_named and not any(queues.perm & PERM_READ for queues in route.queue_datas):
            raise NotPermitted(ResponseCode.NO_PERMISSION, f"no broker allows reading topic {topic!r}")
        return route

    def _wants(self, queue: Queue) -> bool:
        chosen = self._options.place.broker_name in (None, queue.broker)
        return chosen and queue.queue_id in self._narrow.queue_id and self._wants_queue(*queue)

    @cached_property
    def _wants_queue(self) -> Callable[[str, str, int], bool]:
        return self._options.choice.wants_queue()

    def _require_assigned(self, found: Mapping[Queue, Bound]) -> None:
        """Raise ConfigError for a queue of the option ``assign`` that does not exist."""
        for topic, broker, queue_ids in self._options.choice.assign:
            for queue_id in queue_ids:
                queue = Queue(topic, broker, queue_id)
                if queue not in found and self._may_be_wanted(queue):
                    raise ConfigError(f"option assign: topic {topic!r} has no queue {queue_id} to read on {broker!r}")

    def _may_be_wanted(self, queue: Queue) -> bool:
        return queue.topic in self._narrow.topic and self._wants(queue)

    # --- times ---

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """Return the first offset of a message stored at or after a time; None if there is none."""
        return self._cluster.run(self._offsets.offset_at(queue, timestamp_ms))

    def offsets_at(self, spans: Mapping[Queue, Span], timestamp_ms: int) -> Mapping[Queue, int]:
        """Return the approximate first offset in each span that was stored at or after a time."""
        return self._cluster.run(self._offsets.offsets_at(spans, timestamp_ms))

    def marks(self, places: Mapping[Queue, int]) -> Mapping[Queue, Mark]:
        """Return the marks of messages, see ``LoggedOrigin.marks``."""
        return self._cluster.run(self._persistent(lambda: self._offsets.marks(places)))

    def stored_at(self, broker: str, physical_offset: int) -> RecordTimes | None:
        """Return the record at a place of a broker's log, see ``LoggedOrigin.stored_at``."""
        return self._cluster.run(self._offsets.stored_at(broker, physical_offset))

    # --- tasks ---

    def row_bytes(self, spans: Mapping[Queue, Span]) -> dict[Queue, float]:
        """Return the approximate size of a stored message of each span: the mean of a few in its middle."""
        options = PullOptions(self._pull_options.group)

        def fields_of(queue: Queue) -> dict[str, FieldValue]:
            start, end = spans[queue]
            return options.fields(queue, max(start, (start + end - SAMPLE_ROWS) // 2), SAMPLE_ROWS)

        samples = self._cluster.run(self._offsets.pull_each(spans, fields_of))
        return {queue: _message_bytes(_columns(records, address)) for queue, records, address in samples}

    def partitions(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        """Cut the spans into tasks of about ``splitBytes``; short spans of a broker share a task."""
        reading = self._options.reading
        spans = {queue: span for queue, span in self._narrowed(spans) if span.start < span.end}
        sizes = self.row_bytes(spans)
        addresses = self._cluster.run(self._addresses_of(spans))
        total = sum(sizes[queue] * (span.end - span.start) for queue, span in spans.items())
        split_bytes = min(reading.split_bytes, total / (reading.partitions_min or 1))
        tasks: list[InputPartition] = []
        task: list[PullRange] = []
        room = 0.0
        for queue in sorted(spans, key=lambda queue: (queue.broker, queue)):
            for piece in _pieces(spans[queue], max(1, int(split_bytes / sizes[queue]))):
                taken = (piece.end - piece.start) * sizes[queue]
                if task and (taken > room or task[-1].queue.broker != queue.broker):
                    tasks.append(BrokerPartition(tuple(task)))
                    task = []
                if not task:
                    room = split_bytes
                task.append(PullRange(queue, piece, addresses[queue]))
                room -= taken
        return [*tasks, BrokerPartition(tuple(task))] if task else tasks

    async def _addresses_of(self, queues: Iterable[Queue]) -> dict[Queue, str]:
        return {queue: await self._routes.address_of(queue) for queue in queues}

    def _narrowed(self, spans: Mapping[Queue, Span]) -> Iterator[tuple[Queue, Span]]:
        low, high = self._narrow.queue_offset.ends
        for queue, (start, end) in spans.items():
            if queue.topic in self._narrow.topic and queue.queue_id in self._narrow.queue_id:
                yield queue, Span(max(start, low), min(end, high + 1))

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task as batches of exactly this schema."""
        assert isinstance(partition, BrokerPartition)
        try:
            for part in partition.parts:
                self._routes.assume(part.queue.broker, part.address)
                yield from self._read(part, schema)
        finally:
            self.close()

    def _read(self, part: PullRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        source = _Broker(part.queue.broker, part.address)
        batches = Batches(self._options, self._narrow, schema, source)
        options = self._cluster.run(self._options_for(part.queue))
        reader = RangeReader(self._cluster.client, self._routes, options, part.queue, part.span)
        while not reader.is_done:
            records = b"".join(self._cluster.run(reader.read(self._options.reading.batch_bytes)))
            at = 0
            while at < len(records):
                columns = _columns(records, part.address, at)
                at = columns.end
                yield from batches.of_queue(columns, part.queue, part.span)

    async def _options_for(self, queue: Queue) -> PullOptions:
        """Return options of pulls, with tags only if the broker filters by them exactly.

        In a topic with queues of batches the broker looks at the tag of a record, whose messages may have any tag. So
        all messages are pulled, and chosen here. The same holds for topics of delayed messages, whose entries have
        times in place of tags.
        """
        if queue.topic == SCHEDULE_TOPIC:
            return replace(self._pull_options, tags=())
        if not self._pull_options.tags or await self._has_own_tags(queue):
            return self._pull_options
        return replace(self._pull_options, tags=())

    async def _has_own_tags(self, queue: Queue) -> bool:
        """Tell whether each message of a topic is known to be a separate record."""
        key = queue.topic, queue.broker
        if key not in self._own_tags:
            code, fields = RequestCode.GET_TOPIC_CONFIG, {"topic": queue.topic}
            try:
                answer = await self._cluster.client.call(await self._routes.address_of(queue), code, fields)
            except NotSupported:  # such brokers have no queues of batches either
                self._own_tags[key] = True
            except (OSError, BrokerError) as error:
                log.info("kind of a topic is not known", extra={"topic": queue.topic, "error": error})
                self._own_tags[key] = False
            else:
                self._own_tags[key] = not read_body(answer, TopicConfig, "a topic").wants_batches
        return self._own_tags[key]

    # --- progress ---

    def commit_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Commit the progress of the options' group to the brokers."""
        self._cluster.run(self._offsets.commit(offsets))


def _require_messages(options: Options) -> None:
    """Raise ConfigError for options that only files support."""
    if options.place.table != "messages":
        raise ConfigError(f"option table={options.place.table!r}: brokers have messages only; use path")
    if options.reading.visibility == "log":
        raise ConfigError("option visibility='log': brokers show the messages that consumers see; the log needs path")


def _columns(records: bytes, address: str, at: int = 0) -> Columns:
    """Yield the records of a broker's answer, a scan at a time."""
    columns = scan(records, at, len(records))
    if columns.end < len(records) and columns.stop is not Stop.FULL:
        raise RemoteProtocolError(f"{address} sent bytes that are not messages: {columns.stop.value}")
    return columns


def _message_bytes(columns: Columns) -> float:
    """Return the mean size of a message in these records; some may be inner batches."""
    if not len(columns):
        return UNKNOWN_BYTES
    counts = inner_counts(columns)
    messages = len(columns) if counts is None else int(counts.sum())
    return int(columns.size.sum()) / messages


def _pieces(span: Span, rows_max: int) -> Iterator[Span]:
    """Cut a span into equal pieces of at most ``rows_max`` rows."""
    rows = span.end - span.start
    count = -(-rows // rows_max)
    for number in range(count):
        yield Span(span.start + rows * number // count, span.start + rows * (number + 1) // count)
