"""A world with groups that pop: normal topics, in order, by priority, and lite topics.

`PopWorld` has all that may happen in a `World`, and pops, acknowledgements and changes of invisible
time besides; `PopOwed` checks what comes.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import ORDER_REVIVE_QUEUE, Handle, origin_topic
from tests.broker.owed import RETRIES
from tests.broker.popowed import (
    BY_PRIORITY,
    LITE,
    LITE_TOPICS,
    NORMAL,
    OF_LITE,
    ORDERED,
    POP_QUEUES,
    POPPERS,
    PRIORITY,
    PopOwed,
    Popper,
    PopSent,
)
from tests.broker.serving import send_fields
from tests.broker.world import ENDS, LIVELY, PRODUCERS, Fields, Operation, World

BROKER: Final = "b"
ATTRIBUTES: Final = {ORDERED: "FIFO", PRIORITY: "PRIORITY", LITE: "LITE", NORMAL: "NORMAL"}
RENEW_MS: Final = 100_000  # a client's subscription to lite topics
LAST_INVISIBLE_MS: Final = 120_000
EMPTY: Final = (209, 210)
DEAD: Final = {"delayLevel": -1, "maxReconsumeTimes": RETRIES, "unitMode": False}
ACK, ACK_BATCH, CHANGE, SEND_BACK = 200051, 200151, 200053, 36
ILLEGAL, GONE = 13, 208  # of what a loss of power took, or what the broker has forgotten

POPPING: Final = {
    "pop_send": Operation(
        30, {"topic": tuple(POP_QUEUES), "count": (1, 2, 10, 40), "queue": range(4)}
    ),
    "pop": Operation(
        50,
        {
            "popper": POPPERS,
            "count": (1, 8, 32),
            "invisible_ms": (500, 3000, 15_000, 60_000, 600_000),
            "wait_ms": (0, 0, 0, 2000),
            "queue": (-1, -1, -1, 0, 1),
            "repeats": (False, False, False, True),
        },
    ),
    "settle": Operation(
        50,
        {"how": ("ack", "ack", "batch", "change", "forget"), "count": (1, 10, 50),
         "which": range(64), "invisible_ms": (1, 1000, 20_000)},
    ),
    "peek": Operation(3, {"popper": POPPERS[:3], "count": (1, 32)}),
}  # fmt: skip
POP_LIVELY: Final = LIVELY | POPPING
POP_OPERATIONS: Final = POP_LIVELY | ENDS


class Held(NamedTuple):
    """A message in the hands of a consumer. ``queue`` is a lite topic where it is of one."""

    popper: Popper
    number: int
    handle: Handle
    queue: int | str
    view: MessageView

    @property
    def fields(self) -> Fields:
        """What names it to the broker."""
        popper, handle = self.popper, self.handle
        fields: Fields = {
            "consumerGroup": popper.name,
            "topic": origin_topic(popper.topic, popper.name, handle.origin),
            "queueId": handle.queue_id, "extraInfo": str(handle), "offset": handle.queue_offset,
        }  # fmt: skip
        if popper is OF_LITE:
            fields["liteTopic"] = self.queue
        return fields


class PopWorld(World):
    """A world with groups that pop."""

    def __init__(self, directory: Path, seed: int, **options: Any) -> None:
        self.pops = PopOwed()
        self._held: list[Held] = []
        self._attempts: dict[tuple[Popper, int], tuple[str, int]] = {}
        self._attempt = 0
        self._renewed_ms = -1
        options = {"enable_lmq": True, "enable_multi_dispatch": True} | options
        super().__init__(directory, seed, **options)

    # --- lives of the broker ---

    async def _introduce(self) -> None:
        await super()._introduce()
        self.pops.begins_ms.append(self._clock.now_ms())
        for topic, queues in POP_QUEUES.items():
            fields: Fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "perm": 6,
                "writeQueueNums": queues, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
                "order": False, "attributes": f"+message.type={ATTRIBUTES[topic]}",
            }  # fmt: skip
            await self._ask(17, fields)
        for popper in POPPERS:
            body: dict[str, Any] = {"groupName": popper.name, "retryMaxTimes": RETRIES}
            if popper is OF_LITE:
                body["attributes"] = {"+lite.bind.topic": LITE}
            await self._ask(200, {}, json.dumps(body).encode())
        self._renewed_ms = -1

    def _forget_lost(self) -> None:
        super()._forget_lost()
        lost = self.pops.lost_power(self._broker.log_end, is_sync=self._is_sync)
        self._held = [held for held in self._held if held.number not in lost]

    def restart(self, downtime_ms: int) -> None:
        """Stop the broker, and start it again."""
        self.pops.stopped(self._clock.now_ms())
        super().restart(downtime_ms)

    def _crash(self, *, is_machine: bool) -> None:
        self.pops.crashed(self._clock.now_ms())
        self._attempts.clear()
        super()._crash(is_machine=is_machine)

    # --- producers ---

    def pop_send(self, topic: str, count: int, queue: int) -> None:
        """Send messages to a queue of a topic that is popped, to a lite topic or with a
        priority."""
        self._run(self._pop_send(topic, count, queue))

    async def _pop_send(self, topic: str, count: int, queue: int) -> None:
        sents = [self.pops.new(topic) for _ in range(count)]
        found = {}
        if topic == LITE:
            found = {"__LITE_TOPIC": LITE_TOPICS[queue % len(LITE_TOPICS)]}
        elif topic == PRIORITY:
            found = {properties.PRIORITY: str(queue)}
        answers = await self._ask_all(310, [self._pop_message(one, queue, found) for one in sents])
        for sent, answer in zip(sents, answers, strict=True):
            place = int(answer.ext["msgId"][16:], 16)
            queue_id, queue_offset = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
            into = found.get("__LITE_TOPIC", queue_id)
            self.pops.stored(sent, into, queue_offset, place)

    def _pop_message(self, sent: PopSent, queue: int, found: dict[str, str]) -> tuple[Fields, bytes]:
        text = properties.format(
            {
                "UNIQ_KEY": f"{1 << 120 | sent.number:032X}", "TAGS": "ABC"[sent.number % 3],
                "digit": str(sent.number % 10), **found,
            }
        )  # fmt: skip
        queue_id = queue % POP_QUEUES[sent.topic]
        fields = send_fields(sent.topic, queue_id, i=text, g=self._clock.now_ms(), a=PRODUCERS)
        return fields, b"%d" % sent.number

    # --- pops ---

    def pop(self, popper: Popper, count: int, invisible_ms: int, wait_ms: int, queue: int, repeats: bool) -> None:
        """Have a group pop; what it is given stays in its hands, unless it fails at once."""
        pops = self._pop_lite if popper is OF_LITE else self._pop
        place = -1 if popper is BY_PRIORITY else queue
        self._run(pops(popper, count, invisible_ms, wait_ms, place, repeats=repeats))

    async def _pop(
        self, popper: Popper, count: int, invisible_ms: int, wait_ms: int = 0, queue: int = -1, *, repeats: bool = False
    ) -> int:
        """Pop; give the number of messages."""
        fields: Fields = {
            "consumerGroup": popper.name, "topic": popper.topic, "queueId": queue,
            "maxMsgNums": count, "invisibleTime": invisible_ms, "pollTime": wait_ms,
            "bornTime": self._clock.now_ms(), "initMode": 0, "expType": popper.group.kind,
            "exp": popper.group.expression, "order": popper.in_order,
        }  # fmt: skip
        if popper.in_order:
            fields["attemptId"] = self._attempt_of(popper, queue, repeats=repeats)
        answer = await self._ask(200050, fields, expected=(0, *EMPTY))
        if answer.code:
            return 0
        helds = list(_helds(popper, answer))
        self.events += len(helds)
        if popper.in_order:
            counts = _order_counts(answer)
            attempt = str(fields["attemptId"])
            for place, some in _by_queue(helds):
                self._see_batch(popper, place, some, attempt, counts[place])
        else:
            await self._take_each(helds)
        return len(helds)

    def _attempt_of(self, popper: Popper, queue: int, *, repeats: bool) -> str:
        """A new attempt, or again the last one."""
        self._attempt += not repeats
        return f"a{self._attempt}-{popper.name}-{queue}"

    def _see_batch(
        self, popper: Popper, queue: int | str, helds: list[Held], attempt: str, counts: dict[int, int]
    ) -> None:
        views = [held.view for held in helds]
        offsets = [held.handle.queue_offset for held in helds]
        handle = helds[0].handle
        self.pops.see_batch(popper, queue, views, offsets, handle, attempt, counts)
        self._held += helds

    async def _take_each(self, helds: list[Held]) -> None:
        """Take messages that are not in order: some fail."""
        now_ms, last = self._clock.now_ms(), None
        for held in helds:
            sent = self.pops.see(held.popper, held.view, held.handle, now_ms)
            if held.popper is BY_PRIORITY:
                place = held.handle.origin, -held.handle.queue_id
                assert last is None or last <= place, f"{place} comes behind {last}"
                last = place
            times = held.view.reconsume_times
            if sent.failure.level < 0 or (times >= RETRIES and sent.is_to_die):
                await self._give_up(held)
            elif times >= RETRIES:
                await self._ack([held])
            elif times >= sent.failure.times:
                self._held.append(held)
            elif sent.number % 2:
                await self._change([held], 1000)

    async def _give_up(self, held: Held) -> None:
        """Have a message die, as RocketMQ's proxy does it."""
        name = held.popper.name
        fields: Fields = {
            **DEAD, "offset": held.view.physical_offset, "group": name,
            "originMsgId": held.view.offset_message_id, "originTopic": held.view.topic,
        }  # fmt: skip
        await self._ask(SEND_BACK, fields)
        self.pops.died(held.popper, held.number, held.view.reconsume_times)
        await self._ack([held])

    # --- what becomes of them ---

    def settle(self, how: str, count: int, which: int, invisible_ms: int) -> None:
        """Acknowledge some of what is in hand, change when it is visible, or forget it."""
        at = which * len(self._held) // 64
        helds, self._held[at : at + count] = self._held[at : at + count], []
        if how == "ack":
            self._run(self._ack(helds))
        elif how == "batch":
            self._run(self._ack_batch(helds))
        elif how == "change":
            self._held += self._run(self._change(helds, invisible_ms))

    async def _ack(self, helds: list[Held]) -> None:
        if helds:
            asks = [(held.fields, b"") for held in helds]
            for held, answer in zip(helds, await self._ask_all(ACK, asks, _SAID), strict=True):
                self._acked(held, answer)

    async def _ack_batch(self, helds: list[Held]) -> None:
        """Acknowledge by one request; of lite topics one by one, as there is no other way."""
        await self._ack([held for held in helds if held.popper is OF_LITE])
        by_pop: dict[tuple[Popper, str], list[Held]] = defaultdict(list)
        for held in helds:
            if held.popper is not OF_LITE:
                by_pop[held.popper, held.handle.head].append(held)
        if by_pop:
            body = {"brokerName": BROKER, "acks": [_batch_of(some) for some in by_pop.values()]}
            answer = await self._ask(ACK_BATCH, {}, json.dumps(body).encode(), _SAID)
            for held in itertools.chain.from_iterable(by_pop.values()):
                line = self.pops.line(held.popper.topic, held.queue)
                if answer.code and held.popper.in_order and not line.knows(held.handle):
                    self._check_refused(held, answer)
                else:  # what one says of another is no refusal
                    self._consumed(held)

    def _acked(self, held: Held, answer: AnyCommand) -> None:
        if answer.code:
            self._check_refused(held, answer)
        else:
            self._consumed(held)

    def _consumed(self, held: Held) -> None:
        popper, handle, now_ms = held.popper, held.handle, self._clock.now_ms()
        if popper.in_order:
            self.pops.consumed[popper.name].add(held.number)
            self.pops.line(popper.topic, held.queue).ack(handle, now_ms)
        else:
            self.pops.acked(popper, held.number, handle, now_ms)

    def _check_refused(self, held: Held, answer: AnyCommand) -> None:
        """Only what a crash took may be refused, or what a pop of the same time did not repeat."""
        if held.popper.in_order and not self.pops.has_crashed:
            line, offset = self.pops.line(held.popper.topic, held.queue), held.handle.queue_offset
            assert offset not in line.batch, f"{held}: {answer.remark}"
        else:
            assert self.pops.has_crashed, f"{held}: {answer.remark}"

    async def _change(self, helds: list[Held], invisible_ms: int) -> list[Held]:
        """Have messages be visible at another time; gives them with their new handles."""
        changed = []
        for held in helds:
            ask = held.fields | {"invisibleTime": invisible_ms}
            answer = await self._ask(CHANGE, ask, expected=_SAID)
            if answer.code:
                self._check_refused(held, answer)
            if answer.code or "popTime" not in answer.ext:
                continue
            now_ms, popper, old = self._clock.now_ms(), held.popper, held.handle
            if popper.in_order:
                line = self.pops.line(popper.topic, held.queue)
                line.change(old, now_ms + invisible_ms)
                changed.append(held)
                continue
            new = old._replace(
                start_offset=old.queue_offset, pop_ms=int(answer.ext["popTime"]),
                invisible_ms=int(answer.ext["invisibleTime"]),
                revive_queue_id=int(answer.ext["reviveQid"]),
            )  # fmt: skip
            assert new.visible_ms == max(now_ms + invisible_ms, new.pop_ms)
            self.pops.changed(popper, held.number, old, new, now_ms)
            changed.append(held._replace(handle=new))
        return changed

    def peek(self, popper: Popper, count: int) -> None:
        """Look at what a group may pop next."""
        self._run(self._peek(popper, count))

    async def _peek(self, popper: Popper, count: int) -> None:
        fields: Fields = {
            "consumerGroup": popper.name, "topic": popper.topic, "queueId": -1, "maxMsgNums": count
        }  # fmt: skip
        answer = await self._ask(200052, fields, expected=(0, 19))
        views = list(iter_records(answer.body)) if answer.code == 0 else []
        assert len(views) <= count
        for view in views:
            self.pops.see_peeked(popper, view)

    # --- lite topics ---

    async def _pop_lite(
        self, popper: Popper, count: int, invisible_ms: int, wait_ms: int = 0, queue: int = -1, *, repeats: bool = False
    ) -> int:
        """Pop what is ready of the lite topics; give the number of messages."""
        await self._subscribe()
        attempt = self._attempt_of(popper, -1, repeats=repeats)
        fields: Fields = {
            "clientId": "c", "consumerGroup": popper.name, "topic": LITE, "maxMsgNum": count,
            "invisibleTime": invisible_ms, "pollTime": wait_ms, "bornTime": self._clock.now_ms(),
            "attemptId": attempt,
        }  # fmt: skip
        answer = await self._ask(200070, fields, expected=(0, *EMPTY))
        if answer.code:
            return 0
        helds = list(_lite_helds(popper, answer))
        self.events += len(helds)
        assert len(helds) <= count
        counts: dict[int | str, dict[int, int]] = defaultdict(dict)
        for held, told in zip(helds, answer.ext["orderCountInfo"].split(";"), strict=True):
            if " " in told:
                counts[held.queue][held.handle.queue_offset] = int(told.split(" ")[2])
        for name, some in _by_queue(helds):
            self._see_batch(popper, name, some, attempt, counts[name])
        return len(helds)

    async def _subscribe(self) -> None:
        """Have the only client of the group subscribe to all lite topics, once in a while."""
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - self._renewed_ms < RENEW_MS and self._renewed_ms >= 0:
            return
        self._renewed_ms = now_ms
        entry = {
            "action": "COMPLETE_ADD", "clientId": "c", "group": OF_LITE.name, "topic": LITE,
            "liteTopicSet": list(LITE_TOPICS), "version": 1,
        }  # fmt: skip
        await self._ask(200071, {}, json.dumps({"subscriptionSet": [entry]}).encode())

    # --- the end ---

    def _missing(self) -> dict[str, list[int]]:
        popped = {popper.name: self.pops.missing(popper) for popper in POPPERS}
        return super()._missing() | popped

    async def _consume_all(self) -> None:
        await super()._consume_all()
        for popper in POPPERS:
            pops = self._pop_lite if popper is OF_LITE else self._pop
            while await pops(popper, 32, LAST_INVISIBLE_MS):
                helds, self._held = self._held, []
                await self._ack(helds)
        helds, self._held = self._held, []
        await self._ack(helds)

    async def _check_dead(self) -> None:
        await super()._check_dead()
        for popper in POPPERS:
            if not popper.in_order:
                self.pops.check_dead(popper, await self._dead(popper.group))


