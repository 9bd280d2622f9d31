"""A broker's state and its processors without network and store, for the tests of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

from firearrow.broker.access.control import Senders
from firearrow.broker.administration.feature import administration_handlers
from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.groups.assignment import RequestModes
from firearrow.broker.groups.clients import ClientChannel, ClientRegistry
from firearrow.broker.groups.feature import MemberNotices, group_handlers
from firearrow.broker.groups.filters import ConsumerFilters
from firearrow.broker.groups.locks import QueueLocks
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.metrics.stats import BrokerStats
from firearrow.broker.offsets.feature import offset_handlers
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.unblocking import Unblocking
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.pulling.feature import query_handlers
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.replication.replicas import Replicas
from firearrow.broker.sending.puts import Puts
from firearrow.broker.sending.sendback import SendBackProcessor
from firearrow.broker.state.settings import Settings
from firearrow.broker.timing.counts import TimerCounts
from firearrow.broker.timing.recalls import RecallProcessor
from firearrow.broker.topics.feature import topic_handlers
from firearrow.broker.topics.table import TopicTable
from firearrow.errors import BrokerError, DiskFull, MessageError
from firearrow.message.hosts import Host, pack_host
from firearrow.message.model import MessageView
from firearrow.net.futures import Answered
from firearrow.net.server import Answer, Finished
from firearrow.store import Boundary, MessageStore, QueueRange
from firearrow.store.lookup import QueueEntry
from firearrow.store.timers import TimerStore
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue, Response, request
from firearrow.wire.frame import AnyCommand

NOW_MS = 1_795_210_273_741

CONFIG = BrokerConfig(broker_name="broker-a", broker_cluster_name="C")


def count_puts(stats: BrokerStats, topic: str, count: int, size: int) -> None:
    """Count messages with so many bytes of records, as the store does."""
    counters = stats.topic(topic)
    counters.put_count += count
    counters.put_bytes += size


class HandClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return NOW_MS + int((self.seconds - 1000.0) * 1000)

    def monotonic(self) -> float:
        return self.seconds


class HandTimer:
    """A call that waits to be made by `HandScheduler.turn`."""

    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class HandScheduler:
    """Makes calls when it is told to; time is that of a `HandClock`."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.timers: list[HandTimer] = []

    def time(self) -> float:
        return self.clock.seconds

    def call_soon(self, call: Callable[[], object], /) -> HandTimer:
        return self.call_later(0, call)

    def call_soon_threadsafe(self, call: Callable[[], object], /) -> HandTimer:
        return self.call_soon(call)

    def call_later(self, seconds: float, call: Callable[[], object], /) -> HandTimer:
        timer = HandTimer(self.clock.seconds + seconds, call)
        self.timers.append(timer)
        return timer

    def turn(self) -> bool:
        """Make all calls whose time has come, but none that these plan; say whether any was."""
        due = [timer for timer in self.timers if timer.at <= self.clock.seconds]
        self.timers = [timer for timer in self.timers if timer.at > self.clock.seconds]
        calls = [timer.call for timer in sorted(due, key=lambda timer: timer.at)]
        for call in calls:
            if call is not None:
                call()
        return any(calls)

    def run(self, seconds: float = 0.0) -> None:
        """Let so many seconds pass, and make all calls, each in its time."""
        until = self.clock.seconds + seconds
        while True:
            while self.turn():
                pass
            following = [timer.at for timer in self.timers if timer.call and timer.at <= until]
            if not following:
                break
            self.clock.seconds = min(following)
        self.clock.seconds = until


