"""What a test finds in the log: each event with its fields."""

import pytest

from firearrow.logs import fields


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Give what was logged, a line each; values that are not plain are as their text."""
    return [
        {"event": record.getMessage()}
        | {key: value if isinstance(value, int | list | dict) else str(value) for key, value in fields(record).items()}
        for record in caplog.records
    ]
