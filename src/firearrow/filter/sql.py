r"""Filters in RocketMQ's SQL92: compiled once, then evaluated on the properties of many messages.

Grammar; words in any case, comments ``-- to the end of a line`` and ``/* */``::

    any    := every (OR every)*
    every  := equal (AND equal)*
    equal  := ordered ("=" ordered | "<>" ordered | IS [NOT] NULL)*
    ordered:= unary ( (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                    | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text
                    | [NOT] IN "(" text ("," text)* ")" )*
    unary  := ("+" | "-" | NOT) unary | text | number | TRUE | FALSE | NULL | name | "(" any ")"

So ``NOT a = 1`` is ``(NOT a) = 1``. A property is a text, or null if the message has none of that name. Other values
are numbers, true and false. An operation on null gives null; each function below names its exceptions. A message is
wanted only if the whole expression is true. It is not wanted if an operation fails, such as reading ``abc`` as a
number.

    compile_sql("a > 5 AND b = 'x'").wants(b"a\x0110\x02b\x01x\x02")    ->  True

An expression is limited in characters, depth and terms, as it is evaluated for each message.

Source: RocketMQ's ``SelectorParser``, ``ComparisonExpression``, ``UnaryExpression``, ``LogicExpression``,
``ConstantExpression``. Java: SelectorParser#parse ignores the text behind a complete expression: ``a > 0x10`` is
``a > 0`` there, and ``a LIKE 'x%'`` is ``a``. Here it is an error.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

from firearrow.errors import FilterError
from firearrow.filter.values import (
    INT_BITS,
    LONG_BITS,
    Long,
    Value,
    compare,
    compare_doubles,
    java_boolean,
    java_double,
    java_int,
    java_long,
)
from firearrow.message.properties import finder

SQL_CHARS_MAX: Final = 8 * 1024
"""Size limit of an expression: 500 values of an IN, or 500 conditions; read in some milliseconds."""
SQL_DEPTH_MAX: Final = 64
"""Levels of parentheses, signs, NOTs and comparisons of comparisons; each costs one call or more."""
SQL_TERMS_MAX: Final = 1000
"""Values and names, without the values that an IN lists. Each takes up to a microsecond a message."""
SQL_PARTS_MAX: Final = 2 * SQL_TERMS_MAX
"""Terms, and the parentheses, signs and NOTs before them. Each takes some microseconds to read."""
COMPILED_MAX: Final = 128
"""Compiled expressions that are kept; the longest take a quarter of a megabyte each."""

_FLOAT_MAX: Final = 1.7976931348623157e308
_FLOAT_LEAST: Final = 5e-324
_UNREADABLE: Final = "\ufffd"  # the replacement of bytes that are not UTF-8

# ``(?!)`` is for Python before 3.11.5, as in `firearrow.wire.jsondialect`.
_GAP: Final = r"[ \t\n\r\f]|/\*[^*]*+\*++(?:[^*/][^*]*+\*++|(?!))*+/"
_LINE_COMMENT: Final = r"--[^\n\r]*+[\n\r]"
_TOKEN: Final = (
    r"(?P<float>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?|\.[0-9]++(?:[eE][+-]?[0-9]++)?"
    r"|[0-9]++[eE][+-]?[0-9]++)"
    r"|(?P<number>0|[1-9][0-9]*+[lL]?)|(?P<text>'(?:''|[^'])*')"
    r"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*+)|(?P<sign><>|[<>]=?|[=(),+-])|(?P<end>\Z)|(?P<bad>.)"
)
_NEXT: Final = re.compile(f"(?:{_GAP}|{_LINE_COMMENT}|(?!))*+(?:{_TOKEN})", re.DOTALL)
_NEXT_ON_LAST_LINE: Final = re.compile(f"(?:{_GAP}|(?!))*+(?:{_TOKEN})", re.DOTALL)
_KEYWORDS: Final = frozenset(
    [*("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"), *("CONTAINS", "STARTSWITH", "ENDSWITH")]
)

_LAST: Final = frozenset({")", "end"})
_JOINING: Final = frozenset({"AND", "OR", "=", "<>", "IS"})

Evaluate = Callable[[bytes], Value]
Wants = Callable[[bytes], bool]


class SqlFilter(NamedTuple):
    """A compiled expression.

    ``wants`` tells from the stored properties of a message whether it is wanted. ``evaluate`` returns the value, or
    raises ValueError. ``cost`` is the maximum cost of an evaluation, in searches for one property. Only the values of
    ``names`` count.
    """

    expression: str
    wants: Wants
    evaluate: Evaluate
    cost: int
    names: frozenset[bytes]

    @property
    def chars(self) -> int:
        """The length of the expression."""
        return len(self.expression)


class _Part(NamedTuple):
    """A part of an expression.

    ``constant``: it is a literal, with that ``value``. ``condition``: it gives true, false or null. ``name``: it is a
    property and nothing more.
    """

    evaluate: Evaluate
    depth: int = 1
    constant: bool = False
    value: Value = None
    condition: bool = False
    name: str | None = None


class _Fault(NamedTuple):
    """A fault of an expression, and the character where it begins."""

    reason: str
    position: int | None
    after_end: bool


def compile_sql(expression: str) -> SqlFilter:
    """Compile an expression; raises FilterError that names the fault and its place.

    A recent expression is not compiled again, be it right or wrong.
    """
    if len(expression) > SQL_CHARS_MAX:
        raise FilterError(f"the expression has {len(expression)} characters, the limit is {SQL_CHARS_MAX}")
    found = _read(expression)
    if isinstance(found, _Fault):
        raise FilterError(found.reason, found.position, after_end=found.after_end)
    return found


@lru_cache(maxsize=COMPILED_MAX)
def _read(expression: str) -> SqlFilter | _Fault:
    parser = _SqlParser(expression)
    try:
        whole = parser.whole().evaluate
    except FilterError as error:
        return _Fault(error.reason, error.position, error.after_end)

    def wants(properties: bytes) -> bool:
        try:
            return whole(properties) is True
        except ValueError:
            return False

    return SqlFilter(expression, wants, whole, parser.terms, parser.names)


def _tokens_of(expression: str) -> Iterator[re.Match[str]]:
    """Find the tokens of an expression, up to its end."""
    # A comment without an end is none. Searching its end at each "--" would take quadratic time.
    last_line_at = max(expression.rfind("\n"), expression.rfind("\r"))
    end = 0
    if last_line_at > 0:
        for found in _NEXT.finditer(expression):
            yield found
            end = found.end()
            if end >= last_line_at:
                break
    yield from _NEXT_ON_LAST_LINE.finditer(expression, end)


class _SqlParser:
    """Recursive descent; it makes a function of each part as soon as the part is read."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens_of(expression)
        # The next token. Its kind is the keyword or the sign itself, otherwise the kind of its pattern.
        self._kind = self._text = ""
        self._position = 0
        self._nested = self._parts = 0
        self.terms = 0
        self._properties: dict[str, _Part] = {}
        self._next()

    @property
    def names(self) -> frozenset[bytes]:
        """Names of the properties in the expression."""
        return frozenset(name.encode() for name in self._properties)

    def whole(self) -> _Part:
        part = self._condition(self._any())
        if self._kind not in ("end", "bad"):
            self._fail("the expression is complete, and there is more", after_end=True)
        self._take("end")
        return part

    def _next(self) -> str:
        """Move behind the next token; return its text."""
        before = self._text
        found = next(self._tokens)
        kind = found.lastgroup or "end"
        self._text = text = found[kind]
        self._position = found.end() - len(text)
        if kind == "sign":
            kind = text
        elif kind == "word" and text.upper() in _KEYWORDS:
            kind = text.upper()
        self._kind = kind
        return before

    def _take(self, kind: str) -> str:
        if self._kind != kind:
            self._fail(f"{kind} is missing" if kind != "end" else "there is no such sign")
        return self._text if kind == "end" else self._next()

    def _skip(self, kind: str) -> bool:
        """Move behind a token, if it is the next; return True then."""
        if self._kind != kind:
            return False
        self._next()
        return True

    def _fail(self, why: str, *, after_end: bool = False) -> NoReturn:
        at = self._position
        found = repr(self._expression[at : at + 20] or "the end")
        raise FilterError(f"{why}: {found}", at, after_end=after_end)

    def _deeper(self, *parts: _Part) -> int:
        depth = 1
        for part in parts:
            if part.depth >= depth:
                depth = part.depth + 1
        if depth > SQL_DEPTH_MAX:
            self._fail(f"the expression is deeper than {SQL_DEPTH_MAX}")
        return depth

    def _made(self, evaluate: Evaluate, *parts: _Part) -> _Part:
        return _Part(evaluate, self._deeper(*parts), condition=True)

    def _condition(self, part: _Part) -> _Part:
        """Return a part as a condition; a property there is null or false."""
        if part.condition:
            return part
        if part.name is None:
            self._fail("a condition is needed before it")
        value = part.evaluate
        return self._made(lambda text: None if value(text) is None else False, part)

    # --- the grammar ---

    def _any(self) -> _Part:
        first = self._unary()
        if self._kind in _LAST:
            return first
        parts = [self._every(first)]
        while self._skip("OR"):
            parts[-1] = self._condition(parts[-1])
            parts.append(self._condition(self._every(self._unary())))
        if len(parts) == 1:
            return parts[0]
        return self._made(_either([part.evaluate for part in parts]), *parts)

    def _every(self, first: _Part) -> _Part:
        parts = [self._equal(first)]
        while self._skip("AND"):
            parts[-1] = self._condition(parts[-1])
            parts.append(self._condition(self._equal(self._unary())))
        if len(parts) == 1:
            return parts[0]
        return self._made(_both([part.evaluate for part in parts]), *parts)

    def _equal(self, first: _Part) -> _Part:
        left = self._ordered(first)
        while True:
            if self._kind in ("=", "<>"):
                sign = self._next()
                right = self._ordered(self._unary())
                self._check_equal(left, right)
                same = self._made(_equality(left, right), left, right)
                left = same if sign == "=" else self._made(_negation(same.evaluate), same)
            elif self._skip("IS"):
                negated = self._skip("NOT")
                self._take("NULL")
                null = self._made(_nullity(left.evaluate), left)
                left = self._made(_negation(null.evaluate), null) if negated else null
            else:
                return left

    def _ordered(self, left: _Part) -> _Part:
        while True:
            kind = self._kind
            if kind in _LAST or kind in _JOINING:
                return left
            if kind in _SIGNS_OF:
                self._next()
                left = self._compared(left, kind, self._unary())
                continue
            negated = self._skip("NOT")
            kind = self._kind
            if kind in _TEXT_TESTS:
                self._next()
                made = _text_test(left.evaluate, _TEXT_TESTS[kind], self._bytes(), negated)
                left = self._made(made, left)
            elif self._skip("BETWEEN"):
                left = self._between(left, negated)
            elif self._skip("IN"):
                left = self._listed(left, negated)
            elif negated:
                self._fail("NOT is followed by none of CONTAINS, STARTSWITH, ENDSWITH, BETWEEN, IN")
            else:
                return left

    def _compared(self, left: _Part, sign: str, right: _Part) -> _Part:
        for part in (left, right):
            numeric = part.constant and type(part.value) in (int, Long, float)
            if part.condition or (part.constant and not numeric):
                self._fail("what is no number can't be compared so")
        return self._made(_order_test(left, right, sign), left, right)

    def _between(self, left: _Part, negated: bool) -> _Part:
        low = self._unary()
        self._take("AND")
        high = self._unary()
        if negated:
            below, above = self._compared(left, "<", low), self._compared(left, ">", high)
            return self._made(_either([below.evaluate, above.evaluate]), below, above)
        from_low, to_high = self._compared(left, ">=", low), self._compared(left, "<=", high)
        if low.constant and high.constant and compare(high.value, low.value) < 0:
            self._fail(f"nothing is between {low.value!r} and {high.value!r}")
        if left.name is not None and type(low.value) is type(high.value) is int:
            made = _range_test(left.evaluate, low.value, high.value)
            return self._made(made, from_low, to_high)
        return self._made(_both([from_low.evaluate, to_high.evaluate]), from_low, to_high)

    def _listed(self, left: _Part, negated: bool) -> _Part:
        self._take("(")
        texts = [self._bytes()]
        while self._skip(","):
            texts.append(self._bytes())
        self._take(")")
        if left.name is None:
            self._fail("IN is for properties only")
        return self._made(_membership(left.evaluate, frozenset(texts), negated), left)

    def _check_equal(self, left: _Part, right: _Part) -> None:
        if any(part.constant and part.value is None for part in (left, right)):
            self._fail("NULL can't be compared; IS NULL asks for it")
        if left.constant and left.condition and right.constant and not right.condition:
            self._fail("a boolean can't be compared with that")

    def _unary(self) -> _Part:
        self._nested += 1
        if self._nested > SQL_DEPTH_MAX:
            self._fail(f"the expression is deeper than {SQL_DEPTH_MAX}")
        self._parts += 1
        if self._parts > SQL_PARTS_MAX:
            self._fail(f"the expression has more than {SQL_PARTS_MAX} terms, parentheses, signs and NOTs")
        if self._skip("+"):
            part = self._unary()
        elif self._skip("-"):
            part = self._negative(self._unary())
        elif self._skip("NOT"):
            inner = self._condition(self._unary())
            part = self._made(_negation(inner.evaluate), inner)
        elif self._skip("("):
            part = self._any()
            self._take(")")
        else:
            part = self._term()
        self._nested -= 1
        return part

    def _negative(self, part: _Part) -> _Part:
        """Return a number with the other sign; null for anything else. The result is no literal any more."""
        value = part.value
        if type(value) in (int, Long, float):
            assert isinstance(value, int | float)
            negative = type(value)(-value)
            return part._replace(evaluate=lambda _: negative, value=negative, constant=False)
        evaluate = part.evaluate

        def nothing(text: bytes) -> None:
            evaluate(text)  # which may fail

        return _Part(nothing, self._deeper(part))

    def _term(self) -> _Part:
        kind = self._kind
        self.terms += 1
        if self.terms > SQL_TERMS_MAX:
            self._fail(f"the expression has more than {SQL_TERMS_MAX} terms")
        if kind == "word":
            return self._property(self._next())
        if kind in _WORDS:
            self._next()
            return self._literal(_WORDS[kind], condition=True)
        if kind == "text":
            return self._literal(self._bytes())
        if kind in ("number", "float"):
            return self._literal(self._number())
        return self._fail("a value, a name or a parenthesis is missing")

    def _property(self, name: str) -> _Part:
        part = self._properties.get(name)
        if part is None:
            value = _property(name, exact=_UNREADABLE not in self._expression)
            part = self._properties[name] = _Part(value, name=name)
        return part

    def _literal(self, value: Value, *, condition: bool = False) -> _Part:
        return _Part(lambda _: value, constant=True, value=value, condition=condition)

    def _bytes(self) -> bytes:
        text = self._take("text")
        try:
            return text[1:-1].replace("''", "'").encode()
        except UnicodeEncodeError:
            return self._fail("half a character is before it")

    def _number(self) -> int | float:
        if self._kind == "float":
            value = float(self._text)
            if not _FLOAT_LEAST <= value <= _FLOAT_MAX:  # so 0.0 is none, as in RocketMQ
                self._fail(f"the number is not from {_FLOAT_LEAST} to {_FLOAT_MAX}")
            self._next()
            return value
        digits = self._text.rstrip("lL")
        if len(digits) > len(str(1 << LONG_BITS)) or int(digits) >> (LONG_BITS - 1):
            self._fail(f"the number does not fit into {LONG_BITS} bits")
        self._next()
        whole = int(digits)
        return Long(whole) if whole >> (INT_BITS - 1) else whole


