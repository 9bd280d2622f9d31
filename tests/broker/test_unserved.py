"""Refusals that clients keep to themselves are warned of, but not one by one."""

import logging
from pathlib import Path
from typing import cast

import pytest

from firearrow.broker import unserved
from firearrow.broker.unserved import LOST, Unserved
from firearrow.net.server import Peer, RequestUnserved
from firearrow.wire.command import FieldValue, request
from tests.broker.fakes import FakeChannel, HandClock
from tests.broker.serving import Caller, Serving, calling
from tests.loglines import told


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def warner(clock: HandClock) -> Unserved:
    return Unserved(clock)


def ask(warner: Unserved, code: int, fields: dict[str, FieldValue], body: bytes = b"") -> None:
    """Note a request that is refused."""
    warner.note(RequestUnserved(cast(Peer, FakeChannel()), request(code, fields, body)))


EVENT = "request is refused: this version does not serve it"


def refusals(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Request, code, group and count of what was warned of since the last time."""
    lines = told(caplog)
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    assert {line["event"] for line in lines} <= {EVENT}
    assert [line["effect"] for line in lines] == [LOST[line["code"]] for line in lines]  # type: ignore[index]
    caplog.clear()
    return [(line["request"], line["code"], line["group"], line["count"]) for line in lines]


def test_one_line_a_minute_says_how_many(
    warner: Unserved, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        ask(warner, 200070, {"consumerGroup": "g", "topic": "T"})
    assert refusals(caplog) == [("POP_LITE_MESSAGE", 200070, "g", 1)]
    clock.seconds += 59
    ask(warner, 200070, {"consumerGroup": "g"})
    assert refusals(caplog) == []
    clock.seconds += 1
    ask(warner, 200070, {"consumerGroup": "g"})
    assert refusals(caplog) == [("POP_LITE_MESSAGE", 200070, "g", 6)]


def test_groups_are_told_apart(warner: Unserved, caplog: pytest.LogCaptureFixture) -> None:
    ask(warner, 200070, {"consumerGroup": "g"})
    ask(warner, 200070, {"consumerGroup": "other"})
    assert [line[:3] for line in refusals(caplog)] == [
        ("POP_LITE_MESSAGE", 200070, "g"),
        ("POP_LITE_MESSAGE", 200070, "other"),
    ]


@pytest.mark.parametrize("code", LOST)
@pytest.mark.parametrize("name", ["", "a\nb", "g" * 200, None])
def test_what_is_no_group_is_not_written(
    warner: Unserved, caplog: pytest.LogCaptureFixture, code: int, name: str | None
) -> None:
    fields: dict[str, FieldValue] = {} if name is None else {"group": name, "consumerGroup": name}
    ask(warner, code, fields, b"[no JSON")
    (line,) = refusals(caplog)
    assert line[1:3] == (code, "10.0.0.1")


def test_no_more_are_remembered_than_a_limit(
    warner: Unserved, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unserved, "REMEMBERED_MAX", 3)
    for number in range(9):
        ask(warner, 200070, {"consumerGroup": f"g{number}"})
    assert [line[2] for line in refusals(caplog)] == ["g0", "g1", "g2", "others"]


def test_a_broker_refuses_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:

    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(3):
            answer = await caller.call(200070, {"consumerGroup": "g", "topic": "T"})
            assert (answer.code, answer.remark) == (3, " request type 200070 not supported")
        assert (await caller.call(200071, {"consumerGroup": "g"})).code == 3

    calling(tmp_path, main)
    assert [line[0] for line in refusals(caplog)] == ["POP_LITE_MESSAGE"]
