"""JSON as RocketMQ writes and reads it.

fastjson2 writes RocketMQ's bodies and config files. Its output is not always JSON: integer keys are bare and a key may
be an object::

    {"offsetTable":{0:25,1:7}}                              written for a map of Integer
    {"mqTable":{{"brokerName":"b","queueId":3}:{...}}}      written for a map of MessageQueue

Reading: msgspec reads sound JSON, which is nearly all text. `wire.jsondialect` reads the rest and accepts what
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
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec

from firearrow.errors import MessageError

T = TypeVar("T")


class TextLimits(msgspec.Struct, frozen=True):
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

_TO_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
# Parts of msgspec's errors. Without nulls, a text can only be read if a null was its first fault.
_TOO_LONG: Final = "of length <="
_GOT_NULL: Final = "got `null`"
_PARTED: Final = (dict, list)

_encode = msgspec.json.Encoder().encode
_decode_plain = msgspec.json.Decoder(float_hook=float).decode  # msgspec's own way takes 13 µs for `1e308`


def loads(data: bytes | str) -> Any:
    """Read one value.

    Raises MessageError that names the fault and its character.
    """
    try:
        return _decode_plain(data)
    except (ValueError, RecursionError):
        pass
    from firearrow.wire import jsondialect  # its patterns take 2 ms, and most programs never need them

    return jsondialect.read(data)


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
            from firearrow.wire.jsondialect import with_quoted_keys

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
