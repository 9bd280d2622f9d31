"""Random expressions, sound ones and others, and properties that they may be about."""

from __future__ import annotations

from random import Random

NAMES = ["a", "b", "c", "_d", "$e", "a1", "TAGS", "IsX", "nothing"]
WORDS = ["", "x", "abc", "b", "o''clock", "1", "3", "-7", "2.5", "true", "TRUE", "ü", "\U0001f600"]
WHOLE = ["0", "1", "3", "7L", "42l", "2147483647", "2147483648", "9223372036854775807"]
FRACTIONS = ["2.5", "1.", ".5", "1e3", "3.0E-2", "1.7976931348623157e308", "4.9e-324", "42.0"]
STRANGE_NUMBERS = ["0.0", "1e999", "9223372036854775808", "007", "0x10", "0L", "1e-400"]
GAPS = [" ", "  ", "\t", "\n", " /* * / */ ", " -- to the end\n", "\r\n\f"]
VALUES = [
    "1", "3", "7", "-7", "+3", "42", "2.5", "2.50", "1e3", "0", "-0", "-0.0", "0.0", "NaN",
    "Infinity", "-Infinity",
    "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "x", "abc", "aXbc", "b", "o'clock", "true", "TRUE", "false", "True ", " 3", "3 ", "3f", "0x1p4",
    "1_0", "\u0663", "ü", "\U0001f600", "\ufffd", "null", "",
]  # fmt: skip
TOKENS = [
    *NAMES, *WHOLE, *FRACTIONS, *STRANGE_NUMBERS, "'x'", "'3'", "''", "'o''c'", "'", "AND", "OR",
    "NOT", "not", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH",
    "ENDSWITH", "LIKE", "=", "<>", "!=", "==", "<", "<=", ">", ">=", "(", ")", ",", "+", "-", "*",
    "?", "a.b", "`a`", "\"x\"", "--", "/*", "*/", "\u017f", "\u212a", "\u00a0", "ü",
]  # fmt: skip


def random_properties(chance: Random) -> str:
    """A properties string; pairs may lack a value, a name or their end, or come twice."""
    pairs = []
    for name in NAMES:
        count = 0 if name == "nothing" else chance.choice((0, 1, 1, 1, 1, 2))
        pairs += [f"{name}\x01{chance.choice(VALUES)}" for _ in range(count)]
    if chance.random() < 0.05:
        pairs.insert(0, chance.choice(("", "a", "\x01x", "a\x01x\x01y", "\x01\x01")))
    chance.shuffle(pairs)
    return "\x02".join(pairs) + ("\x02" if chance.random() < 0.7 else "")


def random_tokens(chance: Random) -> str:
    """Anything, of which the beginning may be an expression."""
    tokens = [chance.choice(TOKENS) for _ in range(chance.randint(1, 9))]
    return _joined(chance, tokens)


def random_expression(chance: Random) -> str:
    """An expression by the grammar, most of which mean something."""
    return _joined(chance, _any(chance, chance.randint(0, 4)))


def _joined(chance: Random, tokens: list[str]) -> str:
    if chance.random() < 0.8:
        return " ".join(tokens)
    text = ""
    for token in tokens:
        text += token + (chance.choice(GAPS) if chance.random() < 0.9 else "")
    return text


def _cased(chance: Random, word: str) -> str:
    return chance.choice((word, word, word.lower(), word.title()))


def _any(chance: Random, depth: int) -> list[str]:
    tokens = _condition(chance, depth)
    while depth > 0 and chance.random() < 0.45:
        word = _cased(chance, chance.choice(("AND", "OR")))
        tokens += [word, *_condition(chance, depth - 1)]
    return tokens


def _condition(chance: Random, depth: int) -> list[str]:
    kind = chance.randrange(14)
    if depth > 0 and kind == 0:
        return ["(", *_any(chance, depth - 1), ")"]
    if depth > 0 and kind == 1:
        return [_cased(chance, "NOT"), "(", *_any(chance, depth - 1), ")"]
    left = _operand(chance, depth)
    negated = [_cased(chance, "NOT")] if chance.random() < 0.4 else []
    if kind <= 4:
        return [*left, chance.choice(("=", "<>")), *_operand(chance, depth)]
    if kind <= 8:
        sign = chance.choice(("<", "<=", ">", ">="))
        right = _number(chance) if chance.random() < 0.8 else _operand(chance, depth)
        return [chance.choice(NAMES), sign, *right]
    if kind == 9:
        low, high = _number(chance), _number(chance)
        return [*left, *negated, _cased(chance, "BETWEEN"), *low, _cased(chance, "AND"), *high]
    if kind == 10:
        texts = [_text(chance) for _ in range(chance.choice((1, 2, 3, 6)))]
        listed = [token for text in texts for token in (",", text)][1:]
        name = chance.choice(NAMES) if chance.random() < 0.9 else left[0]
        return [name, *negated, _cased(chance, "IN"), "(", *listed, ")"]
    if kind == 11:
        word = chance.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
        return [*left, *negated, _cased(chance, word), _text(chance)]
    if kind == 12:
        return [*left, "IS", *negated, "NULL"]
    return left


def _operand(chance: Random, depth: int) -> list[str]:
    kind = chance.randrange(20)
    if kind < 11:
        return [chance.choice(NAMES)]
    if kind < 14:
        return _number(chance)
    if kind < 17:
        return [_text(chance)]
    if kind == 17:
        return [_cased(chance, chance.choice(("TRUE", "FALSE", "TRUE", "NULL")))]
    if depth > 0 and kind == 18:
        return ["(", *_any(chance, depth - 1), ")"]
    return [chance.choice(("-", "+", "NOT")), *_operand(chance, depth - 1)]


def _number(chance: Random) -> list[str]:
    kinds = (WHOLE, WHOLE, FRACTIONS, STRANGE_NUMBERS if chance.random() < 0.1 else WHOLE)
    number = chance.choice(chance.choice(kinds))
    return ["-", number] if chance.random() < 0.15 else [number]


def _text(chance: Random) -> str:
    return f"'{chance.choice(WORDS)}'"
