"""A broker in virtual time, and producers of transactions that answer checks as a test wants."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from firearrow.message.model import MessageView
from firearrow.message.record import decode_record
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.command import Command, FieldValue, request
from tests.broker.serving import Serving, send_fields, serving
from tests.net.talker import Talker, talking

HALF, OP, GIVEN_UP = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
PREPARED = 4
Fields = dict[str, FieldValue]

PATIENT: dict[str, Any] = {"server_channel_max_idle_time_seconds": 10**6, "channel_expired_timeout": 10**9}
ROUND_SECONDS = 30
GROUP = "CID_RMQ_SYS_TRANS"


class Check:
    """A request of the broker to say what became of a transaction."""

    def __init__(self, at_seconds: float, command: Command[Any]) -> None:
        self.at_seconds = at_seconds
        self.fields: dict[str, str] = command.ext
        self.view: MessageView = decode_record(command.body)
        assert command.is_oneway


class Producer:
    """One connection of a producer group; ``answer`` decides what it says to a check, None for
    nothing."""

    def __init__(self, served: Serving, talker: Talker, group: str) -> None:
        self._served = served
        self._talker = talker
        self._group = group
        self._opaque = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Command[Any]]] = {}
        self.checks: list[Check] = []
        self.answer: Callable[[Check], int | None] = lambda _: None

    async def read(self) -> None:
        """Take what the broker sends, until it is gone."""
        while True:
            try:
                command = await self._talker.answer()
            except asyncio.IncompleteReadError:
                return
            if command.is_response:
                self._answers.pop(command.opaque).set_result(command)
                continue
            assert command.code == 39
            check = Check(asyncio.get_running_loop().time(), command)
            self.checks.append(check)
            outcome = self.answer(check)
            if outcome is not None:
                self.end(of_check(check), outcome, fromTransactionCheck=True)

    async def call(self, code: int, fields: Fields, body: bytes = b"") -> Command[Any]:
        """Send a request and return its answer."""
        command = request(code, fields, body, opaque=next(self._opaque))
        answer: asyncio.Future[Command[Any]] = asyncio.get_running_loop().create_future()
        self._answers[command.opaque] = answer
        self._talker.ask(command)
        return await answer

    async def begin(self, body: bytes = b"body", topic: str = "T", queue_id: int = 0, **changed: Any) -> Fields:
        """Send a half; gives the fields by which it is ended. ``changed`` are properties, or
        one-letter fields."""
        self._talker.ask(request(34, {}, self.heartbeat(), oneway=True))
        fields = send_fields(topic, queue_id, f=PREPARED, g=self._served.broker._clock.now_ms())
        found = {"UNIQ_KEY": f"U{next(self._opaque)}", "TRAN_MSG": "true", "PGROUP": self._group}
        for name, value in changed.items():
            (fields if len(name) == 1 else found)[name] = value
        fields["i"] = "".join(f"{name}\x01{value}\x02" for name, value in found.items())
        answer = await self.call(310, fields, body)
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext["transactionId"] == found["UNIQ_KEY"]
        assert answer.ext["queueId"] == str(queue_id)
        return {
            "commitLogOffset": int(answer.ext["msgId"][-16:], 16),
            "tranStateTableOffset": answer.ext["queueOffset"],
            "msgId": found["UNIQ_KEY"],
        }

    def end(self, half: Fields, outcome: int, **changed: FieldValue) -> None:
        """Commit or roll back, as clients do: one-way."""
        self._talker.ask(request(37, self.ending(half, outcome) | changed, oneway=True))

    async def ended(self, half: Fields, outcome: int, **changed: FieldValue) -> Command[Any]:
        """The same, with an answer."""
        return await self.call(37, self.ending(half, outcome) | changed)

    def ending(self, half: Fields, outcome: int) -> Fields:
        """The fields of 37."""
        return {"producerGroup": self._group, "commitOrRollback": outcome, "fromTransactionCheck": False, **half}

    def heartbeat(self) -> bytes:
        """The body of 34."""
        body = {"clientID": self._group, "producerDataSet": [{"groupName": self._group}], "consumerDataSet": []}
        return json.dumps(body).encode()


def of_check(check: Check) -> Fields:
    """The fields by which a client ends what it was asked about."""
    names = ("commitLogOffset", "tranStateTableOffset", "msgId", "transactionId")
    return {name: check.fields[name] for name in names}


@asynccontextmanager
async def producing(served: Serving, group: str = "pg") -> AsyncIterator[Producer]:
    """A producer that is connected."""
    async with talking(served.port) as talker:
        producer = Producer(served, talker, group)
        reading = asyncio.create_task(producer.read())
        try:
            assert (await producer.call(34, {}, producer.heartbeat())).code == 0
            yield producer
        finally:
            reading.cancel()


def in_virtual_time(root: Path, *mains: Callable[[Serving], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run tests on one store, each with a broker of its own that is stopped cleanly."""

    async def run(clock: VirtualClock) -> None:
        for main in mains:
            async with serving(root, clock=clock, background=False, **PATIENT, **options) as served:
                await main(served)

    loop.run(run)


def offsets(served: Serving) -> tuple[int, int]:
    """Where the half queue and the op queue are done."""
    query = served.broker.offsets.query
    return query(GROUP, HALF, 0), query(GROUP, OP, 0)
