"""Columns from a text: ``order string, cents long, lines array<struct<sku: string, count: int>>``.

The names of types are Spark SQL's, and the types are Arrow's. Spark's own parser of such texts is in its JVM.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from firearrow.errors import ConfigError

TIMESTAMP: Final = pa.timestamp("us", "UTC")
PLAIN: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "binary": pa.binary(),
}
_WORD: Final = re.compile(r"\s*(?:`([^`]+)`|([\w.$-]+)|([<>(),:]))")
_DIGITS_MAX: Final = 38


def fields_of(text: str) -> pa.Schema:
    """Return the columns of a text; raise ConfigError if it names none, or two of one name."""
    parser = _Parser(text)
    fields = parser.fields("")
    names = [field.name for field in fields]
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"schema {text!r}: two fields have one name")
    return pa.schema(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, end: str) -> list[pa.Field]:
        """Read fields up to ``end``, the end of the text if it is empty."""
        found = []
        while True:
            name = self._name()
            if self._peek() == ":":
                self._next()
            found.append(pa.field(name, self._type()))
            sign = self._next()
            if sign == end:
                return found
            if sign != ",":
                raise self._wrong("',' expected")

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name in PLAIN:
            return PLAIN[name]
        if name == "decimal":
            return self._decimal()
        if name not in {"array", "map", "struct"}:
            raise self._wrong(f"no type {name!r}")
        self._expect("<")
        if name == "struct":
            return pa.struct(self.fields(">"))
        if name == "array":
            held = pa.list_(self._type())
        else:
            key = self._type()
            if key != pa.string():
                raise self._wrong("the keys of a map must be of type string")
            self._expect(",")
            held = pa.map_(key, self._type())
        self._expect(">")
        return held

    def _decimal(self) -> pa.DataType:
        self._expect("(")
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not 0 < precision <= _DIGITS_MAX or scale > precision:
            raise self._wrong(f"a decimal has 1 to {_DIGITS_MAX} digits")
        return pa.decimal128(precision, scale)

    def _name(self) -> str:
        word = self._next()
        if not word or word in "<>(),:":
            raise self._wrong("a name expected")
        return word

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal():
            raise self._wrong("a number expected")
        return int(word)

    def _expect(self, sign: str) -> None:
        if self._next() != sign:
            raise self._wrong(f"{sign!r} expected")

    def _peek(self) -> str:
        at = self._at
        word = self._next()
        self._at = at
        return word

    def _next(self) -> str:
        """Return the next word or sign, an empty text at the end."""
        if not self._text[self._at :].strip():
            return ""
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise self._wrong("a character that can't be in a schema")
        self._at = found.end()
        return found[1] or found[2] or found[3]

    def _wrong(self, reason: str) -> ConfigError:
        return ConfigError(f"schema {self._text!r}: {reason} at character {self._at}")
