"""Metrics of a broker: a table of families, under RocketMQ 5's names.

Names, kinds, labels and bounds equal a scrape of the original (``tests/data/metrics``). These values differ in meaning:

* ``messages_in`` and ``message_size`` count all messages put into a topic, also after a delay or the end of a
  transaction (Java: not these two), and each message of a batch;
* ``processor_watermark`` is the count of requests that wait for their turn, by the limits of ``broker.flowcontrol``;
* ``rpc_latency`` is the same for all requests of a turn (``net.meter``);
* ``consumer_*`` also count messages that a subscription does not want (``metrics.lags``).

RocketMQ also has metrics of parts that do not exist here: ``pop_buffer_scan_time_consume``, and the metrics of its
RocksDB store. Source: RocketMQ's ``BrokerMetricsManager``, ``DefaultStoreMetricsManager``, ``PopMetricsManager``.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.flowcontrol import FlowControl
from firearrow.broker.metrics.lags import GroupLag, lags_of
from firearrow.broker.metrics.tally import DELAY, TRANSACTION, Tally
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.retries import popped_topic
from firearrow.broker.pop.revivequeue import ReviveQueue
from firearrow.broker.timing.counts import TimerCounts
from firearrow.broker.transactions.halves import HALF_TOPIC
from firearrow.broker.transactions.opencounts import OpenCounts
from firearrow.message import names
from firearrow.net.exposition import (
    TARGET,
    Family,
    Labels,
    MetricPart,
    Metrics,
    MetricSample,
    Samples,
    common_labels,
    keyed,
)
from firearrow.net.meter import OTHER, Histogram, RpcKey, RpcMeter
from firearrow.store import PutCounters, TimerStore
from firearrow.wire.client_bodies import CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP
from firearrow.wire.codes import RequestCode, ResponseCode, version_name

SIZE_EXPONENTS: Final = (10, 12, 19, 20, 21, 22)  # 1 KiB to 4 MiB, powers of two
SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
LAGS_IN_TURN: Final = 20  # groups and topics; each has some queues
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
STORED: Final = {"storage_medium": "disk", "storage_type": "local"}
REMOTING: Final = {"protocol_type": "remoting"}
_REVIVE: Final = names.revive_topic("")
_KIND_OF_ALL: Final = {HALF_TOPIC: TRANSACTION, names.SCHEDULE_TOPIC: DELAY}
_PROCESSORS: Final = {
    "sends": "send",
    "pulls": "pull",
    "lite pulls": "lite_pull",
    "heartbeats": "heartbeat",
    "ends of transactions": "transaction",
    "replies": "reply",
    "queries": "query_message",
    "clients": "client_manager",
    "consumers": "consumer_manager",
    "administration": "admin",
}
_MODES: Final = {CONSUME_ACTIVELY: "pull", CONSUME_PASSIVELY: "push", CONSUME_POP: "pop"}


class Sources(NamedTuple):
    """Sources of all metrics; ``lags`` are gathered for this scrape. ``parts`` have further metrics."""

    context: BrokerContext
    tally: Tally
    meter: RpcMeter
    flow: FlowControl
    open_counts: OpenCounts
    timers: TimerStore
    timer_counts: TimerCounts
    books: Books
    in_flight: InFlight
    revive_queues: Callable[[], Sequence[ReviveQueue]]
    lags: list[GroupLag]
    parts: Sequence[MetricPart] = ()


Reading = Callable[[Sources], Iterator[MetricSample]]


# --- messages ---


class _KindCount(NamedTuple):
    topic: str
    kind: str
    messages: int
    size: int
    large: Mapping[int, int]


def _kinds(sources: Sources) -> Iterator[_KindCount]:
    """Counts of messages and bytes by topic and kind; normal messages are the rest of all."""
    special = list(sources.tally.kinds.items())
    rest: dict[str, list[PutCounters]] = {}
    for (topic, kind), put in special:
        if _counts(topic):
            yield _KindCount(topic, kind, put.put_count, put.put_bytes, put.large or {})
        rest.setdefault(topic, []).append(put)
    for topic, put in sources.context.stats.topic_counters():
        if not _counts(topic) or (topic == names.TIMER_TOPIC or _is_internal(topic)):
            continue
        others = rest.get(topic, ())
        count = put.put_count - sum(other.put_count for other in others)
        size = put.put_bytes - sum(other.put_bytes for other in others)
        large = Counter(put.large or {})
        for other in others:
            large.subtract(other.large or {})
        if count > 0:
            yield _KindCount(topic, _KIND_OF_ALL.get(topic, "normal"), count, max(size, 0), large)


def _counts(topic: str) -> bool:
    """Tell whether a topic holds no messages that wait for a retry, and no dead letters."""
    return not (names.is_retry(topic) or names.is_dlq(topic) or topic.startswith(_REVIVE))


def _is_internal(topic: str) -> bool:
    """Tell whether only the broker puts messages into a topic, and not in place of a client's."""
    return not names.is_sendable(topic) and topic not in _KIND_OF_ALL


