"""Clients of lite topics on a broker in virtual time, and what each of them must and may get.

What clients do is written at once and in a row, so that a broker finds it in the same turn of its
loop; then it has time, and every answer is compared with what the model knows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.message import names, properties
from firearrow.message.record import iter_records
from firearrow.testing.loop import START_MS, VirtualClock, VirtualLoop
from firearrow.wire.command import Command, FieldValue, request
from firearrow.wire.pop import ORDER_REVIVE_QUEUE, Handle
from tests.broker.serving import kill, send_fields
from tests.net.talker import Talker
from tests.store.stores import small_config

T = TypeVar("T")

PARENT: Final = "P"
LITES: Final = ("a", "b", "c", "d")
GROUPS: Final[dict[str, dict[str, str]]] = {
    "shared": {},
    "exclusive": {"lite.sub.model": "Exclusive"},
    "wildcard": {"lite.sub.wildcard": "true"},
}
CLIENTS: Final = ("c1", "c2", "c3")
SETTLED_SECONDS: Final = 0.1
LATE_MS: Final = 150  # a tick, and the time that is waited after what clients do
PUSHED: Final = 200073


@dataclass
class Place:
    """How far a group is in a lite topic, and what it has in hand."""

    committed: int | None = None
    highest: int = 0
    batch: list[int] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    visible_ms: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    pop_ms: int = -1
    is_reset: bool = False

    @property
    def next_offset(self) -> int:
        return self.committed or 0

    @property
    def free_ms(self) -> int:
        """When it gives something again; 0 if it does now."""
        return max((self.visible_ms[one] for one in self.batch if one not in self.acked), default=0)

    def forget(self) -> None:
        """Know of no batch."""
        self.batch, self.acked, self.visible_ms, self.counts = [], set(), {}, {}
        self.pop_ms = -1

    def take(self, offsets: list[int], pop_ms: int, invisible_ms: int) -> list[str]:
        """Note a batch; gives what is told of how often its messages were popped before."""
        before = {one: self.counts.get(one, 0) + 1 for one in self.batch if one in offsets}
        self.forget()
        self.batch, self.pop_ms, self.counts = offsets, pop_ms, before
        self.visible_ms = dict.fromkeys(offsets, pop_ms + invisible_ms)
        self.is_reset = False
        self.committed = self.next_offset
        return [f"0 qo0%{one} {before[one]}" if one in before else "0" for one in offsets]

    def ack(self, offset: int, pop_ms: int, end: int) -> None:
        """Note that a message was consumed."""
        if offset < self.next_offset:
            return
        if not self.batch:
            if self.committed == offset < end and not self.is_reset:
                self._commit(offset + 1)
        elif self.pop_ms == pop_ms:
            self.acked.add(offset)
            left = [one for one in self.batch if one not in self.acked]
            if not self.is_reset:
                self._commit(left[0] if left else self.batch[-1] + 1)
            if not left:
                self.forget()

    def _commit(self, offset: int) -> None:
        self.committed = offset
        self.highest = max(self.highest, offset)

    def reset(self, offset: int) -> None:
        """Go on elsewhere."""
        if offset != self.committed:
            self._commit(offset)
            self.is_reset = True
            self.forget()


class Client:
    """A client of a group, and its connection."""

    def __init__(self, client_id: str, group: str) -> None:
        self.client_id = client_id
        self.group = group
        self.wanted: set[str] = set()
        self.allowed: set[str] = set()  # with what it wanted before the last things were done
        self.waiting: dict[int, int] = {}  # pops: opaque -> most messages
        self.talker: Talker | None = None
        self.reader: asyncio.Task[None] | None = None


class LiteWorld:
    """A broker with one parent, some groups of each kind, and their clients."""

    def __init__(self, directory: Path, kind: str = "default", seed: int = 0) -> None:
        self._root = directory
        self._kind = kind
        self.chance = Random(seed)
        self._now_ms = START_MS
        self._opaque = 0
        self._expected: dict[int, set[int]] = {}  # codes of answers to what changes something
        self.sent: dict[str, list[str]] = {lite: [] for lite in LITES}
        self.places: dict[tuple[str, str], Place] = {(group, lite): Place() for group in GROUPS for lite in LITES}
        self.clients = {(group, one): Client(one, group) for group in GROUPS for one in CLIENTS}
        self.held: list[tuple[Client, str, int, int, int]] = []
        # Of this turn: who changes something, who acknowledges messages of a place, and what was
        # visible again.
        self._changing: set[tuple[str, str]] = set()
        self._acking: dict[tuple[str, str], Client] = {}
        self._late: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self._lost_pops = False
        self._heard: list[tuple[Client, Command[Any]]] = []
        self.answered = 0
        self._begin()
        self.run(self._prepare())

    # --- the broker ---

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run something within the present life of the broker."""
        return self._runner.run(main)

    def _begin(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clock = VirtualClock(self._runner.get_loop())
        self.clock.start_ms = self._now_ms
        self.run(self._open())

    async def _open(self) -> None:
        config = BrokerConfig(
            broker_name="broker-a", broker_cluster_name="C", broker_fast_failure_enable=False,
            server_channel_max_idle_time_seconds=10**7,
            lite_subscription_check_timeout_mills=10**10,
        )  # fmt: skip
        store = small_config(self._root, store_type=self._kind, enable_lmq=True, enable_multi_dispatch=True)
        chance = Random(self.chance.random())
        self.broker = Broker(config, store, self.clock, background=False, chance=chance)
        self._port = await self.broker.start("127.0.0.1", 0)
        self._sender = await self._connect()
        for client in self.clients.values():
            await self._reconnect(client)

    async def _connect(self) -> Talker:
        return Talker(*await asyncio.open_connection("127.0.0.1", self._port))

    async def _reconnect(self, client: Client) -> None:
        client.talker = await self._connect()
        client.reader = asyncio.create_task(self._listen(client, client.talker))

    async def _listen(self, client: Client, talker: Talker) -> None:
        while True:
            try:
                answer = await talker.answer()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            self._heard.append((client, answer))

    async def _disconnect(self) -> None:
        for client in self.clients.values():
            if client.talker is not None:
                await client.talker.close()
        await self._sender.close()

    async def _prepare(self) -> None:
        topic: dict[str, FieldValue] = {
            "topic": PARENT, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "order": False,
            "attributes": "+message.type=LITE",
        }  # fmt: skip
        await self._must(17, topic)
        for group, attributes in GROUPS.items():
            given = {"lite.bind.topic": PARENT, **attributes}
            signed = {f"+{key}": value for key, value in given.items()}
            body = {"groupName": group, "attributes": signed}
            await self._must(200, {}, json.dumps(body).encode())

    async def _must(self, code: int, fields: dict[str, FieldValue], body: bytes = b"") -> None:
        self._sender.ask(request(code, fields, body, opaque=1))
        answer = await self._sender.answer()
        assert (answer.code, answer.remark) == (0, None)

    def restart(self, *, killed: bool) -> None:
        """End the broker, and start it again: clients and what was in hand are forgotten."""
        self.run(self._disconnect())
        if killed:
            kill(self.broker)
        else:
            self.run(self.broker.stop())
        self._now_ms = self.clock.now_ms() + 1000
        self._runner.close()
        self._heard.clear()
        for client in self.clients.values():
            client.wanted.clear()
            client.allowed.clear()
            client.waiting.clear()
        self.held.clear()
        self._begin()
        for (group, lite), place in self.places.items():
            found = self.broker.offsets.query(group, names.lite_queue(PARENT, lite), 0)
            assert found <= place.highest
            if not killed:
                assert found == (-1 if place.committed is None else place.committed)
            place.committed = None if found < 0 else found
            place.is_reset = False
            place.forget()

    def close(self) -> None:
        """Stop the broker."""
        self.run(self._disconnect())
        self.run(self.broker.stop())
        self._runner.close()

    # --- what clients do, without waiting for an answer ---

    def _tell(self, talker: Talker, code: int, fields: dict[str, FieldValue], body: bytes = b"") -> int:
        self._opaque += 1
        talker.ask(request(code, fields, body, opaque=self._opaque))
        return self._opaque

    def _ask(self, client: Client, code: int, fields: dict[str, FieldValue], body: bytes = b"") -> None:
        assert client.talker is not None
        self._expected[self._tell(client.talker, code, fields, body)] = {0}
        self._changing.add((client.group, client.client_id))

    def send(self, lite: str) -> None:
        """Send a message to a lite topic."""
        body = f"{lite}{len(self.sent[lite])}"
        text = properties.format({"UNIQ_KEY": "U", "__LITE_TOPIC": lite})
        self._tell(self._sender, 310, send_fields(PARENT, 0, i=text), body.encode())
        self.sent[lite].append(body)

    def pop(self, client: Client, most: int, invisible_ms: int, poll_ms: int) -> None:
        """Pop, and perhaps wait."""
        assert client.talker is not None
        fields: dict[str, FieldValue] = {
            "clientId": client.client_id, "consumerGroup": client.group, "topic": PARENT,
            "maxMsgNum": most, "invisibleTime": invisible_ms, "pollTime": poll_ms,
            "bornTime": self.clock.now_ms(),
        }  # fmt: skip
        client.waiting[self._tell(client.talker, 200070, fields)] = most

    def _change(self, client: Client, action: str, lites: set[str], **more: object) -> None:
        entry = {
            "action": action, "clientId": client.client_id, "group": client.group, "topic": PARENT,
            "liteTopicSet": sorted(lites), **more,
        }  # fmt: skip
        self._ask(client, 200071, {}, json.dumps({"subscriptionSet": [entry]}).encode())

    def _want(self, client: Client, lites: set[str]) -> None:
        client.wanted = lites
        client.allowed |= lites

    def subscribe(self, client: Client, lites: set[str], at: int | None = None) -> None:
        """Begin to want lite topics, from the first message (1) or behind the last one (2) on."""
        if client.group == "wildcard":
            self.replace(client, lites)
            return
        more = {} if at is None else {"offsetOption": {"type": "POLICY", "value": at}}
        self._change(client, "PARTIAL_ADD", lites, **more)
        if client.group == "exclusive":
            for other in self.clients.values():
                if other.group == client.group and other is not client:
                    self._want(other, other.wanted - lites)
        self._want(client, client.wanted | lites)
        if at is not None:
            for lite in lites:
                self.places[client.group, lite].reset(0 if at == 1 else len(self.sent[lite]))

    def replace(self, client: Client, lites: set[str]) -> None:
        """Want these lite topics alone; with a wildcard, all."""
        self._change(client, "COMPLETE_ADD", lites)
        if client.group == "wildcard":
            lites = set(LITES)
        elif client.group == "exclusive":
            for other in self.clients.values():
                if other.group == client.group and other is not client:
                    lites = lites - other.wanted
        self._want(client, set(lites))

    def unsubscribe(self, client: Client, lites: set[str]) -> None:
        """Want some lite topics no more."""
        if client.group != "wildcard":
            self._change(client, "PARTIAL_REMOVE", lites)
            self._want(client, client.wanted - lites)

    def leave(self, client: Client) -> None:
        """Want nothing."""
        self._change(client, "COMPLETE_REMOVE", set())
        self._want(client, set())

    def lose(self, client: Client) -> None:
        """End a connection: what waits there is given up, but not what the client wants.

        A broker that answers on a connection which has ended reads no more of it, so nobody would
        know whether what the client has changed in this turn was read: such a one ends later.
        """
        assert client.talker is not None
        if (client.group, client.client_id) in self._changing:
            asyncio.get_running_loop().call_later(SETTLED_SECONDS / 2, client.talker.abort)
        else:
            client.talker.abort()
        self._lost_pops = self._lost_pops or bool(client.waiting)
        client.waiting.clear()
        client.talker = None

    def ack(self, at: int) -> None:
        """Acknowledge one of what was popped last.

        The broker hears two clients in any order, so that only one of them acknowledges messages of
        a place in a turn.
        """
        if not self.held:
            return
        client, lite, offset, pop_ms, invisible_ms = self.held.pop(at % len(self.held))
        key = client.group, lite
        if client.talker is None or self._acking.setdefault(key, client) is not client:
            return
        self._ask(client, 200051, _handle_fields(client, lite, offset, pop_ms, invisible_ms))
        place = self.places[key]
        if place.free_ms <= self.clock.now_ms():
            self._late.setdefault(key, []).append((offset, pop_ms))
        else:
            place.ack(offset, pop_ms, len(self.sent[lite]))

    def change(self, at: int, in_ms: int) -> None:
        """Have one of what was popped be visible at another time."""
        if self.held:
            client, lite, offset, pop_ms, invisible_ms = self.held[at % len(self.held)]
            place = self.places[client.group, lite]
            if client.talker is not None:
                fields = _handle_fields(client, lite, offset, pop_ms, invisible_ms)
                self._ask(client, 200053, {**fields, "invisibleTime": in_ms})
                if offset >= place.next_offset and place.pop_ms == pop_ms:
                    place.visible_ms[offset] = self.clock.now_ms() + in_ms

    # --- what comes of it ---

    def do(self, *some: Callable[[], None]) -> None:
        """Do things at once, and see what comes of them."""
        self.run(self._do(some))

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.run(self._settle(seconds))

    async def _do(self, some: tuple[Callable[[], None], ...]) -> None:
        for client in self.clients.values():
            client.allowed = set(client.wanted)
        self._changing.clear()
        self._acking.clear()
        for one in some:
            one()
        await self._settle(SETTLED_SECONDS)

    async def _settle(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for client in self.clients.values():
            if client.talker is None:
                await self._reconnect(client)
        heard, self._heard = self._heard, []
        for client, answer in heard:
            self._hear(client, answer)
        if self._lost_pops:
            self._lost_pops = False
            self._see_what_was_lost()
        for group, lite in list(self._late):
            self._acked_late(group, lite)
        self._check_nobody_sleeps()

    def _hear(self, client: Client, answer: Command[Any]) -> None:
        if not answer.is_response:
            assert (answer.code, answer.ext["clientId"]) == (PUSHED, client.client_id)
            return
        expected = self._expected.pop(answer.opaque, None)
        if expected is not None:
            assert answer.code in expected, (answer.code, answer.remark)
            return
        most = client.waiting.pop(answer.opaque, None)
        if most is None:
            return  # of a connection that was lost
        if answer.code == 0:
            self._given(client, answer, most)
        else:
            assert answer.code == 210, answer.remark

    def _acked_late(self, group: str, lite: str, popped: int | None = None) -> None:
        """Take note of acknowledgements of what was visible again; with ``popped``, the first
        offset of a pop that has it, of those before the pop. Any after it change nothing."""
        for offset, pop_ms in self._late.pop((group, lite), ()):
            if popped is None or offset < popped:
                self.places[group, lite].ack(offset, pop_ms, len(self.sent[lite]))

    def _given(self, client: Client, answer: Command[Any], most: int) -> None:
        """Compare what a pop was given with what it may be."""
        self.answered += 1
        pop_ms, invisible_ms = int(answer.ext["popTime"]), int(answer.ext["invisibleTime"])
        assert answer.ext["reviveQid"] == str(ORDER_REVIVE_QUEUE)
        given: dict[str, list[tuple[int, str]]] = {}
        for view in iter_records(answer.body):
            offset = int(view.properties[properties.INNER_MULTI_QUEUE_OFFSET])
            lite = view.properties[properties.LITE_TOPIC]
            given.setdefault(lite, []).append((offset, view.body.decode()))
        assert 0 < sum(map(len, given.values())) <= most
        counts = []
        for lite, messages in given.items():
            place = self.places[client.group, lite]
            assert lite in client.allowed, f"{client.client_id} does not subscribe to {lite}"
            offsets = [offset for offset, _ in messages]
            self._acked_late(client.group, lite, offsets[0])
            assert place.free_ms <= pop_ms, f"{lite} is in somebody's hand"
            first = place.next_offset
            assert offsets == list(range(first, first + len(offsets))), lite
            assert [body for _, body in messages] == self.sent[lite][first : first + len(offsets)]
            counts += place.take(offsets, pop_ms, invisible_ms)
            self.held += [(client, lite, offset, pop_ms, invisible_ms) for offset in offsets]
        assert answer.ext["orderCountInfo"].split(";") == counts

    def _see_what_was_lost(self) -> None:
        """Take note of what was popped by a connection that had ended meanwhile."""
        for (group, lite), place in self.places.items():
            queue = names.lite_queue(PARENT, lite)
            batch = self.broker.lite.topics.orders.batch(queue, group, 0)
            if batch is not None and batch.pop_ms != place.pop_ms:
                assert batch.invisible_ms is not None
                self._acked_late(group, lite, batch.queue_offsets[0])
                assert place.free_ms <= batch.pop_ms
                assert batch.queue_offsets[0] == place.next_offset
                place.take(batch.queue_offsets, batch.pop_ms, batch.invisible_ms)

    def _is_ready(self, group: str, lite: str, now_ms: int) -> bool:
        place = self.places[group, lite]
        return place.next_offset < len(self.sent[lite]) and place.free_ms <= now_ms

    def _check_nobody_sleeps(self) -> None:
        """A pop waits only if nothing is ready for it."""
        now_ms = self.clock.now_ms() - LATE_MS
        for client in self.clients.values():
            if client.waiting:
                for lite in client.wanted:
                    assert not self._is_ready(client.group, lite, now_ms), (
                        f"{client.client_id} of {client.group} sleeps, and {lite} is ready"
                    )

    def finish(self) -> None:
        """Have each group consume all that is left, by a client that wants everything."""
        for group in GROUPS:
            client = self.clients[group, CLIENTS[0]]
            self.do(partial(self.subscribe, client, set(LITES)))
        self.sleep(100)
        self.held.clear()
        for _ in range(100):
            for group in GROUPS:
                client = self.clients[group, CLIENTS[0]]
                self.do(partial(self.pop, client, 32, 60_000, 0))
            if not self.held:
                break
            while self.held:
                self.do(*[lambda: self.ack(0)] * min(len(self.held), 32))
        for (group, lite), place in self.places.items():
            assert place.next_offset == len(self.sent[lite]), f"{group} has not consumed {lite}"


def _handle_fields(client: Client, lite: str, offset: int, pop_ms: int, invisible_ms: int) -> dict[str, FieldValue]:
    handle = Handle(0, pop_ms, invisible_ms, ORDER_REVIVE_QUEUE, 0, "broker-a", 0, offset)
    return {
        "consumerGroup": client.group, "topic": PARENT, "queueId": 0, "offset": offset,
        "liteTopic": lite, "extraInfo": str(handle),
    }  # fmt: skip
