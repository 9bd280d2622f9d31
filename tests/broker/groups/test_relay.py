"""Requests of administrators to consumers reach the consumer, and its answer comes back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.groups import relay as asking
from firearrow.message.record import iter_records
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerStatus
from firearrow.wire.command import Command, FieldValue, Response
from firearrow.wire.frame import encode_response
from tests.broker.groups.test_clientprocessor import heartbeat
from tests.broker.serving import NOTIFY, Caller, Serving, calling
from tests.loglines import told

OF_C1: dict[str, FieldValue] = {"consumerGroup": "HG", "clientId": "c1"}


class Consumer:
    """A consumer that answers by hand."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def asked(self) -> Command[Any]:
        """Return the next request that is no notification."""
        while True:
            command = await self._caller.talker.answer()
            if command.code != NOTIFY:
                assert not command.is_response
                assert not command.is_oneway
                return command

    def answer(self, asked: Command[Any], response: Response) -> None:
        """Answer a request."""
        self._caller.talker.write(encode_response(response, asked.opaque, asked.binary))

    def close(self) -> None:
        """Close the connection."""
        self._caller.talker.write_end()


@asynccontextmanager
async def consumer(served: Serving, client_id: str = "c1") -> AsyncIterator[Consumer]:
    """A member of group HG."""
    async with served.caller() as caller:
        beat = json.dumps(heartbeat(client_id)).encode()
        assert (await caller.call(34, {}, beat)).code == 0
        yield Consumer(caller)


