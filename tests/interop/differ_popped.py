"""Scripts of pops that are not in order: filters, acknowledgements of several, retries, and waits.

A pop looks at a retry topic first or last by chance, and RocketMQ's broker at one of both only. So
what a step gives is compared in the order of queues; where messages come again, all of them are
taken first.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any, Final

from firearrow.clock import SystemClock
from firearrow.message import names, properties
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from tests.interop.differ import Named, Seen, Side, code_and, shown
from tests.interop.differ_pops import create_group, create_topic, handles_of
from tests.interop.waiting import wait_until

STEPS: Final = 40
QUEUES: Final = 2
LONG_MS, SHORT_MS = 300_000, 2500
AGAIN_S: Final = 40.0  # so soon what was not acknowledged is in its retry topic
CLOCK: Final = SystemClock()
LOOKS: Final = 14  # pops that find nothing, until nothing is there
FIRST_POP: Final = properties.FIRST_POP_TIME
EXPRESSIONS: Final = (
    ("TAG", "*"), ("TAG", "A || C"), ("SQL92", "x > 3 AND TAGS <> 'B'"), (None, None),
)  # fmt: skip
WRONG: Final = (("SQL92", "x >"), ("SQL92", ""), ("NONE", "x"), ("TAG", "||"), ("TAG", ""))

_Popped = list[tuple[str, int]]


class PoppedScript:
    """The steps of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.prefix = f"n{seed}"
        self._topic = f"{self.prefix}-topic"
        self._groups = {f"{self.prefix}-g{number}": expression for number, expression in enumerate(EXPRESSIONS)}
        self._number = 0
        self._pops: list[int] = []
        self._group_of: dict[int, str] = {}
        self._popped: dict[tuple[str, int], _Popped] = {}  # by side and pop
        self._retried: dict[tuple[str, str], int] = {}  # how far a retry topic was, by side
        self._v2 = bool(seed % 2)

    def steps(self) -> Iterator[Named]:
        """Give all steps; twice messages come again, under either name of the retry topic."""
        yield create_topic(self._topic, QUEUES, "NORMAL")
        for group in self._groups:
            yield create_group(group)
        makers = [
            (9, self._send), (9, self._pop), (5, self._ack), (5, self._ack_batch),
            (4, self._change), (3, self._notify), (2, self._peek), (2, self._wait),
            (1, self._notify_later), (1, self._wrong),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        yield self._named()
        for _ in range(STEPS):
            [maker] = self._chance.choices([make for _, make in makers], weights)
            yield maker()
        for v2 in (self._v2, not self._v2):
            self._v2 = v2
            yield self._named()
            yield from self._come_again()
        yield self._config({"enableRetryTopicV2": "false"})

    def _named(self) -> Named:
        return self._config({"enableRetryTopicV2": str(self._v2).lower()})

    @staticmethod
    def _config(changed: dict[str, str]) -> Named:
        body = "".join(f"{key}={value}\n" for key, value in changed.items()).encode()
        return Named(f"configure {changed}", lambda side: side.ask(25, {}, body).code)

    # --- sends ---

    def _send(self) -> Named:
        self._number += 1
        body, queue_id = f"{self.prefix} body {self._number}", self._chance.randrange(QUEUES)
        found = {"UNIQ_KEY": f"{self._chance.getrandbits(128):032X}"}
        if self._chance.random() < 0.9:
            found["TAGS"] = self._chance.choice("ABC")
        if self._chance.random() < 0.8:
            found["x"] = str(self._chance.randrange(8))

        def do(side: Side) -> Seen:
            return self._put(side, queue_id, body, found)

        return Named(f"send {body!r} to queue {queue_id} {found}", do)

    def _put(self, side: Side, queue_id: int, body: str, found: dict[str, str]) -> Seen:
        fields: dict[str, FieldValue] = {
            "a": "producers", "b": self._topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
            "g": 1_790_000_000_000, "h": 0, "j": 0, "k": False, "m": False,
            "i": properties.format(found),
        }  # fmt: skip
        answer = side.ask(310, fields, body.encode())
        side.wait_for(self._topic, queue_id, int(answer.ext["queueOffset"]) + 1)
        return code_and(answer, "queueId", "queueOffset")

    # --- pops ---

    def _fields(self, group: str, **changed: FieldValue) -> dict[str, FieldValue]:
        kind, expression = self._groups[group]
        fields: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": -1, "maxMsgNums": 32,
            "pollTime": 0, "bornTime": 0, "initMode": 0, "order": False, "invisibleTime": LONG_MS,
        }  # fmt: skip
        if kind is not None and expression is not None:
            fields |= {"expType": kind, "exp": expression}
        return fields | changed

    def _pop(self) -> Named:
        queue_id = self._chance.randrange(-1, QUEUES)
        count = 32 if queue_id < 0 else self._chance.choice((1, 2, 5, 32))
        group = self._chance.choice(list(self._groups))
        fields = self._fields(group, queueId=queue_id, maxMsgNums=count)
        number = self._new_pop(group)

        def do(side: Side) -> Seen:
            answer = side.ask(200050, fields)
            self._popped[side.name, number] = sorted(handles_of(answer), key=lambda each: each[1])
            return _told(answer, count)

        return Named(f"pop {number}: {fields}", do)

    def _new_pop(self, group: str) -> int:
        number = len(self._group_of)
        self._group_of[number] = group
        self._pops.append(number)
        return number

    def _wait(self) -> Named:
        """A pop that waits is counted (200055), and gets what is sent then."""
        queue_id, group = self._chance.randrange(QUEUES), self._chance.choice(list(self._groups))
        number = self._new_pop(group)
        body, found = self._matching()
        place: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": queue_id
        }  # fmt: skip

        def waiting(side: Side) -> Seen:
            return side.ask(200055, place).ext

        def do(side: Side) -> Seen:
            while side.ask(200050, self._fields(group, queueId=queue_id)).code == 0:
                pass  # what is there already
            fields = self._fields(group, queueId=queue_id, pollTime=20_000, bornTime=CLOCK.now_ms())
            pending = side.begin(200050, fields)
            wait_until(lambda: waiting(side)["pollingNum"] == "1", AGAIN_S, "a pop that waits")
            self._put(side, queue_id, body, found)
            answer = pending.answer()
            self._popped[side.name, number] = handles_of(answer)
            return _told(answer), waiting(side)

        return Named(f"pop {number}, of {place}, waits for {body!r}", do)

    def _notify(self) -> Named:
        """200054, of what is there or not."""
        group, queue_id = (
            self._chance.choice(list(self._groups)), self._chance.randrange(-1, QUEUES)
        )  # fmt: skip
        wanted = self._fields(group, queueId=queue_id)
        kept = ("consumerGroup", "topic", "queueId", "pollTime", "bornTime", "exp", "expType")
        fields = {name: wanted[name] for name in kept if name in wanted}

        def do(side: Side) -> Seen:
            return code_and(side.ask(200054, fields), "hasMsg", "pollingFull")

        return Named(f"notification {fields}", do)

    def _notify_later(self) -> Named:
        """200054, of what is sent while it waits."""
        queue_id = self._chance.randrange(QUEUES)
        group = self._chance.choice(list(self._groups))
        body, found = self._matching()
        fields: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": queue_id, "pollTime": 20_000
        }  # fmt: skip

        def do(side: Side) -> Seen:
            while side.ask(200050, self._fields(group, queueId=queue_id)).code == 0:
                pass  # what is there already
            pending = side.begin(200054, fields | {"bornTime": CLOCK.now_ms()})
            self._put(side, queue_id, body, found)
            return code_and(pending.answer(), "hasMsg", "pollingFull")

        return Named(f"notification {fields} of {body!r}", do)

    def _matching(self) -> tuple[str, dict[str, str]]:
        """A message that all groups want."""
        self._number += 1
        unique = f"{self._chance.getrandbits(128):032X}"
        return f"{self.prefix} body {self._number}", {"UNIQ_KEY": unique, "TAGS": "A", "x": "7"}

    def _peek(self) -> Named:
        group, queue_id = (
            self._chance.choice(list(self._groups)), self._chance.randrange(-1, QUEUES)
        )  # fmt: skip
        fields: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._topic, "queueId": queue_id, "maxMsgNums": 32
        }  # fmt: skip

        def do(side: Side) -> Seen:
            answer = side.ask(200052, fields)
            views = iter_records(answer.body) if answer.code == 0 else ()
            return answer.code, (answer.ext or {}).get("restNum"), sorted(v.body for v in views)

        return Named(f"peek {fields}", do)

    # --- what becomes of them ---

    def _some(self) -> tuple[int, int]:
        at = max(self._chance.randrange(len(self._pops)) for _ in range(3))
        return self._pops[at], self._chance.randrange(8)

    def _ack(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, at = self._some()

        def do(side: Side) -> Seen:
            message = self._message(side, pop, at)
            return None if message is None else side.ask(200051, message).code

        return Named(f"acknowledge message {at} of pop {pop}", do)

    def _message(self, side: Side, pop: int, at: int) -> dict[str, FieldValue] | None:
        popped = self._popped.get((side.name, pop))
        if not popped:
            return None
        handle, offset = popped[at % len(popped)]
        return {
            "consumerGroup": self._group_of[pop], "topic": self._topic, "extraInfo": handle,
            "queueId": int(handle.split(" ")[6]), "offset": offset,
        }  # fmt: skip

    def _ack_batch(self) -> Named:
        """200151, sometimes with items that are of no use."""
        if not self._pops:
            return self._pop()
        pop, bits = self._some()[0], self._chance.randrange(1, 256)
        wrong = self._chance.choice((None, None, {"q": 9}, {"t": "none"}))

        def do(side: Side) -> Seen:
            acks = self._batch(side, pop, bits)
            if wrong is not None and acks:
                acks.append({**acks[0], **wrong})
            return self._ask_batch(side, acks)

        return Named(f"acknowledge messages {bits:b} of pop {pop}, and {wrong}", do)

    @staticmethod
    def _ask_batch(side: Side, acks: list[dict[str, FieldValue]]) -> Seen:
        body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
        return side.ask(200151, {}, body).code

    def _batch(self, side: Side, pop: int, bits: int) -> list[dict[str, FieldValue]]:
        by_head: dict[str, int] = {}
        for at, (handle, offset) in enumerate(self._popped.get((side.name, pop), ())):
            if bits >> at % 8 & 1:
                head = handle.rpartition(" ")[0]
                by_head[head] = by_head.get(head, 0) | 1 << offset - int(head.split(" ")[0])
        acks: list[dict[str, FieldValue]] = []
        for head, some in by_head.items():
            start, pop_ms, invisible_ms, revive, origin, _, queue_id = head.split(" ")
            data = some.to_bytes((some.bit_length() + 7) // 8, "little")
            acks.append({
                "c": self._group_of[pop], "t": self._topic, "r": origin, "so": int(start),
                "q": int(queue_id), "rq": int(revive), "pt": int(pop_ms),
                "it": int(invisible_ms), "b": base64.b64encode(data).decode(),
            })  # fmt: skip
        return acks

    def _change(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, at = self._some()

        def do(side: Side) -> Seen:
            message = self._message(side, pop, at)
            if message is None:
                return None
            answer = side.ask(200053, {**message, "invisibleTime": LONG_MS})
            return code_and(answer, "invisibleTime"), sorted(answer.ext or {})

        return Named(f"message {at} of pop {pop} is to be visible later", do)

    def _wrong(self) -> Named:
        kind, expression = self._chance.choice(WRONG)
        fields = self._fields(next(iter(self._groups)), expType=kind, exp=expression)
        return Named(f"wrong: {fields}", lambda side: side.ask(200050, fields).code)

    # --- what comes again ---

    def _come_again(self) -> Iterator[Named]:
        """Have some messages come again, and take all of them."""
        for group in self._groups:
            yield self._drain(group)
        yield from (self._send() for _ in range(8))
        pops = {group: (self._new_pop(group), self._chance.randrange(256)) for group in self._groups}
        for group, (pop, bits) in pops.items():
            yield self._pop_shortly(group, pop, bits)
        for group, (pop, bits) in pops.items():
            yield self._arrived(group, pop, bits)
            yield self._drain(group)

    def _drain(self, group: str) -> Named:
        def do(side: Side) -> Seen:
            found: list[Any] = []
            misses = 0
            while misses < LOOKS:
                answer = side.ask(200050, self._fields(group))
                misses += answer.code != 0
                found += _given(answer)
            return sorted(found, key=str)

        return Named(f"take all there is for {group}", do)

    def _pop_shortly(self, group: str, pop: int, bits: int) -> Named:
        """Pop and acknowledge some of it."""

        def do(side: Side) -> Seen:
            self._retried[side.name, group] = self._retry_end(side, group)
            answer = side.ask(200050, self._fields(group, invisibleTime=SHORT_MS))
            self._popped[side.name, pop] = sorted(handles_of(answer), key=_by_queue)
            return _told(answer), self._ask_batch(side, self._batch(side, pop, bits))

        return Named(f"pop {pop} of {group} for a moment, {bits:b} of it are acknowledged", do)

    def _retry_end(self, side: Side, group: str) -> int:
        return side.max_offset(names.pop_retry_topic(self._topic, group, v2=self._v2), 0)

    def _arrived(self, group: str, pop: int, bits: int) -> Named:
        def do(side: Side) -> Seen:
            count = len(self._popped[side.name, pop])
            left = sum(not bits >> at % 8 & 1 for at in range(count))
            end = self._retried[side.name, group] + left
            what = f"{side.name}: {left} of pop {pop} again"
            wait_until(lambda: self._retry_end(side, group) >= end, AGAIN_S, what)
            return left

        return Named(f"what is left of pop {pop} comes again", do)


def _by_queue(each: tuple[str, int]) -> tuple[str, int]:
    """The place of a message."""
    return each[0].split(" ")[6], each[1]


def _given(answer: AnyCommand) -> list[Any]:
    views = list(iter_records(answer.body)) if answer.code == 0 else []
    found = []
    for view in views:
        message = shown(view)
        own = message["properties"]  # when it was popped
        message["marks"] = [own.pop(name, None) is not None for name in ("POP_CK", FIRST_POP)]
        found.append(message)
    return found


def _told(answer: AnyCommand, count: int = 32) -> Seen:
    """What an answer to a pop of so many messages says, in the order of queues.

    If it has as many, we have passed by what comes next and is not wanted: less is left.
    """
    told, given = answer.ext or {}, _given(answer)
    return {
        "code": answer.code,
        "invisible": told.get("invisibleTime"),
        "rest": told.get("restNum") if len(given) < count else None,
        "starts": sorted(told.get("startOffsetInfo", "").split(";")),
        "offsets": sorted(told.get("msgOffsetInfo", "").split(";")),
        "messages": sorted(given, key=str),
    }
