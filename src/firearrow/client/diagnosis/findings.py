"""Findings of rules: severity, subject, evidence and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from firearrow.errors import ConfigError


class Level(IntEnum):
    """Severity; the numbers are the exit codes of Nagios' plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_GRAVITY: Final = (Level.OK, Level.UNKNOWN, Level.WARNING, Level.CRITICAL)


class Finding(NamedTuple):
    """Result of a rule."""

    rule: str
    level: Level
    subject: str
    evidence: str
    cure: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """Gravest level: a known fault outweighs an unknown state."""
    return max((one.level for one in findings), key=_GRAVITY.index, default=Level.OK)


def by_gravity(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by severity, the gravest first, otherwise in their order."""
    return sorted(findings, key=lambda one: -_GRAVITY.index(one.level))


def counted(count: int, one: str, several: str = "") -> str:
    """Give a number with its noun: ``1 client``, ``2 clients``; with ``several`` where more than an ``s`` differs."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


class Threshold(NamedTuple):
    """Lowest values that make a finding a warning, or critical; None: never."""

    warning: float | None
    critical: float | None

    def level(self, value: float) -> Level:
        """Severity of a value."""
        if self.critical is not None and value >= self.critical:
            return Level.CRITICAL
        if self.warning is not None and value >= self.warning:
            return Level.WARNING
        return Level.OK

    def words(self, unit: str = "") -> str:
        """Both values in words; nothing if neither is set."""
        given = (("warning", self.warning), ("critical", self.critical))
        said = [f"{name} from {value:,.15g}{unit}" for name, value in given if value is not None]
        return f" ({', '.join(said)})" if said else ""

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read ``WARNING:CRITICAL``; either may be empty. Raises ConfigError with the fault."""
        warning, colon, critical = text.partition(":")
        try:
            limit = cls(_number(warning), _number(critical))
        except ValueError:
            colon = ""
        if not colon:
            raise ConfigError(f"{text!r} is not a limit: write WARNING:CRITICAL, as in 10:20 or :20")
        if None not in limit and limit[0] > limit[1]:  # type: ignore[operator]
            raise ConfigError(f"the limit {text!r} has the critical value before the warning")
        return limit

    def __str__(self) -> str:
        return ":".join("" if value is None else f"{value:.15g}" for value in self)


def _number(text: str) -> float | None:
    if not text.strip():
        return None
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value
