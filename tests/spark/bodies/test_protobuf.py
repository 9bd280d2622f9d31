"""Bodies become typed columns, or say that they don't: Protocol Buffers."""

from __future__ import annotations

import base64
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from hypothesis import given
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.errors import ConfigError
from firearrow.spark import decoded
from firearrow.spark.bodies.bodies import Undecodable, decoded_values
from firearrow.spark.bodies.protobuf import ProtoBodies, of_registry
from firearrow.spark.bodies.registry import PROTOBUF, RegisteredSchema, Registry
from tests.spark.bodies.test_decode import both, table
from tests.spark.registries import GLOBAL, serving_schemas

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
    decode = ProtoBodies(found, "M100", Registry("http://127.0.0.1:1")).decoder()
    assert decode(b"\0\0\0\0\x01\x02\xc8\x01\x0a\x01x") == {"a": "x"}
    with pytest.raises(Undecodable, match="the body is another message than M100"):
        decode(b"\0\0\0\0\x01\x02\xc6\x01\x0a\x01x")


def test_what_can_not_be_is_told(spark: SparkSession, file: str, tmp_path: Path) -> None:
    (tmp_path / "none.desc").write_bytes(b"text")
    for path, message, told in [
        (file, "shop.Ordr", "Protobuf message 'shop.Ordr' is not in the descriptors$"),
        (file, "shop.Empty", "Protobuf message 'shop.Empty' has no fields$"),
        ("/no/such.desc", "shop.Order", "Protobuf descriptors '/no/such.desc': .*No such file"),
        (str(tmp_path / "none.desc"), "shop.Order", "Protobuf descriptors: "),
        (file, None, "give a descriptor file as schema, and a message's name"),
        (None, "shop.Order", "give a descriptor file as schema, and a message's name"),
    ]:
        with pytest.raises(ConfigError, match=told):
            decoded(table(spark, []), "protobuf", path, message=message)
    assert "text" not in repr(ProtoBodies(b"text", "shop.Order"))


@pytest.mark.usefixtures("spark")  # to read a schema from its text
def test_a_message_in_itself_is_the_text_of_its_json() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="raw_name", number=1, type=Field.TYPE_BYTES, label=ONE)
    tree.field.add(name="left", number=2, type=Field.TYPE_MESSAGE, label=ONE, type_name=".t.Tree")
    tree.field.add(name="inner", number=3, type=Field.TYPE_MESSAGE, label=MANY, type_name=".t.Tree")
    extra = ".google.protobuf.Struct"
    tree.field.add(name="extra", number=4, type=Field.TYPE_MESSAGE, label=ONE, type_name=extra)
    struct = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(struct)
    bodies = ProtoBodies(descriptor_pb2.FileDescriptorSet(file=[struct, file]).SerializeToString(), "t.Tree")
    assert bodies.fields() == StructType.fromDDL("raw_name binary, left string, inner array<string>, extra string")
    leaf = b"\x0a\x01\0"  # raw_name
    struct_bytes = struct_pb2.Struct()
    struct_bytes.update({"ä": [1, None]})
    extra_bytes = b"\x22" + bytes([struct_bytes.ByteSize()]) + struct_bytes.SerializeToString()
    decode = bodies.decoder()
    assert decode(b"\x12\x05\x12\x03" + leaf + b"\x1a\x03" + leaf + extra_bytes) == {
        "raw_name": b"", "left": '{"left":{"raw_name":"AA=="}}', "inner": ['{"raw_name":"AA=="}'],
        "extra": '{"ä":[1.0,null]}',
    }  # fmt: skip
    deep = b""
    for _ in range(150):  # Protobuf takes 100 levels
        deep = b"\x12" + bytes([len(deep) & 127 | 128, len(deep) >> 7]) + deep
    with pytest.raises(Undecodable, match=r"the body is no t.Tree"):
        decode(deep)


def test_a_field_of_oneof_is_null_unless_it_is_the_one() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="one.proto", syntax="proto3")
    one = file.message_type.add(name="One")
    one.oneof_decl.add(name="it")
    for number, (name, kind) in enumerate((("a", Field.TYPE_STRING), ("b", Field.TYPE_INT32)), 1):
        one.field.add(name=name, number=number, type=kind, label=ONE, oneof_index=0)
    decode = ProtoBodies(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "One").decoder()
    assert [decode(body) for body in (b"\x10\0", b"\x0a\0", b"")] == [
        {"a": None, "b": 0}, {"a": "", "b": None}, {"a": None, "b": None},
    ]  # fmt: skip


def text_of(file: descriptor_pb2.FileDescriptorProto) -> str:
    """A schema as a registry serves it: each file has the same name."""
    other = descriptor_pb2.FileDescriptorProto()
    other.CopyFrom(file)
    other.name = "default"
    return base64.b64encode(other.SerializeToString()).decode()


def money_and_order() -> tuple[str, str, str]:
    """A file, one that imports it, and a newer version of this one, with another message before its first."""
    money = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=Field.TYPE_INT64, label=ONE)
    order = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    order.dependency.extend(["shop/money.proto", "google/protobuf/timestamp.proto", "confluent/meta.proto"])
    first = order.message_type.add(name="Order")
    message = Field.TYPE_MESSAGE
    first.field.add(name="sum", number=1, type=message, label=ONE, type_name=".shop.Money")
    first.field.add(name="at", number=2, type=message, label=ONE, type_name=".google.protobuf.Timestamp")
    newer = descriptor_pb2.FileDescriptorProto()
    newer.CopyFrom(order)
    del newer.message_type[:]
    newer.message_type.add(name="Note").field.add(name="text", number=1, type=Field.TYPE_STRING, label=ONE)
    newer.message_type.add().CopyFrom(first)
    newer.message_type[1].field.add(name="note", number=3, type=message, label=ONE, type_name=".shop.Note")
    return text_of(money), text_of(order), text_of(newer)


