"""One script against two brokers, step by step: what a client is answered must be the same.

A script is made from a seed: some sixty steps over all that a client of the remoting protocol does.
Each step is done on every side, and what came of it is compared at once, without what must differ:
physical offsets, addresses, times of storing. Messages that come later (delays, timers, retries) go
to topics of their own and are compared at the end, as a set.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from firearrow.message import names, properties
from firearrow.message.batch import encode_batch
from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from tests.interop.differ_tools import Printing, Tools
from tests.interop.javaclient import JavaClient
from tests.interop.servers import Server
from tests.interop.waiting import wait_until
from tests.net.rawclient import RawClient, RawPending

STEPS: Final = 60
STEPS_A_TOOL: Final = 5  # a command of mqadmin after so many
SETTINGS: Final = {"enablePropertyFilter": "true", "recallMessageEnable": "true"}
BORN_MS: Final = 1_790_000_000_000
ARRIVAL_S: Final = 30.0
QUEUES: Final = 2
OWN_SUBSCRIPTION: Final = 4  # of a pull's sysFlag
COMMIT, ROLLBACK = 8, 12

# What two brokers can't agree on, or what says where or when a message was stored.
VOLATILE: Final = {
    "REAL_TOPIC_OFFSET", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID", "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS", "MIN_OFFSET", "MAX_OFFSET",
}  # fmt: skip

Fields = Mapping[str, FieldValue]
Seen = Any
"""What a step is compared by: numbers, texts, lists and dictionaries of them."""


class Different(AssertionError):
    """Two sides do not agree on a step."""


class Side:
    """One broker, and what the script has learnt of it that is its own: places of messages."""

    def __init__(self, server: Server, java: JavaClient) -> None:
        self.name = server.kind
        self.address = server.broker
        self.java = java
        self._client = RawClient(timeout_seconds=20)
        self.places: dict[str, tuple[int, str]] = {}  # of messages: physical offset and id
        self.store_ms: dict[str, int] = {}

    def ask(self, code: int, fields: Fields, body: bytes = b"") -> AnyCommand:
        """Ask the broker, and give its answer whatever the code is."""
        return self.begin(code, fields, body).answer()

    def begin(self, code: int, fields: Fields, body: bytes = b"") -> RawPending:
        """Ask the broker, which may answer later."""
        return self._client.begin(self.address, code, fields, body)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def max_offset(self, topic: str, queue_id: int) -> int:
        """How far consumers see a queue."""
        answer = self.ask(30, {"topic": topic, "queueId": queue_id})
        return int(answer.ext["offset"]) if answer.code == 0 else 0

    def wait_for(self, topic: str, queue_id: int, end: int) -> None:
        """Wait until consumers see a queue up to an offset."""
        what = f"{self.name}: offset {end} of {topic}-{queue_id}"
        wait_until(lambda: self.max_offset(topic, queue_id) >= end, ARRIVAL_S, what)

    def contents(self, topic: str, queue_id: int) -> list[MessageView]:
        """All messages of a queue."""
        found: list[MessageView] = []
        offset = 0
        while True:
            answer = self.ask(11, pull(topic, queue_id, offset))
            if answer.code != 0:
                return found
            found += iter_records(answer.body)
            offset = int(answer.ext["nextBeginOffset"])


Step = Callable[[Side], Seen]


class HasSteps(Protocol):
    """A script."""

    def steps(self) -> Iterator[Named]:
        """Give its steps."""
        ...


class Named(NamedTuple):
    """A step, and what it is for whoever reads that it differs."""

    words: str
    do: Step


def pull(topic: str, queue_id: int, offset: int, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of a pull that does not wait."""
    fields: dict[str, FieldValue] = {
        "consumerGroup": "differ", "topic": topic, "queueId": queue_id, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": OWN_SUBSCRIPTION, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    return fields | changed


def shown(view: MessageView) -> Seen:
    """A message as two brokers must agree on it."""
    # With us, a delivery names the message that waited.
    waited = not view.properties.keys().isdisjoint({properties.DELAY_LEVEL, properties.TIMER_OUT_MS})
    kept = {key: value for key, value in view.properties.items() if key not in VOLATILE}
    return {
        "topic": view.topic, "queue": view.queue_id, "body": view.body.decode(errors="replace"),
        "flag": view.flag, "sysFlag": view.sys_flag, "born": view.born_timestamp_ms,
        "reconsumed": view.reconsume_times, "properties": dict(sorted(kept.items())),
        "prepared": view.prepared_transaction_offset > 0 and not waited,
    }  # fmt: skip


def code_and(answer: AnyCommand, *fields: str) -> Seen:
    """The code of an answer and some of its fields; of a refusal only the code."""
    if answer.code != 0:
        return answer.code
    return {"code": 0, **{field: answer.ext.get(field) for field in fields}}


class Script:
    """The steps of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.prefix = f"d{seed}"
        self._topics = [f"{self.prefix}-t{number}" for number in range(3)]
        self._later = f"{self.prefix}-later"
        self._groups = [f"{self.prefix}-g{number}" for number in range(2)]
        self._sent: dict[tuple[str, int], int] = {}  # messages of each queue
        self._kept: list[str] = []  # bodies of messages that a later step may refer to
        self._back: set[tuple[str, str]] = set()  # messages that were sent back, and for whom
        self._late: dict[tuple[str, int], int] = {}  # messages that will come, of each queue
        self._number = 0
        self._tools = Tools(seed, self.prefix, self._topics, self._groups)

    def steps(self) -> Iterator[Named]:
        """Give all steps, the last of which waits for what comes later."""
        yield from (self._create_topic(topic) for topic in [*self._topics, self._later])
        yield from (self._create_group(group) for group in ["differ", *self._groups])
        yield from (self._create_topic(names.retry_topic(group), 1) for group in self._groups)
        yield _tool(*self._tools.routes())
        makers = [
            (8, self._send), (2, self._send_batch), (3, self._delayed), (2, self._timed),
            (5, self._pull), (2, self._pull_filtered), (3, self._commit), (2, self._offset),
            (3, self._send_back), (3, self._transaction), (2, self._lock), (3, self._edges),
            (2, self._search), (1, self._view), (1, self._query), (1, self._topic_stats),
            (1, self._consume_stats), (2, self._reset), (1, self._clone), (2, self._wrong),
            (1, self._group_config),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        for number in range(STEPS):
            [maker] = self._chance.choices([make for _, make in makers], weights)
            yield maker()
            if number % STEPS_A_TOOL == STEPS_A_TOOL - 1:
                yield _tool(*self._tools.any())
        for (topic, queue_id), count in sorted(self._late.items()):
            yield self._arrived(topic, queue_id, count)

    # --- what is set up ---

    def _create_topic(self, topic: str, queues: int = QUEUES) -> Named:
        fields: Fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
            "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        return Named(f"create topic {topic}", lambda side: side.ask(17, fields).code)

    def _create_group(self, group: str) -> Named:
        body = json.dumps({"groupName": group, "retryMaxTimes": 2}).encode()
        return Named(f"create group {group}", lambda side: side.ask(200, {}, body).code)

    # --- sends ---

    def _new_body(self) -> str:
        self._number += 1
        return f"{self.prefix} body {self._number}"

    def _queue(self) -> tuple[str, int]:
        return self._chance.choice(self._topics), self._chance.randrange(QUEUES)

    def _send_fields(
        self, topic: str, queue_id: int, found: Mapping[str, str], **changed: FieldValue
    ) -> dict[str, FieldValue]:
        unique = self._unique_key()
        fields: dict[str, FieldValue] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
            "g": BORN_MS + self._number, "h": self._chance.randrange(9), "j": 0, "k": False,
            "m": False, "i": properties.format({"UNIQ_KEY": unique, **found}),
        }  # fmt: skip
        return fields | changed

    def _unique_key(self) -> str:
        return f"{self._chance.getrandbits(128):032X}"

    def _some_properties(self) -> dict[str, str]:
        chance = self._chance
        found: dict[str, str] = {}
        if chance.random() < 0.7:
            found["TAGS"] = chance.choice("AB")
        if chance.random() < 0.5:
            found["KEYS"] = f"{self.prefix}-k{chance.randrange(4)}"
        if chance.random() < 0.5:
            found["a"] = str(chance.randrange(5))
        return found

    def _send(self) -> Named:
        topic, queue_id = self._queue()
        body = self._new_body()
        fields = self._send_fields(topic, queue_id, self._some_properties())
        end = self._sent[topic, queue_id] = self._sent.get((topic, queue_id), 0) + 1
        self._kept.append(body)

        def do(side: Side) -> Seen:
            answer = side.ask(310, fields, body.encode())
            side.wait_for(topic, queue_id, end)
            [view] = iter_records(side.ask(11, pull(topic, queue_id, end - 1)).body)
            side.places[body] = view.physical_offset, answer.ext["msgId"]
            side.store_ms[body] = view.store_timestamp_ms
            return code_and(answer, "queueId", "queueOffset"), shown(view)

        return Named(f"send {body!r} to {topic}-{queue_id} {fields['i']!r}", do)

    def _send_batch(self) -> Named:
        topic, queue_id = self._queue()
        bodies = [self._new_body() for _ in range(3)]
        members = [(0, body.encode(), properties.encode({"UNIQ_KEY": self._unique_key()})) for body in bodies]
        fields = self._send_fields(topic, queue_id, {}, m=True)
        end = self._sent[topic, queue_id] = self._sent.get((topic, queue_id), 0) + len(bodies)

        def do(side: Side) -> Seen:
            answer = side.ask(320, fields, encode_batch(members))
            side.wait_for(topic, queue_id, end)
            views = iter_records(side.ask(11, pull(topic, queue_id, end - 3)).body)
            return code_and(answer, "queueId", "queueOffset"), [shown(view) for view in views]

        return Named(f"send a batch of 3 to {topic}-{queue_id}", do)

    def _send_later(self, found: dict[str, str]) -> Named:
        queue_id = self._chance.randrange(QUEUES)
        body = self._new_body()
        fields = self._send_fields(self._later, queue_id, {**self._some_properties(), **found})
        self._expect(self._later, queue_id)
        return Named(
            f"send {body!r} for later, {found}", lambda side: code_and(side.ask(310, fields, body.encode()), "queueId")
        )

    def _expect(self, topic: str, queue_id: int) -> None:
        self._late[topic, queue_id] = self._late.get((topic, queue_id), 0) + 1

    def _delayed(self) -> Named:
        return self._send_later({"DELAY": "1"})

    def _timed(self) -> Named:
        return self._send_later({"TIMER_DELAY_MS": str(self._chance.choice((0, 500, 1500)))})

    def _transaction(self) -> Named:
        queue_id = self._chance.randrange(QUEUES)
        body = self._new_body()
        decision = self._chance.choice((COMMIT, ROLLBACK))
        found = {"TRAN_MSG": "true", "PGROUP": "producers", **self._some_properties()}
        fields = self._send_fields(self._later, queue_id, found, f=4)
        if decision == COMMIT:
            self._expect(self._later, queue_id)

        def do(side: Side) -> Seen:
            half = side.ask(310, fields, body.encode())
            side.wait_for(names.TRANS_HALF_TOPIC, 0, int(half.ext["queueOffset"]) + 1)
            end: Fields = {
                "producerGroup": "producers", "tranStateTableOffset": half.ext["queueOffset"],
                "commitLogOffset": int(half.ext["msgId"][16:], 16), "commitOrRollback": decision,
                "fromTransactionCheck": False, "msgId": half.ext["transactionId"],
                "transactionId": half.ext["transactionId"],
            }  # fmt: skip
            return code_and(half, "queueId"), side.ask(37, end).code

        return Named(f"half {body!r}, then {'commit' if decision == COMMIT else 'roll back'}", do)

    def _send_back(self) -> Named:
        if not self._kept:
            return self._send()
        body, group = self._chance.choice(self._kept), self._chance.choice(self._groups)
        if (body, group) in self._back:  # a difference on purpose: one copy, not two
            return self._send()
        self._back.add((body, group))
        level = self._chance.choice((1, -1))
        topic = names.retry_topic(group) if level > 0 else names.dlq_topic(group)
        self._expect(topic, 0)

        def do(side: Side) -> Seen:
            offset, msg_id = side.places[body]
            fields: Fields = {
                "offset": offset, "group": group, "delayLevel": level, "originMsgId": msg_id,
                "originTopic": self._topics[0], "unitMode": False, "maxReconsumeTimes": 2,
            }  # fmt: skip
            return side.ask(36, fields).code

        return Named(f"send {body!r} back for {group}, level {level}", do)

    # --- what consumers ask ---

    def _pull(self) -> Named:
        topic, queue_id = self._queue()
        offset = self._chance.randrange(-1, self._sent.get((topic, queue_id), 0) + 3)
        most = self._chance.choice((1, 3, 32))
        return self._pulls(pull(topic, queue_id, offset, maxMsgNums=most))

    def _pull_filtered(self) -> Named:
        topic, queue_id = self._queue()
        kind, text = self._chance.choice(
            [("TAG", "A"), ("TAG", "A || C"), ("SQL92", "a > 2"),
             ("SQL92", "a IS NULL OR TAGS = 'B'"), ("TAG", "")]
        )  # fmt: skip
        return self._pulls(pull(topic, queue_id, 0, expressionType=kind, subscription=text))

    def _pulls(self, fields: dict[str, FieldValue]) -> Named:
        def do(side: Side) -> Seen:
            answer = side.ask(11, fields)
            places = ("nextBeginOffset", "minOffset", "maxOffset")
            views = iter_records(answer.body) if answer.code == 0 else ()
            told = {place: (answer.ext or {}).get(place) for place in places}
            return answer.code, told, [shown(view) for view in views]

        return Named(f"pull {dict(fields)}", do)

    def _group_queue(self) -> dict[str, FieldValue]:
        topic, queue_id = self._queue()
        group = self._chance.choice(self._groups)
        return {"consumerGroup": group, "topic": topic, "queueId": queue_id}

    def _commit(self) -> Named:
        fields = {**self._group_queue(), "commitOffset": self._chance.randrange(5)}
        return Named(f"commit {fields}", lambda side: side.ask(15, fields).code)

    def _offset(self) -> Named:
        fields = self._group_queue()
        return Named(f"offset {fields}", lambda side: code_and(side.ask(14, fields), "offset"))

    def _lock(self) -> Named:
        client, group = self._chance.choice(("one", "two")), self._chance.choice(self._groups)
        code = self._chance.choice((41, 42))
        queue = {"topic": self._topics[0], "brokerName": "broker-a", "queueId": 0}
        body = json.dumps({"consumerGroup": group, "clientId": client, "mqSet": [queue]}).encode()

        def do(side: Side) -> Seen:
            answer = side.ask(code, {}, body)
            return answer.code, json.loads(answer.body) if answer.body else None

        return Named(f"{'lock' if code == 41 else 'unlock'} for {client} of {group}", do)

    # --- what tools ask ---

    def _edges(self) -> Named:
        topic, queue_id = self._queue()
        code = self._chance.choice((30, 31))
        fields: Fields = {"topic": topic, "queueId": queue_id}
        return Named(f"{code} {fields}", lambda side: code_and(side.ask(code, fields), "offset"))

    def _search(self) -> Named:
        topic, queue_id = self._queue()
        shift, boundary = self._chance.choice((-1, 0, 1)), self._chance.choice(("lower", "upper"))
        body = self._chance.choice(self._kept) if self._kept else None

        def do(side: Side) -> Seen:
            at = side.store_ms[body] + shift if body and shift else 0
            if body and shift:  # messages may share a millisecond on one side only
                at = side.store_ms[body] + shift * 60_000
            fields: Fields = {"topic": topic, "queueId": queue_id, "timestamp": at, "boundaryType": boundary}
            return code_and(side.ask(29, fields), "offset")

        return Named(f"search {topic}-{queue_id} {boundary} {shift}", do)

    def _view(self) -> Named:
        if not self._kept:
            return self._send()
        body = self._chance.choice(self._kept)

        def do(side: Side) -> Seen:
            answer = side.ask(33, {"offset": side.places[body][0]})
            return answer.code, [shown(view) for view in iter_records(answer.body)]

        return Named(f"view {body!r}", do)

    def _query(self) -> Named:
        topic, key = (self._chance.choice(self._topics), f"{self.prefix}-k{self._chance.randrange(4)}")
        fields: Fields = {
            "topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0,
            "endTimestamp": (1 << 63) - 1,
        }  # fmt: skip

        def do(side: Side) -> Seen:
            answer = side.ask(12, fields)
            views = iter_records(answer.body) if answer.code == 0 else ()
            return answer.code, sorted((shown(view) for view in views), key=str)

        return Named(f"query {key} of {topic}", do)

    def _topic_stats(self) -> Named:
        topic = self._chance.choice(self._topics)
        return Named(f"202 {topic}", lambda side: _offsets_of(side.ask(202, {"topic": topic})))

    def _consume_stats(self) -> Named:
        group, topic = self._chance.choice(self._groups), self._chance.choice(self._topics)
        fields = {"consumerGroup": group, "topic": topic}
        return Named(f"208 {fields}", lambda side: _offsets_of(side.ask(208, fields)))

    def _reset(self) -> Named:
        topic, group = self._chance.choice(self._topics), self._chance.choice(self._groups)
        fields: Fields = {
            "topic": topic, "group": group, "timestamp": self._chance.choice((0, -1)),
            "isForce": True,
        }  # fmt: skip

        def do(side: Side) -> Seen:
            answer = side.ask(222, fields)
            return answer.code, _numbers_by_queue(answer, "offsetTable")

        return Named(f"reset {fields}", do)

    def _clone(self) -> Named:
        topic, copy = self._topics[0], f"{self.prefix}-copy"  # never reset: see differences.md
        fields: Fields = {
            "srcGroup": self._groups[0], "destGroup": copy, "topic": topic, "offline": False,
        }  # fmt: skip
        place: Fields = {"consumerGroup": copy, "topic": topic, "queueId": 0}

        def do(side: Side) -> Seen:
            return side.ask(314, fields).code, code_and(side.ask(14, place), "offset")

        return Named(f"clone {fields}", do)

    def _group_config(self) -> Named:
        fields: Fields = {"group": self._chance.choice([*self._groups, f"{self.prefix}-nobody"])}

        def do(side: Side) -> Seen:
            answer = side.ask(352, fields)
            return answer.code, json.loads(answer.body) if answer.body else None

        return Named(f"352 {fields}", do)

    def _wrong(self) -> Named:
        topic = self._topics[0]
        send = self._send_fields
        wrong: list[tuple[int, Fields]] = [
                (310, send("no such$topic", 0, {})), (310, send(topic, 99, {})),
                (310, send(names.SCHEDULE_TOPIC, 0, {})), (11, pull(topic, 99, 0)),
                (11, pull(f"{self.prefix}-none", 0, 0)),
                (14, {"consumerGroup": "differ", "topic": topic, "queueId": 0}),
                (15, {"consumerGroup": "differ", "topic": topic, "queueId": 0}),
                (15, {"consumerGroup": "differ", "topic": f"{self.prefix}-none", "queueId": 0,
                      "commitOffset": 1}),
                (310, send(topic, 0, {"TIMER_DELIVER_MS": "soon"})),
                (310, send(topic, 0, {"TIMER_DELAY_SEC": "99999999"})),
                (36, {"offset": 3, "group": self._groups[0], "delayLevel": 0}),
                (36, {"offset": 0, "group": f"{self.prefix}-nobody", "delayLevel": 0}),
                (202, {"topic": f"{self.prefix}-none"}), (9999, {}),
        ]  # fmt: skip
        code, fields = self._chance.choice(wrong)
        return Named(f"wrong: {code} {fields}", lambda side: side.ask(code, fields, b"body").code)

    # --- the end ---

    def _arrived(self, topic: str, queue_id: int, count: int) -> Named:
        def do(side: Side) -> Seen:
            side.wait_for(topic, queue_id, count)
            return sorted((shown(view) for view in side.contents(topic, queue_id)), key=str)

        return Named(f"{count} messages arrive in {topic}-{queue_id}", do)


def _tool(words: str, printing: Printing) -> Named:
    return Named(words, lambda side: printing(side.java))


def _numbers_by_queue(answer: AnyCommand, name: str) -> Seen:
    """A table by queue of a body in fastjson's dialect, as the client reads it."""
    if answer.code != 0 or not answer.body:
        return None
    return sorted(_pairs(answer.body.decode(), name))


def _pairs(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Queue and value of a table whose keys are objects: ``{"name":{{queue}:value,...}}``."""
    at = text.index(f'"{name}":{{') + len(name) + 4
    while text[at] == "{":
        queue, at = _object_at(text, at)
        if text[at + 1] == "{":
            value, at = _object_at(text, at + 1)
        else:
            end = min(place for place in (text.find(",", at), text.find("}", at)) if place >= 0)
            value, at = text[at + 1 : end], end
        yield json.dumps(json.loads(queue), sort_keys=True), value
        at += 1


def _object_at(text: str, at: int) -> tuple[str, int]:
    end = text.index("}", at) + 1
    return text[at:end], end


def _offsets_of(answer: AnyCommand) -> Seen:
    """The offsets by queue of 202 and 208, without times."""
    if answer.code != 0:
        return answer.code
    found = []
    for queue, value in _pairs(answer.body.decode(), "offsetTable"):
        numbers = {key: n for key, n in json.loads(value).items() if "imestamp" not in key}
        found.append((queue, sorted(numbers.items())))
    return sorted(found)


def compare(sides: tuple[Side, Side], seed: int, script: Callable[[int], HasSteps] = Script) -> int:
    """Run the script of a seed on two sides; give the number of steps.

    Raises Different with the first step on which they do not agree.
    """
    count = 0
    for words, do in script(seed).steps():
        count += 1
        first, second = (do(side) for side in sides)
        if json.dumps(first, default=str) != json.dumps(second, default=str):
            raise Different(
                f"seed {seed}, step {count}: {words}\n  {sides[0].name}: {first}\n  {sides[1].name}: {second}"
            )
    return count
