"""Which topics become tables, from a file and from attributes."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.errors import ConfigError
from firearrow.lake.spec import TableSpec, read_lake_file, specs_of, table_name

FILE = """
root = "/lake"
lag = 30.0

[[tables]]
topics = "orders.*"
schema = "order string"
partition = ["day", "bucket(16, order)"]
"""


def test_a_file_names_topics_and_attributes_win(tmp_path: Path) -> None:
    (tmp_path / "lake.toml").write_text(FILE)
    lake = read_lake_file(tmp_path / "lake.toml")
    assert (lake.root, lake.lag) == ("/lake", 30.0)
    topics = {
        "orders-eu": {},
        "orders": {"table.format": "iceberg", "table.partition": "hour; bucket(4; order)", "message.type": "FIFO"},
        "payments": {"table.format": "delta", "table.schema": "cents long", "table.mode": "upsert"},
        "other": {"message.type": "NORMAL"},
    }
    specs = specs_of(topics, lake.tables)
    assert sorted(specs) == ["orders", "orders-eu", "payments"]
    assert (specs["orders"].format, specs["orders"].schema) == ("iceberg", "order string")
    assert [each.name for each in specs["orders"].partitioning] == ["_stored_at_hour", "order_bucket"]
    assert [each.name for each in specs["orders-eu"].partitioning] == ["_stored_at_day", "order_bucket"]
    assert specs["payments"].partitioning == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "lake.toml: "),
        ('tables = [{topics = "("}]', r"topics '\(': "),
        ("[[tables]]\nfrom = 3", "Object contains unknown field `from`"),
        ('[[tables]]\ntopics = "a"', "table of 'a': needs a schema, or a registry and a subject"),
        ('[[tables]]\nkey = "a"\nschema="a int"', "key 'a' is for mode = upsert"),
        ('[[tables]]\nsubject = "a"\nschema="a int"', "subject 'a' needs a registry"),
        ('[[tables]]\nmessage = "a"\nschema="a int"', "message 'a' is for bodies = protobuf"),
        ('[[tables]]\npartition = ["week()"]\nschema="a int"', r"partition 'week\(\)'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "lake.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_lake_file(tmp_path / "lake.toml")


def test_wrong_attributes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"topic 'a': attributes table\.\*: Invalid enum value 'hudi'"):
        specs_of({"a": {"table.format": "hudi"}}, [TableSpec(topics="a", schema="a int")])


def test_names_of_tables_are_names_of_sql() -> None:
    assert [table_name(topic) for topic in ("orders", "orders-eu", "%DLQ%g")] == ["orders", "orders_eu", "_DLQ_g"]
