r"""Java's `.properties` text format, as `java.util.Properties` reads and writes it.

A *logical line* holds one pair. It is made of natural lines (ended by ``\n``, ``\r`` or ``\r\n``). A natural line that
ends in an odd number of backslashes continues in the next one, whose leading white space is dropped. Blank lines, and
lines whose first visible character is ``#`` or ``!``, are ignored, but neither is recognised in the continuation of a
line.

    key = value the key ends at the first bare ``=``, ``:`` or white space key : value white space around that separator
    belongs to neither side key value path=C\:\\store ``\t \n \r \f`` and ``\uXXXX`` mean the same as in Java,
                         any other escaped character means itself

White space is space, tab and form feed only. Of a repeated key, the last value counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_BLANK = " \t\f"
_NATURAL_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED_CONTROL = {ord(char): f"\\{letter}" for letter, char in _CONTROL.items()}
_ESCAPED_VALUE = _ESCAPED_CONTROL | {ord("\\"): "\\\\"}
_ESCAPED_KEY = _ESCAPED_VALUE | {ord(char): f"\\{char}" for char in " =:#!"}


def loads(text: str) -> dict[str, str]:
    """Read all pairs of a properties text, in the order of their first appearance.

    Raises `ConfigError` for a ``\\u`` that four hexadecimal digits do not follow.
    """
    return dict(map(_pair, _logical_lines(text)))


def load(path: Path) -> dict[str, str]:
    """Read a properties file: as UTF-8, or as Latin-1 (Java's choice) if it is no UTF-8.

    Raises `ConfigError` if the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return loads(data.decode())
    except UnicodeDecodeError:
        return loads(data.decode("latin-1"))


def dumps(pairs: Mapping[str, str]) -> str:
    """Write one ``key=value`` line per pair, escaped so that Java and `loads` read the same pair."""
    return "".join(f"{_escape_key(key)}={_escape_value(pairs[key])}\n" for key in pairs)


def _logical_lines(text: str) -> Iterator[str]:
    parts: list[str] = []
    for natural in _NATURAL_LINE.findall(text):
        line = natural.rstrip("\r\n").lstrip(_BLANK)
        if parts in ([], [""]) and (not line or line[0] in "#!"):
            parts = []
            continue
        if _goes_on(line):
            if line != "\\" or not parts:  # many empty lines must not cost anything
                parts.append(line[:-1])
        else:
            yield "".join([*parts, line])
            parts = []
    if parts:
        yield "".join(parts)


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _pair(line: str) -> tuple[str, str]:
    key = _KEY.match(line)
    assert key is not None, "the key pattern matches the empty string"
    separator = _SEPARATOR.match(line, key.end())
    assert separator is not None, "the separator pattern matches the empty string"
    return _unescape(key[0]), _unescape(line[separator.end() :])


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units = _ESCAPE.sub(_escaped_char, text)
    # Two \\u escapes may be the halves of one character.
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _escaped_char(match: re.Match[str]) -> str:
    code = match[1]
    if code == "u":
        # The text around it may be a secret.
        raise ConfigError(r"malformed \u escape: four hexadecimal digits must follow")
    if code[0] == "u":
        return chr(int(code[1:], 16))
    return _CONTROL.get(code, code)


def _escape_key(key: str) -> str:
    return _ascii(key.translate(_ESCAPED_KEY))


def _escape_value(value: str) -> str:
    body = value.lstrip(" ")
    return "\\ " * (len(value) - len(body)) + _ascii(body.translate(_ESCAPED_VALUE))


def _ascii(text: str) -> str:
    """Escape characters that Latin-1 readers would misread, as UTF-16 units, like Java."""
    if text.isascii() and text.isprintable():
        return text
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04X}" for code in codes)
