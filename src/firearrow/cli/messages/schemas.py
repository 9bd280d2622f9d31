"""Bodies by their schemas: the one in the topic's attributes (``table.schema``), or that of a registry.

Only the registry that ``FIREARROW_SCHEMA_REGISTRY`` names is asked: an attribute of a topic or a body must not make
this process read its files or call other servers. So a schema in an attribute must be a text, not the name of a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from firearrow.cli.failures import sentence
from firearrow.cli.messages.bodyviews import Undecodable
from firearrow.errors import FirearrowError

REGISTRY: Final = "FIREARROW_SCHEMA_REGISTRY"
"""Variable of the environment with the URL of a registry, as `firearrow pipeline tables` takes one."""
PLAIN: Final = "json"

Decode = Callable[[bytes], Any]


class BySchema(NamedTuple):
    """Body as JSON, and the schema that says so."""

    schema: str
    text: str


def by_schema(body: bytes, topic: str, attributes: Mapping[str, str], registry: str = "") -> BySchema | None:
    """Give a body by the schema of its topic, or by that of the registry of its frame; None without a schema.

    Raises Undecodable with the reason why it is something else. May wait for the registry.
    """
    is_framed = bool(registry) and body[:1] == b"\0"
    if not is_framed and not any(name.startswith("table.") for name in attributes):
        return None
    try:
        found = _of_topic(topic, attributes, registry) or (_of_registry(body, registry) if is_framed else None)
        if found is None:
            return None
        schema, decode = found
        from firearrow.spark.bodies.bodies import Undecodable as NotThisBody

        try:
            value = decode(body)
        except NotThisBody as error:
            raise Undecodable(f"{schema}: {error}.") from None
        return BySchema(schema, json.dumps(value, indent=2, ensure_ascii=False, default=_plain))
    except ModuleNotFoundError as error:
        raise Undecodable(f"Schemas need {error.name}: pip install 'firearrow[spark,bodies]'.") from None
    except Undecodable:
        raise
    except (FirearrowError, OSError, ValueError, RecursionError) as error:
        raise Undecodable(f"The schema of the body is unknown: {sentence(error)}.") from None


def _of_topic(topic: str, attributes: Mapping[str, str], registry: str) -> tuple[str, Decode] | None:
    from firearrow.lake.spec import specs_of
    from firearrow.spark.bodies.registry import PROTOBUF, Registry

    spec = specs_of({topic: attributes}, ()).get(topic)
    if spec is None or spec.bodies == PLAIN:
        return None
    asked = Registry(registry) if registry and spec.registry else None
    if spec.registry and spec.registry != registry:
        raise Undecodable(f"The topic names the registry {spec.registry!r}, and {REGISTRY} does not.")
    if spec.bodies == "avro":
        from firearrow.spark.bodies.avro import AvroBodies, self_contained

        if spec.schema.lstrip()[:1] in ("{", "["):
            return "Avro by the topic's schema", AvroBodies(spec.schema, asked).decoder()
        if asked is not None and not spec.schema:
            return f"Avro by {spec.subject}", AvroBodies(self_contained(asked.latest(spec.subject)), asked).decoder()
    elif asked is not None and not spec.schema:
        from firearrow.spark.bodies.protobuf import of_registry

        latest = asked.latest(spec.subject, PROTOBUF)
        return f"Protobuf by {spec.subject}", of_registry(asked, latest, spec.message or None).decoder()
    raise Undecodable("The topic's schema is a file, which is not read here.")


def _of_registry(body: bytes, registry: str) -> tuple[str, Decode] | None:
    from firearrow.spark.bodies.bodies import Undecodable as NotThisKind
    from firearrow.spark.bodies.registry import AVRO, JSON, PROTOBUF, Registry

    asked = Registry(registry)
    schema_id, _ = asked.unframed(body)
    for kind in (AVRO, PROTOBUF, JSON):
        try:
            schema = asked.written(schema_id, kind)
        except NotThisKind:
            continue
        if kind == JSON:
            return f"JSON by schema {schema_id}", lambda it: json.loads(asked.unframed(it)[1])
        if kind == AVRO:
            from firearrow.spark.bodies.avro import AvroBodies, self_contained

            return f"Avro by schema {schema_id}", AvroBodies(self_contained(schema), asked).decoder()
        from firearrow.spark.bodies.protobuf import of_registry

        return f"Protobuf by schema {schema_id}", of_registry(asked, schema, None).decoder()
    return None


def _plain(value: Any) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes | bytearray) else str(value)
