"""Pulls of messages that are not in memory: a thread fetches them, and all other work goes on."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pulling import coldreads
from firearrow.message.record import iter_records
from firearrow.store.residency import fetch
from firearrow.wire.command import request
from tests.broker.popping import pop_fields
from tests.broker.serving import Caller, Serving, calling, pull_fields, serving, until
from tests.broker.signing import Signer, protected, signing
from tests.store.evicting import evict

COUNT = 300
BODY = bytes(4000)


def fill(root: Path) -> None:
    """A store with some messages, none of which is in memory any more."""

    async def main(served: Serving, caller: Caller) -> None:
        for at in range(COUNT):
            await caller.sent(BODY, i=f"TAGS\x01{'AB'[at % 2]}\x02UNIQ_KEY\x01U{at}\x02")
        await served.dispatched()

    calling(root, main)
    for path in (root / "commitlog").iterdir():
        evict(path)


class Gate:
    """In place of `fetch`: it waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.fetched = 0

    def __call__(self, stretches: Any) -> None:
        self.opened.wait(10)
        self.fetched += 1
        fetch(stretches)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    found = Gate()
    monkeypatch.setattr(coldreads, "fetch", found)
    return found


@pytest.mark.parametrize("expression", ["*", "A"])
def test_sends_and_hot_pulls_go_on_while_a_pull_waits_for_the_disk(tmp_path: Path, gate: Gate, expression: str) -> None:
    fill(tmp_path)

    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as cold:
            cold.tell(11, pull_fields(0, subscription=expression))
            await caller.sent()
            await served.dispatched()
            assert (await caller.pull(COUNT)).code == 0
            assert len(served.broker.pulling.cold) == 1
            gate.opened.set()
            answer = await cold.talker.answer()
            assert answer.code == 0
            assert all(len(message.body) == len(BODY) for message in iter_records(answer.body))
            assert (gate.fetched, len(served.broker.pulling.cold)) == (1, 0)

    calling(tmp_path, main)


def test_a_consumer_that_catches_up_gets_all(tmp_path: Path, gate: Gate) -> None:
    fill(tmp_path)
    gate.opened.set()

    async def main(_: Serving, caller: Caller) -> None:
        found: list[int] = []
        while len(found) < COUNT:
            answer = await caller.pull(len(found))
            assert answer.code == 0
            found += [message.queue_offset for message in iter_records(answer.body)]
        assert found == list(range(COUNT))
        assert 1 <= gate.fetched <= len(list((tmp_path / "commitlog").iterdir()))

    calling(tmp_path, main)


def test_too_many_are_refused(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setattr(coldreads, "WAITING_MAX", 1)

    async def main(_: Serving, caller: Caller) -> None:
        caller.talker.ask(*(request(11, pull_fields(), opaque=at) for at in (1, 2)))
        refused = await caller.talker.answer()
        assert (refused.opaque, refused.code) == (2, 2)
        gate.opened.set()
        answer = await caller.talker.answer()
        assert (answer.opaque, answer.code) == (1, 0)

    calling(tmp_path, main)


def test_a_stop_answers_those_that_wait(tmp_path: Path, gate: Gate) -> None:
    fill(tmp_path)

    async def main() -> None:
        async with serving(tmp_path) as served, served.caller() as caller:
            caller.tell(11, pull_fields())
            async with served.caller() as other:
                await other.sent()
            assert len(served.broker.pulling.cold) == 1
            stopping = asyncio.ensure_future(served.broker.pulling.cold.stop())
            answer = await caller.talker.answer()
            assert answer.code == 0
            gate.opened.set()
            await stopping

    asyncio.run(main())


def test_a_connection_that_ends_is_forgotten(tmp_path: Path, gate: Gate) -> None:
    fill(tmp_path)

    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as cold:
            cold.tell(11, pull_fields())
            await caller.sent()
        gate.opened.set()
        await caller.sent()
        assert (await caller.pull(COUNT)).code == 0

    calling(tmp_path, main)


@pytest.mark.parametrize("code", [11, 200050, 200052])
def test_what_a_thread_has_fetched_is_not_for_who_may_not_read_it_any_more(
    tmp_path: Path, gate: Gate, code: int
) -> None:
    fill(tmp_path)

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as cold:
            await root.allow("u", ("Topic:T", ["Sub"]), ("Group:g", ["Sub"]))
            cold.tell(code, pull_fields(0) if code == 11 else pop_fields())
            await until(lambda: len(served.broker.pulling.cold) == 1)
            await root.call(3008, {"subject": "User:u"})
            gate.opened.set()
            answer = await cold.talker.answer()
            assert (answer.code, answer.body) == (16, b"")
            assert len(served.broker.pulling.cold) == 0

    protected(tmp_path, main)
