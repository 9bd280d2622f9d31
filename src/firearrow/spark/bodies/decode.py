"""Bodies as typed columns: ``decoded(messages, "json", "id string, cents long")``.

This is a function on a table and not an option of the source. So it works on every table with the column ``body``: a
batch, a stream, an archive, a topic's view. Spark decodes only the columns that a query uses.

A body decodes as a whole or not at all. Spark's own ``from_json`` silently returns the readable half of an object, the
first of several objects, or the first element of a list; see ``_json``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructField, StructType

from firearrow.errors import ConfigError
from firearrow.spark.bodies.bodies import Bodies, decoded_values
from firearrow.spark.bodies.jsonschema import struct_of_registered
from firearrow.spark.bodies.registry import JSON, PROTOBUF, Registry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS: Final = ("json", "avro", "protobuf")
SAMPLE_MESSAGES: Final = 1000  # enough to see optional fields, and read in seconds
STRICT: Final = {"allowSingleQuotes": "false"}
_BACKSLASH: Final = r"\\\\"
_HALF: Final = r"\\u[dD][89a-fA-F]"
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"


def decoded(
    messages: DataFrame,
    body_format: str,
    schema: str | StructType | None = None,
    *,
    sample: int = SAMPLE_MESSAGES,
    message: str | None = None,
    registry: str | None = None,
    subject: str | None = None,
) -> DataFrame:
    """Return the messages with two more columns: ``value``, and ``undecoded`` for bodies without a value.

    ``value`` is a structure with typed fields. The fields come from

    - ``json``: ``schema``, Spark's own, or its text such as ``id string, cents long``; without a schema, from the
      bodies of the first ``sample`` messages;
    - ``avro``: ``schema``, Avro's own as text or the name of a file;
    - ``protobuf``: the ``message`` of that full name in ``schema``, the name of a descriptor file.

    With ``registry``, the URL of a schema registry, bodies begin with the id of the schema that they were written with.
    The newest schema of ``subject`` has the fields if no ``schema`` is given. Protobuf's ``message`` is then the first
    one by default.

    If a body is not of this format, or a field not of its type, ``value`` is null and ``undecoded`` is the body. A
    message without a body (null) has neither.

    Raises ConfigError for an impossible format or schema, and if no schema can be inferred.
    """
    if body_format not in FORMATS:
        raise ConfigError(f"body format {body_format!r}: must be json, avro or protobuf")
    _require_arguments(body_format, schema, message, registry, subject)
    _require_columns(messages)
    if body_format == "json":
        body = _text(F.col("body")) if registry is None else _text(_unframed(Registry(registry)))
        if schema is not None:
            return _json(messages, body, _fields(schema))
        if registry is None or subject is None:
            return _json(messages, body, _inferred(messages, body, sample))
        return _json(messages, body, struct_of_registered(Registry(registry).latest(subject, JSON)))
    text = schema if isinstance(schema, str) else None
    if body_format == "avro":
        return _in_workers(messages, _avro(text, registry, subject))
    return _in_workers(messages, _protobuf(text, message, registry, subject))


def _require_arguments(
    body_format: str, schema: str | StructType | None, message: str | None, registry: str | None, subject: str | None
) -> None:
    """Raise ConfigError for missing arguments, and for arguments without effect."""
    if body_format != "json" and isinstance(schema, StructType):
        raise ConfigError(f"{body_format} bodies: the schema must be a text, not a StructType")
    if body_format == "protobuf" and subject is None and (schema is None or message is None):
        raise ConfigError("protobuf bodies: give a descriptor file as schema, and a message's name")
    if body_format != "protobuf" and message is not None:
        raise ConfigError(f"{body_format} bodies have no message {message!r}: for protobuf only")
    if subject is not None and (registry is None or schema is not None):
        raise ConfigError(f"subject {subject!r}: needs a schema registry, and no other schema")
    if body_format == "avro" and schema is None and subject is None:
        raise ConfigError("avro bodies: give a schema, or a schema registry and a subject")


def _require_columns(messages: DataFrame) -> None:
    body = next((column for column in messages.schema if column.name == "body"), None)
    if body is None or body.dataType != BinaryType():
        raise ConfigError("messages to decode must have a column body of type binary")
    for name in messages.columns:
        if name.lower() in {"value", "undecoded"}:
            raise ConfigError(f"messages to decode already have a column {name!r}: rename it")


# --- JSON ---


def _json(messages: DataFrame, text: Column, fields: StructType) -> DataFrame:
    """Decode by Spark's parser, which stops behind the first value of a text.

    Text behind the value would go unnoticed. So the text is read twice: as a member of an object that must come to its
    end, and as the only element of a list. Text that can follow in one of them cannot follow in the other.
    """
    members = [StructField("value", fields), StructField("end", BooleanType()), StructField("failed", StringType())]
    options = {**STRICT, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "failed"}
    in_object = F.concat(F.lit('{"value":'), text, F.lit(',"end":true}'))
    parsed = F.from_json(in_object, StructType(members), options)
    one = _is_one_value(text) & ~_has_half_a_pair(text)

    def whole(it: Column) -> Column:
        return it["failed"].isNull() & it["end"] & one

    # Spark writes this into each filter on the value, and would run the parser for every use of its
    # result there; as the element of an array it is made once.
    value = F.get(F.filter(F.array(parsed), whole), F.lit(0))["value"]
    try:
        return _with_undecoded(messages.withColumn("value", value))
    except AnalysisException as error:
        raise _wrong_schema(fields.simpleString(), error) from None


def _text(body: Column) -> Column:
    """Return a body as text; null if it is not UTF-8, where Spark would write replacement signs."""
    return F.try_validate_utf8(body.cast("string"))


def _unframed(registry: Registry) -> Column:
    """Return the body behind the frame of a registry; null if it has none."""
    body = F.col("body")
    framed = F.startswith(body, F.lit(b"\0")) & (F.length(body) > registry.id_bytes)
    return F.when(framed, F.substring(body, registry.id_bytes + 2, 1 << 30))


def _is_one_value(text: Column) -> Column:
    return F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1


def _has_half_a_pair(text: Column) -> Column:
    """Tell whether an escape in a text is half of a surrogate pair.

    No text of Spark holds one, and its parser silently replaces it by a question mark.
    """
    without_backslashes = F.regexp_replace(text, _BACKSLASH, " ")
    rest = F.regexp_replace(without_backslashes, _PAIR, " ")
    may_have = text.contains("\\ud") | text.contains("\\uD")
    return F.when(may_have, rest.rlike(_HALF)).otherwise(F.lit(False))


def _fields(schema: str | StructType) -> StructType:
    try:
        fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        raise _wrong_schema(schema, error) from None
    if not isinstance(fields, StructType) or not fields or len(set(fields.names)) < len(fields):
        text = schema if isinstance(schema, str) else schema.simpleString()
        raise ConfigError(f"schema {text!r}: must have fields, and no two of one name")
    return fields


def _wrong_schema(schema: object, error: AnalysisException) -> ConfigError:
    reason = re.sub(r"^\[[\w.]+\] | SQLSTATE: \w+", "", str(error).strip().splitlines()[0])
    return ConfigError(f"schema {schema!r}: {reason}")


def _inferred(messages: DataFrame, text: Column, sample: int) -> StructType:
    if messages.isStreaming:
        raise ConfigError("a stream has no sample to infer a schema from: give a schema")
    if sample <= 0:
        raise ConfigError(f"a sample of {sample} messages: must be more than 0")
    objects = messages.select("body").limit(sample).where(_is_one_value(text))
    objects = objects.where(F.ltrim(text).startswith("{")).select(text.alias("body"))
    fields = messages.sparkSession.read.options(**STRICT, mode="DROPMALFORMED").json(objects).schema
    if not fields:
        raise ConfigError(f"none of the first {sample} messages is a JSON object with fields: give a schema")
    return _fields(fields)  # a sampled object may have a name twice


# --- Avro and Protobuf ---


def _avro(schema: str | None, registry: str | None, subject: str | None) -> Bodies:
    from firearrow.spark.bodies.avro import AvroBodies, given_schema, self_contained  # needs fastavro

    asked = None if registry is None else Registry(registry)
    if schema is not None:
        return AvroBodies(given_schema(schema), asked)
    assert asked is not None
    assert subject is not None
    return AvroBodies(self_contained(asked.latest(subject)), asked)


def _protobuf(schema: str | None, message: str | None, registry: str | None, subject: str | None) -> Bodies:
    from firearrow.spark.bodies.protobuf import ProtoBodies, given_descriptors, of_registry  # needs protobuf

    asked = None if registry is None else Registry(registry)
    if schema is not None:
        assert message is not None
        return ProtoBodies(given_descriptors(schema), message, asked)
    assert asked is not None
    assert subject is not None
    return of_registry(asked, asked.latest(subject, PROTOBUF), message)


def _in_workers(messages: DataFrame, bodies: Bodies) -> DataFrame:
    """Decode in Python.

    Spark has ``from_avro`` and ``from_protobuf`` in jars that do not come with PySpark. Their results would differ from
    these, and a query's results must not depend on a session's jars.
    """
    fields = bodies.fields()

    kind = pa.struct(list(to_arrow_schema(fields, timezone="UTC")))

    def values_of(column: pa.Array) -> pa.Array:
        return decoded_values(bodies, kind, column)[0]

    # PySpark's types ask for an argument that makes PySpark warn
    value = arrow_udf(values_of, returnType=fields)  # type: ignore[call-overload]
    return _with_undecoded(messages.withColumn("value", value(F.col("body"))))


def _with_undecoded(messages: DataFrame) -> DataFrame:
    return messages.withColumn("undecoded", F.when(F.col("value").isNull(), F.col("body")))