ORDER_ALONE = money_and_order()[1], (("shop/money.proto", money_and_order()[0]),)
REFERENCES = {2: [("shop/money.proto", "g/money")], 3: [("shop/money.proto", "g/money")]}
SUBJECTS = {"g/money": 1, "g/order": 3, "g/old": 2}


def test_a_registry_has_the_descriptors(spark: SparkSession) -> None:
    """A body names the place of its message in the file of its own schema."""
    schemas = dict(enumerate(money_and_order(), 1))
    old, new = b"\0\0\0\0\x02" + b"\0", b"\0\0\0\0\x03" + b"\x02\x02"
    note, unknown, money = b"\0\0\0\0\x03" + b"\0", b"\0\0\0\0\x09\0", b"\0\0\0\0\x01\0"
    sum_ = b"\x0a\x02\x08\x05"
    bodies = [old + sum_, new + sum_ + b"\x1a\x03\x0a\x01n", note + b"\x0a\x01n", unknown + sum_, money + b"\x08\x05"]
    more = {"schemaType": "PROTOBUF"}
    with serving_schemas(schemas, SUBJECTS, references=REFERENCES, more=more) as (url, asked):
        rows = decoded(table(spark, bodies), "protobuf", registry=url, subject="g/order", message="shop.Order")
        assert both(rows) == [
            (Row(sum=Row(cents=5), at=None, note=None), None),
            (Row(sum=Row(cents=5), at=None, note=Row(text="n")), None),
            *((None, body) for body in bodies[2:]),
        ]
        registry = Registry(url)
        first = of_registry(registry, registry.latest("g/order", PROTOBUF), None)
        assert first.message == "shop.Note"
        reasons = []
        for body in bodies[3:]:
            with pytest.raises(Undecodable) as wrong:
                first.decoder()(body)
            reasons.append(str(wrong.value))
        assert reasons == ["schema 9 is not in the registry", "Protobuf message 'shop.Note' is not in the descriptors"]
        with pytest.raises(ConfigError, match=r"'shop.Money' is not in schema 3, but in one that it imports"):
            of_registry(registry, registry.latest("g/order", PROTOBUF), "shop.Money")
        assert all(path.endswith("?format=serialized") for path in asked)


def test_apicurio_names_the_message() -> None:
    schemas = dict(enumerate(money_and_order(), 1))
    more = {"schemaType": "PROTOBUF"}
    sum_ = b"\x0a\x02\x08\x05"
    with serving_schemas(schemas, SUBJECTS, references=REFERENCES, more=more, apicurio="v2") as (url, _):
        registry = Registry(url)
        decode = of_registry(registry, registry.latest("g/order", PROTOBUF), "shop.Order").decoder()
        old, new = (b"\0" + (GLOBAL + number).to_bytes(8) for number in (2, 3))
        value = {"sum": {"cents": 5}, "at": None, "note": None}
        for named in (old + b"\x07\x0a\x05Order", new + b"\x0c\x0a\x0ashop.Order", old + b"\0"):
            assert decode(named + sum_) == value
        for other in (new + b"\x06\x0a\x04Note", new + b"\0"):
            with pytest.raises(Undecodable, match=r"another message than shop.Order"):
                decode(other + sum_)
        for wrong in (
            new,
            new + b"\x07\x0a",
            new + b"\x07\x0a\x06Order",
            new + b"\xff\xff\xff\xff\xff",
            new + b"\x03\x12\x01a",
        ):
            with pytest.raises(Undecodable, match=r"the body is no shop.Order: it "):
                decode(wrong)


@given(behind=st.binary(max_size=20), start=st.sampled_from([b"", b"\0", b"\x07\x0a\x05Order", b"\x02\x02"]))
def test_any_bytes_behind_a_frame_are_a_value_or_undecoded(behind: bytes, start: bytes) -> None:
    descriptors = of_registry(Registry("http://r"), RegisteredSchema(2, *ORDER_ALONE), None).descriptors
    for url, frame in (("http://r", bytes(5)), ("http://r/apis/registry/v2", bytes(9))):
        bodies = ProtoBodies(descriptors, "shop.Order", Registry(url))
        kind = pa.struct(list(to_arrow_schema(bodies.fields(), timezone="UTC")))
        values, reasons = decoded_values(bodies, kind, pa.array([frame + start + behind]))
        assert values.null_count == len(reasons)


def test_a_registry_without_descriptors_is_told() -> None:
    no_import = descriptor_pb2.FileDescriptorProto(dependency=["gone.proto"])
    texts = {1: 'syntax = "proto3";', 2: text_of(no_import), 3: text_of(descriptor_pb2.FileDescriptorProto())}
    with serving_schemas(texts, {"a": 1, "b": 2, "c": 3}, more={"schemaType": "PROTOBUF"}) as (url, _):
        registry = Registry(url)
        for subject, told in {
            "a": "Protobuf schema 1: the registry has only its source; give a descriptor file",
            "b": "Protobuf schema 2: the registry lacks the import 'gone.proto'",
            "c": "Protobuf schema 3 has no message",
        }.items():
            with pytest.raises(ConfigError, match=told):
                of_registry(registry, registry.latest(subject, PROTOBUF), None)
