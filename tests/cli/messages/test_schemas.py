"""Bodies by their schemas: of the topic's attributes, and of the registry that is allowed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest

from firearrow.cli.messages.bodyviews import Undecodable
from firearrow.cli.messages.schemas import by_schema
from tests.spark.registries import serving_schemas

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "of", "type": "string"}],
}
TEXT = json.dumps(SCHEMA)
ATTRIBUTES = {"table.format": "delta", "table.bodies": "avro", "table.schema": TEXT.replace(",", ";")}


def written() -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(SCHEMA), {"id": 17, "of": "c1"})
    return file.getvalue()


def test_the_schema_of_a_topic_is_used() -> None:
    found = by_schema(written(), "orders", ATTRIBUTES)
    assert found is not None
    assert (found.schema, json.loads(found.text)) == ("Avro by the topic's schema", {"id": 17, "of": "c1"})
    with pytest.raises(Undecodable, match="Avro by the topic's schema: "):
        by_schema(b"\xff\xff\xff\xff", "orders", ATTRIBUTES)


def test_the_registry_of_the_environment_is_asked() -> None:
    framed = b"\0" + (7).to_bytes(4) + written()
    with serving_schemas({7: TEXT}, {"orders-value": 7}) as (url, asked):
        found = by_schema(framed, "orders", {}, url)
        assert found is not None
        assert (found.schema, json.loads(found.text)["of"]) == ("Avro by schema 7", "c1")
        own = {"table.format": "delta", "table.bodies": "avro", "table.registry": url, "table.subject": "orders-value"}
        by_subject = by_schema(framed, "orders", own, url)
        assert by_subject is not None
        assert by_subject.schema == "Avro by orders-value"
        asked.clear()
        with pytest.raises(Undecodable, match="names the registry"):
            by_schema(framed, "orders", own, "http://127.0.0.1:1")
        assert by_schema(framed, "orders", {}) is None
        assert asked == []


def test_no_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(TEXT)
    with pytest.raises(Undecodable, match="is a file, which is not read here"):
        by_schema(written(), "orders", ATTRIBUTES | {"table.schema": str(file)})


def test_a_topic_without_a_schema_has_none() -> None:
    assert by_schema(written(), "orders", {}) is None
    assert by_schema(b"{}", "orders", {"table.format": "delta", "table.schema": "id long"}) is None
    with pytest.raises(Undecodable, match="The schema of the body is unknown"):
        by_schema(b"{}", "orders", {"table.format": "delta", "table.bodies": "xml"})
