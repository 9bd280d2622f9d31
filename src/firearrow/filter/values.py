"""The values of SQL92 expressions, read and compared as Java does.

A property and a text are ``bytes`` (UTF-8), as they are stored: comparisons decode nothing. A whole number is an
``int`` if Java keeps it in 32 bits, otherwise a `Long`: that decides which texts it can be compared with. A number with
a fraction is a ``float``.

Source: RocketMQ's ``ComparisonExpression#__compare``, and Java's ``Integer``, ``Long``, ``Double``.
"""

from __future__ import annotations

import re
import unicodedata
from math import copysign
from typing import Final


class Long(int):
    """A whole number that Java keeps in 64 bits."""

    __slots__ = ()


Value = bytes | int | float | bool | None

INT_BITS: Final = 32
LONG_BITS: Final = 64
_INT_QUICK_BYTES: Final = 9  # any number with this count of digits fits
_LONG_QUICK_BYTES: Final = 18
_LONG_DIGITS_MAX: Final = 19
_BLANKS: Final = bytes(range(33))
_NOT_A_DIGIT: Final = re.compile(rb"[+-]?(?:NaN|Infinity)")
_DECIMAL: Final = re.compile(rb"([+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(
    rb"([+-]?0[xX](?:[0-9a-fA-F]++\.?|[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?"
)


def java_int(text: bytes) -> int:
    """Read a text as ``Integer.valueOf`` does; raises ValueError if it is no such number."""
    if text.isdigit() and len(text) <= _INT_QUICK_BYTES:
        return int(text)
    return _whole_number(text, INT_BITS)


def java_long(text: bytes) -> int:
    """Read a text as ``Long.valueOf`` does; raises ValueError if it is no such number."""
    if text.isdigit() and len(text) <= _LONG_QUICK_BYTES:
        return int(text)
    return _whole_number(text, LONG_BITS)


def _whole_number(text: bytes, bits: int) -> int:
    """Read a sign and digits, which may be of any script within the first 65,536 characters."""
    digits = str(text, "utf-8", "replace")
    negative = digits[:1] == "-"
    if digits[:1] in ("+", "-"):
        digits = digits[1:]
    if not digits or max(digits) > "\uffff" or not digits.isdecimal():
        raise ValueError(f"{text!r} is no whole number")
    plain = "".join([str(unicodedata.decimal(digit)) for digit in digits]).lstrip("0")
    if len(plain) > _LONG_DIGITS_MAX:
        raise ValueError(f"{text!r} is too large")
    number = int(plain or "0") * (-1 if negative else 1)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{text!r} is too large")
    return number


def java_double(text: bytes) -> float:
    """Read a text as ``Double.valueOf`` does; raises ValueError if it is no such number."""
    text = text.strip(_BLANKS)
    found = _DECIMAL.fullmatch(text)
    if found is not None:
        return float(found[1])
    if _NOT_A_DIGIT.fullmatch(text) is not None:
        return float(text)
    found = _HEXADECIMAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no number")
    try:
        return float.fromhex(found[1].decode())
    except OverflowError:
        return copysign(float("inf"), -1.0 if text.startswith(b"-") else 1.0)


def java_boolean(text: bytes) -> bool:
    """Read a text as ``Boolean.valueOf`` does."""
    return text.lower() == b"true"


def compare(left: Value, right: Value) -> int:
    """Return -1, 0 or 1 as the first of two values is less, equal or more; neither is null.

    A text is read as a value of the other's type; raises ValueError if it is none. A number and a boolean can't be
    compared: the result is -1, less.
    """
    kind, other = type(left), type(right)
    if kind is bool or other is bool:
        return _compare_booleans(left, right)
    if kind is bytes and other is bytes:
        return _order(left, right)
    if kind is bytes:
        assert isinstance(left, bytes)
        left = _read_as(left, other)
    elif other is bytes:
        assert isinstance(right, bytes)
        right = _read_as(right, kind)
    if kind is float or other is float:
        assert isinstance(left, int | float)
        assert isinstance(right, int | float)
        return compare_doubles(float(left), float(right))
    return _order(left, right)


def _read_as(text: bytes, kind: type) -> int | float:
    if kind is float:
        return java_double(text)
    return java_long(text) if kind is Long else java_int(text)


def _compare_booleans(left: Value, right: Value) -> int:
    if isinstance(left, bytes):
        left = java_boolean(left)
    elif isinstance(right, bytes):
        # Java: ComparisonExpression#__compare casts the boolean, and not the text, to a text.
        raise ValueError("a boolean can't be compared with a text behind it")
    return _order(left, right) if type(left) is type(right) else -1


def compare_doubles(left: float, right: float) -> int:
    """Compare as ``Double.compareTo`` does: -0.0 is less than 0.0, and NaN more than anything."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _order(_rank(left), _rank(right))


def _rank(number: float) -> tuple[bool, float]:
    return (True, 0.0) if number != number else (False, copysign(1.0, number))


def _order(left: object, right: object) -> int:
    if left == right:
        return 0
    return 1 if left > right else -1  # type: ignore[operator]
