"""SQL92 filters: what they mean, what is refused, and that nothing else can happen.

``tests/interop/test_filters.py`` compares them with RocketMQ's own.
"""

from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import FilterError
from firearrow.filter import sql
from firearrow.filter.sql import SQL_CHARS_MAX, SQL_DEPTH_MAX, SQL_TERMS_MAX, compile_sql
from firearrow.message import properties as properties_codec
from tests.cputime import cpu_seconds
from tests.filter.expressions import random_expression, random_properties, random_tokens

PROPERTIES = properties_codec.encode(
    {"a": "3", "f": "2.5", "s": "abc", "t": "true", "o": "o'clock", "big": "3000000000"}
)

MEANINGS: list[tuple[str, object]] = [
    ("a = 3", True),
    ("a = '3'", True),
    ("a > 2 AND s = 'abc'", True),
    ("a > 2 and s <> 'abc' Or t = tRuE", True),
    ("NOT a = 3", False),  # (NOT a) = 3
    ("NOT (a = 3)", False),
    ("t", False),
    ("NOT t", True),
    ("z", None),
    ("NOT z", None),
    ("z = z", True),
    ("z = 3", None),
    ("a = z", False),
    ("z <> 3", None),
    ("a <> z", True),
    ("z > 3", None),
    ("a > z", None),
    ("z IS NULL", True),
    ("a IS NOT NULL", True),
    ("z = 3 OR a = 3", True),
    ("z = 3 AND a = 4", False),
    ("z = 3 AND a = 3", None),
    ("a BETWEEN 2 AND 3", True),
    ("a NOT BETWEEN 3 AND 2", True),
    ("z BETWEEN 2 AND 3", None),
    ("f BETWEEN 2.0 AND 3.0", True),
    ("s IN ('x', 'abc')", True),
    ("s NOT IN ('x', 'abc')", False),
    ("z NOT IN ('x')", None),
    ("s CONTAINS 'b'", True),
    ("s NOT CONTAINS 'b'", False),
    ("z NOT CONTAINS 'b'", False),
    ("s CONTAINS ''", False),
    ("s NOT CONTAINS ''", False),
    ("s STARTSWITH 'ab'", True),
    ("s ENDSWITH 'bc'", True),
    ("5 CONTAINS '5'", False),
    ("o = 'o''clock'", True),
    ("-a = -3", None),
    ("-5 < -4", True),
    ("+a = +3", True),
    ("big > 2147483648", True),
    ("(a = 3) = (f = 2.5)", True),
    ("1 = TRUE", False),
    ("a -- to the end\n = /* in * between */ 3", True),
    ("TRUE", True),
    ("NULL", None),
]


@pytest.mark.parametrize(("expression", "value"), MEANINGS)
def test_what_expressions_mean(expression: str, value: object) -> None:
    compiled = compile_sql(expression)
    assert compiled.evaluate(PROPERTIES) is value
    assert compiled.wants(PROPERTIES) is (value is True)


@pytest.mark.parametrize(
    "expression", ["s = 1", "f BETWEEN 2 AND 3", "big > 5", "s > a", "TRUE = t", "s = 'abc' AND s > 1"]
)
def test_what_can_not_be_done_makes_a_message_not_wanted(expression: str) -> None:
    compiled = compile_sql(expression)
    assert not compiled.wants(PROPERTIES)
    with pytest.raises(ValueError, match=r"is no|too large|can't be"):
        compiled.evaluate(PROPERTIES)


REFUSED: list[tuple[str, int, str]] = [
    ("", 0, "is missing"),
    ("a >", 3, "is missing: 'the end'"),
    ("a != 1", 2, "there is no such sign"),
    ("a.b = 1", 1, "there is no such sign"),
    ("a = 'x", 4, "is missing"),
    ("a IN (1)", 6, "text is missing"),
    ("1 IN ('1')", 10, "for properties only"),
    ("a = NULL", 8, "IS NULL"),
    ("a > 'x'", 7, "no number"),
    ("a BETWEEN 2 AND 1", 17, "nothing is between 2 and 1"),
    ("a = 9223372036854775808", 4, "64 bits"),
    ("a = 0.0", 4, "the number is not from"),
    ("a = 1e999", 4, "the number is not from"),
    ("5", 1, "a condition is needed"),
    ("a NOT 5", 6, "NOT is followed by"),
    ("a IS 5", 5, "NULL is missing"),
    ("TRUE = 1", 8, "a boolean"),
    ("(a = 1", 6, ") is missing"),
    ("a = 1 /* b", 6, "there is no such sign"),
]