def _kind_labels(sources: Sources, it: _KindCount) -> Labels:
    is_system = sources.context.topics.is_system(it.topic)
    return {"topic": it.topic, "message_type": it.kind, "is_system": is_system}


def _messages_in(sources: Sources) -> Iterator[MetricSample]:
    for it in _kinds(sources):
        yield MetricSample(_kind_labels(sources, it), it.messages)


def _throughput_in(sources: Sources) -> Iterator[MetricSample]:
    for it in _kinds(sources):
        yield MetricSample(_kind_labels(sources, it), it.size)


def _message_size(sources: Sources) -> Iterator[MetricSample]:
    for it in _kinds(sources):
        histogram = Histogram([1 << exponent for exponent in SIZE_EXPONENTS])
        histogram.sum = it.size
        for exponent, count in it.large.items():
            histogram.counts[bisect_left(SIZE_EXPONENTS, exponent)] += max(count, 0)
        histogram.counts[0] += max(it.messages - histogram.count, 0)
        yield MetricSample(_kind_labels(sources, it), histogram)


def _out(sources: Sources) -> Iterator[tuple[Labels, int, int]]:
    for key, got in sources.context.stats.group_counters():
        topic, _, group = key.partition("@")
        origin = popped_topic(topic, group)
        if not _counts(origin):
            continue
        labels = {
            "topic": origin,
            "consumer_group": group,
            "is_retry": origin != topic,
            "is_system": _is_system(sources, origin, group),
        }
        yield labels, got.get_count, got.get_bytes
    count = sum(sources.tally.delivered.of.values())
    if count:
        labels = {"topic": names.SCHEDULE_TOPIC, "consumer_group": SCHEDULE_GROUP, "is_retry": False, "is_system": True}
        yield labels, count, sources.tally.delivered_bytes


def _messages_out(sources: Sources) -> Iterator[MetricSample]:
    for labels, count, _ in _out(sources):
        yield MetricSample(labels, count)


def _throughput_out(sources: Sources) -> Iterator[MetricSample]:
    for labels, _, size in _out(sources):
        yield MetricSample(labels, size)


def _is_system(sources: Sources, topic: str, group: str) -> bool:
    return sources.context.topics.is_system(topic) or _is_system_group(group)


def _is_system_group(group: str) -> bool:
    return group.upper().startswith(names.SYSTEM_GROUP_PREFIX)


# --- the broker's state ---


def _one(value: Callable[[Sources], int], labels: Labels | None = None) -> Reading:
    def read(sources: Sources) -> Iterator[MetricSample]:
        yield MetricSample(labels or {}, value(sources))

    return read


def _topic(_: Sources, topic: str) -> Labels:
    return {"topic": topic}


def _stored_topic(_: Sources, topic: str) -> Labels:
    return {**STORED, "topic": topic}


# --- clients ---


def _producers(sources: Sources) -> Iterator[MetricSample]:
    found: Counter[tuple[str, str]] = Counter()
    for _, members in sources.context.clients.producer_groups():
        found.update((_language(it.language), version_name(it.version)) for it in members)
    for (language, version), count in found.items():
        yield MetricSample({"language": language, "version": version.lower(), **REMOTING}, count)


def _consumers(sources: Sources) -> Iterator[MetricSample]:
    for group, found in sources.context.clients.consumer_groups():
        mode = _MODES.get(found.consume_type or "", "push")
        kinds = Counter((_language(it.language), version_name(it.version)) for it in found.members.values())
        for (language, version), count in kinds.items():
            labels = {
                "consumer_group": group,
                "language": language,
                "version": version.lower(),
                "consume_mode": mode,
                **REMOTING,
                "is_system": _is_system_group(group),
            }
            yield MetricSample(labels, count)


def _language(language: object) -> str:
    return str(language or "other").lower()


def _lag(value: Callable[[GroupLag, int], int]) -> Reading:
    def read(sources: Sources) -> Iterator[MetricSample]:
        now_ms = sources.context.clock.now_ms()
        for lag in sources.lags:
            labels = {
                "consumer_group": lag.group,
                "topic": lag.topic,
                "is_retry": lag.is_retry,
                "is_system": _is_system(sources, lag.topic, lag.group),
            }
            yield MetricSample(labels, value(lag, now_ms))

    return read


