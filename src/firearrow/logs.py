"""Log lines that machines can read: key=value for terminals, JSON for collectors.

    log.info("topic created", extra={"topic": "orders", "queues": 8})

    2026-11-20T09:30:00.123Z level=info logger=firearrow.broker event="topic created" queues=8 ...
    {"time": "2026-11-20T09:30:00.123Z", "level": "info", ..., "topic": "orders", "queues": 8}

The message names the event, always in the same words; `extra` has the variable values. Libraries only get loggers;
`configure` is for the program that owns the process.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Literal

LogFormat = Literal["text", "json"]

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NEEDS_QUOTES = re.compile(r'[\s"=\\]|^$|[^\x20-\x7e\u00a0-\U0010ffff]')
_LEFT_BY_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029]")  # control characters, ends of lines


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
    """Send warnings to standard error, with their fields, as long as logging is not configured.

    Python's own last resort shows the message alone. Spark's workers are processes without a configuration of logging.
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
    return {
        key: str(value) or repr(value) if isinstance(value, BaseException) else value for key, value in extra.items()
    }


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    pairs: dict[str, object] = {
        "time": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    pairs |= fields(record)
    if record.exc_info:
        pairs["traceback"] = logging.Formatter().formatException(record.exc_info)
    return pairs


def _quoted(value: object) -> str:
    text = _text(value)
    return _json(text) if _NEEDS_QUOTES.search(text) else text


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{it}" for key, it in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _LEFT_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
