"""A whole broker with its clients in virtual time, of which everything may happen.

`OPERATIONS` says what can happen, with the values that each argument may have. A test draws from
them by hypothesis (``test_world``), a simulation by a seed (``simulation``); `Owed` checks each
message that a consumer gets. `World.finish` lets time go by until all that is owed must have come.

A life of the broker has an event loop of its own, so that nothing of it outlives its end. Power is
lost with `CrashableFileSystem`: what was not synced is gone, or not; state files, which are synced
when they are written, are left as they are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeVar, cast

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.record import decode_record, iter_records
from firearrow.store.fs import OS_FILES, FileSystem
from firearrow.testing.fs import CrashableFileSystem
from firearrow.testing.loop import START_MS, MemoryTransport, VirtualClock, VirtualLoop
from firearrow.wire.command import Command, FieldValue, request
from firearrow.wire.frame import AnyCommand, Connection, encode_request
from tests.broker.owed import (
    COMMIT,
    FAILING,
    GROUPS,
    LEVELS,
    ORDERLY,
    QUEUES,
    RETRIES,
    ROLLBACK,
    TOPIC,
    Crash,
    Group,
    Kind,
    Owed,
    Sent,
)
from tests.broker.serving import SUBSCRIPTION, kill, pull_fields, send_fields
from tests.store.stores import small_config

T = TypeVar("T")
Fields = dict[str, FieldValue]

PRODUCERS: Final = "producers"
PREPARED: Final = 4  # of a message's sysFlag
FOUND, NO_TOPIC, NO_OFFSET = 0, 17, 22
NOTHING_NEW, GO_ON, MOVED, ILLEGAL = 19, 20, 21, 604
QUIET_MS: Final = 200_000  # after the end, in which nothing more may come
STEP_SECONDS: Final = 30.0
STEPS_MAX: Final = 360
FAR_MS: Final = 3_600_000  # so far ahead a broker does not live, it sleeps
WHEEL: Final = "timerwheel"
_OTHERS: Final = ("config", WHEEL, "consumequeue")


def scratch() -> Path:
    """A directory for a world, in memory where there is one: there a sync takes no time."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))


class Operation(NamedTuple):
    """What may happen: how often of a hundred, and with what."""

    weight: int
    arguments: dict[str, Sequence[Any]]


DOWNTIMES_MS: Final = (0, 1, 1500, 100_000, 250_000_000)
IN_FLIGHT: Final = (0, 0, 3, 20)
LIVELY: Final = {
    "send": Operation(20, {"count": (1, 2, 10, 40)}),
    "delay": Operation(6, {"count": (1, 5, 20), "level": (1, 2, 3, 4)}),
    "time": Operation(6, {"count": (1, 5, 20), "ahead_ms": (-500, 1, 999, 1000, 2500, 40_000, 240_000_000)}),
    "recall": Operation(4, {"which": range(8)}),
    "begin": Operation(6, {"count": (1, 3, 10), "decision": (COMMIT, COMMIT, ROLLBACK)}),
    "decide": Operation(4, {"which": range(8)}),
    "consume": Operation(40, {"group": GROUPS, "queue": range(QUEUES + 1), "commits": (True, True, True, False)}),
    "suspend": Operation(3, {"queue": range(QUEUES)}),
    "sleep": Operation(10, {"ms": (1, 10, 500, 3000, 30_000)}),
}
ENDS: Final = {
    "restart": Operation(2, {"downtime_ms": DOWNTIMES_MS}),
    "kill": Operation(3, {"downtime_ms": DOWNTIMES_MS, "in_flight": IN_FLIGHT}),
    "lose_power": Operation(2, {"downtime_ms": DOWNTIMES_MS, "in_flight": IN_FLIGHT}),
}
OPERATIONS: Final = LIVELY | ENDS


