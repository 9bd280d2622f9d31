"""Pops noted in RocksDB: either broker goes on with what the other has noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop.kvstore import KvRecord, record_of
from firearrow.database import Snapshot
from firearrow.message.record import iter_records
from firearrow.wire.command import FieldValue
from firearrow.wire.pop import Handle
from tests.broker.popping import ack_fields, messages_of, pop_fields
from tests.broker.serving import Caller, Serving
from tests.interop.servers import HANDOVERS, SMALL_FILES, Kind, Server, serve
from tests.net.talker import talking

KV = {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"}
AGAIN_SECONDS = 60  # that both are given to have messages come again; they take 10
HOUR_MS = 3_600_000

Main = Callable[[Caller], Coroutine[Any, Any, None]]


class OfServer(Serving):
    """A broker in a process of its own."""

    def __init__(self, server: Server) -> None:
        self.port = server.broker_port


def opened_by(kind: Kind, directory: Path, store_type: str, name: str, main: Main) -> None:
    """Run a test against a broker on the store."""

    async def run(server: Server) -> None:
        async with talking(server.broker_port) as talker:
            await main(Caller(OfServer(server), talker, binary=False))

    settings = {**SMALL_FILES, **KV, "storeType": store_type}
    logs = directory / name
    with serve(kind, directory / "store", logs, settings=settings) as server:
        asyncio.run(run(server))


async def create(caller: Caller) -> None:
    """Make topic and group."""
    topic: dict[str, FieldValue] = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    assert (await caller.call(17, topic)).code == 0
    assert (await caller.call(200, {}, b'{"groupName":"g"}')).code == 0


async def popped_until(caller: Caller, bodies: set[bytes], invisible_ms: int) -> dict[bytes, Handle]:
    """Pop until there was each of some messages."""
    found: dict[bytes, Handle] = {}
    async with asyncio.timeout(AGAIN_SECONDS):
        while not found.keys() >= bodies:
            fields = pop_fields(invisibleTime=invisible_ms, pollTime=2000)
            answer = await caller.call(200050, fields)
            if answer.code == 0:
                # The original gives retried messages as they are stored.
                topic = next(iter_records(answer.body)).topic
                found |= {view.body: handle for view, handle in messages_of(answer, topic)}
    return found


def noted(store: Path) -> list[KvRecord]:
    """What a broker has left in the database."""
    snapshot = Snapshot(store / "kvStore", ["default", "popState"])
    try:
        return [record_of(*row) for row in snapshot.tables["popState"].rows()]
    finally:
        snapshot.close()


@pytest.mark.parametrize(("store_type", "kinds"), HANDOVERS)
def test_the_other_broker_goes_on_with_what_is_popped(
    tmp_path: Path, store_type: str, kinds: tuple[Kind, Kind]
) -> None:
    """What was acknowledged stays so, what was not comes again, and handles mean what they did."""
    handles: dict[bytes, Handle] = {}

    async def popping(caller: Caller) -> None:
        await create(caller)
        bodies = {b"m%d" % number for number in range(6)}
        for body in sorted(bodies):
            await caller.sent(body)
        handles.update(await popped_until(caller, bodies, 10_000))
        # Only by this the original's offset moves over what it gave last.
        assert (await caller.call(200050, pop_fields())).code == 210
        assert (await caller.call(200051, ack_fields(handles[b"m0"]))).code == 0
        for body in (b"m1", b"m2"):
            fields = ack_fields(handles[body], invisibleTime=HOUR_MS, suspend=body == b"m2")
            answer = await caller.call(200053, fields)
            assert answer.code == 0
            pop_ms = int(answer.ext["popTime"])
            handles[body] = handles[body]._replace(pop_ms=pop_ms, invisible_ms=HOUR_MS)

    async def going_on(caller: Caller) -> None:
        assert (await caller.call(200051, ack_fields(handles[b"m1"]))).code == 0
        again = await popped_until(caller, {b"m3", b"m4", b"m5"}, HOUR_MS)
        assert again.keys() == {b"m3", b"m4", b"m5"}
        for body in (b"m3", b"m4"):
            assert (await caller.call(200051, ack_fields(again[body]))).code == 0

    opened_by(kinds[0], tmp_path, store_type, "first", popping)
    left = {(record.topic, record.queue_offset) for record in noted(tmp_path / "store")}
    assert left == {("T", number) for number in range(1, 6)}
    opened_by(kinds[1], tmp_path, store_type, "second", going_on)
    suspended, waits = sorted(noted(tmp_path / "store"), key=lambda record: record.pop_ms)
    assert (suspended.topic, suspended.queue_offset, suspended.is_suspended) == ("T", 2, True)
    assert (waits.topic, waits.retry_flag) == ("%RETRY%g_T", 1)
