"""SQL92 filters against RocketMQ's own: what is refused, and what each message is answered.

``FIREARROW_SQL_PAIRS`` sets how many random pairs of an expression and properties are compared.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random

import msgspec
import pytest

from firearrow.errors import FilterError
from firearrow.filter.bloom import BloomFilter
from firearrow.filter.sql import compile_sql
from tests.filter.expressions import random_expression, random_properties, random_tokens
from tests.interop.driver import Driver, JavaError
from tests.interop.javaclient import JavaClient, Outgoing

PAIRS = int(os.environ.get("FIREARROW_SQL_PAIRS", "20000"))
STEP = 10_000
LETTERS = {True: "T", False: "F", None: "N"}


def theirs(driver: Driver, pairs: list[tuple[str, str]]) -> str:
    """What RocketMQ's filter says of each pair, a letter each (see ``Filters.java``)."""
    return driver.call("filter.evaluate", str, pairs=pairs)


def ours(expression: str, properties: str) -> str:
    """The same of ours. What follows a complete expression counts as not there: RocketMQ does not
    look at it, which is the one difference."""
    try:
        compiled = compile_sql(expression)
    except FilterError as error:
        if not error.after_end:
            return "R"
        return ours(expression[: error.position], properties)
    try:
        value = compiled.evaluate(properties.encode())
    except ValueError:
        return "E"
    assert value is None or isinstance(value, bool)
    return LETTERS[value]


def random_pairs(seed: int) -> Iterator[tuple[str, str]]:
    chance = Random(seed)
    while True:
        expression = random_expression(chance) if chance.random() < 0.8 else random_tokens(chance)
        yield expression, random_properties(chance)


@pytest.mark.timeout(3600)  # a million pairs take minutes
def test_every_random_pair_is_answered_alike(driver: Driver) -> None:
    pairs = random_pairs(seed=15 if PAIRS <= 2 * STEP else Random().getrandbits(64))
    seen: Counter[str] = Counter()
    left = PAIRS
    while left > 0:
        some = list(islice(pairs, min(left, STEP)))
        left -= len(some)
        answers = theirs(driver, some)
        seen.update(answers)
        different = [
            (*pair, answer, mine) for pair, answer in zip(some, answers, strict=True) if (mine := ours(*pair)) != answer
        ]
        assert different == []
    assert min(seen[letter] for letter in "RTFNE") > PAIRS // 100, seen


# fmt: off
NUMBERS = [
    "0", "1", "-1", "+1", "00", "007", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "+", "1.5", ".5", "5.", "-.5", "1e5", "1E-5", "1.e2", "1e", "1d", "1f", "1.5F", "0x1p3",
    "-0X1.8P-1d", "0x.8p1", "0xp1", "0x1", "NaN", "-NaN", "NaNd", "Infinity", "-Infinity", "Inf",
    "nan", "1_000", "1,5", "\u0661\u0662", "\uff11", "\U0001d7ce", "1e400", "1e-400", "-0.0", "0.0",
    "0x1p99999", "-0x1p99999", "0x1p-99999", "4.9e-324", "1e2147483648", "\u00a01", " 1 ",
    "\t1.5\n", "1 5", "- 1", "--1", "1" * 30, "0" * 30 + "7", "true", "TRUE", ".", "1.5.5", "1e5.5",
]
# fmt: on
LITERALS = ["1", "2147483647", "2147483648", "-2147483649", "1.5", "-0.5", "1E300", "TRUE", "'1'"]


def test_every_number_is_read_alike(driver: Driver) -> None:
    signs = ("=", "<>", "<", "<=", ">", ">=")
    expressions = [f"a {sign} {literal}" for sign in signs for literal in LITERALS]
    expressions += [f"{literal} {sign} a" for sign in signs for literal in LITERALS]
    expressions += [f"a {sign} b" for sign in signs]
    pairs = [
        (expression, f"a\x01{text}\x02b\x01{other}\x02")
        for expression in expressions
        for text in NUMBERS
        for other in (("1.5", "-0.0", "NaN") if "b" in expression else ("",))
    ]
    answers = theirs(driver, pairs)
    different = [
        (*pair, answer, mine) for pair, answer in zip(pairs, answers, strict=True) if (mine := ours(*pair)) != answer
    ]
    assert different == []


def test_a_push_consumer_gets_what_its_expression_chooses(java: JavaClient, name: str, group: str) -> None:
    """The rest is passed over: nothing of it is left to consume."""
    java.create_topic(name, queues=2)
    consumer = java.push_consumer(group, name, "a > 5 AND color IN ('blue', 'green')", sql=True)
    producer = java.producer()

    def send(start: int, end: int) -> set[bytes]:
        colors = ["red", "blue", "green"]
        messages = [
            Outgoing(body=b"%d" % number, queue=number % 2, properties={"a": str(number), "color": colors[number % 3]})
            for number in range(start, end)
        ]
        producer.send(name, messages)
        return {b"%d" % number for number in range(start, end) if number > 5 and number % 3}

    wanted = send(0, 30)
    assert {found.body for found in consumer.wait_for(len(wanted))} == wanted
    wanted |= send(30, 60)  # by pulls that wait
    assert {found.body for found in consumer.wait_for(len(wanted))} == wanted
    consumer.close()
    again = java.push_consumer(group, name, "a > 58", sql=True)
    send(60, 61)
    assert [found.body for found in again.wait_for(1)] == [b"60"]


def test_a_client_is_told_what_is_wrong_with_its_expression(java: JavaClient, topic: str) -> None:
    with pytest.raises(JavaError) as caught:
        java.push_consumer("sql_of_nobody", topic, "a >", sql=True)
    assert caught.value.code in (-1, 23)


class Bits(msgspec.Struct):
    bits: int
    positions: list[int]


@pytest.mark.parametrize(("error_percent", "names"), [(20, 32), (10, 128), (1, 1000), (99, 1)])
def test_bits_of_the_bloom_filter(driver: Driver, error_percent: int, names: int) -> None:
    mine = BloomFilter(error_percent, names)
    for name in ["", "g#T", "group#topic", "x" * 15, "y" * 16, "z" * 17, "ü" * 100, "%RETRY%g#T"]:
        found = driver.call("filter.bits", Bits, errorPercent=error_percent, names=names, name=name)
        assert (found.bits, found.positions) == (mine.bits, mine.positions(name))