def _age(since_ms: int, now_ms: int) -> int:
    return max(0, now_ms - since_ms) if since_ms > 0 else 0


def _unread(sources: Sources, topic: str, queue_id: int, queue_offset: int) -> int:
    """Count of messages of a queue from an offset on."""
    return max(0, sources.context.store.max_queue_offset(topic, queue_id) - queue_offset)


def _unread_ms(sources: Sources, topic: str, queue_id: int, queue_offset: int) -> int:
    """Age of the first of these; 0 without any."""
    if not _unread(sources, topic, queue_id, queue_offset):
        return 0
    since_ms = sources.context.store.store_time_of(topic, queue_id, queue_offset)
    return _age(since_ms, sources.context.clock.now_ms())


def _dead(sources: Sources, key: tuple[str, str]) -> Labels:
    group, topic = key
    return {"consumer_group": group, "topic": topic, "is_system": _is_system(sources, topic, group)}


# --- the store ---


def _used_bytes(sources: Sources) -> int:
    disk = os.statvfs(sources.context.store.root)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def _flush_behind(sources: Sources) -> int:
    store = sources.context.store
    return max(0, store.log_end_offset - store.flushed_offset)


def _reserve(sources: Sources) -> Iterator[MetricSample]:
    earliest = int(sources.context.store.earliest_store_ms)
    if earliest > 0:
        yield MetricSample(STORED, _age(earliest, sources.context.clock.now_ms()))


# --- the timer ---


def _timer_behind(sources: Sources) -> int:
    return _unread(sources, names.TIMER_TOPIC, 0, sources.timers.progress.queue_offset)


def _timer_late(sources: Sources) -> int:
    return _unread_ms(sources, names.TIMER_TOPIC, 0, sources.timers.progress.queue_offset)


def _timer_waiting(sources: Sources) -> int:
    return sum(sources.timers.pending.values())


def _timer_read_late(sources: Sources) -> int:
    return sources.timers.late_ms(sources.context.clock.now_ms())


def _timing(sources: Sources) -> Iterator[MetricSample]:
    found = dict.fromkeys(sources.tally.timed_in.of, 0)
    for topic, metric in sources.timer_counts.metrics().timing_count.items():
        found[topic] = metric.count
    for topic, count in found.items():
        yield MetricSample({**STORED, "topic": topic}, count)


def _snapshot(sources: Sources) -> Iterator[MetricSample]:
    context = sources.context
    wheel = sources.timers.wheel
    found = wheel.numbers_ahead(context.clock.now_ms(), SNAPSHOT_BOUNDS_S)
    for bound, count in zip(SNAPSHOT_BOUNDS_S, found, strict=True):
        yield MetricSample({**STORED, "timer_bound_s": bound}, count)


# --- POP ---


def _revive_in(_: Sources, key: tuple[str, str, str]) -> Labels:
    group, topic, kind = key
    return {"consumer_group": group, "topic": topic, "revive_message_type": kind, **_PUT_OK}


def _revive_out(_: Sources, key: tuple[str, str, str, int]) -> Labels:
    group, topic, kind, queue_id = key
    return {"consumer_group": group, "topic": topic, "revive_message_type": kind, "queue_id": queue_id}


def _revived(_: Sources, key: tuple[str, str]) -> Labels:
    group, topic = key
    return {"consumer_group": group, "topic": topic, **_PUT_OK}


_PUT_OK: Final = {"put_status": "PUT_OK"}  # a put that fails is retried, and counted then


def _revive_lag(sources: Sources) -> Iterator[MetricSample]:
    for queue in sources.revive_queues():
        count = _unread(sources, queue.topic, queue.queue_id, queue.next_offset)
        yield MetricSample({"queue_id": queue.queue_id}, count)


def _revive_late(sources: Sources) -> Iterator[MetricSample]:
    for queue in sources.revive_queues():
        age_ms = _unread_ms(sources, queue.topic, queue.queue_id, queue.next_offset)
        yield MetricSample({"queue_id": queue.queue_id}, age_ms)


# --- requests ---

_REQUEST_NAMES: Final = {int(code): code.name.lower() for code in RequestCode} | {OTHER: "other"}
_RESPONSE_NAMES: Final = {int(code): code.name.lower() for code in ResponseCode}


