"""A consumer's reply reaches the producer that waits for it, through a broker in virtual time."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import DiskFull
from firearrow.message import properties
from firearrow.message.sysflag import COMPRESSED
from firearrow.testing.loop import START_MS
from firearrow.wire.command import Command, FieldValue, Response
from firearrow.wire.frame import encode_response
from tests.broker.serving import Caller, Serving, in_virtual_time, seconds, send_fields

REPLIES = "C_REPLY_TOPIC"
PROPERTIES = {
    "CORRELATION_ID": "7", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "MSG_TYPE": "reply",
    "UNIQ_KEY": "U1",
}  # fmt: skip


def fields_of(found: dict[str, str] = PROPERTIES, **changed: FieldValue) -> dict[str, FieldValue]:
    """The fields of 325."""
    return send_fields(REPLIES, 0, i=properties.format(found), **changed)


FIRST: dict[str, FieldValue] = {
    "producerGroup": "producers", "topic": REPLIES, "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1_795_000_000_000,
    "flag": 7, "properties": properties.format(PROPERTIES), "reconsumeTimes": 0, "unitMode": False,
}  # fmt: skip
"""The same of 324."""


class Asker:
    """A producer that waits for replies."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def pushed(self) -> Command[Any]:
        """The next reply."""
        command = await self._caller.talker.answer()
        assert (command.code, command.is_response, command.is_oneway) == (326, False, False)
        return command

    def answer(self, pushed: Command[Any], response: Response) -> None:
        """Answer the broker."""
        self._caller.talker.write(encode_response(response, pushed.opaque, pushed.binary))

    async def take(self) -> Command[Any]:
        """Take the next reply."""
        pushed = await self.pushed()
        self.answer(pushed, Response())
        return pushed

    def close(self) -> None:
        """Go away."""
        self._caller.talker.write_end()


@asynccontextmanager
async def asker(served: Serving, client_id: str = "asker", *groups: str) -> AsyncIterator[Asker]:
    """A producer with an id, in some groups."""
    async with served.caller() as caller:
        data = [{"groupName": group} for group in groups or ("producers",)]
        beat = {"clientID": client_id, "producerDataSet": data}
        assert (await caller.call(34, {}, json.dumps(beat).encode())).code == 0
        yield Asker(caller)


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_reaches_who_asked(tmp_path: Path, code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served, "other", "producers"), asker(served) as waiting:
            caller.tell(code, FIRST if code == 324 else fields_of(), b"the answer")
            pushed = await waiting.take()
            answer = await caller.talker.answer()
            assert (answer.code, answer.remark, answer.opaque) == (0, None, 1)
            [stored] = await caller.stored(REPLIES)
            assert answer.ext == {
                "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "queueId": "0",
                "queueOffset": "0", "msgId": stored.offset_message_id,
            }  # fmt: skip
            assert pushed.body == b"the answer"
            in_push = properties.parse(pushed.ext.pop("properties"))
            at_ms = int(in_push.pop("PUSH_REPLY_TIME"))
            assert START_MS <= at_ms <= START_MS + 1000
            assert in_push == PROPERTIES
            assert pushed.ext == {
                "bornHost": caller.talker.address, "storeHost": served.broker.address,
                "storeTimestamp": str(at_ms), "producerGroup": "producers", "topic": REPLIES,
                "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
                "sysFlag": "0", "bornTimestamp": "1795000000000", "flag": "7",
                "reconsumeTimes": "0", "unitMode": "false",
            }  # fmt: skip
            assert (stored.topic, stored.body, stored.flag) == (REPLIES, b"the answer", 7)
            assert stored.properties == PROPERTIES

    in_virtual_time(tmp_path, main)


def test_a_request_is_an_ordinary_message(tmp_path: Path) -> None:
    """What tells it apart is for its consumer."""
    asked = {"UNIQ_KEY": "U1", "CORRELATION_ID": "7", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"a question", i=properties.format(asked))
        [view] = await caller.stored()
        assert asked.items() <= view.properties.items()
        assert view.properties["CLUSTER"] == "C"  # a client makes the topic of replies of it

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("stored", [True, False])
def test_an_empty_reply_and_a_compressed_one(tmp_path: Path, stored: bool) -> None:
    """Java: an empty one is refused, and a copy does not say that it is compressed."""

    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            for body, flag in ((b"", 0), (zlib.compress(b"the answer"), COMPRESSED)):
                caller.tell(325, fields_of(f=flag), body)
                pushed = await waiting.take()
                assert (pushed.body, pushed.ext["sysFlag"]) == (body, str(flag))
                answer = await caller.talker.answer()
                assert answer.code == 0
                if not stored:
                    assert (answer.ext["msgId"], answer.ext["queueOffset"]) == ("0", "0")
            views = await caller.stored(REPLIES)
            flags = [view.sys_flag for view in views]
            assert flags == ([0, COMPRESSED] if stored else [])

    in_virtual_time(tmp_path, main, store_reply_message_enable=stored)


