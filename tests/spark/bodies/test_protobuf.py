"""Bodies become typed columns, or say that they don't: Protocol Buffers."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from firearrow.errors import ConfigError
from firearrow.spark import decoded
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.protobuf import ProtoBodies
from tests.spark.bodies.test_decode import both, table

ONE, MANY = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What ``protoc -o`` makes of a file with an order in it."""
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="PAID", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=Field.TYPE_STRING, label=ONE)
    order = file.message_type.add(name="Order")
    plain = [
        ("id", Field.TYPE_STRING), ("cents", Field.TYPE_INT32), ("big", Field.TYPE_UINT64),
        ("u", Field.TYPE_UINT32), ("f", Field.TYPE_DOUBLE), ("raw", Field.TYPE_BYTES),
    ]  # fmt: skip
    for number, (name, kind) in enumerate(plain, 1):
        order.field.add(name=name, number=number, type=kind, label=ONE)
    message, enum = Field.TYPE_MESSAGE, Field.TYPE_ENUM
    order.field.add(name="state", number=7, type=enum, label=ONE, type_name=".shop.State")
    order.field.add(name="line", number=8, type=message, label=ONE, type_name=".shop.Line")
    order.field.add(name="lines", number=9, type=message, label=MANY, type_name=".shop.Line")
    stamp = ".google.protobuf.Timestamp"
    order.field.add(name="at", number=10, type=message, label=ONE, type_name=stamp)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=ONE)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT64, label=ONE)
    counts = ".shop.Order.CountsEntry"
    order.field.add(name="counts", number=11, type=message, label=MANY, type_name=counts)
    order.oneof_decl.add(name="_note")
    order.field.add(name="note", number=12, type=Field.TYPE_STRING, label=ONE, oneof_index=0, proto3_optional=True)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=message, label=ONE, type_name=".shop.Node")
    file.message_type.add(name="Empty")
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("protobuf") / "shop.desc"
    path.write_bytes(descriptors().SerializeToString())
    return str(path)


def order() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()


def test_values_are_typed(spark: SparkSession, file: str) -> None:
    full = order()
    full.id, full.cents, full.big, full.u, full.f = "o-1", -5, (1 << 64) - 1, (1 << 32) - 1, 0.5
    full.raw, full.state, full.note = b"\0", 1, ""
    full.line.sku = "a"
    full.lines.add(sku="b")
    full.at.seconds, full.at.nanos = 1, 2000
    full.counts["x"] = 1 << 40
    late = order()
    late.state = 9  # of a newer version
    unknown = b"\xa2\x06\x01x"  # field 100
    messages = table(spark, [full.SerializeToString() + unknown, late.SerializeToString(), None])
    rows = decoded(messages, "protobuf", file, message="shop.Order")
    assert rows.schema["value"].dataType == StructType.fromDDL(
        "id string, cents int, big decimal(20,0), u long, f double, raw binary, state string, "
        "line struct<sku: string>, lines array<struct<sku: string>>, at timestamp, "
        "counts map<string, long>, note string"
    )
    found = rows.sort("queueOffset").selectExpr("value.*", "unix_micros(value.at) us", "undecoded")
    first, second, third = found.collect()
    assert (first.id, first.cents, first.big, first.u) == ("o-1", -5, Decimal((1 << 64) - 1), (1 << 32) - 1)
    assert (first.f, bytes(first.raw), first.state, first.note) == (0.5, b"\0", "PAID", "")
    assert (first.line, first.lines, first.us) == (Row(sku="a"), [Row(sku="b")], 1_000_002)
    assert (first.counts, first.undecoded) == ({"x": 1 << 40}, None)
    assert (second.id, second.cents, second.state, second.lines) == ("", 0, "9", [])
    assert (second.line, second.at, second.note, second.undecoded) == (None,) * 4
    assert set(third) == {None}


def test_what_is_no_such_message_is_undecoded(spark: SparkSession, file: str) -> None:
    damaged = [b"text", b"\x0a\x05ab", b"\x0a\x01\xff", b"\xff" * 12]
    far = order()
    far.at.seconds = 1 << 62  # no time that Spark has
    bodies = [b"\x0a\x01a", *damaged, far.SerializeToString(), b"\x0a\x01b"]
    rows = both(decoded(table(spark, bodies), "protobuf", file, message="shop.Order"))
    assert [value and value.id for value, _ in rows] == ["a", *[None] * 5, "b"]
    assert [undecoded for _, undecoded in rows] == [None, *bodies[1:-1], None]


def test_a_serializers_frame_names_the_message(spark: SparkSession, file: str) -> None:
    """A schema's id, then where the message is in its file: first, second, or inside of another."""
    line, order_, entry = (b"\0\0\0\0\x07" + at for at in (b"\0", b"\x02\x02", b"\x04\x02\0"))
    url = "http://127.0.0.1:1"  # nothing to ask it for
    bodies = [line + b"\x0a\x01a", order_ + b"\x0a\x01a", entry + b"\x0a\x01a", b"\x0a\x01a"]
    names = {"Line": "sku", "Order": "id", "Order.CountsEntry": "key"}
    for place, (message, name) in enumerate(names.items()):
        messages = table(spark, bodies)
        rows = decoded(messages, "protobuf", file, message=f"shop.{message}", registry=url)
        found = both(rows)
        assert [at for at, (value, _) in enumerate(found) if value is not None] == [place]
        assert found[place][0][name] == "a"


def test_a_far_message_has_a_long_index() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="many.proto")
    for number in range(101):
        file.message_type.add(name=f"M{number}").field.add(name="a", number=1, type=Field.TYPE_STRING, label=ONE)
    found = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    decode = ProtoBodies(found, "M100", framed=True).decoder()
    assert decode(b"\0\0\0\0\x01\x02\xc8\x01\x0a\x01x") == {"a": "x"}
    with pytest.raises(Undecodable, match="the body is another message than M100"):
        decode(b"\0\0\0\0\x01\x02\xc6\x01\x0a\x01x")


def test_what_can_not_be_is_told(spark: SparkSession, file: str, tmp_path: Path) -> None:
    (tmp_path / "none.desc").write_bytes(b"text")
    for path, message, told in [
        (file, "shop.Ordr", "Protobuf message 'shop.Ordr' is not in the descriptors$"),
        (file, "shop.Node", "Protobuf message 'shop.Node' contains itself: no column can$"),
        (file, "shop.Empty", "Protobuf message 'shop.Empty' has no fields$"),
        ("/no/such.desc", "shop.Order", "Protobuf descriptors '/no/such.desc': .*No such file"),
        (str(tmp_path / "none.desc"), "shop.Order", "Protobuf descriptors: "),
        (file, None, "give a descriptor file as schema, and a message's name"),
        (None, "shop.Order", "give a descriptor file as schema, and a message's name"),
    ]:
        with pytest.raises(ConfigError, match=told):
            decoded(table(spark, []), "protobuf", path, message=message)
    assert "text" not in repr(ProtoBodies(b"text", "shop.Order"))