class FakeChannel:
    """A connection that keeps what is pushed to it."""

    def __init__(self, address: str = "10.0.0.1:4711") -> None:
        self.address = address
        self.ip = address.rpartition(":")[0]
        self.pushed: list[tuple[int, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.closed: str | None = None
        self.is_open = True
        self.is_slow = self.takes_objects = False
        self.is_loopback = False
        self.kept_bytes = 0

    def keep(self, size: int) -> None:
        self.kept_bytes += size

    @property
    def reads(self) -> bool:
        return self.is_open and not self.is_slow

    def push(self, command: AnyCommand) -> bool:
        assert command.is_oneway
        self.pushed.append((command.code, command.ext))
        self.bodies.append(command.body)
        return True

    def call(self, command: AnyCommand, timeout_seconds: float) -> Answered:
        raise ConnectionError("nobody answers here")

    def close(self, reason: str) -> None:
        self.closed = reason

    def resume(self, request: AnyCommand, handler: Any) -> bool:
        handler(self, request)
        return True

    def take(self) -> list[tuple[int, dict[str, str]]]:
        """Give what was pushed since the last time."""
        pushed, self.pushed = self.pushed, []
        return pushed


class FakeStore:
    """Queues as (topic, queue id) -> (first offset, offset after the last, whether in memory)."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], tuple[int, int, bool]] = {}
        self.store_host = pack_host(Host("127.0.0.1", 10911))
        self.deleted: list[str] = []
        self.is_full = False
        self.sync_flush = False
        self.log_end_offset = 4096
        self.store_host = pack_host(Host("127.0.0.1", 10911))

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        return self.queues.get((topic, queue_id), (0, 0, False))[0]

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        return self.queues.get((topic, queue_id), (0, 0, False))[1]

    def topics_from(self, prefix: str) -> Iterator[str]:
        return iter({topic for topic, _ in self.queues if topic.startswith(prefix)})

    def store_time_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        first, after, _ = self.queues.get((topic, queue_id), (0, 0, False))
        return NOW_MS + queue_offset if first <= queue_offset < after else -1

    def time_span(self, topic: str, queue_id: int) -> tuple[int, int]:
        first, after, _ = self.queues.get((topic, queue_id), (0, 0, False))
        return (NOW_MS + first, NOW_MS + after - 1) if first < after else (-1, -1)

    def iterate_from(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> Iterator[QueueEntry]:
        first, after, _ = self.queues.get((topic, queue_id), (0, 0, False))
        last = min(after, queue_offset + count_max)
        for number in range(queue_offset if first <= queue_offset else last, last):
            yield QueueEntry(number, 1000 * number, 100, 65)

    def search_offset(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        first, after, _ = self.queues.get((topic, queue_id), (0, 0, False))
        return min(max(first, time_ms - NOW_MS), after)

    def head_in_memory(self, topic: str, queue_id: int) -> bool:
        return self.queues.get((topic, queue_id), (0, 0, False))[2]

    def view_at(self, physical_offset: int) -> MessageView:
        raise MessageError("there is no log", "record")

    def watch(self) -> None:
        return

    def unwatch(self) -> None:
        return

    def delete_topic(self, topic: str) -> None:
        if self.is_full:
            raise DiskFull(f"topic {topic} can't be deleted")
        self.deleted.append(topic)

    def delete_lmqs(self, names: Collection[str]) -> None:
        for name in names:
            self.delete_topic(name)

    def admit_batches(self, topic: str) -> bool:
        return all(name != topic for name, _ in self.queues)

    def delete_expired_queues(self) -> Iterator[QueueRange]:
        return iter(())

    def delete_unused_topics(self, kept: Collection[str]) -> Iterator[str]:
        return iter(())

    def dispatch_in_steps(self) -> Iterator[None]:
        return iter(())

    def clean_on_request(self) -> None:
        self.deleted.append("expired files")

    def advise(self, *, read_ahead: bool) -> None:
        self.deleted.append(f"read ahead: {read_ahead}")

    def runtime_facts(self) -> dict[str, str]:
        return {"commitLogMaxOffset": "696", "timerReadBehind": "7"}


def finished(answer: Answer) -> Finished:
    """Give an answer that may be made in steps."""
    while isinstance(answer, Generator):
        try:
            next(answer)
        except StopIteration as end:
            answer = end.value
    return answer


class FakeBroker:
    """All state of one broker, and what it does for a request."""

    waiting: list[Callable[[], None]] | None

    def __init__(
        self, config: BrokerConfig = CONFIG, root: Path | None = None, config_file: Path | None = None
    ) -> None:
        self.clock = HandClock()
        self.store = FakeStore()
        self.settings = Settings(self.clock, config, file=config_file)
        self.topics = TopicTable(self.settings, self.clock, root)
        self.groups = GroupTable(self.settings, self.clock, root)
        self.offsets = ConsumerOffsets(self.clock, root, commits_per_version=500)
        self.orders = ConsumerOrderInfo(self.clock, root)
        self.clients = ClientRegistry(self.settings, self.clock)
        self.locks = QueueLocks(self.clock)
        self.filters = ConsumerFilters(self.settings, self.clock, root)
        self.stats = BrokerStats(self.clock, config.broker_cluster_name)
        notices = MemberNotices(self.settings, self.clients, self._soon, lambda _, call: self._soon(call))
        self.clients.changed.listen(notices.changed)
        self.channel, self.waiting, store = FakeChannel(), None, cast(MessageStore, self.store)
        self.held, self.scheduler = HeldPulls(store, self.clock), HandScheduler(self.clock)
        self.held_pops, self.held_notifications = (
            HeldPops(name, self.settings, store, self.clock, self.scheduler, newest_first=newest)
            for name, newest in (("pops", False), ("notifications", True))
        )
        held = self.held_pops, self.held_notifications
        self.unblocking = Unblocking(self.settings, store, self.orders, self.offsets, held, self.clock, self.scheduler)
        timers = TimerStore(Path("no files"), 1024, 1000)
        timer_counts = TimerCounts(timers, self.clock, Path("no files"))
        routes = TopicRoutes((), lambda _: None, lambda: 30.0, self.clock)
        self.context = BrokerContext(
            self.settings,
            store,
            Puts(store, self.topics, self.clock, Random(1)),
            self.topics,
            self.groups,
            self.offsets,
            self.clients,
            self.stats,
            self.clock,
            Random(1),
            Replicas(self.settings.store),
            Senders(),
        )
        self.in_flight = InFlight(self.settings, always=True)
        context, filters, waiting = self.context, self.filters, (self.held, *held)
        tables = (
            {
                RequestCode.CONSUMER_SEND_MSG_BACK: SendBackProcessor(context).send_back,
                RequestCode.RECALL_MESSAGE: RecallProcessor(context, timers).recall,
            },
            administration_handlers(context, DelayOffsets(self.clock), timers, timer_counts),
            topic_handlers(context),
            group_handlers(context, self.locks, filters, RequestModes(None, 0), routes),
            offset_handlers(context, *waiting, self.in_flight.count),
            query_handlers(context, filters),
        )
        self._handlers: dict[int, Any] = {int(code): it for table in tables for code, it in table.items()}

    def _soon(self, call: Callable[[], None]) -> None:
        """Make a call at once, or keep it in ``waiting``."""
        if self.waiting is None:
            call()
        else:
            self.waiting.append(call)

    def call(
        self,
        code: int,
        fields: dict[str, FieldValue] | None = None,
        body: Any = b"",
        channel: ClientChannel | None = None,
        language: str | int = "JAVA",
    ) -> Response:
        """Handle a request as the server does, a refusal included."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        command = request(code, fields or {}, data)
        command.language = language
        try:
            answer = finished(self._handlers[code](channel or self.channel, command))
        except BrokerError as error:
            answer = Response(error.code, error.remark)
        except DiskFull as error:
            answer = Response(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        assert isinstance(answer, Response)
        return answer

    def ask(
        self,
        code: int,
        fields: dict[str, FieldValue] | None = None,
        body: Any = b"",
        channel: ClientChannel | None = None,
    ) -> Any:
        """Give the body of an answer that must be a success."""
        answer = self.call(code, fields, body, channel)
        assert answer.code == 0, answer
        return fastjson.loads(answer.body) if answer.body else None