class Disk(CrashableFileSystem):
    """Loses power, and always the wheel, which is too large to compare: it follows from the timer
    log."""

    def create_file(self, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        """Create a file."""
        if path.name == WHEEL:
            FileSystem.create_file(self, path, size_bytes, reserved_bytes)
        else:
            super().create_file(path, size_bytes, reserved_bytes)

    def sync_file(self, path: Path) -> None:
        """Sync a file."""
        if path.name != WHEEL:
            super().sync_file(path)


class _Watched(Broker):
    """Says where log and queues ended, before it puts anything itself."""

    log_end: int
    lengths: list[int]

    def _load(self) -> None:
        store = self.store
        self.log_end = store.log_end_offset
        self.lengths = [store.max_queue_offset(TOPIC, queue_id) for queue_id in range(QUEUES)]
        super()._load()


class _Line(asyncio.Protocol):
    """One connection to a broker: many requests leave in one write."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._frames = Connection()
        self._answers: dict[int, AnyCommand] = {}
        self._wanted = 0
        self._answered: asyncio.Future[None] | None = None
        self._opaque = itertools.count(1)
        self._transport: MemoryTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be connected."""
        self._transport = cast(MemoryTransport, transport)

    def cut(self) -> None:
        """Have the broker's end be closed."""
        self._transport.other.abort()

    def data_received(self, data: bytes) -> None:
        """Take answers, and what the broker asks."""
        for command in self._frames.receive(data):
            if command.is_response:
                self._answers[command.opaque] = command
            elif command.code == 39:
                self._world.asked(command)
        if self._answered is not None and len(self._answers) == self._wanted:
            self._answered.set_result(None)
            self._answered = None

    def tell(self, code: int, asks: Iterable[tuple[Fields, bytes]], *, oneway: bool = False) -> list[int]:
        """Write requests; give their numbers."""
        commands = [request(code, fields, body, opaque=next(self._opaque), oneway=oneway) for fields, body in asks]
        self._transport.write(b"".join(map(encode_request, commands)))
        return [command.opaque for command in commands]

    async def ask(self, code: int, asks: Sequence[tuple[Fields, bytes]]) -> list[AnyCommand]:
        """Write requests, and wait for their answers."""
        self._answers.clear()
        self._wanted = len(asks)
        self._answered = asyncio.get_running_loop().create_future()
        answered, opaques = self._answered, self.tell(code, asks)
        await answered
        return [self._answers[opaque] for opaque in opaques]


class World:
    """A broker, its clients, and time. ``events`` counts requests, and messages that came.

    ``kind`` is how queues are kept, ``config`` and ``store`` are any other configuration. Without
    ``has_power_losses`` the process is killed in their place.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        kind: str = "default",
        is_sync: bool = False,
        has_power_losses: bool = True,
        config: dict[str, Any] | None = None,
        **store: Any,
    ) -> None:
        self.events = 0
        self._config = config or {}
        self.owed = Owed()
        self._directory = directory
        self._chance = Random(seed)
        self._settings: dict[str, Any] = {
            "store_type": kind,
            "flush_disk_type": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH",
            "file_reserved_time": 100_000, "flush_interval_consume_queue": 10_000,
            "clean_resource_interval": 60_000, "mapped_file_size_timer_log": 52 * 100,
            **store,
        }  # fmt: skip
        self._is_sync = is_sync
        self._has_power_losses = has_power_losses
        self._others = _OTHERS if kind == "defaultRocksDB" else _OTHERS[:2]
        self._generation = 0
        self._now_ms = START_MS
        self._undecided: dict[int, Fields] = {}
        self._recallable: dict[int, str] = {}
        self._positions: dict[tuple[Group, str, int], int] = {}
        self._committed: dict[tuple[Group, str, int], int] = {}
        self._fs: FileSystem = OS_FILES
        self._has_crashed = False
        self._runner: asyncio.Runner
        self._clock: VirtualClock
        self._broker: _Watched
        self._line: _Line
        self._root.mkdir()
        self._begin()

    # --- lives of the broker ---

    @property
    def _root(self) -> Path:
        return self._directory / str(self._generation)

    def _run(self, main: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(main)

    def _begin(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._clock = VirtualClock(self._runner.get_loop())
        self._clock.start_ms = self._now_ms
        self.owed.begins_ms.append(self._now_ms)
        if self._has_power_losses:
            self._fs = Disk(self._root, others=self._others)
        self._run(self._open())

    async def _open(self) -> None:
        config = BrokerConfig(
            broker_name="b", broker_cluster_name="C", recall_message_enable=True,
            enable_property_filter=True, flush_consumer_offset_interval=30_000,
            server_channel_max_idle_time_seconds=10**7, channel_expired_timeout=10**12,
            **self._config,
        )  # fmt: skip
        store = small_config(self._root, **self._settings)
        self._broker = _Watched(
            config, store, self._clock, background=False, fs=self._fs,
            chance=Random(self._chance.getrandbits(32)),
        )  # fmt: skip
        port = await self._broker.start("127.0.0.1", 0)
        if self._has_crashed and self.owed.crashes[-1].is_machine:
            self.owed.lost_power(self._broker.log_end, self._broker.lengths, is_sync=self._is_sync)
            self._forget_lost()
        loop = asyncio.get_running_loop()
        _, self._line = await loop.create_connection(lambda: _Line(self), "127.0.0.1", port)
        await self._introduce()

    def _forget_lost(self) -> None:
        """Have producers know which halves are gone, whose places others have now."""
        for number in list(self._undecided):
            if self.owed.sent[number].place >= self._broker.log_end:
                del self._undecided[number]

    async def _introduce(self) -> None:
        """Have topic, groups and members, and go on where the groups are."""
        topic: Fields = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "perm": 6,
            "writeQueueNums": QUEUES, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
            "order": False,
        }  # fmt: skip
        await self._ask(17, topic)
        for group in GROUPS:
            body = {"groupName": group.name, "retryMaxTimes": RETRIES}
            await self._ask(200, {}, json.dumps(body).encode())
        consumers = [
            {"groupName": group.name, "consumeType": "CONSUME_PASSIVELY",
             "messageModel": "CLUSTERING",
             "subscriptionDataSet": [
                 {"topic": TOPIC, "subString": group.expression, "subVersion": 1,
                  "expressionType": group.kind, "tagsSet": ["A", "C"][: 2 * (group.name == "tags")],
                  "codeSet": [65, 67][: 2 * (group.name == "tags")]}]}
            for group in GROUPS
        ]  # fmt: skip
        body = {"clientID": "c", "producerDataSet": [{"groupName": PRODUCERS}],
                "consumerDataSet": consumers}  # fmt: skip
        await self._ask(34, {}, json.dumps(body).encode())
        for group in GROUPS:
            for queue in range(QUEUES + (group is FAILING)):
                await self._go_on(group, *self._queue(queue))

    async def _go_on(self, group: Group, topic: str, queue_id: int) -> None:
        """Take up a queue where the group is."""
        fields: Fields = {"consumerGroup": group.name, "topic": topic, "queueId": queue_id}
        answer = await self._ask(14, fields, expected=(FOUND, NO_OFFSET))
        at = int(answer.ext["offset"]) if answer.code == FOUND else 0
        key = group, topic, queue_id
        known = self._committed.get(key, 0)
        if self._has_crashed:
            assert at <= known, f"{key} goes on at {at}, it was at {known}"
        else:
            assert at == known, f"{key} goes on at {at}, it was at {known}"
        self.owed.repeats |= at < self._positions.get(key, 0)
        self._positions[key] = self._committed[key] = at

    def _end(self, downtime_ms: int) -> None:
        self._now_ms = self._clock.now_ms() + downtime_ms
        self._runner.close()

    def restart(self, downtime_ms: int) -> None:
        """Stop the broker, and start it again."""
        self._run(self._broker.stop())
        self._has_crashed = False
        self._end(downtime_ms)
        self._begin()

    def kill(self, downtime_ms: int, in_flight: int) -> None:
        """Kill the process, perhaps while messages are on their way to it."""
        self._run(self._send_unanswered(in_flight))
        self._crash(is_machine=False)
        self._end(downtime_ms)
        self._begin()

    def lose_power(self, downtime_ms: int, in_flight: int) -> None:
        """Have the machine fail."""
        if not self._has_power_losses:
            self.kill(downtime_ms, in_flight)
            return
        self._run(self._send_unanswered(in_flight))
        assert isinstance(self._fs, CrashableFileSystem)
        left = self._directory / str(self._generation + 1)
        self._fs.crash(left, self._chance.getrandbits(32))
        self._crash(is_machine=True)
        shutil.rmtree(self._root)
        self._generation += 1
        self._end(downtime_ms)
        self._begin()

    def _crash(self, *, is_machine: bool) -> None:
        self._has_crashed = self.owed.repeats = True
        self.owed.crashes.append(Crash(self._clock.now_ms(), is_machine))
        kill(self._broker)
        self._line.cut()

    def close(self) -> None:
        """End without a check."""
        self._run(self._broker.stop())
        self._runner.close()

    # --- requests ---

    async def _ask_all(
        self, code: int, asks: Sequence[tuple[Fields, bytes]], expected: Sequence[int] = (0,)
    ) -> list[AnyCommand]:
        self.events += len(asks)
        answers = await self._line.ask(code, asks)
        for answer in answers:
            assert answer.code in expected, f"{code}: {answer.code} {answer.remark}"
        return answers

    async def _ask(self, code: int, fields: Fields, body: bytes = b"", expected: Sequence[int] = (0,)) -> AnyCommand:
        [answer] = await self._ask_all(code, [(fields, body)], expected)
        return answer

    # --- producers ---

    def _message(self, sent: Sent, found: dict[str, str], **changed: FieldValue) -> Any:
        text = properties.format(sent.properties() | found)
        now_ms = self._clock.now_ms()
        fields = send_fields(TOPIC, sent.queue_id, i=text, g=now_ms, a=PRODUCERS, **changed)
        return fields, b"%d" % sent.number

    async def _put(self, sents: list[Sent], found: dict[str, str], **changed: FieldValue) -> list[AnyCommand]:
        answers = await self._ask_all(310, [self._message(sent, found, **changed) for sent in sents])
        for sent, answer in zip(sents, answers, strict=True):
            sent.is_certain = True
            sent.place = int(answer.ext["msgId"][16:], 16)
            self._touch(sent)
        return answers

    def _touch(self, sent: Sent) -> None:
        sent.touched = self._broker.store.log_end_offset

    def _new(self, count: int, kind: Kind, due_ms: int = 0) -> list[Sent]:
        now_ms = self._clock.now_ms()
        return [self.owed.new(kind, now_ms, due_ms) for _ in range(count)]

    async def _send_unanswered(self, count: int) -> None:
        """Send, and be gone before the answers: what comes of it is anybody's guess."""
        sents = self._new(count, Kind.PLAIN)
        self._line.tell(310, [self._message(sent, {}) for sent in sents])
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)

    def send(self, count: int) -> None:
        """Send plain messages."""
        self._run(self._put(self._new(count, Kind.PLAIN), {}))

    def delay(self, count: int, level: int) -> None:
        """Send messages with a delay level."""
        due_ms = LEVELS.due_ms(level, self._clock.now_ms())
        self._run(self._put(self._new(count, Kind.DELAYED, due_ms), {"DELAY": str(level)}))

    def time(self, count: int, ahead_ms: int) -> None:
        """Send messages for a time."""
        due_ms = self._clock.now_ms() + ahead_ms
        sents = self._new(count, Kind.TIMED, due_ms)
        answers = self._run(self._put(sents, {"TIMER_DELIVER_MS": str(due_ms)}))
        for sent, answer in zip(sents, answers, strict=True):
            if ahead_ms > 0:
                self._recallable[sent.number] = answer.ext["recallHandle"]

    def recall(self, which: int) -> None:
        """Recall one of the messages that were sent for a time."""
        if self._recallable:
            number = list(self._recallable)[which % len(self._recallable)]
            self._run(self._recall(self.owed.sent[number], self._recallable.pop(number)))

    async def _recall(self, sent: Sent, handle: str) -> None:
        fields: Fields = {"producerGroup": PRODUCERS, "topic": TOPIC, "recallHandle": handle}
        answer = await self._ask(370, fields, expected=(0, ILLEGAL))
        if answer.code == 0:
            assert sent.stored_ms < 0, "it came already"
            sent.is_recalled = True
            self._touch(sent)
        else:
            assert sent.due_ms - self._clock.now_ms() < 1001, "it is not due"

    def begin(self, count: int, decision: int) -> None:
        """Send halves."""
        sents = self._new(count, Kind.HALF)
        for sent in sents:
            sent.decision = decision
        found = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        for sent, answer in zip(sents, self._run(self._put(sents, found, f=PREPARED)), strict=True):
            self._undecided[sent.number] = {
                "tranStateTableOffset": answer.ext["queueOffset"], "commitLogOffset": sent.place,
                "msgId": answer.ext["transactionId"], "transactionId": answer.ext["transactionId"],
            }  # fmt: skip

    def decide(self, which: int) -> None:
        """Commit or roll back a half."""
        if self._undecided:
            number = list(self._undecided)[which % len(self._undecided)]
            self._run(self._decide(self.owed.sent[number], self._undecided.pop(number)))

    async def _decide(self, sent: Sent, half: Fields) -> None:
        await self._ask(37, self._ending(sent, half, fromTransactionCheck=False))
        self._touch(sent)

    @staticmethod
    def _ending(sent: Sent, half: Fields, **more: FieldValue) -> Fields:
        return half | {"producerGroup": PRODUCERS, "commitOrRollback": sent.decision} | more

    def asked(self, command: Command[Any]) -> None:
        """39: the broker asks for a decision. Sometimes its producer does not know it yet."""
        self.events += 1
        sent = self.owed.sent[int(decode_record(command.body).body)]
        sent.asked += 1
        if sent.asked > sent.number % 3:
            self._undecided.pop(sent.number, None)
            kept = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
            half: Fields = {name: command.ext[name] for name in kept}
            fields = self._ending(sent, half, fromTransactionCheck=True)
            self._line.tell(37, [(fields, b"")], oneway=True)

    # --- consumers ---

    @staticmethod
    def _queue(queue: int) -> tuple[str, int]:
        """The topic's queues by their number, and then the retry topic's."""
        return (TOPIC, queue) if queue < QUEUES else (names.retry_topic(FAILING.name), 0)

    def consume(self, group: Group, queue: int, commits: bool) -> None:
        """Have a group take what a queue has for it."""
        place = self._queue(queue if group is FAILING else queue % QUEUES)
        self._run(self._consume(group, *place, commits=commits))

    async def _consume(self, group: Group, topic: str, queue_id: int, *, commits: bool = True) -> int:
        """Take what there is; give the number of messages."""
        key = group, topic, queue_id
        if group is ORDERLY:
            await self._lock(queue_id)
        count = 0
        while views := await self._pull(key):
            count += len(views)
            self.events += len(views)
            now_ms = self._clock.now_ms()
            failed = [view for view in views if self._take(group, view, now_ms)]
            if failed:
                await self._send_back(failed)
        if commits and self._committed[key] != self._positions[key]:
            at = self._committed[key] = self._positions[key]
            fields: Fields = {"consumerGroup": group.name, "topic": topic, "queueId": queue_id}
            await self._ask(15, fields | {"commitOffset": at})
        return count

    async def _pull(self, key: tuple[Group, str, int]) -> list[MessageView]:
        """The next messages of a queue that are for a group; none at its end."""
        group, topic, queue_id = key
        flag = SUBSCRIPTION if topic != TOPIC else 0
        while True:
            fields = pull_fields(
                self._positions[key], consumerGroup=group.name, topic=topic, queueId=queue_id,
                sysFlag=flag, subscription=group.expression, expressionType=group.kind,
                subVersion=1,
            )  # fmt: skip
            answer = await self._ask(11, fields, expected=(FOUND, NO_TOPIC, NOTHING_NEW, GO_ON, MOVED))
            if answer.code == NO_TOPIC:
                return []
            before, after = self._positions[key], int(answer.ext["nextBeginOffset"])
            self._positions[key] = after
            if answer.code == FOUND:
                views = list(iter_records(answer.body))
                places = [view.queue_offset for view in views]
                assert places == sorted(set(places)), places
                assert before <= places[0]
                assert places[-1] < after
                return views
            if after == before:
                return []

    def _take(self, group: Group, view: MessageView, now_ms: int) -> bool:
        """Take a message; whether its consumer fails."""
        sent = self.owed.see(group, view, now_ms)
        self._recallable.pop(sent.number, None)
        if group is FAILING and self.owed.fails(sent, view.reconsume_times):
            return True
        self.owed.consumed[group.name][sent.number] += 1
        return False

    async def _send_back(self, views: list[MessageView]) -> None:
        asks: list[tuple[Fields, bytes]] = [
            ({"offset": view.physical_offset, "group": FAILING.name, "unitMode": False,
              "delayLevel": self.owed.sent[int(view.body)].failure.level,
              "originMsgId": view.offset_message_id, "originTopic": view.topic,
              "maxReconsumeTimes": RETRIES}, b"")
            for view in views
        ]  # fmt: skip
        await self._ask_all(36, asks)
        for view in views:
            sent = self.owed.sent[int(view.body)]
            self.owed.sent_back(sent, view.reconsume_times, self._clock.now_ms())
            self._touch(sent)

    async def _lock(self, queue_id: int) -> None:
        queue = {"topic": TOPIC, "brokerName": "b", "queueId": queue_id}
        body = {"consumerGroup": ORDERLY.name, "clientId": "c", "mqSet": [queue]}
        answer = await self._ask(41, {}, json.dumps(body).encode())
        assert json.loads(answer.body)["lockOKMQSet"], "the queue is another's"

    def suspend(self, queue: int) -> None:
        """Have the orderly group fail with what comes next: it gets the same again."""
        self._run(self._suspend((ORDERLY, TOPIC, queue)))

    async def _suspend(self, key: tuple[Group, str, int]) -> None:
        await self._lock(key[2])
        before = self._positions[key]
        for view in await self._pull(key):
            self.owed.see(ORDERLY, view, self._clock.now_ms())
        self._positions[key] = before

    # --- time, and the end ---

    def sleep(self, ms: int) -> None:
        """Let time go by."""
        self._run(asyncio.sleep(ms / 1000))

    def finish(self) -> None:
        """Let time go by until all that is owed has come, and look whether anything else does."""
        self._leap()
        for _ in range(STEPS_MAX):
            self._run(self._consume_all())
            if not any(self._missing().values()):
                break
            self._run(asyncio.sleep(STEP_SECONDS))
        for name, missing in self._missing().items():
            assert not missing, f"{name} never got {len(missing)}: {missing[:10]}"
        self._run(asyncio.sleep(QUIET_MS / 1000))
        self._run(self._consume_all())
        self._run(self._check_dead())
        assert not self._broker.troubles
        self.close()

    def _leap(self) -> None:
        """Sleep until what is due latest is due soon."""
        due_ms = max((sent.due_ms for sent in self.owed.sent), default=0)
        ahead_ms = due_ms - self._clock.now_ms()
        if ahead_ms > FAR_MS:
            self.restart(ahead_ms)

    def _missing(self) -> dict[str, list[int]]:
        """What each group must get still."""
        return {group.name: self.owed.missing(group) for group in GROUPS}

    async def _consume_all(self) -> None:
        for group in GROUPS:
            for queue in range(QUEUES + (group is FAILING)):
                await self._consume(group, *self._queue(queue))

    async def _check_dead(self) -> None:
        self.owed.check_dead(await self._dead(FAILING))

    async def _dead(self, group: Group) -> list[MessageView]:
        key = group, names.dlq_topic(group.name), 0
        self._positions[key] = 0
        found: list[MessageView] = []
        while views := await self._pull(key):
            found += views
        return found
