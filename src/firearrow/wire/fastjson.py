"""JSON as RocketMQ writes and reads it.

fastjson2 writes RocketMQ's bodies and config files. Its output is not always JSON: integer keys are bare and a key may
be an object::

    {"offsetTable":{0:25,1:7}}                              written for a map of Integer
    {"mqTable":{{"brokerName":"b","queueId":3}:{...}}}      written for a map of MessageQueue

Reading: msgspec reads sound JSON, which is nearly all text. A tokenizer and a parser read the rest and accept what
fastjson2 accepts: such keys, single quotes, trailing commas, comments, a byte order mark, raw control characters. A
bare integer key becomes an ``int`` (a quoted one stays text), an object key becomes an `ObjectKey`. Nesting is limited,
so no input can exhaust the stack. The parser takes some microseconds for a token, msgspec a hundredth of that. Text
from a stranger is therefore read within `TextLimits`, which follow the cost of each way of reading. The worst text of
any size takes 20 ms, so nobody can hold up a server.

Writing: the fields of a struct by wire name in alphabetical order, without fields that are None. Maps keep their order;
integer keys and object keys are bare; there are no spaces. The pretty form, that of the config files, has one item a
line, indented by tabs, and no newline at the end.

Source of the dialect: fastjson2 2.0.59 as used by RocketMQ's ``RemotingSerializable``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from firearrow.errors import MessageError

T = TypeVar("T")

# RocketMQ's deepest body has ten levels; each one costs two Python frames here.
DEPTH_MAX: Final = 64


class TextLimits(NamedTuple):
    """Limits for reading a stranger's text.

    Values are counted by commas, colons and brackets at any place, and by every fourth digit. That takes a nanosecond a
    byte for any text.
    """

    parsed: int
    """Bytes of the dialect. Beyond it, only bare integer keys are read."""
    converted: int
    """Bytes of JSON with such keys, with a misplaced null or the like."""
    converted_values: int = 250_000
    """Values of such JSON, where a bracket counts as four; each takes 0.1 µs. With integer keys, half as many."""
    values: int = 400_000
    """Values of plain JSON of the expected type; each takes up to 50 ns."""


# No client's requests have more of the dialect than bare integer keys. A heartbeat with 10,000 subscriptions, each with
# nulls, has 220,000 values.
REQUEST_LIMITS: Final = TextLimits(16 * 1024, 2 * 1024 * 1024)
DIGITS_MAX: Final = 1000  # of a number in a long text: the time grows with their square
STEP_ENTRIES: Final = 100  # entries of a map or a list that are written in one step; a millisecond or two
# A piece of a pretty text has 1,000 entries that were formatted before, or 50 that were not.
PIECE_WORK: Final = 1000
FORMATTED_WORK: Final = 20

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
_TO_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
# Parts of an object that is cut into its entries: a name with the comma before it, the text up to the next bracket, and
# a value without brackets.
_A_TEXT: Final = rb'"(?:[^"\\]++|\\.|(?!))*+"'
_TO_NAME: Final = re.compile(rb"\s*+,?+\s*+(%b|-?+[0-9]++)\s*+:\s*+" % _A_TEXT, re.DOTALL)
_TO_BRACKET: Final = re.compile(rb"(?:[^\"{}\[\]]++|%b|(?!))*+" % _A_TEXT, re.DOTALL)
_LEAF: Final = re.compile(rb"(?:%b|[^\"{}\[\],]++|(?!))++" % _A_TEXT, re.DOTALL)
_OPENING: Final = re.compile(rb"\s*+\{\s*+")
_CLOSED: Final = re.compile(rb"\s*+\}\s*+")
# Size limit of one name or value that is cut out: it takes up to 12 ms. A static topic of 40,000 queues has less.
ENTRY_BYTES_MAX: Final = 512 * 1024
BRACKETS_MAX: Final = 10_000  # in one value that is cut out; 3 ms
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS: Final = {"true": True, "false": False, "null": None}
# Parts of msgspec's errors. Without nulls, a text can only be read if a null was its first fault.
_TOO_LONG: Final = "of length <="
_GOT_NULL: Final = "got `null`"
_CLOSING: Final = {"{": "}", "[": "]"}
_PARTED: Final = (dict, list)
_BRACKETS: Final = frozenset((b"{", b"[", b"}", b"]"))

_encode = msgspec.json.Encoder().encode
# msgspec's own way takes 13 µs for `1e308`.
_decode_plain = msgspec.json.Decoder(float_hook=float).decode


class ObjectKey(dict[str, Any]):
    """An object that is the key of a map; hashable, and never changed."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def loads(data: bytes | str) -> Any:
    """Read one value.

    Raises MessageError that names the fault and its character.
    """
    try:
        return _decode_plain(data)
    except (ValueError, RecursionError):
        pass
    try:
        if (sound := with_quoted_objects(data)) is not None:
            return _with_objects(_decode_plain(sound))
    except (ValueError, RecursionError):
        pass
    return _JsonParser(_text_of(data)).document()