@pytest.mark.parametrize("binary", [False, True])
def test_running_info_is_what_the_consumer_says(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        async with consumer(served, "c2"), consumer(served) as member:
            admin.tell(307, OF_C1 | {"jstackEnable": True})
            asked = await member.asked()
            assert (asked.code, asked.ext, asked.body) == (
                307,
                {"consumerGroup": "HG", "clientId": "c1", "jstackEnable": "true"},
                b"",
            )
            member.answer(asked, Response(0, "a remark", {"n": 1}, b"{}"))
            answer = await admin.talker.answer()
            assert (answer.code, answer.remark, answer.ext) == (0, "a remark", {"n": "1"})
            assert (answer.opaque, answer.body, answer.binary) == (1, b"{}", binary)

    calling(tmp_path, main, binary=binary)


def test_a_message_is_consumed_directly(tmp_path: Path) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        sent = await admin.sent(b"consume me")
        async with consumer(served) as member:
            message = {"topic": "T", "msgId": sent["msgId"], "brokerName": "?"}
            admin.tell(309, OF_C1 | message)
            asked = await member.asked()
            assert asked.ext == OF_C1 | message | {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
            [view] = iter_records(asked.body)
            assert (view.topic, view.body) == ("T", b"consume me")
            member.answer(asked, Response(1, "the listener failed"))
            answer = await admin.talker.answer()
            assert (answer.code, answer.remark) == (1, "the listener failed")

    calling(tmp_path, main)


@pytest.mark.parametrize(
    ("code", "fields", "remark"),
    [
        (307, OF_C1 | {"clientId": "c9"}, "The Consumer <HG> <c9> not online"),
        (307, OF_C1 | {"consumerGroup": "G9"}, "The Consumer <G9> <c1> not online"),
        (307, {"consumerGroup": "HG"}, "request 307 has a bad header: .*`clientId`"),
        (309, OF_C1 | {"msgId": "xyz"}, "'xyz'|xyz"),
        (309, OF_C1 | {"msgId": "7F00000100002A9F0000000000000063"}, "by the offset, 99: "),
        (223, {"topic": "T", "group": "G9"}, r"No Any Consumer online in .* group: \[G9\]"),
    ],
)
def test_what_can_not_be_asked(tmp_path: Path, code: int, fields: dict[str, FieldValue], remark: str) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        async with consumer(served):
            answer = await admin.call(code, fields)
            assert answer.code == 1
            assert re.search(remark, answer.remark or "")

    calling(tmp_path, main)


def test_a_consumer_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS_MAX", 0.01)

    async def main(served: Serving, admin: Caller) -> None:
        async with consumer(served) as member:
            answer = await admin.call(307, OF_C1)
            late = r"^consumer <HG> <c1> Timeout: 127\.0\.0\.1:\d+ did not answer in 0\.01 s$"
            assert answer.code == 207
            assert re.search(late, answer.remark or "")
            member.answer(await member.asked(), Response())  # too late, to nobody
            assert (await admin.call(307, OF_C1 | {"clientId": "c9"})).code == 1

    calling(tmp_path, main)


def test_a_consumer_that_goes_away_meanwhile(tmp_path: Path) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        async with consumer(served) as member:
            admin.tell(307, OF_C1)
            await member.asked()
            member.close()
            answer = await admin.talker.answer()
            assert answer.code == 1
            lost = "^invoke consumer <HG> <c1> Exception: the connection to .* is lost: "
            assert re.search(lost, answer.remark or "")

    calling(tmp_path, main)


def test_an_administrator_that_says_no_more_gets_its_answer(tmp_path: Path) -> None:
    async def main(served: Serving, admin: Caller) -> None:
        async with consumer(served) as member:
            admin.tell(307, OF_C1)
            admin.talker.write_end()
            member.answer(await member.asked(), Response(body=b"info"))
            assert (await admin.talker.answer()).body == b"info"
            assert await admin.talker.end() == b""

    calling(tmp_path, main)


def test_an_answer_that_looks_like_a_hot_request_is_passed_on(tmp_path: Path) -> None:
    """Its header is read as a pull's, and has no plain fields."""

    async def main(served: Serving, admin: Caller) -> None:
        async with consumer(served) as member:
            admin.tell(307, OF_C1)
            fields = {
                "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0",
                "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0",
            }  # fmt: skip
            member.answer(await member.asked(), Response(11, "odd", fields))
            answer = await admin.talker.answer()
            assert (answer.code, answer.remark) == (11, "odd")

    calling(tmp_path, main)


def test_statuses_of_all_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asking, "STATUS_BYTES_MAX", 1000)

    async def told_of(admin: Caller) -> dict[str, list[int]]:
        table = fastjson.decode((await admin.talker.answer()).body, ConsumerStatus).consumer_table
        assert all(set(offsets.values()) == {7} for offsets in table.values())
        return {client: [queue.queue_id for queue in offsets] for client, offsets in table.items()}

    async def main(served: Serving, admin: Caller) -> None:
        async with (
            consumer(served, "c1") as one,
            consumer(served, "c2") as two,
            consumer(served, "c3") as broken,
            consumer(served, "c4") as talkative,
            consumer(served, "c5") as unable,
        ):
            admin.tell(223, {"topic": "T", "group": "HG", "clientAddr": ""})
            status = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":%d,"topic":"T"}:7}}'
            for number, member in enumerate((one, two, broken, talkative, unable)):
                asked = await member.asked()
                assert (asked.code, asked.ext) == (221, {"topic": "T", "group": "HG"})
                body = [status % number, status % number, b"{", status + bytes(1000), b""][number]
                member.answer(asked, Response(number == 4, body=body))
            assert await told_of(admin) == {"c1": [0], "c2": [1]}

            admin.tell(223, {"topic": "T", "group": "HG", "clientAddr": "c2"})
            two.answer(await two.asked(), Response(body=status % 5))
            assert await told_of(admin) == {"c2": [5]}
            admin.tell(223, {"topic": "T", "group": "HG", "clientAddr": "c9"})
            assert await told_of(admin) == {}

    calling(tmp_path, main)
    silent = "consumer does not return its offsets"
    assert [line["client_id"] for line in told(caplog) if line["event"] == silent] == ["c3", "c4"]
