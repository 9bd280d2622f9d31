"""Decoders of single bodies, for formats that Python decodes one by one, and their values as columns of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NOT_OF_TYPE: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)  # errors of Arrow's conversion


class Undecodable(Exception):
    """A body that does not decode; the text is the reason."""


class Bodies(Protocol):
    """A decoder that can be pickled for the workers."""

    def fields(self) -> StructType:
        """Return the columns."""

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return what identifies each field beside its name: the names that it had (Avro), its number (Protobuf)."""

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Return a function from a body to its value, which raises Undecodable for a body that has none."""


def decoded_values(bodies: Bodies, kind: pa.StructType, column: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
    """Return the values of bodies, null where there is no body or one does not decode, and the reasons of those by
    their place."""
    decode = bodies.decoder()
    values: list[dict[str, Any] | None] = []
    reasons: dict[int, str] = {}
    for number, body in enumerate(column.to_pylist()):
        try:
            values.append(None if body is None else decode(body))
        except Undecodable as wrong:
            values.append(None)
            reasons[number] = str(wrong)
    return _arrow(values, kind, reasons, 0), reasons


def _arrow(
    values: list[dict[str, Any] | None], kind: pa.StructType, reasons: dict[int, str], start: int
) -> pa.StructArray:
    """Return values as an Arrow array; null, with a reason, for a value that a column's type cannot hold."""
    try:
        return pa.array(values, kind)
    except _NOT_OF_TYPE as error:
        if len(values) == 1:
            reasons[start] = str(error)
            return pa.nulls(1, kind)
    half = len(values) // 2
    parts = (_arrow(values[:half], kind, reasons, start), _arrow(values[half:], kind, reasons, start + half))
    return pa.concat_arrays(parts)
