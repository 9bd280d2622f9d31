"""Read the log of a test: each event with its fields."""

import pytest

from firearrow.logs import fields


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the log records in order, as dictionaries; complex values are text."""
    return [
        {"event": record.getMessage()}
        | {key: value if isinstance(value, int | list | dict) else str(value) for key, value in fields(record).items()}
        for record in caplog.records
    ]