_WORDS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}


# --- what the parts do ---


def _property(name: str, *, exact: bool) -> Evaluate:
    """Return a function that finds the last pair with this name and a value in a properties string.

    Unless ``exact``, bytes that are not UTF-8 count as their replacement.
    """
    value = finder(name)

    def readable(text: bytes) -> Value:
        found = value(text)
        return None if found is None else found.decode("utf-8", "replace").encode()

    return value if exact else readable


def _either(conditions: list[Evaluate]) -> Evaluate:
    """True if one part is true, otherwise null if one is null; parts behind a true one are not evaluated."""

    def evaluate(text: bytes) -> Value:
        result: Value = False
        for condition in conditions:
            value = condition(text)
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _both(conditions: list[Evaluate]) -> Evaluate:
    """False if one part is false, otherwise null if one is null; parts behind a false one are not evaluated."""
    if len(conditions) == 2:
        return _both_of(*conditions)

    def evaluate(text: bytes) -> Value:
        result: Value = True
        for condition in conditions:
            value = condition(text)
            if not value:
                if value is False:
                    return False
                result = None
        return result

    return evaluate


def _both_of(first: Evaluate, second: Evaluate) -> Evaluate:
    def evaluate(text: bytes) -> Value:
        value = first(text)
        if value is False:
            return False
        other = second(text)
        return other if value or other is False else None

    return evaluate