_SAID: Final = (0, ILLEGAL, GONE)


def _helds(popper: Popper, answer: AnyCommand) -> Iterator[Held]:
    """The messages of an answer, each with its handle as RocketMQ's client makes it."""
    starts: dict[str, int] = {}
    for item in answer.ext["startOffsetInfo"].split(";"):
        queue, _, start = item.rpartition(" ")
        starts[queue] = int(start)
    pop_ms, invisible_ms, revive = (int(answer.ext[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
    handles = []
    for item in answer.ext["msgOffsetInfo"].split(";"):
        queue, _, listed = item.rpartition(" ")
        origin, queue_id = map(int, queue.split(" "))
        of_pop = starts[queue], pop_ms, invisible_ms, revive, origin, BROKER, queue_id
        handles += [Handle(*of_pop, int(offset)) for offset in listed.split(",")]
    for view, handle in zip(iter_records(answer.body), handles, strict=True):
        assert (view.queue_id, view.queue_offset) == (handle.queue_id, handle.queue_offset)
        yield Held(popper, int(view.body), handle, handle.queue_id, view)


def _lite_helds(popper: Popper, answer: AnyCommand) -> Iterator[Held]:
    pop_ms, invisible_ms = int(answer.ext["popTime"]), int(answer.ext["invisibleTime"])
    for view in iter_records(answer.body):
        name = view.properties["__LITE_TOPIC"]
        queue = names.lite_queue(LITE, name)
        assert view.properties[properties.INNER_MULTI_DISPATCH] == queue
        offset = int(view.properties[properties.INNER_MULTI_QUEUE_OFFSET])
        handle = Handle(0, pop_ms, invisible_ms, ORDER_REVIVE_QUEUE, 0, BROKER, 0, offset)
        yield Held(popper, int(view.body), handle, name, view)


def _by_queue(helds: Iterable[Held]) -> Iterator[tuple[int | str, list[Held]]]:
    found: dict[int | str, list[Held]] = defaultdict(list)
    for held in helds:
        found[held.queue].append(held)
    yield from found.items()


def _order_counts(answer: AnyCommand) -> dict[int | str, dict[int, int]]:
    """How often messages were popped before, by queue and offset."""
    found: dict[int | str, dict[int, int]] = defaultdict(dict)
    for item in answer.ext["orderCountInfo"].split(";"):
        _, place, count = item.split(" ")
        if place.startswith("qo"):
            queue_id, _, offset = place[2:].partition("%")
            found[int(queue_id)][int(offset)] = int(count)
    return found


def _batch_of(helds: list[Held]) -> dict[str, FieldValue]:
    """An item of 200151: messages of one pop and queue."""
    handle, popper = helds[0].handle, helds[0].popper
    bits = 0
    for held in helds:
        bits |= 1 << held.handle.queue_offset - handle.start_offset
    data = bits.to_bytes(max((bits.bit_length() + 7) // 8, 1), "little")
    return {
        "c": popper.name, "t": popper.topic, "r": str(handle.origin), "so": handle.start_offset,
        "q": handle.queue_id, "rq": handle.revive_queue_id, "pt": handle.pop_ms,
        "it": handle.invisible_ms, "b": base64.b64encode(data).decode(),
    }  # fmt: skip
