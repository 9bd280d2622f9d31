"""Assignment of queues to clients, and request modes set by administrators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.groups.assignment import FILE_NAME, RequestModes, shared_for_pop
from firearrow.errors import ConfigError, DiskFull
from firearrow.wire.allocation import AVG, BROKER_STRATEGIES
from firearrow.wire.client_bodies import MessageQueue, RequestMode
from firearrow.wire.pop import ANY_QUEUE
from tests.broker.groups.test_clientprocessor import heartbeat
from tests.broker.serving import Caller, Serving, calling

ASK, SET, ALL = 400, 401, 402


def asked(client_id: str = "c1", **changed: object) -> bytes:
    body = {
        "topic": "T", "consumerGroup": "HG", "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }  # fmt: skip
    return json.dumps(body | changed).encode()


def said(mode: str = "POP", share: int = 0, **changed: object) -> bytes:
    body = {"topic": "T", "consumerGroup": "HG", "mode": mode, "popShareQueueNum": share}
    return json.dumps(body | changed).encode()


async def assigned(caller: Caller, body: bytes) -> list[tuple[str, int, str]] | None:
    """Return a client's answer: broker, queue and mode; None: it keeps its queues."""
    answer = await caller.call(ASK, {}, body)
    assert (answer.code, answer.remark) == (0, None)
    found: dict[str, Any] = json.loads(answer.body)
    if found == {}:
        return None
    return [
        (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"])
        for one in found["messageQueueAssignments"]
    ]


async def joined(caller: Caller, *clients: str) -> None:
    await caller.sent()  # makes topic T with 4 queues
    for client_id in clients:
        beat = json.dumps(heartbeat(client_id)).encode()
        assert (await caller.call(34, {}, beat)).code == 0


def test_a_client_has_its_part(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await joined(caller, "c1")
        async with served.caller() as other:
            await other.call(34, {}, json.dumps(heartbeat("c2")).encode())
            broker_name = served.broker.config.broker_name
            assert await assigned(caller, asked("c1")) == [(broker_name, 0, "PULL"), (broker_name, 1, "PULL")]
            circle = asked("c2", strategyName="AVG_BY_CIRCLE")
            assert [one[1] for one in await assigned(caller, circle) or ()] == [1, 3]
            everything = asked("c2", messageModel="BROADCASTING")
            assert [one[1] for one in await assigned(caller, everything) or ()] == [0, 1, 2, 3]
            assert await assigned(caller, asked("stranger")) == []

    calling(tmp_path, main)


def test_a_group_that_pops_shares_every_queue(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await joined(caller, "c1")
        assert (await caller.call(SET, {}, said("POP"))).code == 0
        assert await assigned(caller, asked()) == [(served.broker.config.broker_name, -1, "POP")]
        assert (await caller.call(SET, {}, said("PULL"))).code == 0
        assert len(await assigned(caller, asked()) or ()) == 4

    calling(tmp_path, main)


def test_the_rule_for_all_groups_is_a_key(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await joined(caller, "c1")
        assert [one[1:] for one in await assigned(caller, asked()) or ()] == [(-1, "POP")]
        retry = asked(topic="%RETRY%HG")
        assert [one[1:] for one in await assigned(caller, retry) or ()] == [(0, "PULL")]

    calling(tmp_path, main, default_message_request_mode="POP")


def test_what_was_said_outlives_the_broker(tmp_path: Path) -> None:
    async def say(served: Serving, caller: Caller) -> None:
        await joined(caller, "c1")
        assert (await caller.call(SET, {}, said("POP", 3))).code == 0

    async def ask(served: Serving, caller: Caller) -> None:
        answer = await caller.call(ALL, {})
        entry = {"consumerGroup": "HG", "mode": "POP", "popShareQueueNum": 3, "topic": "T"}
        assert json.loads(answer.body) == {"messageRequestModeMap": {"T": {"HG": entry}}}

    calling(tmp_path, say)
    calling(tmp_path, ask)


@pytest.mark.parametrize(
    "body",
    [
        asked(topic="unknown"),
        asked(consumerGroup="unknown"),
        asked(strategyName="MINE"),
        asked(strategyName=None),
        asked(clientId=""),
    ],
)
def test_who_cannot_be_told_keeps_what_it_has(tmp_path: Path, body: bytes) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await joined(caller, "c1")
        assert await assigned(caller, body) is None

    calling(tmp_path, main)


@pytest.mark.parametrize(
    ("code", "body", "refusal"),
    [
        (SET, said(topic="%RETRY%HG"), 16),
        (SET, said(topic="unknown"), 17),
        (SET, said(topic=None), 17),
        (SET, said(consumerGroup="a b"), 26),
        (SET, said(mode="PUSH"), 1),
        (SET, b"[", 1),
        (ASK, asked(messageModel="NONE"), 1),
        (ASK, asked(topic=None), 1),
        (ASK, b"", 1),
    ],
)
def test_what_is_refused(tmp_path: Path, code: int, body: bytes, refusal: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await joined(caller, "c1")
        answer = await caller.call(code, {}, body)
        assert answer.code == refusal
        assert answer.remark

    calling(tmp_path, main)


# --- Division of queues by POP, in which each queue has a client ---


numbers = st.integers(1, 20)


def queues_of(count: int, broker_name: str = "b") -> list[MessageQueue]:
    return [MessageQueue("T", broker_name, queue_id) for queue_id in range(count)]


def clients_of(count: int) -> list[str]:
    return [f"c{number:02}" for number in range(count)]


@pytest.mark.parametrize("name", BROKER_STRATEGIES)
def test_a_stranger_has_nothing(name: str) -> None:
    assert shared_for_pop(BROKER_STRATEGIES[name], queues_of(4), clients_of(4), "stranger", 1) == []


@pytest.mark.parametrize(("clients", "share"), [(1, 0), (3, 0), (3, -1), (3, 2), (3, 9)])
def test_without_shares_each_client_pops_from_every_broker(clients: int, share: int) -> None:
    queues = queues_of(4, "a") + queues_of(4, "b")
    found = shared_for_pop(AVG, queues, clients_of(clients), "c00", share)
    assert found == [MessageQueue("T", "a", ANY_QUEUE), MessageQueue("T", "b", ANY_QUEUE)]


def test_a_client_shares_the_queues_of_those_that_follow() -> None:
    clients = clients_of(3)
    strategy = AVG
    shares = [shared_for_pop(strategy, queues_of(4), clients, one, 1) for one in clients]
    assert [[queue.queue_id for queue in found] for found in shares] == [[0, 1, 2], [2, 3], [3, 0, 1]]


@given(numbers, st.integers(3, 30), st.integers(1, 10))
def test_every_queue_has_enough_clients(queue_count: int, client_count: int, share: int) -> None:
    clients = clients_of(client_count)
    queues = queues_of(queue_count)
    having = {queue.queue_id: 0 for queue in queues}
    for one in clients:
        found = set(shared_for_pop(AVG, queues, clients, one, share))
        assert found, one
        for queue in found:
            having[queue.queue_id] = having.get(queue.queue_id, 0) + 1
    if share >= client_count - 1:
        assert having[ANY_QUEUE] == client_count
    elif client_count <= queue_count:
        assert set(having.values()) == {share + 1}
    else:
        assert min(having.values()) >= client_count // queue_count


# --- Request modes outlive the broker, in RocketMQ's file ---


FILE = """{
\t"messageRequestModeMap":{
\t\t"T":{
\t\t\t"G":{
\t\t\t\t"consumerGroup":"G",
\t\t\t\t"mode":"POP",
\t\t\t\t"popShareQueueNum":3,
\t\t\t\t"topic":"T"
\t\t\t}
\t\t}
\t}
}"""
POP_OF_G = RequestMode("G", "POP", 3, "T")


def modes(root: Path) -> RequestModes:
    found = RequestModes(root, 0)
    found.load()
    return found


def test_the_file_is_that_of_the_original(tmp_path: Path) -> None:
    modes(tmp_path).put("T", "G", POP_OF_G)
    assert (tmp_path / "config" / FILE_NAME).read_text() == FILE
    assert modes(tmp_path).get("T", "G") == POP_OF_G


def test_nothing_is_known_of_others(tmp_path: Path) -> None:
    found = modes(tmp_path)
    found.put("T", "G", POP_OF_G)
    found.put("T", "H", RequestMode("H", "PULL", 0, "T"))
    assert (found.get("T", "G"), found.get("U", "G"), found.get("T", "I")) == (POP_OF_G, None, None)


def test_what_cannot_be_written_is_not_said(tmp_path: Path) -> None:
    found = modes(tmp_path)
    (tmp_path / "config").write_text("a file in the place of the directory")
    with pytest.raises(DiskFull):
        found.put("T", "G", POP_OF_G)
    assert found.get("T", "G") is None


def test_what_is_no_mode_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_text(FILE.replace("POP", "PUSH"))
    with pytest.raises(ConfigError, match=FILE_NAME):
        modes(tmp_path)