def decode(data: bytes | str, type_: type[T], limits: TextLimits | None = None) -> T:
    """Read one value of a msgspec type, as lenient as fastjson2.

    Quoted numbers are numbers, unknown fields are ignored, a field that is null counts as absent. Raises MessageError
    that names the wrong value. ``limits`` is for text from a stranger.
    """
    values = 0
    if limits is not None and len(data) > limits.parsed:
        data = data if isinstance(data, bytes) else data.encode()
        values = _values_within(data, limits)
    try:
        return _decoder(type_)(data)
    except (ValueError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and _TOO_LONG in str(error):
            raise MessageError(str(error), "JSON") from None  # no other way of reading helps
        if limits is not None and isinstance(data, bytes) and len(data) > limits.parsed:
            return _decode_long(data, type_, limits, values, error)
    return _converted(loads(data), type_)


def _values_within(data: bytes, limits: TextLimits) -> int:
    """Return about the count of a text's values; raises MessageError for more than can be read in time."""
    others = data.translate(None, b",:[{")
    digits = len(others) - len(others.translate(None, b"0123456789"))
    values = len(data) - len(others) + digits // 4
    if values > limits.values:
        raise MessageError(f"it has {values} values, the limit is {limits.values}", "JSON")
    if b"0" * DIGITS_MAX in data.translate(_TO_ZEROS):
        raise MessageError(f"a number has {DIGITS_MAX} digits or more", "JSON")
    return values


def _decode_long(data: bytes, type_: type[T], limits: TextLimits, values: int, error: Exception) -> T:
    """Read text that is too long for the parser: with nulls, and bare integer keys."""
    sound = data
    try:
        values += 3 * (len(data) - len(data.translate(None, b"[{")))
        values = max(values, data.count(b'"') // 2)
        if len(data) > limits.converted or values > limits.converted_values:
            raise error
        if not isinstance(error, msgspec.ValidationError):
            if values > limits.converted_values // 2:
                raise error
            sound = with_quoted_keys(data)
            try:
                return _decoder(type_)(sound)
            except msgspec.ValidationError as wrong:
                error = wrong
        if _GOT_NULL not in str(error):
            raise error
        return _converted(_decode_plain(sound), type_)
    except (ValueError, RecursionError) as refused:
        raise MessageError(
            f"{refused}; of {len(data)} bytes with {values} values, only plain JSON of the right types is read", "JSON"
        ) from None


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
    found = ObjectKey(_decode_plain(text[1:]))
    if None in found.values():
        raise ValueError(text)
    return found


def _converted(value: Any, type_: type[T]) -> T:
    try:
        return msgspec.convert(_without_nulls(value), type_, strict=False)
    except (ValueError, RecursionError) as error:
        raise MessageError(str(error), "JSON") from None


def _decoder(type_: type[T]) -> Callable[[bytes | str], T]:
    return cast(Callable[[bytes | str], T], _any_decoder(cast(Hashable, type_)))


@cache
def _any_decoder(type_: Hashable) -> Callable[[bytes | str], Any]:
    return msgspec.json.Decoder(cast(Any, type_), strict=False, float_hook=float).decode


def _without_nulls(value: T) -> T:
    """Take the entries that are null out of all objects in a value, and return it."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None]:
            del value[key]
    if isinstance(value, _PARTED):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, _PARTED):
                _without_nulls(item)
    return value


def _text_of(data: bytes | str) -> str:
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"it is not UTF-8: {error.reason}", "JSON", error.start) from None
    return text.removeprefix("\ufeff")


class ObjectEntries:
    """Iterator that cuts a long text into entries of its objects, so that each entry can be read separately.

    A loop over ``names`` is within an object. For each name it takes the ``value``, or loops over the names of that
    value. Both raise MessageError for a text that can't be cut.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        """Tell whether nothing is left."""
        return self._at == len(self._data)

    def names(self) -> Iterator[str]:
        """Iterate over the names of the next object; a null has none."""
        if self._take(_OPENING, self._at + ENTRY_BYTES_MAX) is None:
            if self.value().strip() == b"null":
                return
            self._fail("an object is missing")
        while self._take(_CLOSED, self._at + ENTRY_BYTES_MAX) is None:
            name = self._take(_TO_NAME, self._at + ENTRY_BYTES_MAX)
            if name is None:
                self._fail("a name is missing")
            yield decode(name[1], str)

    def value(self) -> bytes:
        """Return the text of the next value."""
        start = self._at
        end = start + ENTRY_BYTES_MAX
        opened = brackets = 0
        while True:
            self._take(_TO_BRACKET if opened else _LEAF, end)
            bracket = self._data[self._at : self._at + 1]
            if opened or self._at == start:
                if bracket not in _BRACKETS:
                    self._fail(f"a bracket is missing, or a value has over {ENTRY_BYTES_MAX} bytes")
                self._at += 1
                opened += 1 if bracket in (b"{", b"[") else -1
                brackets += 1
            if not opened:
                assert self._at > start, "a value has a byte at least, so a loop over values ends"
                return self._data[start : self._at]
            if opened < 0 or brackets > BRACKETS_MAX:
                self._fail(f"a value has brackets that match nothing, or over {BRACKETS_MAX}")

    def _take(self, pattern: re.Pattern[bytes], end: int) -> re.Match[bytes] | None:
        found = pattern.match(self._data, self._at, end)
        if found is not None:
            self._at = found.end()
        return found

    def _fail(self, why: str) -> NoReturn:
        raise MessageError(why, "JSON", self._at)


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


def dumps(value: Any, pretty: bool = False) -> bytes:
    """Write a value: structs, maps, sequences, sets, text, numbers, booleans, None, and JSON that is already written
    (`msgspec.Raw`).

    A float is written as in Java. Entries of None are left out of maps and structs.
    """
    out: list[str] = []
    _write(value, out, "\n" if pretty else "")
    return "".join(out).encode()


def dumps_in_steps(value: msgspec.Struct) -> Generator[None, None, bytes]:
    """Write a struct as `dumps` does, in steps of some entries of its maps and lists."""
    out = ["{"]
    for at, (name, item) in enumerate(_items_of(value)):
        out.append(f'{"," if at else ""}"{name}":')
        if isinstance(item, Mapping):
            yield from _write_in_steps(_items_of(item), _write_object, out)
        elif isinstance(item, list):
            yield from _write_in_steps(item, _write_array, out)
        else:
            _write(item, out, "")
    out.append("}")
    yield
    return "".join(out).encode()


def _write_in_steps(
    items: list[Any], write: Callable[[list[Any], list[str], str], None], out: list[str]
) -> Iterator[None]:
    closing = "}" if write is _write_object else "]"
    for start in range(0, len(items) or 1, STEP_ENTRIES):
        part: list[str] = []
        write(items[start : start + STEP_ENTRIES], part, "")
        text = "".join(part)
        assert text.endswith(closing), "a part is a map or a list by itself"
        out.append(f",{text[1:-1]}" if start else text[:-1])
        yield
    out.append(closing)


class PrettyText:
    """Writer of one map that is written repeatedly, in the pretty form; it formats only changed entries.

    It compares the entries of the maps in the map with the entries of the last time. The entries themselves must
    therefore never change. It holds as much memory as the text of the map.
    """

    def __init__(self) -> None:
        self._known: dict[Any, dict[Any, tuple[Any, str]]] = {}

    def pieces(self, value: Mapping[Any, Any]) -> Iterator[bytes]:
        """Return the text of `dumps` in pieces that each take a millisecond or two.

        The text as a whole would keep other threads from the interpreter for a longer time.
        """
        out: list[str] = []
        separator = "{\n\t"
        known, self._known = self._known, {}
        for key, item in _items_of(value):
            out.append(f"{separator}{_key(key, _FIRST)}:")
            if isinstance(item, Mapping):
                self._known[key] = yield from _write_entries(item, known.get(key, {}), out)
            else:
                _write(item, out, _FIRST)
            separator = ",\n\t"
        out.append("\n}" if out or self._known else "{}")
        yield "".join(out).encode()


def _write_entries(
    table: Mapping[Any, Any], known: dict[Any, tuple[Any, str]], out: list[str]
) -> Generator[bytes, None, dict[Any, tuple[Any, str]]]:
    """Write a map of a map, in pieces; returns the text of each entry that has parts."""
    written: dict[Any, tuple[Any, str]] = {}
    separator = "{\n\t\t"
    items = _items_of(table)
    work = 0
    for key, item in items:
        entry = known.get(key)
        if entry is None or (entry[0] is not item and entry[0] != item):
            text: list[str] = []
            _write(item, text, _SECOND)
            entry = item, f"{_key(key, _SECOND)}:{''.join(text)}"
            work += FORMATTED_WORK
        if _leaf(item) is None:
            written[key] = entry
        out.append(separator + entry[1])
        separator = ",\n\t\t"
        work += 1
        if work >= PIECE_WORK:
            yield "".join(out).encode()
            out.clear()
            work = 0
    out.append("\n\t}" if items else "{}")
    return written


def dumps_standard(value: Any) -> bytes:
    """Write a value as JSON that any reader accepts: integer keys quoted, maps sorted.

    A name server answers in this form on request. Maps with object keys can't be written so.
    """
    return _encode(_sorted(value))


def _sorted(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _sorted(item) for name, item in _items_of(value)}
    if isinstance(value, Mapping):
        present = [(key, item) for key, item in value.items() if item is not None]
        return {key: _sorted(item) for key, item in sorted(present, key=lambda entry: entry[0])}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value


def _items_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a struct or a map that are written: those that are not None."""
    if isinstance(value, msgspec.Struct):
        return [
            (name, item)
            for name, attribute in _fields(cast(Hashable, type(value)))
            if (item := getattr(value, attribute)) is not None
        ]
    return [(key, item) for key, item in value.items() if item is not None]


@cache
def _fields(struct_type: Hashable) -> list[tuple[str, str]]:
    fields = msgspec.structs.fields(cast(Any, struct_type))
    return sorted((field.encode_name, field.name) for field in fields)


_FIRST, _SECOND = "\n\t", "\n\t\t"  # the begin of lines of the first and the second level

# In this order: the check for a `Mapping` takes as long as writing a field.
_OBJECTS: Final = (msgspec.Struct, dict, Mapping)


def _write(value: Any, out: list[str], newline: str) -> None:
    leaf = _leaf(value)
    if leaf is not None:
        out.append(leaf)
    elif isinstance(value, _OBJECTS):
        _write_object(_items_of(value), out, newline)
    elif isinstance(value, tuple):  # an array of Java, which is not broken into lines
        _write_array(value, out, "")
    elif newline and isinstance(value, AbstractSet) and not value:
        out.append(f"[{newline}\t{newline}]")  # so fastjson2 writes a set with nothing in it
    elif isinstance(value, list | AbstractSet):
        _write_array(value, out, newline)
    elif isinstance(value, msgspec.Raw):
        out.append(bytes(value).decode())
    else:
        raise TypeError(f"a {type(value).__name__} is not JSON")


def _leaf(value: Any) -> str | None:
    """Return the text of a value that is no object or array; None for one that is."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if isinstance(value, str):
        return _encode(value).decode()
    if isinstance(value, float):
        return java_double(value)
    if isinstance(value, int):
        return str(int(value))
    return "null" if value is None else None


def _key(key: Any, newline: str) -> str:
    """Return the text of a key, which may be an object."""
    leaf = _leaf(key)
    if leaf is not None:
        return leaf
    out: list[str] = []
    _write(key, out, newline)
    return "".join(out)


@lru_cache(maxsize=1024)
def _name(key: str) -> str:
    return _encode(key).decode()


def _write_object(items: list[tuple[Any, Any]], out: list[str], newline: str) -> None:
    inner = newline + "\t" if newline else ""
    separator = "{" + inner
    for key, item in items:
        name = _name(key) if type(key) is str else _key(key, inner)
        leaf = _leaf(item)
        if leaf is None:
            out.append(f"{separator}{name}:")
            _write(item, out, inner)
        else:
            out.append(f"{separator}{name}:{leaf}")
        separator = "," + inner
    out.append(newline + "}" if items else "{}")


def _write_array(items: Any, out: list[str], newline: str) -> None:
    inner = newline + "\t" if newline else ""
    separator = "["
    for item in items:
        out.append(separator + inner)
        _write(item, out, inner)
        separator = ","
    out.append(newline + "]" if items else "[]")


def java_double(value: float) -> str:
    """Return a number as ``Double.toString`` prints it: plain from 0.001 to 10 million, otherwise ``1.0E10``.

    NaN and infinity are null, as fastjson2 writes them.
    """
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits = Decimal(repr(value)).as_tuple().digits
    text = "".join(map(str, digits)).rstrip("0")
    power = Decimal(repr(value)).adjusted()
    assert not -3 <= power < 7, "such a number is written without an exponent"
    return f"{'-' if value < 0 else ''}{text[0]}.{text[1:] or '0'}E{power}"
