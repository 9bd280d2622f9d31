"""Scripts of pops, for two brokers step by step: in order, and of topics with priorities.

Handles name the time of the pop, so each side has its own: a step names an earlier pop by its
number, and a message of it by its place. What is left out is different on purpose: acknowledgements
where nothing was popped in order, and counts of messages that are not given.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from firearrow.message import properties
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from tests.interop.differ import Named, Seen, Side, code_and
from tests.interop.servers import BROKER_NAME

STEPS: Final = 80
QUEUES: Final = 2
PRIORITIES: Final = 3
LONG_MS, SHORT_MS = 300_000, 1
SHORT_S: Final = 0.02  # after which what is visible soon is
PRIORITY: Final = properties.PRIORITY

_Popped = list[tuple[str, int]]
"""Handle and queue offset of each message."""


def create_topic(topic: str, queues: int, kind: str) -> Named:
    """Create a topic of a message type."""
    fields: dict[str, FieldValue] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False, "attributes": f"+message.type={kind}",
    }  # fmt: skip
    return Named(f"create topic {topic}", lambda side: side.ask(17, fields).code)


def create_group(group: str) -> Named:
    """Create a group."""
    body = json.dumps({"groupName": group}).encode()
    return Named(f"create group {group}", lambda side: side.ask(200, {}, body).code)


class PopScript:
    """The steps of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.prefix = f"p{seed}"
        self._topic, self._by_priority = f"{self.prefix}-order", f"{self.prefix}-priority"
        self._groups = [f"{self.prefix}-g{number}" for number in range(2)]
        self._number = 0
        self._pops: list[int] = []  # those of which messages may be acknowledged
        self._queue_of: dict[int, dict[str, FieldValue]] = {}
        self._popped: dict[tuple[str, int], _Popped] = {}  # by side and pop

    def steps(self) -> Iterator[Named]:
        """Give all steps."""
        yield create_topic(self._topic, QUEUES, "FIFO")
        yield create_topic(self._by_priority, PRIORITIES, "PRIORITY")
        for group in self._groups:
            yield create_group(group)
        for _ in range(6):
            yield self._send()
        makers = [
            (4, self._send), (5, self._send_by_priority), (9, self._pop),
            (4, self._pop_by_priority), (10, self._ack), (3, self._ack_batch),
            (5, self._change), (2, self._offset), (1, self._reset), (1, self._wrong),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        for _ in range(STEPS):
            [maker] = self._chance.choices([make for _, make in makers], weights)
            yield maker()

    # --- sends ---

    def _send(self) -> Named:
        return self._sends(self._topic, self._chance.randrange(QUEUES), {})

    def _send_by_priority(self) -> Named:
        priority = self._chance.choice(("0", "1", "2", "7", "+1", "-1", "x", " 1", "2147483648"))
        found = {PRIORITY: priority}
        other = self._chance.choice(({}, {}, {}, {"__SHARDINGKEY": "k"}, {"TRAN_MSG": "false"}))
        queue_id = self._chance.randrange(PRIORITIES)
        return self._sends(self._by_priority, queue_id, {**found, **other})

    def _sends(self, topic: str, queue_id: int, found: dict[str, str]) -> Named:
        self._number += 1
        body = f"{self.prefix} body {self._number}"
        unique = f"{self._chance.getrandbits(128):032X}"
        fields: dict[str, FieldValue] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
            "g": 1_790_000_000_000, "h": 0, "j": 0, "k": False, "m": False,
            "i": properties.format({"UNIQ_KEY": unique, **found}),
        }  # fmt: skip

        def do(side: Side) -> Seen:
            answer = side.ask(310, fields, body.encode())
            queue_id, end = int(answer.ext["queueId"]), int(answer.ext["queueOffset"]) + 1
            side.wait_for(topic, queue_id, end)
            return code_and(answer, "queueId", "queueOffset")

        return Named(f"send {body!r} to {topic}-{queue_id} {found}", do)

    # --- pops ---

    def _pop(self) -> Named:
        chance = self._chance
        return self._pops_of(
            {
                "topic": self._topic,
                "queueId": chance.randrange(QUEUES),
                "order": True,
                "invisibleTime": chance.choice((LONG_MS, LONG_MS, SHORT_MS)),
                "attemptId": chance.choice(("x", "y", f"z{self._number}{chance.random()}")),
            }
        )

    def _pop_by_priority(self) -> Named:
        return self._pops_of({"topic": self._by_priority, "queueId": -1, "order": False, "invisibleTime": LONG_MS})

    def _pops_of(self, changed: dict[str, FieldValue]) -> Named:
        fields: dict[str, FieldValue] = {
            "consumerGroup": self._chance.choice(self._groups),
            "maxMsgNums": self._chance.choice((1, 2, 4)), "pollTime": 0, "bornTime": 0,
            "initMode": 0, "expType": "TAG", "exp": "*", **changed,
        }  # fmt: skip
        number = len(self._queue_of)
        self._queue_of[number] = {name: fields[name] for name in ("topic", "consumerGroup")}
        self._pops.append(number)

        def do(side: Side) -> Seen:
            answer = side.ask(200050, fields)
            self._popped[side.name, number] = handles_of(answer)
            if fields["invisibleTime"] == SHORT_MS:
                time.sleep(SHORT_S)
            return _told(answer, repeats=len(str(fields.get("attemptId"))) == 1)

        return Named(f"pop {number}: {fields}", do)

    # --- what becomes of them ---

    def _one(self) -> tuple[int, int]:
        """A message of an earlier pop, likely of a late one."""
        at = max(self._chance.randrange(len(self._pops)) for _ in range(3))
        return self._pops[at], self._chance.randrange(4)

    def _message(self, side: Side, pop: int, at: int) -> dict[str, FieldValue] | None:
        popped = self._popped.get((side.name, pop))
        if not popped:
            return None
        handle, offset = popped[at % len(popped)]
        queue_id = int(handle.split(" ")[6])
        return {
            **self._queue_of[pop], "queueId": queue_id, "extraInfo": handle, "offset": offset
        }  # fmt: skip

    def _ack(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, at = self._one()

        def do(side: Side) -> Seen:
            message = self._message(side, pop, at)
            if message is None:
                return None
            return side.ask(200051, message).code, self._committed(side, message)

        return Named(f"acknowledge message {at} of pop {pop}", do)

    def _ack_batch(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, some = self._one()[0], self._chance.randrange(1, 16)

        def do(side: Side) -> Seen:
            popped = self._popped.get((side.name, pop))
            if not popped:
                return None
            head = popped[0][0].split(" ")
            bits, queue_id = 0, int(head[6])
            for at, (handle, offset) in enumerate(popped):
                if some >> at & 1 and int(handle.split(" ")[6]) == queue_id:
                    bits |= 1 << offset - int(head[0])
            data = bits.to_bytes(max((bits.bit_length() + 7) // 8, 1), "little")
            ack = {
                "c": self._queue_of[pop]["consumerGroup"], "t": self._queue_of[pop]["topic"],
                "r": "0", "so": int(head[0]), "q": queue_id, "rq": int(head[3]),
                "pt": int(head[1]), "it": int(head[2]), "b": base64.b64encode(data).decode(),
            }  # fmt: skip
            body = json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode()
            answer = side.ask(200151, {}, body)
            return answer.code, self._committed(side, {**self._queue_of[pop], "queueId": queue_id})

        return Named(f"acknowledge messages {some:b} of pop {pop}", do)

    def _change(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, at = self._one()
        in_ms = self._chance.choice((0, LONG_MS))

        def do(side: Side) -> Seen:
            message = self._message(side, pop, at)
            if message is None or " 999 " not in str(message["extraInfo"]):
                return None  # others come again by the retry topic, some seconds later
            answer = side.ask(200053, {**message, "invisibleTime": in_ms})
            if not in_ms:
                time.sleep(SHORT_S)
            return answer.code, sorted(answer.ext or {}), (answer.ext or {}).get("reviveQid")

        return Named(f"message {at} of pop {pop} is to be visible in {in_ms} ms", do)

    # --- what else there is ---

    def _committed(self, side: Side, message: dict[str, Any]) -> Seen:
        if message["topic"] != self._topic:
            return None  # the original commits what is popped not in order some ms later
        names = ("topic", "consumerGroup", "queueId")
        answer = side.ask(14, {name: message[name] for name in names})
        return code_and(answer, "offset")

    def _offset(self) -> Named:
        group, queue_id = self._chance.choice(self._groups), self._chance.randrange(QUEUES)
        place: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": queue_id
        }  # fmt: skip
        return Named(f"offset {place}", lambda side: self._committed(side, dict(place)))

    def _reset(self) -> Named:
        """Reset a group to the begin of the topic; the queues that it has begun are popped next, as
        until then nothing that is acknowledged counts."""
        group = self._chance.choice(self._groups)
        fields: dict[str, FieldValue] = {
            "topic": self._topic, "group": group, "timestamp": 0, "isForce": True,
            "offset": 0, "queueId": 0,
        }  # fmt: skip

        def do(side: Side) -> Seen:
            return side.ask(222, fields).code

        return Named(f"reset {group}", do)

    def _wrong(self) -> Named:
        group = self._groups[0]
        pop: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": 0, "order": True,
            "maxMsgNums": 1, "pollTime": 0, "bornTime": 0, "initMode": 0, "invisibleTime": 1,
            "expType": "TAG", "exp": "*",
        }  # fmt: skip
        handle = "0 1 60000 999 0 broker-a 0 0"
        ack: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": 0, "extraInfo": handle,
            "offset": 0, "invisibleTime": 1000,
        }  # fmt: skip
        wrong: list[tuple[int, dict[str, FieldValue]]] = [
            (200050, {**pop, "queueId": 9}), (200050, {**pop, "topic": f"{self.prefix}-none"}),
            (200050, {**pop, "maxMsgNums": 33}), (200051, {**ack, "queueId": 9}),
            (200051, {**ack, "queueId": -1}), (200051, {**ack, "topic": f"{self.prefix}-none"}),
            (200051, {**ack, "offset": 1000}), (200053, {**ack, "offset": 1000}),
            (200053, {**ack, "queueId": 9}), (200053, {**ack, "topic": f"{self.prefix}-none"}),
            (200051, {**ack, "extraInfo": "0 1"}), (200053, {**ack, "extraInfo": ""}),
            (200151, {}),
        ]  # fmt: skip
        code, fields = self._chance.choice(wrong)
        return Named(f"wrong: {code} {fields}", lambda side: side.ask(code, fields).code)


def handles_of(answer: AnyCommand, broker_name: str = BROKER_NAME) -> _Popped:
    """The handles of the messages in an answer, as RocketMQ's client makes them."""
    if answer.code != 0:
        return []
    told = answer.ext
    starts = {item.rsplit(" ", 1)[0]: item.rsplit(" ", 1)[1] for item in _items(told, "start")}
    middle = f"{told['popTime']} {told['invisibleTime']} {told['reviveQid']}"
    found = []
    for item in _items(told, "msg"):
        queue, listed = item.rsplit(" ", 1)
        origin, queue_id = queue.split(" ")
        for offset in listed.split(","):
            handle = f"{starts[queue]} {middle} {origin} {broker_name} {queue_id} {offset}"
            found.append((handle, int(offset)))
    return found


def _items(told: dict[str, str], name: str) -> list[str]:
    return list(filter(None, told.get(f"{name}OffsetInfo", "").split(";")))


def _told(answer: AnyCommand, *, repeats: bool) -> Seen:
    """What an answer to a pop says; one that may repeat an attempt also has other counts."""
    told = answer.ext or {}
    views = list(iter_records(answer.body)) if answer.code == 0 else []
    given = {f"qo{view.queue_id}%{view.queue_offset}" for view in views}
    counts = filter(None, told.get("orderCountInfo", "none").split(";"))
    return {
        "code": answer.code,
        "invisible": told.get("invisibleTime"),
        "in order": told.get("reviveQid") == "999",
        "rest": told.get("restNum"),
        "starts": _items(told, "start"),
        "offsets": _items(told, "msg"),
        "counts": sorted(item for item in counts if _is_given(item, given, repeats)),
        "bodies": [view.body.decode() for view in views],
        "properties": [view.properties.get(PRIORITY) for view in views],
    }


def _is_given(item: str, given: set[str], repeats: bool) -> bool:
    """Whether a count is of a message that is given, or of all of a queue."""
    what = item.split(" ")[1] if item != "none" else ""
    return not repeats if what.isdecimal() else what in given or not what
