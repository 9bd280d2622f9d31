"""Log lines: one record is one line, whatever its content."""

import io
import json
import logging
import logging.handlers
import pickle
from collections.abc import Iterator
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

import pytest

from firearrow.logs import Log, LogFormat, configure, configure_if_nobody_does, event_of

log = Log("firearrow.test")


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


def plain(event: str, **options: Any) -> str:
    """The line of a record in a program that configures logging in the usual way."""
    stream = io.StringIO()
    logging.basicConfig(stream=stream, format="%(levelname)s %(message)s", force=True)
    log.warning(event, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "disk is full"),
        ({"store_path": "/s", "topics": ["a", "b"]}, "disk is full (store path /s, topics a,b)"),
        ({"error": TimeoutError(), "note": ""}, "disk is full (note ''): TimeoutError()"),
        ({"error": "no room", "reason": "50%"}, "disk is full: 50%: no room"),
        ({"group": "a\nWARNING b\x1b"}, "disk is full (group a\\u000aWARNING b\\u001b)"),
    ],
)
def test_any_other_formatter_shows_the_values_in_a_sentence(extra: dict[str, object], text: str) -> None:
    assert plain("disk is full", extra=extra) == f"WARNING {text}\n"


def test_a_record_may_have_a_sentence_of_its_own_and_a_traceback() -> None:
    try:
        raise ValueError("no luck")
    except ValueError as error:
        text = plain("handler failed", sentence="handler of 'T'\nfailed", extra={"topic": "T"}, exc_info=error)
    first, second, *_ = text.splitlines()
    assert (first, second) == ("WARNING handler of 'T'\\u000afailed", "Traceback (most recent call last):")


def test_a_queue_and_a_pickle_keep_event_and_sentence() -> None:
    """A handler of the standard library puts the sentence in place of the event, so it must not come twice."""
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logging.getLogger().handlers[:] = [QueueHandler(records)]
    log.warning("disk is full", extra={"store": "s"})
    assert logging.Formatter().format(records.get()) == "disk is full (store s)"
    keep = logging.getLogger().handlers[0] = logging.handlers.MemoryHandler(9)
    log.warning("disk is full", extra={"store": "s"})
    [record] = pickle.loads(pickle.dumps(keep.buffer))
    assert (event_of(record), record.getMessage()) == ("disk is full", "disk is full (store s)")


def test_a_record_that_is_not_emitted_costs_no_sentence() -> None:
    class Untold:
        def __str__(self) -> str:
            raise AssertionError("nobody reads it")

    stream = lines("text", "warning")
    log.info("hidden", extra={"value": Untold()})
    assert stream.getvalue() == ""
