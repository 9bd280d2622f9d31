"""Log lines: one record is one line, whatever is in it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from firearrow.logs import LogFormat, configure

log = logging.getLogger("firearrow.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    # Kept aside: `configure` closes the handlers that it finds, and pytest still needs its own.
    root.handlers[:] = []
    yield
    root.handlers[:] = before
    root.setLevel(level)


def lines(form: LogFormat, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(level, form, stream)
    return stream


def test_text_is_key_value() -> None:
    stream = lines("text")
    log.info("topic created", extra={"topic": "orders", "queues": 8, "note": 'a "b"\nc'})
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == (
        'level=info logger=firearrow.test event="topic created" '
        'topic=orders queues=8 note="a \\"b\\"\\nc"\n'
    )


def test_json_is_one_object_a_line() -> None:
    stream = lines("json")
    log.warning("disk %d %% full", 91, extra={"store": "存"})
    record = json.loads(stream.getvalue())
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "warning",
        "logger": "firearrow.test",
        "event": "disk 91 % full",
        "store": "存",
    }


def test_lower_levels_are_left_out() -> None:
    stream = lines("text", "warning")
    log.info("hidden")
    log.error("shown")
    assert [line.split("event=")[1] for line in stream.getvalue().splitlines()] == ["shown"]


def test_a_traceback_stays_on_the_line() -> None:
    stream = lines("text")
    try:
        raise ValueError("no\nluck")
    except ValueError:
        log.exception("request failed")
    (line,) = stream.getvalue().splitlines()
    assert 'traceback="Traceback' in line
    assert "no\\nluck" in line
