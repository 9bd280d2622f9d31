"""Scripts of lite topics, for two brokers step by step: sends, subscriptions, pops, what becomes of
the messages, and what administrators are told.

Both brokers have all that is ready noted once more before each pop (200079): the original notes
some of it seconds later. What is left out is different on purpose, see docs/differences.md.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from firearrow.message import properties
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import Handle
from tests.interop.differ import ARRIVAL_S, Named, Seen, Side, code_and
from tests.interop.waiting import wait_until

STEPS: Final = 60
LITES: Final = ("a", "b", "c")
LONG_MS, SHORT_MS = 300_000, 200
SHORT_S: Final = 0.5  # after which what is visible soon is, and noted
NOTED_S: Final = 0.15
SETTINGS: Final = {
    "enableLmq": "true", "enableMultiDispatch": "true", "enableLmqQuota": "true",
    "maxLmqConsumeQueueNum": "8",
}  # fmt: skip


class LiteScript:
    """The steps of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seed = f"l{seed}"
        self._parent = f"{self._seed}-parent"
        # The original knows of one group and parent for each client id.
        self._groups = {
            f"{self._seed}-shared": (f"{self._seed}-c1",),
            f"{self._seed}-exclusive": (f"{self._seed}-c2", f"{self._seed}-c3"),
        }
        self._held: dict[str, set[str]] = {}  # by clients of the exclusive group
        self._pops: list[tuple[str, str]] = []  # group and client
        self._popped: dict[tuple[str, int], list[tuple[str, int, AnyCommand]]] = {}
        self._number = 0

    def steps(self) -> Iterator[Named]:
        """Give all steps."""
        yield self._create()
        for group in self._groups:
            model = "Exclusive" if group.endswith("exclusive") else "Shared"
            yield self._create_group(group, {"lite.sub.model": model})
        yield self._create_group(f"{self._seed}-wild", {"lite.sub.wildcard": "true"})
        for _ in range(4):
            yield self._send()
        makers = [
            (6, self._send), (4, self._subscribe), (1, self._unsubscribe), (1, self._replace),
            (8, self._pop), (8, self._ack), (3, self._change), (2, self._lite_info),
            (2, self._client_info), (2, self._group_info), (1, self._parent_info),
            (2, self._wrong), (1, self._many_subscriptions), (2, self._pull),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        for _ in range(STEPS):
            [maker] = self._chance.choices([make for _, make in makers], weights)
            yield maker()
        for group, clients in self._groups.items():
            for client in clients:
                yield self._changes("COMPLETE_REMOVE", group, client, [])

    # --- what is set up ---

    def _create(self) -> Named:
        fields: dict[str, FieldValue] = {
            "topic": self._parent, "defaultTopic": "TBW102", "readQueueNums": 2,
            "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
            "order": False, "attributes": "+message.type=LITE",
        }  # fmt: skip
        return Named("create the parent", lambda side: side.ask(17, fields).code)

    def _create_group(self, group: str, attributes: dict[str, str]) -> Named:
        given = {"lite.bind.topic": self._parent, **attributes}
        signed = {f"+{key}": value for key, value in given.items()}
        body = json.dumps({"groupName": group, "attributes": signed}).encode()
        return Named(f"create group {group}", lambda side: side.ask(200, {}, body).code)

    # --- sends ---

    def _send(self) -> Named:
        self._number += 1
        lite = self._chance.choice(LITES)
        body = f"{self._seed} body {self._number}"
        unique = f"{self._chance.getrandbits(128):032X}"
        queue_id = self._chance.randrange(2)
        fields: dict[str, FieldValue] = {
            "a": "producers", "b": self._parent, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
            "g": 1_790_000_000_000, "h": 0, "j": 0, "k": False, "m": False,
            "i": properties.format({"UNIQ_KEY": unique, "__LITE_TOPIC": lite}),
        }  # fmt: skip

        def do(side: Side) -> Seen:
            before = _max_offset(side, self._parent, lite)
            answer = side.ask(310, fields, body.encode())
            if answer.code == 0:
                what = f"{side.name}: a message of {lite}"
                wait_until(lambda: _max_offset(side, self._parent, lite) > before, ARRIVAL_S, what)
            return code_and(answer, "queueId", "queueOffset")

        return Named(f"send {body!r} to lite topic {lite}", do)

    # --- subscriptions ---

    def _client(self) -> tuple[str, str]:
        group = self._chance.choice(list(self._groups))
        return group, self._chance.choice(self._groups[group])

    def _some(self) -> list[str]:
        return self._chance.sample(LITES, self._chance.choice((1, 2)))

    def _changes(self, action: str, group: str, client: str, lites: list[str], **more: Any) -> Named:
        body = _change(action, group, client, self._parent, lites, **more)

        def do(side: Side) -> Seen:
            if action == "PARTIAL_REMOVE" or group.endswith("exclusive"):
                # What is noted for a client that loses a lite topic by this, the original gives it.
                for loser in self._groups[group]:
                    self._ask_for_all(side, group, loser, LONG_MS)
            code = side.ask(200071, {}, body).code
            return code, self._offsets(side, group)

        return Named(f"{action} {lites} by {client} of {group} {more}", do)

    def _offsets(self, side: Side, group: str) -> Seen:
        found = []
        for lite in LITES:
            fields = {"parentTopic": self._parent, "liteTopic": lite, "group": group}
            answer = side.ask(200078, {"group": group, "liteTopic": lite, **fields, "topK": 1})
            told = json.loads(answer.body)
            place = told.get("liteTopicOffsetWrapper") or {}
            found.append((lite, place.get("consumerOffset"), told["totalLagCount"]))
        return found

    def _subscribe(self) -> Named:
        group, client = self._client()
        more: dict[str, Any] = {}
        if self._chance.random() < 0.3:
            kind, value = self._chance.choice(
                [("POLICY", 0), ("POLICY", 1), ("POLICY", 2), ("OFFSET", 1), ("TAIL_N", 1),
                 ("TIMESTAMP", 5)]
            )  # fmt: skip
            more = {"offsetOption": {"type": kind, "value": value}}
        lites = self._some()
        if group.endswith("exclusive"):
            lites = [lite for lite in lites if lite not in self._held.get(client, ())]
            if not lites:  # the original takes a lite topic from a client that adds it again
                return self._pop()
            for held in self._held.values():
                held.difference_update(lites)
            self._held.setdefault(client, set()).update(lites)
        return self._changes("PARTIAL_ADD", group, client, lites, **more)

    def _unsubscribe(self) -> Named:
        (group, client), lites = self._client(), self._some()
        self._held.get(client, set()).difference_update(lites)
        return self._changes("PARTIAL_REMOVE", group, client, lites)

    def _replace(self) -> Named:
        group = next(iter(self._groups))
        return self._changes("COMPLETE_ADD", group, self._groups[group][0], self._some())

    def _many_subscriptions(self) -> Named:
        """Have one subscription be as many as there may be; the next is refused."""
        group = next(iter(self._groups))
        name = "maxLiteSubscriptionCount={}"
        first = _change("PARTIAL_ADD", group, self._groups[group][0], self._parent, ["a"])
        more = _change("PARTIAL_ADD", group, f"{self._seed}-c9", self._parent, ["b"])

        def do(side: Side) -> Seen:
            first_code = side.ask(200071, {}, first).code
            side.ask(25, {}, name.format(1).encode())
            code = side.ask(200071, {}, more).code
            side.ask(25, {}, name.format(100_000).encode())
            return first_code, code

        return Named("one subscription too many", do)

    # --- pops ---

    def _pop(self) -> Named:
        group, client = self._client()
        number, invisible_ms = len(self._pops), self._chance.choice((LONG_MS, LONG_MS, SHORT_MS))
        self._pops.append((group, client))

        def do(side: Side) -> Seen:
            answer = self._ask_for_all(side, group, client, invisible_ms)
            views = list(iter_records(answer.body)) if answer.code == 0 else []
            self._popped[side.name, number] = [
                (view.properties["__LITE_TOPIC"], _offset_in(view.properties), answer) for view in views
            ]
            if invisible_ms == SHORT_MS:
                time.sleep(SHORT_S)
            given: dict[str, list[Any]] = {}
            for view in views:
                lite = view.properties["__LITE_TOPIC"]
                place = _offset_in(view.properties), view.body.decode()
                given.setdefault(lite, []).append(place)
            told = answer.ext or {}
            return answer.code, sorted(given.items()), told.get("reviveQid")

        return Named(f"pop {number} by {client} of {group}, invisible for {invisible_ms}", do)

    def _ask_for_all(self, side: Side, group: str, client: str, invisible_ms: int) -> AnyCommand:
        side.ask(200079, {"group": group})
        time.sleep(NOTED_S)
        fields: dict[str, FieldValue] = {
            "clientId": client, "consumerGroup": group, "topic": self._parent, "maxMsgNum": 32,
            "invisibleTime": invisible_ms, "pollTime": 0, "bornTime": int(time.time() * 1000),
        }  # fmt: skip
        return side.ask(200070, fields)

    def _one(self) -> tuple[int, int]:
        at = max(self._chance.randrange(len(self._pops)) for _ in range(3))
        return at, self._chance.randrange(4)

    def _message(self, side: Side, pop: int, at: int) -> dict[str, FieldValue] | None:
        popped = self._popped.get((side.name, pop))
        if not popped:
            return None
        popped = sorted(popped, key=lambda one: one[:2])
        lite, offset, answer = popped[at % len(popped)]
        pop_ms, invisible_ms = int(answer.ext["popTime"]), int(answer.ext["invisibleTime"])
        handle = Handle(0, pop_ms, invisible_ms, 999, 0, "broker-a", 0, offset)
        return {
            "consumerGroup": self._pops[pop][0], "topic": self._parent, "queueId": 0,
            "offset": offset, "liteTopic": lite, "extraInfo": str(handle),
        }  # fmt: skip

    def _ack(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, at = self._one()

        def do(side: Side) -> Seen:
            message = self._message(side, pop, at)
            if message is None:
                return None
            return side.ask(200051, message).code, self._offsets(side, self._pops[pop][0])

        return Named(f"acknowledge message {at} of pop {pop}", do)

    def _change(self) -> Named:
        if not self._pops:
            return self._pop()
        pop, at = self._one()
        in_ms, suspend = self._chance.choice((SHORT_MS, LONG_MS)), self._chance.random() < 0.3

        def do(side: Side) -> Seen:
            message = self._message(side, pop, at)
            if message is None:
                return None
            more: dict[str, FieldValue] = {"invisibleTime": in_ms, "suspend": suspend}
            answer = side.ask(200053, {**message, **more})
            if in_ms == SHORT_MS:
                time.sleep(SHORT_S)
            return answer.code, (answer.ext or {}).get("reviveQid")

        return Named(f"message {at} of pop {pop} is visible in {in_ms} ms, {suspend=}", do)

    def _pull(self) -> Named:
        """Pull a lite topic by its parent and name."""
        lite, offset = self._chance.choice(LITES), self._chance.randrange(4)
        group = next(iter(self._groups))
        fields: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._parent, "queueId": 0, "queueOffset": offset,
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG", "liteTopic": lite,
        }  # fmt: skip

        def do(side: Side) -> Seen:
            if not _max_offset(side, self._parent, lite):
                return None
            answer = side.ask(11, fields)
            views = iter_records(answer.body) if answer.code == 0 else ()
            told = {key: (answer.ext or {}).get(key) for key in ("nextBeginOffset", "maxOffset")}
            return answer.code, told, [view.body.decode() for view in views]

        return Named(f"pull lite topic {lite} from {offset} on", do)

    # --- what administrators are told ---

    def _lite_info(self) -> Named:
        fields = {"parentTopic": self._parent, "liteTopic": self._chance.choice((*LITES, "none"))}

        def do(side: Side) -> Seen:
            told = json.loads(side.ask(200076, fields).body)
            told["topicOffset"].pop("lastUpdateTimestamp", None)
            told["subscriber"] = sorted(json.dumps(one, sort_keys=True) for one in told["subscriber"] or ())
            return told

        return Named(f"200076 {fields}", do)

    def _client_info(self) -> Named:
        group, client = self._client()
        fields: dict[str, FieldValue] = {
            "parentTopic": self._parent, "group": group, "clientId": client, "maxCount": 100
        }  # fmt: skip

        def do(side: Side) -> Seen:
            told = json.loads(side.ask(200077, fields).body)
            told.pop("lastAccessTime")
            told["liteTopicSet"] = sorted(told.get("liteTopicSet") or ())
            return told

        return Named(f"200077 {fields}", do)

    def _group_info(self) -> Named:
        group = self._chance.choice(list(self._groups))

        def do(side: Side) -> Seen:
            told = json.loads(side.ask(200078, {"group": group, "topK": 10}).body)
            for one in told["lagCountTopK"]:
                one.pop("earliestUnconsumedTimestamp")
            told["lagCountTopK"].sort(key=lambda one: (one["lagCount"], one["liteTopic"]))
            return told

        return Named(f"200078 {group}", do)

    def _parent_info(self) -> Named:
        def do(side: Side) -> Seen:
            told = json.loads(side.ask(200075, {"topic": self._parent}).body)
            return {**told, "groups": sorted(told["groups"])}

        return Named("200075", do)

    # --- what is wrong ---

    def _wrong(self) -> Named:
        group, wild = next(iter(self._groups)), f"{self._seed}-wild"
        handle = "0 1 60000 999 0 broker-a 0 0"
        pop: dict[str, FieldValue] = {
            "clientId": "none", "consumerGroup": group, "topic": self._parent, "maxMsgNum": 1,
            "invisibleTime": 1000, "pollTime": 0, "bornTime": 1 << 60,
        }  # fmt: skip
        ack: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": self._parent, "queueId": 0, "offset": 0,
            "liteTopic": "a", "extraInfo": handle, "invisibleTime": 1000,
        }  # fmt: skip
        none = f"{self._seed}-none"
        wrong: list[tuple[int, dict[str, FieldValue], bytes]] = [
            (200070, {**pop, "topic": none}, b""), (200070, {**pop, "maxMsgNum": 33}, b""),
            (200070, {**pop, "topic": "TBW102"}, b""), (200070, {**pop, "bornTime": 1}, b""),
            (200051, {**ack, "offset": 1000}, b""), (200053, {**ack, "offset": 1000}, b""),
            (200051, {**ack, "queueId": 1}, b""), (200051, {**ack, "topic": none}, b""),
            (200051, {**ack, "consumerGroup": "differ"}, b""),
            (200051, {**ack, "extraInfo": "0 1 60000 1 0 broker-a 0 0"}, b""),
            (200071, {}, b""), (200071, {}, b"{}"),
            (200071, {}, _change("PARTIAL_ADD", wild, "w1", self._parent, ["a"])),
            (200071, {}, _change("PARTIAL_ADD", "", "w1", self._parent, ["a"])),
            (200075, {"topic": none}, b""), (200075, {"topic": "TBW102"}, b""),
            (200076, {"parentTopic": none, "liteTopic": "a"}, b""),
            (200077, {"parentTopic": none, "group": group, "clientId": "c1"}, b""),
            (200077, {"parentTopic": self._parent, "group": "differ", "clientId": "c"}, b""),
            (200078, {"group": "differ", "topK": 1}, b""),
            (200078, {"group": group, "topK": 0}, b""),
            (200079, {"group": "differ"}, b""),
        ]  # fmt: skip
        code, fields, body = self._chance.choice(wrong)
        return Named(f"wrong: {code} {fields} {body!r}", lambda side: side.ask(code, fields, body).code)


def _change(action: str, group: str, client: str, parent: str, lites: list[str], **more: Any) -> bytes:
    entry = {
        "action": action, "clientId": client, "group": group, "topic": parent,
        "liteTopicSet": lites, "version": 1, **more,
    }  # fmt: skip
    return json.dumps({"subscriptionSet": [entry]}).encode()


def _offset_in(found: Any) -> int:
    return int(found[properties.INNER_MULTI_QUEUE_OFFSET])


def _max_offset(side: Side, parent: str, lite: str) -> int:
    told = json.loads(side.ask(200076, {"parentTopic": parent, "liteTopic": lite}).body)
    return int(told["topicOffset"]["maxOffset"])