def _negation(condition: Evaluate) -> Evaluate:
    def evaluate(text: bytes) -> Value:
        value = condition(text)
        return None if value is None else not value

    return evaluate


def _nullity(operand: Evaluate) -> Evaluate:
    def evaluate(text: bytes) -> Value:
        return operand(text) is None

    return evaluate


def _membership(operand: Evaluate, texts: frozenset[bytes], negated: bool) -> Evaluate:
    def evaluate(text: bytes) -> Value:
        value = operand(text)
        return None if value is None else (value in texts) is not negated

    return evaluate


def _text_test(operand: Evaluate, holds: Callable[[bytes, bytes], bool], wanted: bytes, negated: bool) -> Evaluate:
    """Test a text; the answer is false for a value that is no text, and for an empty text, negated or not."""

    def evaluate(text: bytes) -> Value:
        value = operand(text)
        return isinstance(value, bytes) and holds(value, wanted) is not negated

    return evaluate if wanted else lambda _: False


def _equality(left: _Part, right: _Part) -> Evaluate:
    if left.name is not None and right.constant:
        return _equals_literal(left.evaluate, right.value)
    first_of, second_of = left.evaluate, right.evaluate

    def evaluate(text: bytes) -> Value:
        first, second = first_of(text), second_of(text)
        if first is None or second is None:
            if first is not None:
                return False
            return True if second is None else None
        return compare(first, second) == 0

    return evaluate


