"""Read the log of a test: each event with its fields."""

import pytest

from firearrow.logs import event_of, fields


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the log records in order, as dictionaries; complex values are text."""
    return [
        {"event": event_of(record)}
        | {key: value if isinstance(value, int | list | dict) else str(value) for key, value in fields(record).items()}
        for record in caplog.records
    ]


def events(caplog: pytest.LogCaptureFixture, level: int = 0) -> list[str]:
    """Return the events of the log in order, from a level on, without their values."""
    return [event_of(record) for record in caplog.records if record.levelno >= level]
