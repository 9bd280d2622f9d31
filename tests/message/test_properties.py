"""The properties string: round trips, what readers forgive and writers refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message import properties
from tests.message.strategies import property_maps


@given(property_maps)
def test_what_is_written_reads_the_same(pairs: dict[str, str]) -> None:
    assert properties.parse(properties.format(pairs)) == pairs
    assert properties.parse(properties.encode(pairs)) == pairs


def test_the_worked_example() -> None:
    encoded = bytes.fromhex("54414753 01 41 02 4b455953 01 6b31 02")
    assert properties.encode({"TAGS": "A", "KEYS": "k1"}) == encoded
    assert properties.parse(encoded) == {"TAGS": "A", "KEYS": "k1"}


def test_nothing_is_the_empty_string() -> None:
    assert properties.format({}) == ""
    assert properties.parse("") == {}


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02c", {"a": "b"}),
        ("a\x02b\x01c\x02", {"b": "c"}),
        ("\x01b\x02c\x01d\x02", {"c": "d"}),
        ("a\x01\x02", {}),
        ("\x02\x02a\x01b\x02", {"a": "b"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
    ],
)
def test_readers_skip_what_is_no_pair(text: str, pairs: dict[str, str]) -> None:
    assert properties.parse(text) == pairs


@given(st.text("ab\x01\x02é", max_size=20), st.sampled_from(["a", "b", "ab"]))
def test_one_value_is_found_as_a_whole_reader_finds_it(text: str, name: str) -> None:
    found = properties.finder(name)(text.encode())
    assert (found and found.decode()) == properties.parse(text).get(name)


@given(st.text("ab\x01\x02é", max_size=20), st.sets(st.sampled_from(["a", "b", "ab"])))
def test_names_that_are_lacking_are_in_no_pair_that_a_reader_finds(text: str, names: set[str]) -> None:
    """`lacks` may report a name that no reader finds, never the reverse."""
    if properties.lacks(text.encode(), [name.encode() for name in names]):
        assert names.isdisjoint(properties.parse(text))
        assert properties.parse(text + "c\x01d\x02") == {**properties.parse(text), "c": "d"}
    elif text.endswith("\x02"):
        assert any(name in text for name in names)


def test_damaged_text_does_not_stop_a_reader() -> None:
    assert properties.parse(b"a\x01\xff\x02b\x01c\x02") == {"a": "�", "b": "c"}


@given(st.binary(max_size=50))
def test_reading_never_fails(raw: bytes) -> None:
    assert all(key and value for key, value in properties.parse(raw).items())


def test_an_empty_value_means_no_pair() -> None:
    assert properties.format({"a": "", "b": "c"}) == "b\x01c\x02"


@pytest.mark.parametrize("pair", [("a\x01", "b"), ("a\x02", "b"), ("a", "\x01b"), ("a", "b\x02")])
def test_separators_cannot_be_written(pair: tuple[str, str]) -> None:
    with pytest.raises(MessageError, match="contains a separator"):
        properties.format({"ok": "ok", pair[0]: pair[1]})


def test_a_key_cannot_be_empty() -> None:
    with pytest.raises(MessageError, match="empty key"):
        properties.format({"": "a"})


def test_a_lone_surrogate_cannot_be_stored() -> None:
    with pytest.raises(MessageError, match="surrogate"):
        properties.encode({"a": "\ud800"})


def test_the_limit_counts_bytes() -> None:
    room = properties.PROPERTIES_BYTES_MAX - len("a\x01\x02")
    assert len(properties.encode({"a": "x" * room})) == properties.PROPERTIES_BYTES_MAX
    with pytest.raises(MessageError, match="32768 bytes exceed"):
        properties.encode({"a": "x" * (room + 1)})
    with pytest.raises(MessageError, match="exceed"):
        properties.encode({"a": "标" * (room // 3 + 1)})


@given(st.text(st.sampled_from("ab\x01\x02")))
def test_parse_goes_by_each_pair(text: str) -> None:
    """Whether or not the pairs are sound: one without a name or a value is none."""
    split = [pair.partition("\x01") for pair in text.split("\x02")]
    assert properties.parse(text) == {key: value for key, _, value in split if key and value}
