"""Where RocketMQ loses, doubles or misdelivers what a client did right, and Firearrow does not.

Each is done on both brokers: should the original be mended one day, its half of a test fails, and
the difference goes from ``docs/differences.md``.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from firearrow.message import names, properties
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue, Response, request
from firearrow.wire.frame import encode_response
from tests.broker.popping import pop_fields
from tests.broker.serving import send_fields
from tests.interop.differ import Side, pull
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient
from tests.interop.servers import Kind, Server, serve
from tests.interop.waiting import wait_until
from tests.net.talker import talking

TOPIC = "traps"
COMMIT = 8
LATE_S = 60.0
LATER_MS = 4000
SOON_MS = 1000
CHECKS = {  # of transactions, soon
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "enablePropertyFilter": "true",
}
BOTH: list[Kind] = ["real", "firearrow"]

# How far ahead a timer is, so that there is time for another start.
TIMERS: list[tuple[Kind, int]] = [("firearrow", 5)]
if os.environ.get("FIREARROW_ALL_HANDOVERS"):
    TIMERS += [("real", 30)]


@pytest.fixture(scope="module", params=BOTH)
def side(request: pytest.FixtureRequest, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    root = tmp_path_factory.mktemp(f"traps-{request.param}")
    with serve(request.param, root / "store", root / "logs", settings=CHECKS) as server:
        found = Side(server, JavaClient(driver, server))
        yield found
        found.close()


def send(side: Side, body: bytes, found: dict[str, str], *, flag: int = 0, topic: str = TOPIC) -> dict[str, str]:
    """Send a message to queue 0; gives the fields of the answer."""
    fields: dict[str, FieldValue] = {
        "a": "producers", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": flag,
        "g": round(time.time() * 1000), "h": 0, "i": properties.format(found), "j": 0, "k": False,
        "m": False,
    }  # fmt: skip
    answer = side.ask(310, fields, body)
    assert answer.code == 0, answer
    sent: dict[str, str] = answer.ext
    return sent


def physical_offset(sent: dict[str, str]) -> int:
    """Where a message was put."""
    return int(sent["msgId"][-16:], 16)


def test_a_transaction_is_committed_once(side: Side) -> None:
    """A producer that answers late and then once more when it is asked, as it should."""
    found = {"UNIQ_KEY": f"{'H':0>32}", "TRAN_MSG": "true", "PGROUP": "producers"}
    first = send(side, b"once", found, flag=4, topic="traps-once")
    side.wait_for(names.TRANS_HALF_TOPIC, 0, 2)  # it was put again, to be checked
    copy = side.contents(names.TRANS_HALF_TOPIC, 0)[1]
    places = (physical_offset(first), 0), (copy.physical_offset, 1)
    for at, queue_offset in places:
        decision: dict[str, FieldValue] = {
            "producerGroup": "producers", "tranStateTableOffset": queue_offset,
            "commitLogOffset": at, "commitOrRollback": COMMIT,
            "fromTransactionCheck": queue_offset > 0, "msgId": found["UNIQ_KEY"],
            "transactionId": found["UNIQ_KEY"],
        }  # fmt: skip
        side.ask(37, decision)
    send(side, b"end", {"UNIQ_KEY": f"{'E':0>32}"}, topic="traps-once")
    times = 2 if side.name == "real" else 1
    side.wait_for("traps-once", 0, times + 1)
    bodies = [view.body for view in side.contents("traps-once", 0)]
    assert bodies == [b"once"] * times + [b"end"]


def test_an_expression_with_rubbish_behind_it_is_refused(side: Side) -> None:
    """``a LIKE 'x%'`` is ``a`` to the original: a condition that no message fulfils."""
    send(side, b"xy", {"UNIQ_KEY": f"{'S':0>32}", "a": "xy"}, topic="traps-sql")
    side.wait_for("traps-sql", 0, 1)
    filtered = pull("traps-sql", 0, 0, expressionType="SQL92", subscription="a = 'xy' rubbish")
    answer = side.ask(11, filtered)
    assert answer.code == (0 if side.name == "real" else 23)


def test_an_empty_reply_is_taken(side: Side) -> None:
    """The original asks for the length of the body that it has not got."""
    port = int(side.address.rpartition(":")[2])
    assert asyncio.run(answer_to_empty_reply(port)) == (1 if side.name == "real" else 0)


async def answer_to_empty_reply(port: int) -> int:
    """Have an asker get a reply without a body; gives what the broker says to who replied."""
    beat = {"clientID": "asker", "producerDataSet": [{"groupName": "askers"}]}
    found = {"UNIQ_KEY": f"{'R':0>32}", "REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "1"}
    reply = send_fields("DefaultCluster_REPLY_TOPIC", i=properties.format(found))
    async with talking(port) as asker, talking(port) as replier:
        asker.ask(request(34, {}, json.dumps(beat).encode()))
        assert (await asker.answer()).code == 0
        replier.ask(request(325, reply))
        pushed = asyncio.ensure_future(asker.answer())
        answered = asyncio.ensure_future(replier.answer())
        await asyncio.wait({pushed, answered}, return_when=asyncio.FIRST_COMPLETED)
        if pushed.done():
            assert (pushed.result().code, pushed.result().body) == (326, b"")
            asker.write(encode_response(Response(), pushed.result().opaque))
        pushed.cancel()
        return (await answered).code


def test_who_pops_a_retry_topic_holds_nobody_up(side: Side) -> None:
    """The original looks there for the name of a topic. If that fails, it begins the revive queue
    again: nothing comes again of what is noted in this one, for good. Else it finds none."""
    topic, retry_topic = "traps-popped", names.retry_topic("traps")
    longer = names.retry_topic("others-than-traps")
    assert side.ask(200, {}, json.dumps({"groupName": "traps"}).encode()).code == 0
    queue_id, _ = popped(side, retry_topic, 0, SOON_MS), popped(side, longer, 0, SOON_MS)
    others = [(popped(side, topic, n, SOON_MS + n // 8 * 2000), b"%d" % n) for n in range(16)]
    expected = [body for queue, body in others if side.name == "firearrow" or queue != queue_id]
    assert (len(expected) < len(others)) == (side.name == "real"), "one of 8 queues holds them up"
    side.wait_for(names.pop_retry_topic(topic, "traps"), 0, len(expected))
    came = [view.body for view in side.contents(names.pop_retry_topic(topic, "traps"), 0)]
    assert sorted(came) == sorted(expected)
    for name in (retry_topic, longer):
        assert side.max_offset(name, 0) == (1 if side.name == "real" else 2)


def popped(side: Side, topic: str, number: int, invisible_ms: int) -> str:
    """Send a message to a topic, and pop it; gives the revive queue where that is noted.

    The original may find nothing of a queue that ends behind the message.
    """
    send(side, b"%d" % number, {"UNIQ_KEY": f"{number:0>32}"}, topic=topic)
    side.wait_for(topic, 0, number + 1)
    queues: list[str] = []

    def pop() -> bool:
        fields = pop_fields(topic=topic, consumerGroup="traps", invisibleTime=invisible_ms)
        answer = side.ask(200050, fields)
        queues.append(answer.ext["reviveQid"])
        found = [view.body for view in iter_records(answer.body)]
        assert found in ([], [b"%d" % number]), (answer.code, answer.remark)
        return bool(found)

    wait_until(pop, LATE_S, f"{side.name}: a pop of message {number} of {topic}")
    return queues[-1]


@pytest.mark.parametrize(("kind", "due_s"), TIMERS)
def test_a_timer_delivers_no_other_message(kind: Kind, due_s: int, driver: Driver, tmp_path: Path) -> None:
    """A loss of power takes a message from the log, and the next timed one gets its place."""

    def timed(side: Side, body: bytes, due_ms: int) -> int:
        found = {"UNIQ_KEY": f"{'T':0>32}", "TIMER_DELIVER_MS": str(due_ms)}
        return physical_offset(send(side, body, found))

    def serving(number: int) -> AbstractContextManager[Server]:
        return serve(kind, tmp_path / "store", tmp_path / f"logs{number}", killed=True)

    with serving(1) as server, closing(Side(server, JavaClient(driver, server))) as side:
        due_ms = round(time.time() + due_s) * 1000
        send(side, b"now", {"UNIQ_KEY": f"{'N':0>32}"})
        lost = timed(side, b"lost", due_ms)
        log = tmp_path / "store" / "timerlog"
        wait_until(lambda: any(any(p.read_bytes()) for p in log.glob("*")), LATE_S, "a unit")
    [first, *_] = sorted((tmp_path / "store" / "commitlog").iterdir())
    with first.open("r+b") as file:
        file.seek(lost)
        file.write(bytes(4096))
    with serving(2) as server, closing(Side(server, JavaClient(driver, server))) as side:
        assert timed(side, b"kept", due_ms + LATER_MS) == lost, "it has the other's place"
        side.wait_for(TOPIC, 0, 2)
        came_ms = [view.store_timestamp_ms for view in side.contents(TOPIC, 0)[1:]]
    is_early = came_ms[0] < due_ms + LATER_MS
    assert is_early == (kind == "real")
