"""Answers with a large body."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from firearrow.net.server import Steps
from firearrow.wire import fastjson
from firearrow.wire.command import NO_FIELDS, FieldValue, Response


def answer_in_steps(body: Struct, fields: Mapping[str, FieldValue] = NO_FIELDS) -> Steps:
    """Return an answer whose body is formatted in steps; the body must not change meanwhile."""
    return Response(fields=fields, body=(yield from fastjson.dumps_in_steps(body)))
