"""Bodies in JSON as columns of Arrow, without Spark's JVM, by the rules of ``firearrow.spark.bodies.decode``.

A body decodes as a whole or not at all: it must be one JSON object, and each field that it has must have the type of
its column. Fields that it lacks are null. A column of type string takes any value, as the text of its JSON.

Arrow's reader parses many bodies at once, as lines of one text, which takes a tenth of the time of a loop. It does not
see single bodies: to it, ends of lines are blanks. So the bodies of a text must begin with ``{`` and end with ``}``,
and contain no end of a line. Then ``}`` and ``{`` meet only between objects, because in JSON a comma would separate
them elsewhere. Each body is then one or more whole objects, and it is one if there are as many rows as bodies.
Otherwise the bodies are halved and read again. The last few are read one by one, which also tells the reason of those
that are wrong.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from firearrow.lake.evolution import one_array
from firearrow.spark.bodies.bodies import Undecodable

ONE_BY_ONE: Final = 64  # bodies that are not halved any more
_BLOCK_BYTES: Final = 1 << 20
_PAIR: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]")
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HALF_BYTES: Final = re.compile(_HALF.pattern.encode())
_ESCAPED: Final = re.compile(r"\\\\")
# Arrow takes NaN for a number. It also takes half of a surrogate pair for text.
_UNSURE: Final = (b"NaN", b"Inf")
_NULL: Final = msgspec.Raw(b"null")

Read = Callable[[msgspec.Raw], Any]


def json_values(fields: pa.Schema, bodies: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
    """Return the values of bodies, null where one does not decode, and the reasons of those by their place."""
    kind = pa.struct(list(fields))
    one_by_one = _object_reader(kind)
    lines = _LineReader(fields) if all(_is_quick(field.type) for field in fields) else None
    parts: list[pa.StructArray] = []
    reasons: dict[int, str] = {}

    def decode_part(start: int, count: int) -> None:
        part = bodies.slice(start, count)
        found = None if lines is None else lines.read(part)
        if found is not None:
            parts.append(found)
        elif count > ONE_BY_ONE:
            half = count // 2
            decode_part(start, half)
            decode_part(start + half, count - half)
        else:
            values: list[Any] = []
            for number, body in enumerate(part.to_pylist(), start):
                try:
                    values.append(_value(body, one_by_one))
                except Undecodable as wrong:
                    values.append(None)
                    reasons[number] = str(wrong)
            parts.append(pa.array(values, kind))

    decode_part(0, len(bodies))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts), reasons


# --- many at once ---


_QUICK: Final = (pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


def _is_quick(kind: pa.DataType, *, nested: bool = False) -> bool:
    """Tell whether Arrow's reader converts values to a type by the rules of this module."""
    if pa.types.is_struct(kind):
        return all(_is_quick(field.type, nested=True) for field in kind.fields)
    if pa.types.is_list(kind):
        return _is_quick(kind.value_type, nested=True)
    if pa.types.is_timestamp(kind):
        return not nested  # read as text, because Arrow takes a number for a timestamp, too
    return any(
        is_of(kind) for is_of in (pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    )


class _LineReader:
    """Reader of bodies that are lines of a text."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        as_text = [field.with_type(pa.string()) if pa.types.is_timestamp(field.type) else field for field in fields]
        self._options = paj.ParseOptions(explicit_schema=pa.schema(as_text), unexpected_field_behavior="ignore")
        self._reading = paj.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)

    def read(self, bodies: pa.BinaryArray) -> pa.StructArray | None:
        """Return the values of bodies; None if they must be read one by one."""
        if bodies.null_count or not len(bodies):
            return None
        try:
            texts = bodies.cast(pa.string())  # checks that they are UTF-8
        except pa.ArrowInvalid:
            return None
        if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
            return None
        whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        text = pc.binary_join(whole, "\n").buffers()[2].to_pybytes()
        if text.count(b"\n") != len(texts) - 1 or any(sign in text for sign in _UNSURE):
            return None
        if b"\\u" in text and _HALF_BYTES.search(text):
            return None
        try:
            table = paj.read_json(pa.BufferReader(text), read_options=self._reading, parse_options=self._options)
            if table.num_rows != len(bodies):
                return None
            columns = [one_array(table.column(field.name)).cast(field.type) for field in self._fields]
        except pa.ArrowInvalid:
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self._fields))


# --- one by one ---


def _value(body: bytes | None, read: Read) -> Any:
    if body is None:
        raise Undecodable("there is no body")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Undecodable("the body is not UTF-8") from None
    if _HALF.search(_PAIR.sub("", _ESCAPED.sub("", text))):
        raise Undecodable("half of a surrogate pair, which no text can hold")
    try:
        json.loads(text, parse_int=str, parse_constant=_no_constant)
        raw = msgspec.json.decode(body, type=msgspec.Raw)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"the body is not JSON: {error}") from None
    return read(raw)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _object_reader(kind: pa.StructType) -> Read:
    """Return the function that reads an object as the fields of a structure."""
    members = {f"m{number}": field for number, field in enumerate(kind.fields)}
    names = {member: field.name for member, field in members.items()}
    shape = msgspec.defstruct("Object", [(member, msgspec.Raw, _NULL) for member in members], rename=names, gc=False)
    decode = msgspec.json.Decoder(shape).decode
    reads = [(member, field.name, _or_null(_reader(field.type))) for member, field in members.items()]

    def read(raw: msgspec.Raw) -> dict[str, Any]:
        if bytes(raw).lstrip()[:1] != b"{":
            raise Undecodable("the body is no JSON object")
        try:
            them = decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Undecodable(f"the body is no such JSON object: {error}") from None
        found = {}
        for member, name, read_member in reads:
            held = getattr(them, member)
            try:
                found[name] = read_member(held)
            except Undecodable as wrong:
                raise Undecodable(f"{name}: {wrong}") from None
        return found

    return read


def _reader(kind: pa.DataType) -> Read:
    """Return the function that reads a value of a type."""
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_struct(kind):
        return _object_reader(kind)
    if pa.types.is_list(kind):
        read_item = _or_null(_reader(kind.value_type))
        return lambda raw: [read_item(item) for item in _parsed(raw, list[msgspec.Raw], "list")]
    if pa.types.is_map(kind):
        read_held = _or_null(_reader(kind.item_type))
        return lambda raw: [(key, read_held(it)) for key, it in _parsed(raw, dict[str, msgspec.Raw], "object").items()]
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda raw: _in_range(_parsed(raw, int, "whole number"), most)
    if pa.types.is_floating(kind):
        return lambda raw: _parsed(raw, float, "number")
    if pa.types.is_boolean(kind):
        return lambda raw: _parsed(raw, bool, "boolean")
    if pa.types.is_decimal(kind):
        return lambda raw: _decimal(raw, kind)
    if pa.types.is_timestamp(kind):
        return _moment
    if pa.types.is_date(kind):
        return _date
    assert pa.types.is_binary(kind), kind
    return _binary


def _or_null(read: Read) -> Read:
    return lambda raw: None if bytes(raw).strip() == b"null" else read(raw)


def _parsed(raw: msgspec.Raw, kind: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise Undecodable(f"{_shown(raw)} is no {name}") from None


def _text(raw: msgspec.Raw) -> str:
    text = bytes(raw).strip()
    return str(msgspec.json.decode(text, type=str)) if text.startswith(b'"') else text.decode()


def _in_range(number: int, most: int) -> int:
    if not -most <= number < most:
        raise Undecodable(f"{number} is too large")
    return number


def _decimal(raw: msgspec.Raw, kind: pa.DataType) -> Decimal:
    text = _text(raw)
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise Undecodable(f"{_shown(raw)} is no number") from None
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        raise Undecodable(f"{_shown(raw)} is no number")
    if -exponent > kind.scale and number != round(number, kind.scale):
        raise Undecodable(f"{_shown(raw)} has more than {kind.scale} decimal places")
    if number.adjusted() >= kind.precision - kind.scale and number:
        raise Undecodable(f"{_shown(raw)} is too large")
    return number


def _moment(raw: msgspec.Raw) -> datetime:
    text = _quoted(raw, "timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Undecodable(f"{_shown(raw)} is no timestamp") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _date(raw: msgspec.Raw) -> date:
    try:
        return date.fromisoformat(_quoted(raw, "date"))
    except ValueError:
        raise Undecodable(f"{_shown(raw)} is no date") from None


def _binary(raw: msgspec.Raw) -> bytes:
    try:
        return base64.b64decode(_quoted(raw, "text in Base64"), validate=True)
    except ValueError:
        raise Undecodable(f"{_shown(raw)} is no text in Base64") from None


def _quoted(raw: msgspec.Raw, name: str) -> str:
    return str(_parsed(raw, str, name))


def _shown(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode(errors="replace").strip()
    return text if len(text) <= 40 else text[:37] + "..."
