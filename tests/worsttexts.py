"""The texts that cost most to read, of any length, and the cost of reading them.

A limit in milliseconds would suit one machine. So the tests compare the cost of a step with the cost of reading
a plain text at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final, get_args, get_origin

import msgspec

from firearrow.net.server import Handler
from firearrow.wire.command import FieldValue
from firearrow.wire.requests import REQUESTS
from tests.cputime import TRIES, cpu_seconds
from tests.stepping import Stepping

SIZES: Final = (15_000, 110_000, 900_000, 4_000_000, 15_000_000)
"""Bytes: below and above the limits for reading in Python, for conversion, and for reading at all.

A frame has 16 MiB at most.
"""
FIELD_BYTES: Final = 900_000
UNITS_MAX: Final = 10
"""Limit of a step in multiples of `_unit_seconds`: on a machine where that takes 5 ms, a step may take 50."""

_PIECES: Final = {
    "numbers": ("[1", ",1", "]"),
    "objects": ('{"x":[0', ",{}", "]}"),
    "lists in lists": ('{"x":[0', ",[[[[[]]]]]", "]}"),
    "integer keys": ("{0:0", ",1:1", "}"),
    "integer keys of objects": ("{0:0", ",1:{}", "}"),
    "integer keys, then objects": ('{0:0,"x":[0', ",{}", "]}"),
    "nested objects": ("", '{"a":', ""),
    "nested integer keys": ("", "{1:", ""),
    "nested lists": ("", "[", ""),
    "escapes": ('{"x":"', r"\u0041", '"}'),
    "short escapes": ('{"x":"', r"\n", '"}'),
    "wrong escapes": ('{"x":"', r"\q", '"}'),
    "digits": ('{"x":', "9", "}"),
    "long numbers": ('{"x":[0', "," + "9" * 4000, "]}"),
    "long fractions": ('{"x":[0', ",1." + "9" * 900, "]}"),
    "large floats": ('{"x":[0', ",1e308", "]}"),
    "small floats": ('{0:0,"x":[0', ",1.7976931348623157e-308", "]}"),
    "single quotes": ("{'a':1", ",'':1", "}"),
    "nulls": ('{"x":1', ',"":null', "}"),
    "blanks": ("", " ", "{}"),
    "comments": ("", "/**/", "{}"),
    "dashes": ('{1:1,"x":"', "-", '"'),
    "no end of a text": ('{1:1,"', "a", ""),
    "quotes": ('{1:1,"x":[', '""', "]}"),
    "commas": ("{1:1", ",", "}"),
    "zeros": ("", "\0", ""),
    "properties": ("", "a=b\n", ""),
    "many keys": ("{", '"%x":1,', '"":1}'),
    "many integer keys": ("{", "%d:1,", "1:1}"),
}
_IN_FIELDS: Final = {  # where "$" is the field's name: a null is a reason to read the text once more
    "text": ('"', "a", '"'),
    "texts": ('[""', ',""', "]"),
    "objects": ("[{}", ",{}", "]"),
    "names": ('{"":""', ',"%x":""', "}"),
    "a null, then names": ('null,$:{"":""', ',"%x":""', "}"),
    "a null, then nulls": ('null,$:{"":null', ',"%x":null', "}"),
    "a null, then floats": ('null,$:{"":0', ',"":1.7976931348623157e-308', "}"),
}


def worst_texts(size: int) -> Iterator[tuple[str, bytes]]:
    """Yield texts of about ``size`` bytes, with their names."""
    for name, (start, piece, end) in _PIECES.items():
        yield name, _filled(start, piece, end, size)


def worst_fields(type_: Any, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield bodies of a type in which one field is all of the text."""
    for field in msgspec.structs.fields(type_):
        name = json.dumps(field.encode_name)
        for what, (start, piece, end) in _IN_FIELDS.items():
            yield f"{field.name} of {what}", _filled(f"{{{name}:{start.replace('$', name)}", piece, end + "}", size)
        for part in _structs_in(field.type):
            start, end = ("[", "]") if get_origin(field.type) is list else ('{"k":', "}")
            for path, body in worst_fields(part, size):
                text = f"{{{name}:{start}".encode() + body + f"{end}}}".encode()
                yield f"{field.name}.{path}", text


def _filled(start: str, piece: str, end: str, size: int) -> bytes:
    return (start + _repeated(piece, size) + end).encode()


@lru_cache(len(_IN_FIELDS))
def _repeated(piece: str, size: int) -> str:
    if "%" not in piece:
        return piece * (size // len(piece))
    count = size // len(piece % (size // len(piece)))
    return "".join([piece % n for n in range(count)])


def _structs_in(type_: Any) -> list[Any]:
    """Return the structs in a type, such as that of a list's items."""
    if get_origin(type_) is None:
        is_struct = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
        return [type_] if is_struct else []
    return [part for inner in get_args(type_) for part in _structs_in(inner)]


@cache
def _unit_seconds() -> float:
    return cpu_seconds(lambda: msgspec.json.decode(_UNIT), 0)


_UNIT: Final = _filled(*_PIECES["many keys"], FIELD_BYTES // 2)  # it takes memory, as the worst texts do


def feed(stepping: Stepping, handlers: Mapping[int, Handler], fields: Mapping[str, FieldValue]) -> None:
    """Send each code the worst texts of each size, and assert that no step takes long."""
    bodies = {size: list(worst_texts(size)) for size in SIZES}
    for code in handlers:
        row = REQUESTS.get(code)  # type: ignore[call-overload]
        type_ = None if row is None else row.body
        has_fields = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
        of_fields = worst_fields(type_, FIELD_BYTES) if has_fields else ()
        some = [bodies[FIELD_BYTES]] if type_ is None else bodies.values()
        for what, body in chain(*some, of_fields):
            watch(stepping, code, fields, body, what)


def watch(stepping: Stepping, code: int, fields: Mapping[str, FieldValue], body: bytes, what: str) -> None:
    """Send one body to a code, and assert that no step takes long; retry on a busy machine."""
    for _ in range(TRIES):
        if stepping.longest_of(code, fields, body) <= UNITS_MAX * _unit_seconds():
            return
        _unit_seconds.cache_clear()
    raise AssertionError(f"{code} takes long for {what} of {len(body)} bytes")
