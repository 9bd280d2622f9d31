"""Log lines that machines can read: key=value for terminals, JSON for collectors; and a sentence for anybody else.

    log = Log(__name__)
    log.info("topic created", extra={"topic": "orders", "queues": 8})

    2026-11-20T09:30:00.123Z level=info logger=firearrow.broker event="topic created" queues=8 ...
    {"time": "2026-11-20T09:30:00.123Z", "level": "info", ..., "topic": "orders", "queues": 8}
    topic created (topic orders, queues 8)

The message names the event, always in the same words; `extra` has the variable values. The formatters of this module
show both. Any other formatter, such as that of ``logging.basicConfig``, shows the sentence. Libraries only get loggers;
`configure` is for the program that owns the process.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import IO, Any, Literal, Self

LogFormat = Literal["text", "json"]

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NEEDS_QUOTES = re.compile(r'[\s"=\\\x00-\x1f\x7f-\x9f]|^$')
_LEFT_BY_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}  # controls, ends of lines
_UNPRINTABLE = {code: f"\\u{code:04x}" for code in range(0x20)} | _LEFT_BY_JSON
_AT_THE_END = ("reason", "error")


class Log(logging.LoggerAdapter[logging.Logger]):
    """Logger of a module, whose records carry their values in `extra` and in a sentence.

    The argument ``sentence`` replaces the usual one, which is the event with all values.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the sentence to a record, which is known to be emitted."""
        sentence = kwargs.pop("sentence", None) or _sentence(msg, kwargs.get("extra") or {})
        return EventMessage(msg, sentence.translate(_UNPRINTABLE)), kwargs


class EventMessage(str):
    """Name of an event, whose text is a sentence with the event's values."""

    __slots__ = ("_sentence",)
    _sentence: str

    def __new__(cls, event: str, sentence: str = "") -> Self:
        message = super().__new__(cls, event)
        message._sentence = sentence
        return message

    def __str__(self) -> str:
        return self._sentence


def event_of(record: logging.LogRecord) -> str:
    """Return the event of a record; of a record by another library, the text."""
    return str.__str__(record.msg) if isinstance(record.msg, EventMessage) else record.getMessage()


def _sentence(event: str, extra: Mapping[str, object]) -> str:
    values = {name: _text(value) or "''" for name, value in extra.items()}
    last = [values.pop(name) for name in _AT_THE_END if name in values]
    words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
    return ": ".join([f"{event} ({words})" if words else event, *last])


class KeyValueFormatter(logging.Formatter):
    """One line per record: the time, then key=value pairs, quoted where they must be."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; a line break inside a value is escaped, so a record is a line."""
        pairs = _pairs(record)
        time = pairs.pop("time")
        return " ".join([str(time), *(f"{key}={_quoted(pairs[key])}" for key in pairs)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; a value that JSON lacks becomes its text."""
        return _json(_pairs(record))


def configure(level: str, form: LogFormat, stream: IO[str] | None = None, *, server: str = "") -> None:
    """Send every record of at least this level (`debug` to `error`) to standard error.

    Where several processes write to the same place, each record names its ``server``. Replaces the earlier
    configuration.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    if server:

        def named(record: logging.LogRecord) -> bool:
            record.server = server
            return True

        handler.addFilter(named)
    handler.setFormatter(JsonFormatter() if form == "json" else KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def set_level(level: str) -> None:
    """Set the lowest level of Firearrow's own records, whatever `configure` has set for all."""
    logging.getLogger(__package__).setLevel(level)


def configure_if_nobody_does() -> None:
    """Send warnings to standard error, with time and fields, as long as logging is not configured.

    Python's own last resort shows no time. Spark's workers are processes without a configuration of logging.
    """
    ours = logging.getLogger(__package__)
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(KeyValueFormatter())
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        ours.addHandler(handler)


def fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record in ``extra``, in that order, with an exception as its text."""
    extra = {key: value for key, value in vars(record).items() if key not in _OWN_FIELDS}
    return {key: _text_of_error(value) if isinstance(value, BaseException) else value for key, value in extra.items()}


def _text_of_error(error: BaseException) -> str:
    return str(error) or repr(error)


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    pairs: dict[str, object] = {
        "time": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event_of(record),
    }
    pairs |= fields(record)
    if record.exc_info:
        pairs["traceback"] = logging.Formatter().formatException(record.exc_info)
    return pairs


def _quoted(value: object) -> str:
    text = _text(value)
    return _json(text) if _NEEDS_QUOTES.search(text) else text


def _text(value: object) -> str:
    if isinstance(value, BaseException):
        return _text_of_error(value)
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{it}" for key, it in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _json(value: object) -> str:
    import json  # a program that logs nothing, as most commands, does not need it

    text = json.dumps(value, ensure_ascii=False, default=str)
    return text.translate(_LEFT_BY_JSON)