@pytest.mark.parametrize(("expression", "position", "reason"), REFUSED)
def test_a_refusal_says_where_and_why(expression: str, position: int, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql(expression)
    assert (caught.value.position, caught.value.after_end) == (position, False)
    assert reason in str(caught.value)
    assert f"at character {position}" in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("a > 0x10", 5),
        ("a like 'x%'", 2),
        ("a = 1)", 5),
        ("a = 1 b = 2", 6),
        ("a = 1, ?", 5),
        ("a = 1 'x''", 6),
        ("a = 1 -- b", 6),
    ],
)
def test_nothing_may_follow_a_complete_expression(expression: str, position: int) -> None:
    """RocketMQ ignores it, and filters by the half of what was meant."""
    with pytest.raises(FilterError) as caught:
        compile_sql(expression)
    assert (caught.value.position, caught.value.after_end) == (position, True)
    compile_sql(expression[:position])


# --- limits ---


def test_an_expression_has_limits() -> None:
    def refusal(expression: str) -> str:
        with pytest.raises(FilterError) as caught:
            compile_sql(expression)
        return str(caught.value)

    assert "characters, the limit is" in refusal("a" * (SQL_CHARS_MAX + 1))
    nested = SQL_DEPTH_MAX // 2
    compile_sql("(" * nested + "a" + ")" * nested)
    for deep in ("(" * SQL_DEPTH_MAX + "a" + ")" * SQL_DEPTH_MAX, "NOT " * 70 + "a", "-" * 70 + "1"):
        assert "is deeper than" in refusal(deep)
    assert "is deeper than" in refusal("a" + " = a" * SQL_DEPTH_MAX)
    half = SQL_TERMS_MAX // 2
    assert compile_sql(" OR ".join(["a = 1"] * half)).cost == SQL_TERMS_MAX
    assert "terms" in refusal(" OR ".join(["a = 1"] * (half + 1)))
    many = ",".join(f"'{number}'" for number in range(1000))
    assert compile_sql(f"a IN ({many})").wants(b"a\x01999\x02")

    assert "parentheses" in refusal(" OR ".join(["(((a)))"] * (half + 1)))
    assert compile_sql(" OR ".join(["(a)"] * SQL_TERMS_MAX)).cost == SQL_TERMS_MAX


def _full(unit: str) -> str:
    """As many of these as an expression may have."""
    return (unit * SQL_CHARS_MAX)[:SQL_CHARS_MAX]


COSTLY = [
    "\n" + "-" * 8000,
    "a = " + "'" * 8001,
    *map(
        _full,
        [
            "/*",
            "(",
            "'x",
            "(((a))) OR ",
            "(" * 31 + "a" + ")" * 31 + " OR ",
            "(a) OR ",
            "(a AND b OR c) AND ",
            "(NOT a) OR ",
            "NOT " * 31 + "a AND ",
            "a BETWEEN 1 AND 2 OR ",
            "a IN('x') OR ",
            "a=",
        ],
    ),
]


@pytest.mark.parametrize("expression", COSTLY)
def test_what_is_refused_costs_little(expression: str) -> None:
    """Some ms, whatever it is; what is done again at each sign takes seconds."""
    tried = count()

    def refused() -> None:
        with pytest.raises(FilterError):
            compile_sql(expression[:-5] + f" {next(tried)} (")

    assert cpu_seconds(refused, 0.02) < 0.02


def test_what_is_refused_is_not_read_again() -> None:
    """Who asks again and again is told so at once, by another error of the same words."""
    expression = _full("(a AND b OR c) AND ")
    texts = set()

    def refused() -> None:
        for _ in range(1000):
            with pytest.raises(FilterError) as caught:
                compile_sql(expression)
            texts.add(str(caught.value))

    refused()
    assert cpu_seconds(refused, 0.1) < 0.1  # to read it a thousand times takes four seconds
    assert len(texts) == 1


def test_an_expression_is_read_once() -> None:
    assert compile_sql("a = 77") is compile_sql("a = 77")
    for number in range(sql.COMPILED_MAX):
        compile_sql(f"b = {number}")
    again = compile_sql("a = 77")
    assert again is compile_sql("a = 77")
    assert sql._read.cache_info().currsize == sql.COMPILED_MAX


