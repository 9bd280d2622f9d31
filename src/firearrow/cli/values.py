"""What the values of options may be: functions that read one."""

from __future__ import annotations

from argparse import ArgumentTypeError

from firearrow.clock import duration_ms, moment_ms


class WrongValue(ArgumentTypeError):
    """A value that an option can't have; argparse gives the sentence on."""


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


def seconds(text: str) -> float:
    """Read a number of seconds above 0, or a duration such as 15m."""
    return positive(in_seconds(text))


def whole_seconds(text: str) -> int:
    """Read a whole number of seconds, or a duration such as 15m."""
    return count(in_seconds(text))


def in_seconds(text: str) -> str:
    """Give a duration such as 15m as its number of seconds, and all else as it is."""
    try:
        whole, rest = divmod(duration_ms(text), 1000)
        return f"{whole}.{rest:03}" if rest else str(whole)
    except ValueError:
        return text


def moment(text: str) -> int:
    """Read a time, see `firearrow.clock.moment_ms`."""
    try:
        return moment_ms(text)
    except ValueError as error:
        raise WrongValue(str(error)) from None
