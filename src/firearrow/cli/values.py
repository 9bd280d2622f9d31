"""What the values of options may be: functions that read one."""

from __future__ import annotations

from datetime import UTC, datetime


class WrongValue(ValueError):
    """A value that an option can't have; cyclopts gives the sentence on."""


def pair(text: str) -> tuple[str, str]:
    """Read ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise WrongValue(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def count(text: str) -> int:
    """Read a whole number of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise WrongValue(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def port(text: str) -> int:
    """Read a port; 0 is a free one."""
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise WrongValue(f"{text!r} is not a port: allowed is 0 to 65535")
    return number


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise WrongValue(f"{text!r} is not a number above 0")
    return value


def moment(text: str) -> int:
    """Read a time in ISO 8601, without a zone in UTC, and give ms since 1970."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise WrongValue(f"{text!r} is not a time like 2026-11-21T06:30:00Z") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
