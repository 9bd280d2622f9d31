"""Rows to members of batches, against a slow and simple oracle."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import ConfigError, MessageError
from firearrow.message.batch import split_batch
from firearrow.message.names import java_hash
from firearrow.message.properties import parse
from firearrow.spark.sinkrows import COLUMNS, Ids, SinkRows, check_columns, rows_of
from tests.message.writing import decode_unique_id

PREFIX = "0123456789ABCDEF0123"
MAP = pa.map_(pa.string(), pa.string())
WORD = pa.field("element", pa.string())


def messages(rows: SinkRows) -> list[tuple[int, bytes, dict[str, str]]]:
    """Flag, body and properties of each row."""
    members = [split_batch(member) for member in rows.members.to_pylist()]
    assert all(len(member) == 1 for member in members)
    return [(flag, body, parse(properties)) for [(flag, body, properties)] in members]


def encoded(columns: dict[str, Any], **options: Any) -> SinkRows:
    batch = pa.RecordBatch.from_pydict(columns)
    topic, order_key = options.get("topic", "T"), options.get("order_key")
    check_columns(batch.schema, topic, order_key)
    return rows_of(batch, Ids(PREFIX), topic, order_key)


def test_a_row_of_everything() -> None:
    rows = encoded(
        {
            "body": pa.array(["hello"]),
            "topic": pa.array(["U"]),
            "tags": pa.array(["A"]),
            "keys": pa.array([["k1", None, "k2"]], pa.list_(WORD)),
            "properties": pa.array([[("color", "red"), ("empty", ""), ("none", None)]], MAP),
            "queueId": pa.array([3], pa.int16()),
            "orderKey": pa.array(["customer"]),
            "delayLevel": pa.array([2]),
            "deliverTimestamp": pa.array([datetime(2026, 1, 1, tzinfo=UTC)]),
            "flag": pa.array([-7], pa.int32()),
        }
    )
    [(flag, body, properties)] = messages(rows)
    assert (flag, body) == (-7, b"hello")
    assert properties == {
        "UNIQ_KEY": PREFIX + "000000000000",
        "color": "red",
        "TAGS": "A",
        "KEYS": "k1  k2",
        "DELAY": "2",
        "TIMER_DELIVER_MS": "1767225600000",
    }
    assert rows.topics == ["U"]
    assert rows.queue_id is not None
    assert rows.order_hash is not None
    assert rows.alone is not None
    assert rows.queue_id.tolist() == [3]
    assert rows.order_hash.tolist() == [abs(java_hash("customer"))]
    assert rows.alone.tolist() == [True]


def test_a_row_of_a_body_alone() -> None:
    rows = encoded({"body": pa.array([b"x", b""])})
    assert messages(rows) == [
        (0, b"x", {"UNIQ_KEY": PREFIX + "000000000000"}),
        (0, b"", {"UNIQ_KEY": PREFIX + "000000000001"}),
    ]
    assert rows.topics == ["T"]
    assert (rows.queue_id, rows.order_hash, rows.alone) == (None, None, None)


def test_a_list_of_keys_may_be_null_or_empty_or_of_words_that_are_not_null() -> None:
    words = pa.list_(pa.field("element", pa.string(), nullable=False))
    keys = pa.array([["skipped"], None, [], ["a", "b"]], words)[1:]
    found = messages(encoded({"body": pa.array([b""] * 3), "keys": keys}))
    assert [properties.get("KEYS") for _, _, properties in found] == [None, None, "a b"]


def test_no_rows() -> None:
    for column in (pa.array([], pa.binary()), pa.array([b"x"])[:0]):
        empty = {"body": column, "queueId": pa.array([], pa.int32()), "tags": pa.array([], "str")}
        assert len(encoded({**empty, "properties": pa.array([], MAP)})) == 0


TEXT = st.text(st.characters(min_codepoint=32, codec="utf-8"), max_size=8)
DELAYING = {"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"}
MEANING_SOMETHING = {"UNIQ_KEY", "TAGS", "KEYS", "TRAN_MSG", *DELAYING}
NAME = TEXT.filter(bool).filter(lambda name: name not in MEANING_SOMETHING)
ROW = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=20),
        "topic": st.sampled_from(["T", "U", "longer_topic", None]),
        "tags": st.none() | TEXT,
        "keys": st.none() | TEXT,
        "properties": st.none() | st.dictionaries(NAME, st.none() | TEXT, max_size=4),
        "queueId": st.none() | st.integers(0, 9),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "orderKey": st.none() | TEXT,
        "delayLevel": st.none() | st.integers(0, 18),
    }
)
TYPES = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": MAP,
    "queueId": pa.int32(),
    "flag": pa.int32(),
    "orderKey": pa.string(),
    "delayLevel": pa.int32(),
}


def oracle(row: dict[str, Any], number: int) -> tuple[int, bytes, dict[str, str]]:
    pairs: dict[str, str | None] = {"UNIQ_KEY": f"{PREFIX}{number:012X}"}
    pairs |= row["properties"] or {}
    pairs |= {"TAGS": row["tags"], "KEYS": row["keys"]}
    pairs["DELAY"] = str(row["delayLevel"] or "")
    return row["flag"] or 0, row["body"], {name: text for name, text in pairs.items() if text}


@given(st.lists(ROW, max_size=30), st.integers(0, 3), st.sets(st.sampled_from(sorted(TYPES))))
def test_rows_are_what_the_oracle_says(table: list[dict[str, Any]], skipped: int, left_out: set[str]) -> None:
    left_out -= {"body"}
    for row in table:
        row |= dict.fromkeys(left_out)
    columns = {
        name: pa.array([list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in table], kind)[
            skipped:
        ]  # arrays that begin somewhere inside their buffers
        for name, kind in TYPES.items()
        if name not in left_out
    }
    rows = encoded(columns)
    chosen = table[skipped:]
    assert messages(rows) == [oracle(row, number) for number, row in enumerate(chosen)]
    assert [rows.topics[number] for number in rows.topic_number] == [row["topic"] or "T" for row in chosen]
    if rows.queue_id is not None:
        assert rows.queue_id.tolist() == [-1 if row["queueId"] is None else row["queueId"] for row in chosen]
    if rows.order_hash is not None:
        assert rows.order_hash.tolist() == [
            -1 if row["orderKey"] is None else abs(java_hash(row["orderKey"])) for row in chosen
        ]
    late = [bool(row["delayLevel"]) for row in chosen]
    assert (rows.alone is not None) == any(late)
    if rows.alone is not None:
        assert rows.alone.tolist() == late


def test_properties_as_stored() -> None:
    texts = ["a\x011\x02UNIQ_KEY\x01mine\x02", "UNIQ_KEY\x01mine\x02", "DELAY\x013", "", None]
    rows = encoded({"body": pa.array([b""] * 5), "properties": pa.array(texts)})
    assert [properties for _, _, properties in messages(rows)] == [
        {"a": "1", "UNIQ_KEY": "mine"},
        {"UNIQ_KEY": "mine"},
        {"UNIQ_KEY": PREFIX + "000000000002", "DELAY": "3"},
        {"UNIQ_KEY": PREFIX + "000000000003"},
        {"UNIQ_KEY": PREFIX + "000000000004"},
    ]
    assert rows.alone is not None
    assert rows.alone.tolist() == [False, False, True, False, False]


def test_another_column_can_be_the_order_key() -> None:
    rows = encoded({"body": pa.array([b""] * 2), "customer": pa.array([7, 12])}, order_key="customer")
    assert rows.order_hash is not None
    assert rows.order_hash.tolist() == [java_hash("7"), java_hash("12")]
    rows = encoded({"body": pa.array([b"a", b"b"])}, order_key="body")
    assert rows.order_hash is not None
    assert rows.order_hash.tolist() == [java_hash("a"), java_hash("b")]


def test_ids_count_on_and_can_be_read_as_ids() -> None:
    ids = Ids(PREFIX, (1 << 48) - 1)
    pairs = [pair.decode() for pair in ids.pairs(2).to_pylist() + ids.pairs(1).to_pylist()]
    assert pairs == [f"UNIQ_KEY\x01{PREFIX}{digits}\x02" for digits in ("FFFFFFFFFFFF", "000000000000", "000000000001")]
    assert decode_unique_id(PREFIX + "000000020003").counter == 3


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"value": pa.binary()}, "column 'value' can't be written: messages have body, topic, "),
        ({"body": pa.int32()}, "column body is int32; allowed is binary or string"),
        ({"topic": pa.string()}, "column body is missing; the columns are topic"),
        ({"body": pa.binary(), "topic": pa.binary()}, "column topic is binary; allowed is string"),
        ({"body": pa.binary(), "keys": pa.list_(pa.int32())}, "column keys is list<.*>; allowed is"),
        ({"body": pa.binary(), "properties": pa.map_(pa.string(), pa.int32())}, "column propert"),
        ({"body": pa.binary(), "deliverTimestamp": pa.string()}, "column deliverTimestamp is str"),
        ({"body": pa.binary(), "flag": pa.float64()}, "column flag is double; allowed is int"),
    ],
)
def test_columns_that_are_no_messages(schema: dict[str, pa.DataType], error: str) -> None:
    with pytest.raises(ConfigError, match=f"^{error}"):
        check_columns(pa.schema(list(schema.items())), "T", None)


def test_every_column_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    section = text.partition("## Write")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == list(COLUMNS)


def test_a_topic_and_an_order_key_that_are_not_there() -> None:
    schema = pa.schema([("body", pa.binary())])
    with pytest.raises(ConfigError, match=r"^the topic is missing: give option topic, or"):
        check_columns(schema, None, None)
    with pytest.raises(ConfigError, match=r"^option orderKey='user': there is no such column"):
        check_columns(schema, "T", "user")


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"body": pa.array([b"", None])}, "column body, row 1: a message needs a body"),
        ({"topic": pa.array(["T", "a b"])}, "column topic: the topic name 'a b' contains illegal"),
        ({"topic": pa.array(["", "T"])}, "column topic: the topic name is blank"),
        ({"tags": pa.array(["A", "B\x02"])}, "column tags: 'B..?x02' contains a separator"),
        ({"keys": pa.array(["\x01", ""])}, "column keys: '..?x01' contains a separator"),
        ({"properties": pa.array([[], [("a", "\x01")]], MAP)}, "column properties, a value: "),
        ({"properties": pa.array([[("\x02", "b")], []], MAP)}, "column properties, a name: "),
        ({"properties": pa.array([[("", "b")], []], MAP)}, "column properties: a property has an"),
        ({"properties": pa.array(["", "TRAN_MSG\x01true\x02"])}, "column properties, row 1: TRAN_"),
        ({"tags": pa.array(["", "x" * 40_000])}, "column properties, .*, row 1: 40048 bytes excee"),
        ({"body": pa.array([b"", bytes(15 << 20)])}, "column body, row 1: .* exceed the limit of"),
        ({"queueId": pa.array([0, -2])}, "column queueId, row 1: -2 is not a queue"),
        ({"delayLevel": pa.array([-1, 0])}, "column delayLevel, row 0: -1 is below 0"),
        ({"delayLevel": pa.array([0, 19])}, "column delayLevel, row 1: 19 is not below 19"),
        ({"flag": pa.array([0, 1 << 31])}, "column flag, row 1: 2147483648 is not below 214748364"),
    ],
)
def test_rows_that_are_no_messages(columns: dict[str, pa.Array], error: str) -> None:
    with pytest.raises(MessageError, match=re.compile(f"^{error}")):
        encoded({"body": pa.array([b"", b""]), **columns})


def test_a_row_without_any_topic() -> None:
    columns = {"body": pa.array([b"", b""]), "topic": pa.array(["T", None])}
    with pytest.raises(MessageError, match=r"^column topic, row 1: the row has no topic"):
        encoded(columns, topic=None)


# --- half messages ---


def test_halves_name_their_group_and_go_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"], "properties": ["PGROUP\x01theirs\x02", None]})
    rows = rows_of(batch, Ids("0" * 20), "T", None, "ours")
    found = [pairs for _, _, pairs in messages(rows)]
    assert [(pairs["TRAN_MSG"], pairs["PGROUP"]) for pairs in found] == [("true", "ours")] * 2
    assert rows.alone is not None
    assert rows.alone.all()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("DELAY\x013\x02", "RocketMQ's transactions have no delayed messages"),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS\x019\x02", "CHECK_IMMUNITY_TIME_IN_SECONDS limits the time of a commit"),
    ],
)
def test_properties_that_a_half_can_not_have(text: str, fault: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"], "properties": ["", text]})
    with pytest.raises(MessageError, match=f"column properties, row 1: {fault}"):
        rows_of(batch, Ids("0" * 20), "T", None, "ours")