@pytest.mark.parametrize(
    ("found", "remark"),
    [
        ({"REPLY_TO_CLIENT": "gone"}, "push reply message fail, channel of <gone> not found."),
        ({"REPLY_TO_CLIENT": ""}, "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
@pytest.mark.parametrize("stored", [True, False])
def test_a_reply_to_nobody_is_kept(tmp_path: Path, found: dict[str, str], remark: str, stored: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.call(325, fields_of(PROPERTIES | found), b"late")
        assert (answer.code, answer.remark) == (1, remark)
        views = await caller.stored(REPLIES)
        assert [view.body for view in views] == ([b"late"] if stored else [])
        assert answer.ext["msgId"] == (views[0].offset_message_id if stored else "0")

    in_virtual_time(tmp_path, main, store_reply_message_enable=stored)


@pytest.mark.parametrize("how", ["refuses", "is silent", "goes away"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_client_that_does_not_take_its_reply(tmp_path: Path, how: str, flush: str) -> None:
    expected = {
        "refuses": "it answers 1 no such request$",
        "is silent": r"127\.0\.0\.1:\d+ did not answer in 10 s$",
        "goes away": r"the connection to 127\.0\.0\.1:\d+ is lost: ",
    }

    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            began = seconds()
            caller.tell(325, fields_of(), b"the answer")
            pushed = await waiting.pushed()
            if how == "refuses":
                waiting.answer(pushed, Response(1, "no such request"))
            elif how == "goes away":
                waiting.close()
            answer = await caller.talker.answer()
            assert answer.code == 1
            assert re.search(f"^push reply message to asker fail: {expected[how]}", answer.remark or "")
            waited = seconds() - began
            assert 9.99 < waited < 12 if how == "is silent" else waited < 1
            [view] = await caller.stored(REPLIES)
            assert answer.ext["msgId"] == view.offset_message_id

    in_virtual_time(tmp_path, main, store={"flush_disk_type": flush})


def test_a_reply_waits_for_the_disk(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            caller.tell(325, fields_of(), b"the answer")
            await waiting.take()
            assert (await caller.talker.answer()).code == 0
            facts = served.broker.store.runtime_facts()
            assert facts["remainHowManyDataToFlush"] == "0 B"

    in_virtual_time(tmp_path, main, store={"flush_disk_type": "SYNC_FLUSH"})


def test_who_says_no_more_is_answered(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            caller.tell(325, fields_of(), b"the answer")
            caller.talker.write_end()
            await waiting.take()
            assert (await caller.talker.answer()).code == 0
            assert await caller.talker.end() == b""

    in_virtual_time(tmp_path, main, store={"flush_disk_type": "SYNC_FLUSH"})


def test_a_client_is_found_as_long_as_it_produces_anything(tmp_path: Path) -> None:
    """Java: it is lost with any of its groups, or with an earlier connection."""

    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served, "asker", "P1") as earlier, asker(served, "asker", "P1", "P2") as now:
            leave: dict[str, FieldValue] = {"clientID": "asker", "producerGroup": "P2"}
            assert (await now._caller.call(35, leave)).code == 0
            caller.tell(325, fields_of(), b"1")
            assert (await now.take()).body == b"1"
            earlier.close()
            await asyncio.sleep(1)
            caller.tell(325, fields_of(), b"2")
            assert (await now.take()).body == b"2"
            assert (await now._caller.call(35, leave | {"producerGroup": "P1"})).code == 0
        for _ in range(2):
            assert (await caller.talker.answer()).code == 0
        assert (await caller.call(325, fields_of())).code == 1
        assert served.broker.clients._producing == {}

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    ("changed", "body", "code", "remark"),
    [
        ({"b": "none", "c": "none"}, b"x", 17, "topic[none] not exist"),
        ({"b": "a b"}, b"x", 29, "a b"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", 16, "is forbidden"),
        ({"e": 9}, b"x", 29, "queueId[9] is illegal"),
        ({"i": "A\x01b\x01c\x02"}, b"x", 13, "separator"),
        ({"e": "x"}, b"x", 1, "request 325 has a bad header"),
        ({}, bytes(100_001), 13, "body 100001 B (limit 100000)"),
        ({"i": "A\x01" + "x" * 32_766}, b"x", 13, "properties 32768 B (limit 32767)"),
    ],
)
def test_a_reply_is_checked_as_a_send_is(
    tmp_path: Path, changed: dict[str, FieldValue], body: bytes, code: int, remark: str
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            answer = await caller.call(325, fields_of() | changed, body)
            assert answer.code == code
            assert remark in (answer.remark or "")
            assert served.broker.store.log_end_offset == 0
            caller.tell(325, fields_of(e=-1), b"sound")  # any queue
            assert (await waiting.take()).body == b"sound"
            assert (await caller.talker.answer()).code == 0

    in_virtual_time(tmp_path, main, store={"max_message_size": 100_000})


def test_a_reply_that_can_not_be_stored_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise DiskFull("there is no room")

    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            monkeypatch.setattr(served.broker.store, "put", full)
            caller.tell(325, fields_of(), b"the answer")
            assert (await waiting.take()).body == b"the answer"
            answer = await caller.talker.answer()
            assert (answer.code, answer.ext["msgId"]) == (0, "0")

    in_virtual_time(tmp_path, main)


def test_a_client_that_reads_nothing_costs_no_memory(tmp_path: Path) -> None:
    """What is on its way to it is limited, and what is beyond that is refused at once."""

    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served):
            for _ in range(100):
                caller.tell(325, fields_of(), bytes(100_000))
            answers = [await caller.talker.answer() for _ in range(100)]
            reasons = {re.sub(r".*\d+ (did|does) ", r"\1 ", a.remark or "") for a in answers}
            assert reasons <= {"did not answer in 10 s", "does not read its pending answers"}
            assert {answer.code for answer in answers} == {1}

    in_virtual_time(tmp_path, main, store_reply_message_enable=False)


def test_a_reply_is_part_of_no_transaction(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with asker(served) as waiting:
            caller.tell(325, fields_of(PROPERTIES | {"TRAN_MSG": "true"}), b"the answer")
            pushed = await waiting.take()
            assert properties.parse(pushed.ext["properties"])["TRAN_MSG"] == "true"
            assert (await caller.talker.answer()).code == 0
            [stored] = await caller.stored(REPLIES)
            assert stored.properties == PROPERTIES

    in_virtual_time(tmp_path, main)