def _equals_literal(operand: Evaluate, wanted: Value) -> Evaluate:
    read = _READERS[type(wanted)]

    def equals_text(text: bytes) -> Value:
        value = operand(text)
        return None if value is None else value == wanted

    def equals(text: bytes) -> Value:
        value = operand(text)
        return None if value is None else read(value) == wanted  # type: ignore[arg-type]

    return equals_text if type(wanted) is bytes else equals


def _order_test(left: _Part, right: _Part, sign: str) -> Evaluate:
    holds, results = _SIGNS_OF[sign]
    first_of, second_of = left.evaluate, right.evaluate
    bound = right.value
    if left.name is not None and isinstance(bound, int):
        read = _READERS[type(bound)]

        def against_number(text: bytes) -> Value:
            value = first_of(text)
            return None if value is None else holds(read(value), bound)  # type: ignore[arg-type]

        return against_number

    def evaluate(text: bytes) -> Value:
        first = first_of(text)
        if first is None:
            return None
        second = second_of(text)
        if second is None:
            return None
        if isinstance(first, bytes) and isinstance(second, bytes):
            return compare_doubles(java_double(first), java_double(second)) in results
        return compare(first, second) in results

    return evaluate


def _range_test(operand: Evaluate, low: int, high: int) -> Evaluate:
    """Test both bounds with one search for the property."""

    def evaluate(text: bytes) -> Value:
        value = operand(text)
        return None if value is None else low <= java_int(value) <= high  # type: ignore[arg-type]

    return evaluate


def _contains(text: bytes, wanted: bytes) -> bool:
    return wanted in text


_READERS: Final[dict[type, Callable[[bytes], Value]]] = {
    bytes: bytes,
    bool: java_boolean,
    int: java_int,
    Long: java_long,
    float: java_double,
}
_TEXT_TESTS: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "CONTAINS": _contains,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}
_SIGNS_OF: Final[dict[str, tuple[Callable[[Any, Any], Any], frozenset[int]]]] = {
    ">": (operator.gt, frozenset({1})),
    ">=": (operator.ge, frozenset({0, 1})),
    "<": (operator.lt, frozenset({-1})),
    "<=": (operator.le, frozenset({-1, 0})),
}
