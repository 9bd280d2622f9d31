"""A schema registry, and the frame of bodies that name a schema in it.

======  ======  =======================================
offset  size    meaning
======  ======  =======================================
0       1       0
1       4 or 8  the schema's id in the registry, big-endian
5 or 9          the body, written with that schema
======  ======  =======================================

So ``00 00 00 00 07 02`` is the body ``02``, written with schema 7.

The URL says which protocol a registry speaks. A path that contains ``/apis/registry/v2`` or ``/apis/registry/v3`` is
Apicurio's; any other one is Confluent's, also that of Apicurio's ``/apis/ccompat/v7``, of Karapace and of Redpanda.
Apicurio's serializers of version 2 write a ``globalId`` of 8 bytes by default, and version 3 a ``contentId`` of 4.
``?id=globalId&bytes=4`` at the end of the URL says what other serializers write.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from firearrow.errors import ConfigError, FirearrowError
from firearrow.spark.bodies.bodies import Undecodable

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"  # a registry's names
FRAME: Final = struct.Struct(">BI")
ANSWER_SECONDS_MAX: Final = 10  # a registry answers from memory
SCHEMAS_KEPT_MAX: Final = 1000  # in each worker; the schema of an id never changes
REFERENCES_MAX: Final = 500  # of a schema, nested ones too
_UNKNOWN: Final = frozenset({400, 404, 422})  # some registries call an impossible id a bad request
_APICURIO: Final = re.compile(r"/apis/registry/(v[23])/*$")
_OPTIONS: Final[dict[str, Mapping[str, str]]] = {
    "": {"id": "", "bytes": "4"},
    "v2": {"id": "globalId", "bytes": "8"},
    "v3": {"id": "contentId", "bytes": "4"},
}


def require_frame(body: bytes, id_bytes: int = FRAME.size - 1) -> tuple[int, bytes]:
    """Return the schema's id and the bytes behind it; raise Undecodable for a body without the frame."""
    if len(body) <= id_bytes or body[0] != 0:
        raise Undecodable("the body does not begin with the id of a schema")
    return int.from_bytes(body[1 : 1 + id_bytes]), body[1 + id_bytes :]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry. ``references`` are the names and texts of all schemas that it needs.

    Each one stands behind those that it needs in turn. The text of a Protobuf schema is a ``FileDescriptorProto`` in
    Base64 if the registry has this form, or else its source.
    """

    schema_id: int
    text: str
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Registry:
    """Address of a schema registry: ``http://host:port``, with ``user:password@`` if it asks for them."""

    url: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"schema registry {self}: must begin with http:// or https://")
        given, possible = self._given(), {"id": ("globalId", "contentId"), "bytes": ("4", "8")}
        for name, value in given.items():
            if not self.apicurio or value not in possible.get(name, ()):
                raise ConfigError(f"schema registry {self}: cannot have the option {name}={value}")

    def __str__(self) -> str:
        return urlunsplit(urlsplit(self.url)._replace(netloc=self._parts()[1]))

    __repr__ = __str__  # without the password

    @property
    def base(self) -> str:
        """Beginning of the URLs of schemas."""
        return str(self).partition("?")[0].rstrip("/")

    @property
    def apicurio(self) -> str:
        """Version of Apicurio's protocol, or nothing for Confluent's."""
        found = _APICURIO.search(urlsplit(self.url).path)
        return found[1] if found else ""

    @property
    def id_bytes(self) -> int:
        """Size of a schema's id in the frame of bodies."""
        return int(self._options()["bytes"])

    @property
    def id_name(self) -> str:
        """Kind of ids in the frame of bodies, for Apicurio."""
        return self._options()["id"]

    def unframed(self, body: bytes) -> tuple[int, bytes]:
        """Return the id of a body's schema, and the bytes behind it; raise as ``require_frame``."""
        return require_frame(body, self.id_bytes)

    def schema(self, schema_id: int, kind: str = AVRO) -> RegisteredSchema | None:
        """Return the schema of an id, or None if there is none.

        Raises ConfigError if it is of another kind or lacks a reference, FirearrowError if the registry fails.
        """
        if schema_id >> (8 * self.id_bytes - 1):
            return None  # registries are written in Java, whose numbers have a sign
        path = f"/ids/{self.id_name}s/{schema_id}" if self.apicurio else f"/schemas/ids/{schema_id}"
        found = _kept(self, path, kind)
        return None if found is None else _whole(self, schema_id, found, kind)

    def written(self, schema_id: int, kind: str) -> RegisteredSchema:
        """Return the schema that a body names; raise Undecodable for an id without such a schema.

        A producer can write any id, so a wrong one must not stop the other bodies.
        """
        try:
            found = self.schema(schema_id, kind)
        except ConfigError as error:
            raise Undecodable(str(error)) from None
        if found is None:
            raise Undecodable(f"schema {schema_id} is not in the registry")
        return found

    def latest(self, subject: str, kind: str = AVRO) -> RegisteredSchema:
        """Return the newest schema of a subject; raise ConfigError if it has none of this kind.

        A subject of Apicurio is ``group/artifact``, or an artifact in the group ``default``.
        """
        path = _artifact(*_group(subject)) if self.apicurio else f"/subjects/{quote(subject, safe='')}/versions/latest"
        found = _schema_at(self, path, kind)
        if found is None:
            raise ConfigError(f"schema registry {self} has no subject {subject!r}")
        return _whole(self, found.schema_id, found, kind)

    def _parts(self) -> tuple[str, str]:
        user, _, host = urlsplit(self.url).netloc.rpartition("@")
        return unquote(user), host

    def _given(self) -> Mapping[str, str]:
        return dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    def _options(self) -> Mapping[str, str]:
        return {**_OPTIONS[self.apicurio], **self._given()}