def _rpc(_: Sources, key: RpcKey) -> Labels:
    return {
        **REMOTING,
        "request_code": _REQUEST_NAMES.get(key.code, str(key.code)),
        "response_code": _RESPONSE_NAMES.get(key.response_code, str(key.response_code)),
        "is_long_polling": key.waited,
        "result": "oneway" if key.is_oneway else "success",
    }


def _topics_made(_: Sources, key: tuple[bool, bool]) -> Labels:
    ok, is_system = key
    return {"invocation_status": _STATUS[ok], "is_system": is_system}


_STATUS: Final = {True: "success", False: "failure"}


# --- the table ---

_TOPIC: Final = ("topic",)
_STORE: Final = tuple(STORED)
_KIND: Final = ("topic", "message_type", "is_system")
_GROUP: Final = ("topic", "consumer_group", "is_retry", "is_system")


def _counter(name: str, text: str, labels: tuple[str, ...], reading: Reading) -> MetricRow:
    return MetricRow(Family(f"rocketmq_{name}_total", "counter", text, labels), reading)


def _gauge(name: str, text: str, labels: tuple[str, ...], reading: Reading) -> MetricRow:
    return MetricRow(Family(f"rocketmq_{name}", "gauge", text, labels), reading)


def _histogram(name: str, text: str, labels: tuple[str, ...], reading: Reading) -> MetricRow:
    return MetricRow(Family(f"rocketmq_{name}", "histogram", text, labels), reading)


class MetricRow(NamedTuple):
    """Family, and the function that reads its values."""

    family: Family
    read: Reading