# --- properties as they are stored ---


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        (b"", None),
        (b"a\x011", b"1"),
        (b"a\x011\x02", b"1"),
        (b"b\x01x\x02a\x011", b"1"),
        (b"a\x011\x02a\x012\x02", b"2"),
        (b"a\x011\x02a\x01\x02", b"1"),
        (b"a\x01\x02a\x01\x02", None),
        (b"aa\x011\x02ba\x012\x02", None),
        (b"b\x01a\x011\x02", None),
        (b"a\x011\x01a\x012\x02", b"1\x01a\x012"),
        (b"a\x01\xff\x02", b"\xff"),
    ],
)
def test_a_property_is_found_where_it_is_stored(stored: bytes, value: bytes | None) -> None:
    found = compile_sql("a = a AND a IS NOT NULL").wants(stored)
    assert found is (value is not None)
    parsed = properties_codec.parse(stored).get("a")
    assert parsed == (None if value is None else value.decode("utf-8", "replace"))
    if parsed is not None:
        text = parsed.replace("'", "''")
        assert compile_sql(f"a = '{text}'").wants(stored)


# --- anything ---


@given(st.integers(0, 2**64), st.booleans())
def test_an_expression_is_read_or_refused_and_nothing_else(seed: int, sound: bool) -> None:
    chance = Random(seed)
    expression = random_expression(chance) if sound else random_tokens(chance)
    read(expression, random_properties(chance).encode())


@given(st.text(max_size=60), st.binary(max_size=80))
def test_any_text_is_read_or_refused(expression: str, stored: bytes) -> None:
    read(expression, stored)


def read(expression: str, stored: bytes) -> None:
    try:
        compiled = compile_sql(expression)
    except FilterError:
        return
    try:
        assert compiled.evaluate(stored) in (True, False, None)
    except ValueError:
        assert not compiled.wants(stored)


# --- against an evaluator that does one thing after the other ---

Tree = tuple[Any, ...]
NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(-9, 9)
TEXTS = st.sampled_from(["", "1", "-2", "x", "xy", "o'clock"])
CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]), NAMES, NUMBERS),
        st.tuples(st.sampled_from(["='", "<>'"]), NAMES, TEXTS),
        st.tuples(st.sampled_from(["null", "not null"]), NAMES),
        st.tuples(st.sampled_from(["in", "not in"]), NAMES, st.lists(TEXTS, min_size=1)),
        st.tuples(st.sampled_from(["contains", "startswith", "endswith"]), NAMES, TEXTS),
        st.tuples(st.just("between"), NAMES, st.tuples(NUMBERS, NUMBERS).map(sorted)),
    ),
    lambda inner: st.one_of(st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)),
    max_leaves=8,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree) -> str:
    """The expression of a tree."""
    sign, first, *more = tree
    if sign in ("and", "or"):
        return f"({written(first)} {sign} {written(more[0])})"
    if sign == "not":
        return f"NOT ({written(first)})"
    if sign in ("null", "not null"):
        return f"{first} IS {sign}"
    if sign in ("in", "not in"):
        return f"{first} {sign} ({', '.join(map(quoted, more[0]))})"
    if sign == "between":
        return f"{first} between {more[0][0]} and {more[0][1]}"
    if isinstance(more[0], str):
        return f"{first} {sign.rstrip(chr(39))} {quoted(more[0])}"
    return f"{first} {sign} {more[0]}"


def meant(tree: Tree, found: dict[str, str]) -> Any:
    """What a tree gives; ValueError if a property should be a number and is none."""
    sign, first, *more = tree
    if sign in ("and", "or"):
        left = meant(first, found)
        if left is (sign == "or"):
            return left
        right = meant(more[0], found)
        if right is (sign == "or"):
            return right
        return None if left is None or right is None else right
    if sign == "not":
        value = meant(first, found)
        return None if value is None else not value
    text = found.get(first)
    if sign in ("null", "not null"):
        return (text is None) is (sign == "null")
    wanted = more[0]
    if sign in ("contains", "startswith", "endswith"):
        if not wanted or text is None:
            return False
        return {"contains": wanted in text, "startswith": text.startswith(wanted), "endswith": text.endswith(wanted)}[
            sign
        ]
    if text is None:
        return None
    if sign in ("in", "not in"):
        return (text in wanted) is (sign == "in")
    if sign in ("='", "<>'"):
        return (text == wanted) is (sign == "='")
    number = int(text)
    if sign == "between":
        return bool(wanted[0] <= number <= wanted[1])
    return {
        "<": number < wanted, "<=": number <= wanted, ">": number > wanted, ">=": number >= wanted,
        "=": number == wanted, "<>": number != wanted,
    }[sign]  # fmt: skip


@given(CONDITIONS, st.dictionaries(NAMES, TEXTS))
def test_conditions_give_what_they_mean(tree: Tree, found: dict[str, str]) -> None:
    stored = properties_codec.encode(found)
    found = {name: text for name, text in found.items() if text}  # what is empty is not stored
    compiled = compile_sql(written(tree))
    try:
        expected = meant(tree, found)
    except ValueError:
        assert not compiled.wants(stored)
        return
    assert compiled.evaluate(stored) is expected