@dataclass(frozen=True, slots=True)
class _Found:
    """A schema as a registry has it: its references are names, and the paths of other schemas.

    A schema that is found by its id does not have to say it again.
    """

    schema_id: int
    text: str
    references: tuple[tuple[str, str], ...]


def _whole(registry: Registry, schema_id: int, schema: _Found, kind: str) -> RegisteredSchema:
    """Return a schema with all that it refers to."""
    texts: dict[str, str] = {}

    def add(references: Iterable[tuple[str, str]], around: tuple[str, ...]) -> None:
        for name, path in references:
            if name in texts:
                continue
            found = _kept(registry, path, kind)
            if found is None:
                raise ConfigError(f"schema registry {registry} has no {path}, to which {name!r} refers")
            if path in around or len(texts) + len(around) >= REFERENCES_MAX:
                raise ConfigError(f"schema registry {registry}: {path} refers to itself or to too many others")
            add(found.references, (*around, path))
            texts[name] = found.text

    add(schema.references, ())
    return RegisteredSchema(schema_id, schema.text, tuple(texts.items()))


def _schema_at(registry: Registry, path: str, kind: str) -> _Found | None:
    """Return the schema at a path; None if there is none."""
    try:
        return _of_apicurio(registry, path, kind) if registry.apicurio else _of_confluent(registry, path, kind)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FirearrowError(f"schema registry {registry}: the answer for {path} is no schema: {error!r}") from None


def _of_confluent(registry: Registry, path: str, kind: str) -> _Found | None:
    # Without ``format``, the schema is the source of a .proto file, which only protoc can compile
    answer = _asked_json(registry, f"{path}?format=serialized" if kind == PROTOBUF else path)
    if answer is None:
        return None
    _require_kind(registry, path, answer.get("schemaType") or AVRO, kind)
    references = tuple(
        (str(each["name"]), f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}")
        for each in answer.get("references") or ()
    )
    return _Found(int(answer.get("id", 0)), str(answer["schema"]), references)


def _of_apicurio(registry: Registry, path: str, kind: str) -> _Found | None:
    """Ask for a schema by its id, or for the id that a version of an artifact has."""
    if path.startswith("/groups/"):
        known = _asked_json(registry, path)
        if known is None:
            return None
        _require_kind(registry, path, known.get("artifactType") or known.get("type"), kind)
        found = _kept(registry, f"/ids/globalIds/{known['globalId']}", kind)
        return found and _Found(int(known[registry.id_name]), found.text, found.references)
    text = _asked(registry, path)
    if text is None:
        return None
    references = tuple(
        (str(each["name"]), _artifact(each.get("groupId") or "default", each["artifactId"], each.get("version")))
        for each in _asked_json(registry, f"{path}/references") or ()
    )
    return _Found(int(path.rpartition("/")[2]), text.decode(errors="replace"), references)  # images are artifacts, too


def _group(subject: str) -> tuple[str, str]:
    group, slash, artifact = subject.partition("/")
    return (group, artifact) if slash else ("default", subject)


def _artifact(group: str, artifact: str, version: str | None = None) -> str:
    """Return the path of what Apicurio knows of a version; the newest one without ``version``."""
    path = f"/groups/{quote(group, safe='')}/artifacts/{quote(artifact, safe='')}"
    return path + (f"/versions/{quote(str(version), safe='')}" if version else "")


def _require_kind(registry: Registry, path: str, found: object, kind: str) -> None:
    if found != kind:
        raise ConfigError(f"schema registry {registry}: {path} is {found}, not {kind}")


def _asked_json(registry: Registry, path: str) -> Any:
    """Return a registry's answer; None if it has none."""
    if registry.apicurio and path.startswith("/groups/"):
        if registry.apicurio == "v2":
            path += "/meta"
        elif "/versions/" not in path:
            path += "/versions/branch=latest"
    answer = _asked(registry, path)
    return None if answer is None else json.loads(answer)


def _asked(registry: Registry, path: str) -> bytes | None:
    request = urllib.request.Request(registry.base + path)
    user, _ = registry._parts()
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:  # the error is the answer too
            if error.code in _UNKNOWN:
                return None
            raise FirearrowError(f"schema registry {registry}: {error} for {path}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise FirearrowError(f"schema registry {registry}: {error} for {path}") from error


class _UnknownSchema(Exception):
    """The registry does not know an id. This is not cached, because the id may be registered later."""


@lru_cache(maxsize=SCHEMAS_KEPT_MAX)
def _known(registry: Registry, path: str, kind: str) -> _Found:
    found = _schema_at(registry, path, kind)
    if found is None:
        raise _UnknownSchema
    return found


def _kept(registry: Registry, path: str, kind: str) -> _Found | None:
    """Return the schema of an id or a version, which never changes; None if there is none yet."""
    try:
        return _known(registry, path, kind)
    except _UnknownSchema:
        return None
