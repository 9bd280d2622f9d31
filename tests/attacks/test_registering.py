"""What clients are sent because they say who they are: others' halves, and replies to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.command import Command, Response
from firearrow.wire.frame import encode_response
from tests.broker.sending.test_replies import REPLIES, fields_of
from tests.broker.serving import Serving, serving
from tests.broker.signing import AUTHORIZED, ROOT, Signer, signing
from tests.broker.transacting import PATIENT, ROUND_SECONDS

HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01U1\x02"


def protected(
    root: Path, main: Callable[[Serving, Signer, AsyncExitStack], Coroutine[Any, Any, None]], **config: Any
) -> None:
    """Run a test in virtual time against a broker with access control."""

    async def run(clock: VirtualClock) -> None:
        options = {**PATIENT, **AUTHORIZED, **config}
        async with (
            serving(root, clock=clock, background=False, **options) as served,
            signing(served, ROOT) as signer,
            AsyncExitStack() as stack,
        ):
            await main(served, signer, stack)

    loop.run(run)


async def heard(signer: Signer) -> list[Command[Any]]:
    """What a client was sent since it last asked."""
    signer.tell(34, {}, b"{")
    found: list[Command[Any]] = []
    while not (command := await signer.talker.answer()).is_response:
        found.append(command)
    return found


async def producing(signer: Signer, client_id: str = "c", group: str = "pg") -> None:
    """Announce a producer."""
    beat = {"clientID": client_id, "producerDataSet": [{"groupName": group}]}
    answer = await signer.call(34, {}, json.dumps(beat).encode())
    assert (answer.code, answer.remark) == (0, None)


async def user(served: Serving, root: Signer, stack: AsyncExitStack, name: str, *topics: str) -> Signer:
    """A client of a user that may send to some topics."""
    signer = await stack.enter_async_context(signing(served, await root.user(name)))
    if topics:
        await root.allow(name, *((f"Topic:{topic}", ["Pub"]) for topic in topics))
    return signer


# --- halves ---


def test_halves_are_sent_to_who_may_publish_them(tmp_path: Path) -> None:
    """Whoever else says that they are of the producer's group."""

    async def main(served: Serving, root: Signer, stack: AsyncExitStack) -> None:
        owner = await user(served, root, stack, "owner", "Secret")
        strangers = [
            await user(served, root, stack, "without"),
            await user(served, root, stack, "other", "T", "Secret2"),
        ]
        for number, signer in enumerate((*strangers, owner)):
            await producing(signer, f"c{number}")
        await owner.sent(b"secret", "Secret", f=4, i=HALF, g=served.broker._clock.now_ms())
        await asyncio.sleep(3 * ROUND_SECONDS + 1)
        assert [asked.code for asked in await heard(owner)] == [39] * 3
        await root.call(3008, {"subject": "User:owner"})
        await asyncio.sleep(2 * ROUND_SECONDS)
        for signer in (*strangers, owner):
            assert await heard(signer) == []
        await root.allow("other", ("Topic:Secret", ["Pub"]))
        await asyncio.sleep(ROUND_SECONDS)
        [asked] = await heard(strangers[1])
        assert b"secret" in asked.body
        await root.call(3003, {"username": "other"})
        await asyncio.sleep(2 * ROUND_SECONDS)
        for signer in strangers:
            assert await heard(signer) == []

    protected(tmp_path, main)


def test_who_may_send_nothing_is_no_producer(tmp_path: Path) -> None:
    """Its heartbeat is taken all the same: consumers announce a producer of theirs."""

    async def main(served: Serving, root: Signer, stack: AsyncExitStack) -> None:
        consumer = await user(served, root, stack, "consumer")
        await producing(consumer)
        assert served.broker.clients.producers("pg") == []
        await root.allow("consumer", ("Topic:any*", ["Pub"]))
        await producing(consumer)
        [member] = served.broker.clients.producers("pg")
        assert (member.user, member.client_id) == ("consumer", "c")

    protected(tmp_path, main)


def test_who_may_publish_everywhere_keeps_no_books_of_brokers(tmp_path: Path) -> None:
    """What is in these topics says which group has acknowledged what, and what waits."""

    async def main(served: Serving, root: Signer, stack: AsyncExitStack) -> None:
        writer = await user(served, root, stack, "writer", "*")
        before = served.broker.store.log_end_offset
        for topic in ("rmq_sys_REVIVE_LOG_C", "rmq_sys_wheel_timer"):
            answer = await writer.send(topic=topic)
            assert answer.code == 16
            assert "access Cluster:C " in (answer.remark or "")
        assert served.broker.store.log_end_offset == before
        assert (await writer.send(topic="RMQ_SYS_TRACE_TOPIC")).code == 0
        assert (await root.send(topic="rmq_sys_wheel_timer")).code == 0

    protected(tmp_path, main)


# --- replies ---


async def replied(replier: Signer, waiting: Signer) -> None:
    """Send a reply, which the client that waits must get."""
    opaque = replier.tell(325, fields_of(), b"the answer")
    pushed = await waiting.talker.answer()
    assert (pushed.code, pushed.body) == (326, b"the answer")
    waiting.talker.write(encode_response(Response(), pushed.opaque, pushed.binary))
    answer = await replier.talker.answer()
    assert (answer.opaque, answer.code) == (opaque, 0)


def test_the_id_of_a_client_stays_its_users(tmp_path: Path) -> None:
    """Another connection of the same user takes it over, as after a cut."""

    async def main(served: Serving, root: Signer, stack: AsyncExitStack) -> None:
        asker = await user(served, root, stack, "asker", "T")
        thief = await user(served, root, stack, "thief", "T")
        replier = await user(served, root, stack, "replier", REPLIES)
        await producing(asker, "asker")
        for group in ("pg", "another"):
            await producing(thief, "asker", group)
        await replied(replier, asker)
        again = await stack.enter_async_context(signing(served, asker.credentials))
        await producing(again, "asker")
        await producing(thief, "asker", "third")
        await replied(replier, again)
        assert await heard(thief) == await heard(asker) == []
        assert (await again.call(35, {"clientID": "asker", "producerGroup": "pg"})).code == 0
        await replied(replier, asker)
        await root.call(3003, {"username": "asker"})
        answer = await replier.call(325, fields_of(), b"the answer")
        assert answer.remark == "push reply message fail, channel of <asker> not found."

    protected(tmp_path, main)


def test_replies_take_the_right_to_reply_whatever_topic_they_name(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer, stack: AsyncExitStack) -> None:
        asker = await user(served, root, stack, "asker", "T")
        await producing(asker, "asker")
        other = await user(served, root, stack, "other", "T")
        for code in (324, 325):
            field, others = ("b", fields_of()) if code == 325 else ("topic", {})
            for topic in ("T", REPLIES, ""):
                fields = {**others, field: topic}
                answer = await other.call(code, fields, b"forged")
                assert answer.code == 16, (code, topic)
                assert f"no permission to access Topic:{REPLIES}" in (answer.remark or "")
        assert await heard(asker) == []
        await root.allow("other", (f"Topic:{REPLIES}", ["Pub"]))
        await replied(other, asker)
        await root.call(3008, {"subject": "User:other"})
        await root.allow("other", (f"Topic:{REPLIES}", ["Pub"]))
        answer = await other.call(325, {**fields_of(), "b": "T"}, b"forged")
        assert "no permission to access Topic:T" in (answer.remark or "")

    protected(tmp_path, main)
