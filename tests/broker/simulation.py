"""A broker, a producer and a consumer in virtual time, with kills, against a model of what is owed.

The producer sends messages of each kind: plain, with a delay, for a time, within a transaction,
which it decides by itself or when it is asked. The consumer takes what is there; some messages it
fails to consume, once or always, and sends them back. Now and then the broker is stopped or killed,
and another one opens its store. The model notes what was acknowledged and from when on it may be
delivered. In the end hours go by, and everything that is owed must have come:

* each acknowledged message at least once, exactly once if nothing was killed; never before its time
* plain messages in the order of their queue, once each, whatever was killed
* nothing of a transaction that was rolled back
* a message that always fails after so many tries in the dead-letter topic, and nothing else there
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from firearrow.broker.app import Broker
from firearrow.broker.config import BrokerConfig
from firearrow.errors import BrokerError, NotFound
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.record import decode_record, iter_records
from firearrow.net.client import Client
from firearrow.store.delays import DelayLevels
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from tests.broker.serving import pull_fields, send_fields
from tests.store.stores import abandon, small_config

TOPIC: Final = "T"
GROUP: Final = "g"
PRODUCERS: Final = "producers"
QUEUES: Final = 4
RETRIES: Final = 3
BEAT_SECONDS: Final = 30.0
ALWAYS: Final = 99
EVENTS_OF_RUN: Final = 50_000
LEVELS: Final = DelayLevels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
HOURS: Final = (
    3  # in which all is over: three retries take 100 s, 15 checks of a half eight minutes
)
COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
NOTHING_THERE: Final = (17, 19, 20)  # answers to a pull: no such topic, nothing new, go on
PREPARED: Final = 4  # of a message's sysFlag


class Sent:
    """A message that was acknowledged, and what has become of it."""

    __slots__ = ("body", "consumed", "decision", "due_ms", "failures", "is_plain", "queue_id")

    def __init__(self, body: str, queue_id: int, due_ms: int, failures: int) -> None:
        self.body = body
        self.queue_id = queue_id
        self.due_ms = due_ms
        self.failures = failures
        self.decision = COMMIT
        self.is_plain = False
        self.consumed = 0

    @property
    def is_owed(self) -> bool:
        """Whether a consumer must get it and will not fail for ever."""
        return self.decision == COMMIT and self.failures <= RETRIES


class Simulation:
    """One run, by its seed; ``events`` counts requests and messages."""

    def __init__(self, seed: int, root: Path, kill_share: float = 0.6) -> None:
        self.seed = seed
        self.events = 0
        self.kills = 0
        self._chance = random.Random(seed)
        self._root = root
        self._kill_share = kill_share
        self._now_ms = 0
        self._sent: dict[str, Sent] = {}
        self._halves: dict[str, dict[str, FieldValue]] = {}  # not decided yet: how to say it
        self._retry_due: dict[tuple[str, int], int] = {}  # by body and how often it was retried
        self._numbers = itertools.count(1)

    def run(self, events: int) -> None:
        """Live through so many events at least, with stops and kills, and check the end."""
        while self.events < events:
            self._live(self._chance.randrange(100, 10_000))
        self._live(None)
        self._check()

    # --- lives of the broker ---

    def _live(self, events: int | None) -> None:
        """One life of a broker: for so many events, or until all that is owed has come."""

        async def main(clock: VirtualClock) -> None:
            if self._now_ms:
                clock.start_ms = self._now_ms + self._chance.choice((1, 1000, 100_000))
            broker = Broker(
                BrokerConfig(
                    broker_name="b",
                    broker_cluster_name="C",
                    flush_consumer_offset_interval=30_000,
                ),
                small_config(self._root, flush_delay_offset_interval=30_000),
                clock,
                background=False,
                chance=random.Random(self._chance.getrandbits(32)),
            )
            port = await broker.start("127.0.0.1", 0)
            broker._saving._hurry.set()  # its rests are of real time
            life = _Life(self, f"127.0.0.1:{port}", clock)
            await life.begin()
            if events is None:
                await life.end_all()
            else:
                await life.go_on(self.events + events)
            await life.client.close()
            self._now_ms = clock.now_ms()
            if events is None or self._chance.random() >= self._kill_share:
                await broker.stop()
            else:
                self.kills += 1
                broker._close_state()
                abandon(broker.store)

        loop.run(main)

    # --- the model ---

    def new_body(self) -> str:
        """The body of the next message, which is its name."""
        return f"m{next(self._numbers)}"

    def _check(self) -> None:
        where = f"seed {self.seed}, {self.events} events, {self.kills} kills"
        missing = [sent.body for sent in self._sent.values() if sent.is_owed and not sent.consumed]
        assert not missing, f"{where}: acknowledged and never consumed: {missing[:10]}"
        if not self.kills:
            twice = [sent.body for sent in self._sent.values() if sent.consumed > 1]
            assert not twice, f"{where}: consumed twice though nothing was killed: {twice[:10]}"


class _Life:
    """What producer and consumer do while one broker lives."""

    def __init__(self, simulation: Simulation, address: str, clock: VirtualClock) -> None:
        self._run = simulation
        self._chance = simulation._chance
        self._address = address
        self._clock = clock
        self._offsets: dict[tuple[str, int], int] = {}
        self._beat_at = 0.0
        self._deciding: set[asyncio.Task[None]] = set()
        self.client = Client({39: self._asked})

    async def _call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> AnyCommand:
        self._run.events += 1
        if self._clock.monotonic() - self._beat_at > BEAT_SECONDS:
            await self._beat()
        return await self.client.call(self._address, code, fields, body)

    async def begin(self) -> None:
        """Have topic, group and heartbeat, and go on where the group was."""
        await self._call(
            17,
            {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "perm": 6,
             "writeQueueNums": QUEUES, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
             "order": False},
        )  # fmt: skip
        group = {"groupName": GROUP, "retryMaxTimes": RETRIES}
        await self._call(200, {}, json.dumps(group).encode())
        await self._beat()
        for topic, queue_id in self._queues():
            fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id}
            self._offsets[topic, queue_id] = 0
            with suppress(NotFound):
                answer = await self._call(14, fields)
                self._offsets[topic, queue_id] = int(answer.ext["offset"])

    async def _beat(self) -> None:
        self._beat_at = self._clock.monotonic()
        consumer = {
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}],
        }  # fmt: skip
        producers = [{"groupName": PRODUCERS}]
        body = {"clientID": "c", "producerDataSet": producers, "consumerDataSet": [consumer]}
        await self._call(34, {}, json.dumps(body).encode())

    @staticmethod
    def _queues() -> list[tuple[str, int]]:
        return [*((TOPIC, queue_id) for queue_id in range(QUEUES)), (names.retry_topic(GROUP), 0)]

    async def go_on(self, events: int) -> None:
        """Do this and that until there were so many events."""
        makers = [
            (10, self._send), (3, self._send_delayed), (3, self._send_timed), (3, self._send_half),
            (2, self._decide), (10, self._consume), (6, self._wait),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        while self._run.events < events:
            [do] = self._chance.choices([do for _, do in makers], weights)
            await do()

    async def end_all(self) -> None:
        """Let hours go by, consume all that comes, and see what the end must look like."""
        for _ in range(HOURS * 60 * 2):
            await asyncio.sleep(30)
            for topic, queue_id in self._queues():
                while await self._consume_some(topic, queue_id):
                    continue
        await self._check_order()
        await self._check_dead()

    # --- the producer ---

    async def _put(self, sent: Sent, found: dict[str, str], **changed: FieldValue) -> AnyCommand:
        unique = f"{self._chance.getrandbits(128):032X}"
        text = properties.format({"UNIQ_KEY": unique, **found})
        fields = send_fields(TOPIC, sent.queue_id, i=text, g=self._clock.now_ms(), **changed)
        answer = await self._call(310, fields, sent.body.encode())
        self._run._sent[sent.body] = sent
        return answer

    def _new(self, due_ms: int = 0) -> Sent:
        failures = self._chance.choices((0, 1, 2, ALWAYS), (40, 4, 2, 1))[0]
        return Sent(self._run.new_body(), self._chance.randrange(QUEUES), due_ms, failures)

    async def _send(self) -> None:
        sent = self._new()
        sent.is_plain = True
        await self._put(sent, {"TAGS": "A"})

    async def _send_delayed(self) -> None:
        level = self._chance.randrange(1, 6)
        await self._put(
            self._new(LEVELS.due_ms(level, self._clock.now_ms())), {"DELAY": str(level)}
        )

    async def _send_timed(self) -> None:
        due_ms = self._clock.now_ms() + self._chance.randrange(-2000, 40_000)
        # A time is cut to the second before it.
        await self._put(self._new(due_ms - 1000), {"TIMER_DELIVER_MS": str(due_ms)})

    async def _send_half(self) -> None:
        sent = self._new()
        found = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        sent.decision = self._chance.choice((COMMIT, ROLL_BACK))
        answer = await self._put(sent, found, f=PREPARED)
        self._run._halves[sent.body] = {
            "producerGroup": PRODUCERS, "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": int(answer.ext["msgId"][16:], 16), "fromTransactionCheck": False,
            "msgId": answer.ext["transactionId"], "transactionId": answer.ext["transactionId"],
        }  # fmt: skip

    async def _decide(self) -> None:
        if self._run._halves:
            body = self._chance.choice(list(self._run._halves))
            fields = self._run._halves.pop(body)
            await self._tell(body, fields)

    async def _tell(self, body: str, fields: dict[str, FieldValue]) -> None:
        self._run.events += 1
        decision = self._run._sent[body].decision
        with suppress(ConnectionError):
            await self.client.send(self._address, 37, {**fields, "commitOrRollback": decision})

    def _asked(self, command: AnyCommand) -> None:
        """39: what has become of a half? Sometimes the producer does not know yet."""
        self._run.events += 1
        half = decode_record(command.body)
        body = half.body.decode()
        if self._chance.random() < 0.3:
            return
        self._run._halves.pop(body, None)
        fields: dict[str, FieldValue] = {
            "producerGroup": PRODUCERS, "tranStateTableOffset": command.ext["tranStateTableOffset"],
            "commitLogOffset": command.ext["commitLogOffset"], "fromTransactionCheck": True,
            "msgId": command.ext["msgId"], "transactionId": command.ext["transactionId"],
        }  # fmt: skip
        task = asyncio.get_running_loop().create_task(self._tell(body, fields))
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)

    # --- the consumer ---

    async def _consume(self) -> None:
        await self._consume_some(*self._chance.choice(self._queues()))

    async def _wait(self) -> None:
        await asyncio.sleep(self._chance.choice((0.01, 0.01, 0.5, 3)))

    async def _pull(self, topic: str, queue_id: int, offset: int) -> list[MessageView]:
        try:
            answer = await self._call(11, pull_fields(offset, topic=topic, queueId=queue_id))
        except BrokerError as error:
            if error.code not in NOTHING_THERE:
                raise
            return []
        return list(iter_records(answer.body))

    async def _consume_some(self, topic: str, queue_id: int) -> int:
        """Take what is there, send back what fails, and commit; give the number of messages."""
        views = await self._pull(topic, queue_id, self._offsets[topic, queue_id])
        for view in views:
            await self._take(view)
        if views:
            offset = self._offsets[topic, queue_id] = views[-1].queue_offset + 1
            fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id}
            await self._call(15, {**fields, "commitOffset": offset})
        return len(views)

    async def _take(self, view: MessageView) -> None:
        run = self._run
        run.events += 1
        now_ms = self._clock.now_ms()
        sent = run._sent[view.body.decode()]
        times = view.reconsume_times
        due_ms = run._retry_due.get((sent.body, times), 0) if times else sent.due_ms
        assert now_ms >= due_ms, f"{run.seed}: {sent.body} is {due_ms - now_ms} ms early"
        assert sent.decision == COMMIT, f"{run.seed}: {sent.body} was rolled back"
        if times >= sent.failures:
            sent.consumed += 1
            return
        due_ms = LEVELS.due_ms(3 + times, now_ms)
        key = sent.body, times + 1
        run._retry_due[key] = min(run._retry_due.get(key, due_ms), due_ms)
        await self._call(
            36,
            {"offset": view.physical_offset, "group": GROUP, "delayLevel": 0, "unitMode": False,
             "originMsgId": view.offset_message_id, "originTopic": view.topic,
             "maxReconsumeTimes": RETRIES},
        )  # fmt: skip

    # --- the end ---

    async def _all(self, topic: str, queue_id: int) -> list[MessageView]:
        found: list[MessageView] = []
        while views := await self._pull(topic, queue_id, len(found)):
            found += views
        return found

    async def _check_order(self) -> None:
        """Plain messages are in their queues once each, in the order of their sends."""
        sents = self._run._sent
        for queue_id in range(QUEUES):
            bodies = [view.body.decode() for view in await self._all(TOPIC, queue_id)]
            plain = [body for body in bodies if sents[body].is_plain]
            want = [s.body for s in sents.values() if s.is_plain and s.queue_id == queue_id]
            assert plain == want, f"{self._run.seed}: queue {queue_id} has other plain messages"

    async def _check_dead(self) -> None:
        """What always fails is dead after its retries, and nothing else is."""
        dead = Counter[str]()
        for view in await self._all(names.dlq_topic(GROUP), 0):
            dead[view.body.decode()] += 1
            assert view.reconsume_times == RETRIES + 1
        want = {
            sent.body
            for sent in self._run._sent.values()
            if sent.failures > RETRIES and sent.decision == COMMIT
        }
        assert set(dead) == want, f"{self._run.seed}: {set(dead) ^ want} in the dead-letter topic"
        if not self._run.kills:
            assert not [body for body, count in dead.items() if count > 1]


def main() -> None:
    """Simulate so many events, run after run, each with the seed behind the one before."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    events = kills = 0
    began = time.perf_counter()
    for seed in itertools.count(given.seed):
        with tempfile.TemporaryDirectory() as root:
            simulation = Simulation(seed, Path(root, "store"))
            simulation.run(EVENTS_OF_RUN)
        events += simulation.events
        kills += simulation.kills
        rate = events / (time.perf_counter() - began)
        sys.stdout.write(
            f"seed {seed}: {events} events, {kills} kills, {rate:.0f} events a second\n"
        )
        if events >= given.events:
            return


if __name__ == "__main__":
    main()
