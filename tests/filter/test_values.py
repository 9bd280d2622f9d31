"""Numbers and comparisons of expressions as Java has them."""

from collections.abc import Callable
from math import copysign, inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.filter.values import Long, Value, compare, compare_doubles, java_double, java_int, java_long


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 20))
def test_whole_numbers(number: int, zeros: int) -> None:
    sign = "-" if number < 0 else "+"
    text = f"{sign}{'0' * zeros}{abs(number)}".encode()
    assert java_int(text) == java_long(text) == number


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (java_int, b"2147483648"),
        (java_int, b"-2147483649"),
        (java_long, b"9223372036854775808"),
        (java_long, b"9" * 30),
        (java_long, b"1" * 5000),
        (java_int, b""),
        (java_int, b"+"),
        (java_int, b"1_0"),
        (java_int, b" 1"),
        (java_int, b"1.0"),
        (java_int, b"\xff1"),
        (java_int, "\U0001d7ce".encode()),
        (java_double, b""),
        (java_double, b"nan"),
        (java_double, b"1_0"),
        (java_double, b"NaNf"),
        (java_double, b"1e"),
        (java_double, b"0x10"),
        (java_double, "\u0661".encode()),
    ],
)
def test_what_is_no_number(read: Callable[[bytes], object], text: bytes) -> None:
    with pytest.raises(ValueError, match=r"is no|is too large"):
        read(text)


def test_digits_of_other_scripts_count_in_whole_numbers() -> None:
    assert java_int("\u0661\u0662".encode()) == 12


@given(st.floats(allow_nan=False))
def test_numbers_with_a_fraction(number: float) -> None:
    assert java_double(repr(number).replace("inf", "Infinity").encode()) == number
    assert java_double(f" {number.hex()}D\n".encode() if abs(number) < inf else b"1e999") in (number, inf)


def test_doubles_have_an_order() -> None:
    ordered = [-inf, -1.0, -0.0, 0.0, 1.0, inf, float("nan")]
    for at, left in enumerate(ordered):
        for behind, right in enumerate(ordered):
            assert compare_doubles(left, right) == (at > behind) - (at < behind)
    assert isnan(java_double(b"-NaN"))
    assert copysign(1.0, java_double(b"-0.0")) == -1.0
    assert java_double(b"-0x1p5000") == -inf


@pytest.mark.parametrize(
    ("left", "right", "sign"),
    [
        (b"3", 3, 0),
        (3, b"4", -1),
        (b"3000000000", Long(3_000_000_000), 0),
        (b"2.5", 2.0, 1),
        (Long(5), 5, 0),
        (2, 2.5, -1),
        (True, 1, -1),
        (1, True, -1),
        (b"TRUE", True, 0),
        (b"yes", False, 0),
        (True, False, 1),
        (b"a", b"a", 0),
    ],
)
def test_values_of_different_kinds(left: Value, right: Value, sign: int) -> None:
    assert compare(left, right) == sign


@pytest.mark.parametrize(("left", "right"), [(True, b"true"), (b"3000000000", 3), (b"x", 1.5), (Long(1), b"1.0")])
def test_what_can_not_be_compared(left: Value, right: Value) -> None:
    with pytest.raises(ValueError, match=r"is no|too large|can't be"):
        compare(left, right)
