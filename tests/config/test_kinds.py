"""Each kind reads its texts, refuses all others, and says in words which texts it reads."""

from __future__ import annotations

from typing import Any

import pytest

from firearrow.config.kinds import (
    COUNT,
    DURATION,
    FLAG,
    NAMES,
    POSITIVE,
    SIZE,
    TEXT,
    Kind,
    MiB,
    matching,
    one_of,
    proposal,
    whole_number,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (FLAG, " TRUE ", True),
        (SIZE, "64 MiB", 64 * MiB),
        (SIZE, "7", 7),
        (DURATION, "15m", 900_000),
        (COUNT, "0", 0),
        (POSITIVE, " +3 ", 3),
        (whole_number(), "-5", -5),
        (NAMES, "a, b;c", ("a", "b", "c")),
        (TEXT, " x ", "x"),
        (one_of("fail", "skip", any_case=True), "Skip", "skip"),
        (one_of("", "PROM"), "", ""),
        (matching("[a-z]*", "small letters"), " abc ", "abc"),
    ],
)
def test_a_text_becomes_a_value(kind: Kind, text: str, value: Any) -> None:
    assert kind.read(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FLAG, "yes"),
        (SIZE, "0"),
        (SIZE, "1x"),
        (DURATION, "15"),
        (COUNT, "-1"),
        (COUNT, "1_000"),
        (POSITIVE, "0"),
        (whole_number(1, 5), "6"),
        (NAMES, " , "),
        (TEXT, " "),
        (one_of("PROM", "LOG"), "log"),
        (matching("[a-z]*", "small letters"), "aB"),
    ],
)
def test_any_other_text_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises(ValueError):
        kind.read(text)


def test_the_allowed_texts_are_said_in_words() -> None:
    assert whole_number(1, 5).allowed == "a whole number from 1 to 5"
    assert whole_number(2).allowed == "a whole number of 2 or more"
    assert whole_number().allowed == "a whole number"
    assert (COUNT.allowed, POSITIVE.allowed) == ("a whole number of 0 or more", "a whole number above 0")
    assert one_of("", "a", "b").allowed == "nothing, a or b"
    assert one_of("a").allowed == "a"


def test_the_nearest_name_is_proposed_as_it_is_spelt() -> None:
    assert proposal("subcribe", ["subscribe", "topic"]) == "; did you mean subscribe?"
    assert proposal("FLUSHDISKTYPE", ["flushDiskType"]) == "; did you mean flushDiskType?"
    assert proposal("xyz", ["subscribe"]) == ""