ROWS: Final[tuple[MetricRow, ...]] = (
    # --- messages ---
    _counter("messages_in", "Messages that topics got", _KIND, _messages_in),
    _counter("throughput_in", "Bytes of the records of these", _KIND, _throughput_in),
    _histogram("message_size", "Bytes of a record", _KIND, _message_size),
    _counter("messages_out", "Messages that groups were given", _GROUP, _messages_out),
    _counter("throughput_out", "Bytes of the records of these", _GROUP, _throughput_out),
    _counter("send_to_dlq_messages", "Messages that became dead letters", ("consumer_group", "topic", "is_system"),
        keyed(lambda it: it.tally.dead.of, _dead)),
    # --- groups that have members ---
    _gauge("consumer_lag_messages", "Messages that a group has not consumed", _GROUP,
        _lag(lambda lag, _: lag.messages)),
    _gauge("consumer_lag_latency_milliseconds", "Age of the first of these", _GROUP,
        _lag(lambda lag, now_ms: _age(lag.first_ms, now_ms))),
    _gauge("consumer_inflight_messages", "Messages that members have in hand", _GROUP,
        _lag(lambda lag, _: lag.in_hand)),
    _gauge("consumer_ready_messages", "Messages that were not given yet", _GROUP, _lag(lambda lag, _: lag.ready)),
    _gauge("consumer_queueing_latency_milliseconds", "Age of the first of these", _GROUP,
        _lag(lambda lag, now_ms: _age(lag.next_ms, now_ms))),
    # --- clients ---
    _gauge("producer_connections", "Connections of producers", ("language", "version", "protocol_type"), _producers),
    _gauge("consumer_connections", "Connections of consumers",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"), _consumers),
    # --- requests ---
    _histogram("rpc_latency_milliseconds", "How long requests take",
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        keyed(lambda it: it.meter.histograms, _rpc)),
    _gauge("processor_watermark", "Requests that were read and wait", ("processor",),
        keyed(lambda it: it.flow.waiting, lambda _, line: {"processor": _PROCESSORS[line]})),
    _histogram("topic_create_execution_time_milliseconds", "How long it takes to create a topic",
        ("invocation_status", "is_system"), keyed(lambda it: it.tally.topics_made.of, _topics_made)),
    _histogram("consumer_group_create_execution_time_milliseconds", "How long it takes to create a group",
        ("invocation_status",),
        keyed(lambda it: it.tally.groups_made.of, lambda _, key: {"invocation_status": _STATUS[key[0]]})),
    # --- the broker ---
    _gauge("broker_permission", "What clients may do: 2 write, 4 read, 6 both", (),
        _one(lambda it: it.context.settings.broker.broker_permission)),
    _gauge("topic_number", "Topics", (), _one(lambda it: len(it.context.topics.table))),
    _gauge("consumer_group_number", "Consumer groups", (), _one(lambda it: len(it.context.groups.table))),
    # --- transactions ---
    _counter("commit_messages", "Transactions that were committed", _TOPIC,
        keyed(lambda it: it.tally.commits.of, _topic)),
    _counter("rollback_messages", "Transactions that were rolled back", _TOPIC,
        keyed(lambda it: it.tally.rollbacks.of, _topic)),
    _histogram("finish_message_latency_milliseconds", "How long a transaction was open that was committed, in seconds",
        _TOPIC, keyed(lambda it: it.tally.finished.of, _topic)),
    _gauge("half_messages", "Transactions that are open", _TOPIC, keyed(lambda it: it.open_counts.counts(), _topic)),
    # --- the store ---
    _gauge("storage_size_bytes", "Bytes of the disk that are used", _STORE, _one(_used_bytes, STORED)),
    _gauge("storage_flush_behind_bytes", "Bytes that are not on the disk", _STORE, _one(_flush_behind, STORED)),
    _gauge("storage_dispatch_behind_bytes", "Bytes that are in no queue", _STORE,
        _one(lambda it: it.context.store.behind_bytes, STORED)),
    _gauge("storage_message_reserve_time_milliseconds", "Age of the first message", _STORE, _reserve),
    # --- the timer ---
    _counter("timer_enqueue", "Messages that were put on the wheel", (*_STORE, "topic"),
        keyed(lambda it: it.tally.timed_in.of, _stored_topic)),
    _counter("timer_dequeue", "Messages that were delivered at their time", (*_STORE, "topic"),
        keyed(lambda it: it.tally.timed_out.of, _stored_topic)),
    _gauge("timer_enqueue_lag", "Messages that are not on the wheel yet", _STORE, _one(_timer_behind, STORED)),
    _gauge("timer_enqueue_latency_milliseconds", "Age of the first of these", _STORE, _one(_timer_late, STORED)),
    _gauge("timer_dequeue_lag", "Messages that wait for their time", _STORE, _one(_timer_waiting, STORED)),
    _gauge("timer_dequeue_latency_milliseconds", "How late the wheel is read", _STORE, _one(_timer_read_late, STORED)),
    _gauge("timing_messages", "Messages that wait for their time", (*_STORE, "topic"), _timing),
    _gauge("timer_message_snapshot", "Messages that wait for a time within so many seconds",
        (*_STORE, "timer_bound_s"), _snapshot),
    _histogram("delay_message_latency_seconds", "How far ahead times are", (*_STORE, "topic"),
        keyed(lambda it: it.tally.delays.of, _stored_topic)),
    # --- POP ---
    _gauge("pop_offset_buffer_size", "Offsets of groups that are in memory only", (),
        _one(lambda it: it.books.buffered_offsets)),
    _gauge("pop_checkpoint_buffer_size", "Pops that are noted in memory only", (),
        _one(lambda it: it.books.buffered_checkpoints)),
    _counter("pop_revive_in_message", "Records of pops and acknowledgements that were put",
        ("consumer_group", "topic", "revive_message_type", "put_status"),
        keyed(lambda it: it.tally.revive_in.of, _revive_in)),
    _counter("pop_revive_out_message", "Records that were read again when their time was over",
        ("consumer_group", "topic", "revive_message_type", "queue_id"),
        keyed(lambda it: it.tally.revive_out.of, _revive_out)),
    _counter("pop_revive_retry_messages", "Popped messages that came again", ("consumer_group", "topic", "put_status"),
        keyed(lambda it: it.tally.revived.of, _revived)),
    _gauge("pop_revive_lag_milliseconds", "Records of pops that are not read", ("queue_id",), _revive_lag),
    _gauge("pop_revive_latency_milliseconds", "Age of the first of these", ("queue_id",), _revive_late),
)  # fmt: skip


def metrics_of(sources: Sources) -> Metrics:
    """Return the metrics of a broker."""
    return Metrics(_samples(sources), labels_of(sources.context.settings.broker, sources.parts))


def _samples(sources: Sources) -> Samples:
    """Yield all families with their values; the lags of groups are gathered before."""
    found = lags_of(sources.context, sources.books, sources.in_flight)
    while some := list(islice(found, LAGS_IN_TURN)):
        sources.lags.extend(some)
        yield None
    for row in ROWS:
        yield row.family, row.read(sources)
    for part in sources.parts:
        yield from part.samples()
    yield TARGET, [MetricSample({}, 1)]


def labels_of(config: BrokerConfig, parts: Sequence[MetricPart] = ()) -> Labels:
    """Return the labels of all values of a broker."""
    return common_labels(
        config.metrics_label,
        [*(row.family for row in ROWS), *chain.from_iterable(part.families for part in parts)],
        in_delta=config.metrics_in_delta,
        cluster=config.broker_cluster_name,
        node_id=config.broker_name,
        node_type="broker",
        otel_scope_name="broker-meter",
    )
