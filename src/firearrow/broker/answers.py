"""Answers that hold as much as the broker has of something."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from firearrow.net.server import Steps
from firearrow.wire import fastjson
from firearrow.wire.command import NO_FIELDS, FieldValue, Response


def answer_in_steps(body: Struct, fields: Mapping[str, FieldValue] = NO_FIELDS) -> Steps:
    """Give an answer with a body, which is formatted in steps; what it holds must not change."""
    return Response(fields=fields, body=(yield from fastjson.dumps_in_steps(body)))
