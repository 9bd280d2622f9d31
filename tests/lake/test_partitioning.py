"""Partitions of typed tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from firearrow.errors import ConfigError
from firearrow.lake.partitioning import Partitioning, directory, murmur3, parts


def test_buckets_are_icebergs() -> None:
    # Values of Iceberg's specification, appendix B.
    assert murmur3((34).to_bytes(8, "little")) == 2017239379
    assert murmur3(b"iceberg") == 1210000089
    assert murmur3(bytes([0, 1, 2, 3])) == 2**32 - 188683207


def test_rows_are_parted_by_all_columns() -> None:
    rows = pa.table(
        {
            "at": pa.array([0, 3_600_000_000, 7_200_000_001, None, 0], pa.timestamp("us", "UTC")),
            "to": ["a/b", "a/b", None, "a/b", "a/b"],
            "n": range(5),
        }
    )
    by = [Partitioning.of("hour(at)"), Partitioning.of("to")]
    found = {directory(values): part["n"].to_pylist() for values, part in parts(rows, by)}
    assert found == {
        "at_hour=0/to=a%2Fb/": [0, 4],
        "at_hour=1/to=a%2Fb/": [1],
        "at_hour=2/to=__HIVE_DEFAULT_PARTITION__/": [2],
        "at_hour=__HIVE_DEFAULT_PARTITION__/to=a%2Fb/": [3],
    }
    assert [(values, part.num_rows) for values, part in parts(rows, [])] == [({}, 5)]


def test_a_time_before_1970_is_in_the_day_and_hour_that_hold_it() -> None:
    rows = pa.table({"at": pa.array([-1, -3_600_000_001, 0], pa.timestamp("us", "UTC"))})
    assert Partitioning.of("hour(at)").values(rows).to_pylist() == [-1, -2, 0]
    assert [str(day) for day in Partitioning.of("day(at)").values(rows).to_pylist()] == [
        "1969-12-31", "1969-12-31", "1970-01-01"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "week()", "bucket(0, a)", "bucket(a)", "day(a"])
def test_a_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="partition "):
        Partitioning.of(text)


@pytest.mark.parametrize("text", ["day(n)", "bucket(3, at)", "at", "x", "bucket(3, x)"])
def test_a_column_that_has_no_such_partition_is_refused(text: str) -> None:
    columns = pa.schema([("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    with pytest.raises(ConfigError, match="partition "):
        Partitioning.of(text).field(columns)
