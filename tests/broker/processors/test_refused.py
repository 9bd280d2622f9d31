"""Refusals that clients keep to themselves are warned of, but not one by one."""

import json
import logging
from pathlib import Path

import pytest

from firearrow.broker.processors import refused
from firearrow.broker.processors.refused import LOST, RefusedProcessor
from firearrow.errors import BrokerError
from firearrow.wire.command import FieldValue, request
from tests.broker.fakes import FakeChannel, HandClock
from tests.broker.serving import Caller, Serving, calling


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def processor(clock: HandClock) -> RefusedProcessor:
    return RefusedProcessor(clock)


def ask(
    processor: RefusedProcessor, code: int, fields: dict[str, FieldValue], body: bytes = b""
) -> None:
    """Send a request, which must be refused."""
    with pytest.raises(BrokerError) as refusal:
        processor.handlers()[code](FakeChannel(), request(code, fields, body))  # type: ignore[arg-type]
    assert (refusal.value.code, refusal.value.remark) == (3, f" request type {code} not supported")


def heads(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of since the last time, without what it means."""
    lines = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    caplog.clear()
    return lines


def test_one_line_a_minute_says_how_many(
    processor: RefusedProcessor, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    start = "CONSUMER_SEND_MSG_BACK (request 36) of g is refused, "
    for _ in range(5):
        ask(processor, 36, {"group": "g", "offset": 7, "delayLevel": 0})
    assert heads(caplog) == [f"{start}1 times since the last line"]
    clock.seconds += 59
    ask(processor, 36, {"group": "g"})
    assert heads(caplog) == []
    clock.seconds += 1
    ask(processor, 36, {"group": "g"})
    assert heads(caplog) == [f"{start}6 times since the last line"]


def test_groups_and_kinds_are_told_apart(
    processor: RefusedProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    ask(processor, 36, {"group": "g"})
    ask(processor, 36, {"group": "other"})
    ask(processor, 37, {"producerGroup": "g"})
    ask(processor, 200050, {"consumerGroup": "g"})
    ask(processor, 400, {}, json.dumps({"consumerGroup": "g", "topic": "T"}).encode())
    assert [line.split(" is ")[0] for line in heads(caplog)] == [
        "CONSUMER_SEND_MSG_BACK (request 36) of g",
        "CONSUMER_SEND_MSG_BACK (request 36) of other",
        "END_TRANSACTION (request 37) of g",
        "POP_MESSAGE (request 200050) of g",
        "QUERY_ASSIGNMENT (request 400) of g",
    ]


@pytest.mark.parametrize("code", LOST)
@pytest.mark.parametrize("name", ["", "a\nb", "g" * 200, None])
def test_what_is_no_group_is_not_written(
    processor: RefusedProcessor, caplog: pytest.LogCaptureFixture, code: int, name: str | None
) -> None:
    fields: dict[str, FieldValue] = {} if name is None else {"group": name, "consumerGroup": name}
    ask(processor, code, fields, b"[no JSON")
    (line,) = heads(caplog)
    assert f"(request {code}) of 10.0.0.1 is refused" in line


def test_no_more_are_remembered_than_a_limit(
    processor: RefusedProcessor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "REMEMBERED_MAX", 3)
    for number in range(9):
        ask(processor, 36, {"group": f"g{number}"})
    assert [line.split(" ")[4] for line in heads(caplog)] == ["g0", "g1", "g2", "others"]


def test_a_broker_refuses_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:

    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(3):
            answer = await caller.call(36, {"group": "g", "offset": 7, "delayLevel": 0})
            assert (answer.code, answer.remark) == (3, " request type 36 not supported")
        caller.tell(37, {"producerGroup": "p"}, oneway=True)
        assert (await caller.call(370, {"producerGroup": "p", "topic": "T"})).code == 3

    calling(tmp_path, main)
    assert [line.split(" ")[0] for line in heads(caplog)] == [
        "CONSUMER_SEND_MSG_BACK",
        "END_TRANSACTION",
        "RECALL_MESSAGE",
    ]
