"""Alerts of a cluster: limits that a reader of the page may change, silences, and announcements of findings.

A finding is known by its rule and subject; of several with the same, the gravest counts. It is announced when it
begins, when its level changes, and when it ends; its figures may change without a word. A silenced finding is announced
when the silence ends, if it is still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from firearrow.client.diagnosis.checks import Thresholds
from firearrow.client.diagnosis.findings import Finding, Level, Threshold
from firearrow.errors import ConfigError
from firearrow.files import replace_atomically

SILENCES_MAX: Final = 1000
REASON_CHARACTERS_MAX: Final = 500
INCOMPLETE: Final = frozenset({"asked", "brokers", "name-servers"})
"""Rules whose findings mean that others may be unknown, so that a missing finding is not over."""


class FindingKey(NamedTuple):
    """Identity of a finding."""

    rule: str
    subject: str

    @staticmethod
    def of(finding: Finding) -> FindingKey:
        """Give the identity of a finding."""
        return FindingKey(finding.rule, finding.subject)


class Silence(msgspec.Struct, frozen=True, rename="camel"):
    """A finding that is not announced until a time in ms, with the reason that somebody gave."""

    rule: str
    subject: str
    until_ms: int
    reason: str

    @property
    def key(self) -> FindingKey:
        """Finding that is silenced."""
        return FindingKey(self.rule, self.subject)


class Announcement(NamedTuple):
    """News of a finding: it ``began``, ``changed`` its level, or ``ended``. ``before`` is the former level."""

    change: str
    finding: Finding
    before: Level | None


class _Announced(msgspec.Struct, frozen=True):
    """A finding that was announced last at a level, by name."""

    rule: str
    subject: str
    level: str


class AlertsFile(msgspec.Struct, frozen=True):
    """Content of the file: limits as texts by name, silences, and announced findings."""

    limits: dict[str, str] = {}
    silences: list[Silence] = []
    announced: list[_Announced] = []


class Alerts:
    """Limits, silences and announcements of a cluster, kept in a file if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self._path: Final = path
        found = _read(path)
        self.limits: Thresholds = Thresholds()
        for name, text in found.limits.items():
            self.limits = _with(self.limits, name, text)
        self.silences: Mapping[FindingKey, Silence] = {it.key: it for it in found.silences}
        self._announced: dict[FindingKey, Level] = {
            FindingKey(it.rule, it.subject): Level[it.level] for it in found.announced
        }
        self._since: dict[FindingKey, int] = {}

    @property
    def is_kept(self) -> bool:
        """True if limits and silences outlive the console."""
        return self._path is not None

    def set_limit(self, name: str, text: str) -> None:
        """Change a limit: ``WARNING:CRITICAL``, or a number for ``brokers``. ConfigError for a wrong one."""
        self.limits = _with(self.limits, name, text)
        self._write()

    def silence(self, silence: Silence) -> None:
        """Announce a finding no longer until a time."""
        if not silence.reason.strip():
            raise ConfigError("a silence needs a reason, for those who wonder later")
        if len(silence.reason) > REASON_CHARACTERS_MAX:
            raise ConfigError(f"the reason has {len(silence.reason)} characters, allowed are {REASON_CHARACTERS_MAX}")
        if len(self.silences) >= SILENCES_MAX and silence.key not in self.silences:
            raise ConfigError(f"there are {SILENCES_MAX} silences already: end some")
        self.silences = {**self.silences, silence.key: silence}
        self._write()

    def end_silence(self, key: FindingKey) -> None:
        """Announce a finding again."""
        self.silences = {other: it for other, it in self.silences.items() if other != key}
        self._write()

    def since_ms(self, finding: Finding) -> int | None:
        """Give the time when this console first saw a finding."""
        return self._since.get(FindingKey.of(finding))

    def is_silent(self, key: FindingKey) -> bool:
        """Tell whether a finding is silenced; silences that are over are forgotten at each look."""
        return key in self.silences

    def look(self, findings: Sequence[Finding], now_ms: int) -> list[Announcement]:
        """Compare the present findings with those that were announced, and give the news."""
        before = self.silences, dict(self._announced)
        self.silences = {key: it for key, it in self.silences.items() if it.until_ms > now_ms}
        present = {FindingKey.of(it): it for it in reversed(findings) if it.level is not Level.OK}
        self._since = {key: self._since.get(key, now_ms) for key in present}
        news = [*self._begun(present), *self._ended(present)]
        if before != (self.silences, self._announced):
            self._write()
        return news

    def _begun(self, present: Mapping[FindingKey, Finding]) -> Iterator[Announcement]:
        for key, finding in present.items():
            known = self._announced.get(key)
            if known is not finding.level and not self.is_silent(key):
                self._announced[key] = finding.level
                yield Announcement("began" if known is None else "changed", finding, known)

    def _ended(self, present: Mapping[FindingKey, Finding]) -> Iterator[Announcement]:
        is_complete = not any(key.rule in INCOMPLETE for key in present)
        for key, level in list(self._announced.items()):
            if key not in present and (is_complete or key.rule in INCOMPLETE):
                del self._announced[key]
                if not self.is_silent(key):
                    yield Announcement("ended", Finding(key.rule, Level.OK, key.subject, "is over"), level)

    def _write(self) -> None:
        if self._path is None:
            return
        usual = Thresholds()._asdict()
        limits = {name: str(limit) for name, limit in self.limits._asdict().items() if limit != usual[name]}
        announced = [_Announced(*key, level.name) for key, level in self._announced.items()]
        content = AlertsFile(limits, list(self.silences.values()), announced)
        replace_atomically(self._path, msgspec.json.format(msgspec.json.encode(content), indent=1))


def _read(path: Path | None) -> AlertsFile:
    if path is None or not path.exists():
        return AlertsFile()
    try:
        return msgspec.json.decode(path.read_bytes(), type=AlertsFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} has no alerts of a console: {error}") from None


def _with(limits: Thresholds, name: str, text: str) -> Thresholds:
    if name not in Thresholds._fields:
        raise ConfigError(f"there is no limit {name!r}")
    if name == "brokers":
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise ConfigError(f"{text!r} is not a number of brokers")
        return limits._replace(brokers=int(text))
    return Thresholds(**limits._asdict() | {name: Threshold.parse(text)})
