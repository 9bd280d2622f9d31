"""A schema registry: Confluent's protocol over HTTP, and the frame of bodies that name a schema.

======  ====  =======================================
offset  size  meaning
======  ====  =======================================
0       1     0
1       4     the schema's id in the registry, big-endian
5             the body, written with that schema
======  ====  =======================================

So ``00 00 00 00 07 02`` is the body ``02``, written with schema 7.
"""

from __future__ import annotations

import base64
import json
import struct
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from firearrow.errors import ConfigError, FirearrowError
from firearrow.spark.bodies.bodies import Undecodable

AVRO, JSON = "AVRO", "JSON"  # a registry's names
FRAME: Final = struct.Struct(">BI")
ANSWER_SECONDS_MAX: Final = 10  # a registry answers from memory
SCHEMAS_KEPT_MAX: Final = 1000  # in each worker; the schema of an id never changes


def require_frame(body: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the bytes behind it; raise Undecodable for a body without the frame."""
    if len(body) < FRAME.size or body[0] != 0:
        raise Undecodable("the body does not begin with the id of a schema")
    return FRAME.unpack_from(body)[1], body[FRAME.size :]


@dataclass(frozen=True, slots=True)
class Registry:
    """Address of a schema registry: ``http://host:port``, with ``user:password@`` if it asks for them."""

    url: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"schema registry {self}: must begin with http:// or https://")

    def __str__(self) -> str:
        return urlunsplit(urlsplit(self.url)._replace(netloc=self._parts()[1]))

    __repr__ = __str__  # without the password

    def schema(self, schema_id: int) -> str | None:
        """Return the Avro schema of an id, or None if there is none; raise if the registry fails."""
        return _schema(self, f"/schemas/ids/{schema_id}")

    def latest(self, subject: str, kind: str = AVRO) -> str:
        """Return the newest schema of a subject; raise ConfigError if it has none of this kind."""
        found = _asked(self, f"/subjects/{quote(subject, safe='')}/versions/latest", kind)
        if found is None:
            raise ConfigError(f"schema registry {self} has no subject {subject!r}")
        return found

    def _parts(self) -> tuple[str, str]:
        user, _, host = urlsplit(self.url).netloc.rpartition("@")
        return unquote(user), host


def _asked(registry: Registry, path: str, kind: str = AVRO) -> str | None:
    request = urllib.request.Request(str(registry).rstrip("/") + path)
    user, _ = registry._parts()
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        with error:  # the error is the answer too
            if error.code == 404:
                return None
            raise FirearrowError(f"schema registry {registry}: {error} for {path}") from None
    except (OSError, ValueError) as error:
        raise FirearrowError(f"schema registry {registry}: {error} for {path}") from error
    if answer.get("schemaType", AVRO) != kind or answer.get("references"):
        raise ConfigError(f"schema registry {registry}: {path} is not one whole {kind} schema")
    return str(answer["schema"])


class _UnknownSchema(Exception):
    """The registry does not know an id. This is not cached, because the id may be registered later."""


@lru_cache(maxsize=SCHEMAS_KEPT_MAX)
def _kept(registry: Registry, path: str) -> str:
    found = _asked(registry, path)
    if found is None:
        raise _UnknownSchema
    return found


def _schema(registry: Registry, path: str) -> str | None:
    try:
        return _kept(registry, path)
    except _UnknownSchema:
        return None
