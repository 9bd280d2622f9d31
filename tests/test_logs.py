"""Log lines: one record is one line, whatever its content."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from firearrow.logs import LogFormat, configure, configure_if_nobody_does

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
        'level=info logger=firearrow.test event="topic created" topic=orders queues=8 note="a \\"b\\"\\nc"\n'
    )


def test_json_is_one_object_a_line() -> None:
    stream = lines("json")
    log.warning("disk is full", extra={"store": "存", "topics": ["a", "b"], "error": OSError(5)})
    record = json.loads(stream.getvalue())
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "warning",
        "logger": "firearrow.test",
        "event": "disk is full",
        "store": "存",
        "topics": ["a", "b"],
        "error": "5",
    }


def test_text_shows_what_a_value_means() -> None:
    """Lists have no brackets; an exception without a message shows its name."""
    stream = lines("text")
    extra = {"topics": ["a", "b"], "queue_offsets": {0: 5, 1: 7}, "error": TimeoutError()}
    log.info("shown", extra=extra)
    assert stream.getvalue().split("event=shown ")[1] == ("topics=a,b queue_offsets=0:5,1:7 error=TimeoutError()\n")


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_in_a_value_ends_the_line_or_moves_the_cursor(form: LogFormat) -> None:
    stream = lines(form)
    odd = "\n\r\x0b\x1b\x7f\x85\x9b\u2028\u2029"
    log.info("odd", extra={"group": f"g{odd}"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert not set(odd) & set(text[:-1])


def test_warnings_show_their_fields_where_nobody_configures_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's last resort, which Spark's workers use, shows only the event."""
    for name in ("", "firearrow"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    configure_if_nobody_does()
    configure_if_nobody_does()
    log.info("too little")
    log.warning("messages are skipped", extra={"topic": "orders"})
    root = lines("text")
    log.warning("configured")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(' event="messages are skipped" topic=orders')
    assert root.getvalue().endswith(" event=configured\n")


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
