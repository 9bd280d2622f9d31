"""Reader of what fastjson2 takes for JSON and msgspec does not: see ``wire.fastjson``, which calls it.

A tokenizer and a parser read any text of the dialect. They take some microseconds for a token. The two commonest forms,
integers and objects as keys, are put in quotes instead, so that msgspec can read the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import msgspec

from firearrow.errors import MessageError

# RocketMQ's deepest body has ten levels; each one costs two Python frames here.
DEPTH_MAX: Final = 64

# A possessive match (``++``, ``*+``) is not tried again in shorter pieces. The time for any stranger's text is
# therefore in proportion to its length. Python before 3.11.5 forgets where the last try of a possessive group began
# (python/cpython#106052): an alternative that never matches, ``(?!)``, makes it look there once more.
_TOKEN: Final = re.compile(
    r"""(?:[ \t\r\n\f\v]++|/\*.*?\*/|//[^\n]*+(?:\n|\Z)|(?!))*+"""
    r"""(?P<token>[{}\[\]:,]"""
    r"""|"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'"""
    r"""|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])|true\b|false\b|null\b|\Z)""",
    re.DOTALL,
)
# An integer before a colon, outside of texts, written backwards: so the search goes from colon to colon and not from
# digit to digit.
_YEK_ERAB: Final = re.compile(rb"(:\s*+)([0-9]++-?+)(?![\w.+-])")
# Stand-ins, while texts are found, for a quote, an escaped backslash and an escaped quote. JSON has no such bytes.
_QUOTE, _BACKSLASH, _QUOTED = b"\x00", b"\x01\x01", b"\x01\x02"
# An object without brackets in it, before a colon; and what begins it in quotes.
_KEYS: Final = re.compile(rb"\{[^{}\[\]]*+\}(?=\s*+:)")
_ANY_BRACKET: Final = re.compile(rb"[{}\[\]]")
_MARK: Final = rb"\u0000"
_STAND_INS: Final = re.compile(rb"[\x00-\x02]")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS: Final = {"true": True, "false": False, "null": None}
_CLOSING: Final = {"{": "}", "[": "]"}

# msgspec's own way takes 13 µs for `1e308`.
decode_plain: Final = msgspec.json.Decoder(float_hook=float).decode


class ObjectKey(dict[str, Any]):
    """An object that is the key of a map; hashable, and never changed."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def read(data: bytes | str) -> Any:
    """Read one value; raises MessageError that names the fault and its character."""
    try:
        if (sound := with_quoted_objects(data)) is not None:
            return _with_objects(decode_plain(sound))
    except (ValueError, RecursionError):
        pass
    return _JsonParser(_text_of(data)).document()


def with_quoted_keys(data: bytes) -> bytes:
    """Put bare integer keys in quotes, and leave all else unchanged, even if it is not JSON.

    The input is cut at its quotes, so that the content of a text stays apart.
    """
    if _STAND_INS.search(data):
        return data
    sound = data.replace(rb"\\", _BACKSLASH).replace(rb"\"", _QUOTED)
    pieces = sound.split(b'"')  # every other one is a text
    parts = _YEK_ERAB.split(b'"'.join(pieces[::2])[::-1])
    parts[2::3] = [_QUOTE + key + _QUOTE for key in parts[2::3]]
    others = b"".join(parts)[::-1].split(b'"')
    assert len(others) == len(pieces[::2]), "a key has no quote, and its new quotes are stand-ins"
    pieces[::2] = others
    sound = b'"'.join(pieces).replace(_QUOTE, b'"')
    return sound.replace(_BACKSLASH, rb"\\").replace(_QUOTED, rb"\"")


def with_quoted_objects(data: bytes | str) -> bytes | None:
    """Put the objects that are keys in quotes, marked; None for a text with brackets or escapes in its texts.

    An answer of a broker with thousands of queues has such a key for each. To read it token by token takes thirty
    times as long.
    """
    data = data.encode() if isinstance(data, str) else bytes(data)
    if b"\\" in data or not _KEYS.search(data):
        return None
    if _ANY_BRACKET.search(b"".join(data.split(b'"')[1::2])):
        return None
    return _KEYS.sub(lambda key: b'"%b%b"' % (_MARK, key[0].replace(b'"', rb"\"")), data)


def _with_objects(value: Any) -> Any:
    """Give a value with the keys that `with_quoted_objects` has marked as `ObjectKey`; ValueError for one with null."""
    if isinstance(value, list):
        return list(map(_with_objects, value))
    if not isinstance(value, dict):
        return value
    return {
        _object_key(key) if key.startswith("\0") else key: _with_objects(item)
        if isinstance(item, dict | list)
        else item
        for key, item in value.items()
    }


def _object_key(text: str) -> ObjectKey:
    found = ObjectKey(decode_plain(text[1:]))
    if None in found.values():
        raise ValueError(text)
    return found


def _text_of(data: bytes | str) -> str:
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"it is not UTF-8: {error.reason}", "JSON", error.start) from None
    return text.removeprefix("\ufeff")


class _JsonParser:
    """Recursive descent over the tokens, to a limited depth."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._end = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value(self._next())
        if self._next():
            self._fail("there is more after the end")
        assert not self._depth, "each bracket is closed"
        return value

    def _next(self) -> str:
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            self._at = self._end
            self._fail("no JSON token can be read")
        self._at, self._end = match.span("token")
        return match["token"]

    def _fail(self, why: str) -> NoReturn:
        raise MessageError(why, "JSON", self._at)  # the text there may be a secret

    def _value(self, token: str) -> Any:
        first = token[:1]
        if first in _CLOSING:
            return self._nested(first)
        if first in ("'", '"'):
            return self._string(token)
        if token in _WORDS:
            return _WORDS[token]
        if first == "-" or first.isdigit():
            return self._number(token)
        return self._fail("a value is missing")

    def _nested(self, opening: str) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX}")
        items = self._items(_CLOSING[opening])
        value = dict(map(self._entry, items)) if opening == "{" else list(map(self._value, items))
        self._depth -= 1
        return value

    def _items(self, closing: str) -> Iterator[str]:
        """Iterate over the first token of each item; the caller reads the rest of an item before the next."""
        token = self._next()
        while token != closing:
            yield token
            token = self._next()
            if token == ",":
                token = self._next()
            elif token != closing:
                self._fail(f"a comma or {closing} is missing")

    def _entry(self, token: str) -> tuple[Any, Any]:
        key = self._value(token)
        if isinstance(key, dict):
            key = ObjectKey(key)
            if not all(isinstance(value, str | int | float) for value in key.values()):
                self._fail("the object that is a key is not plain")
        elif not isinstance(key, str | int) or isinstance(key, bool):
            self._fail("a name can't be this")
        if self._next() != ":":
            self._fail("a colon is missing")
        return key, self._value(self._next())

    def _string(self, token: str) -> str:
        text = token[1:-1]
        if "\\" not in text:
            return text
        # Two \u escapes may be the halves of one character; a half alone is no character.
        units = _ESCAPE.sub(_escaped, text).encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", "replace")

    def _number(self, token: str) -> int | float:
        try:
            return int(token)
        except ValueError:
            pass
        value = float(token)
        if not math.isfinite(value):
            self._fail("the number is out of range")
        return value


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)
