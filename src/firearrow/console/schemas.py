"""JSON schemas of operations, and JSON objects as their values: for the API and for agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from firearrow import __version__
from firearrow.cli.parameters import WrongOptions
from firearrow.console.operations import OFF, ON, ON_OFF, OPERATIONS, Field, Operation, Values, fields_of, summary_of

_ANSWERS: Final = {
    "200": {
        "description": "The rows of the table that the command prints with --json.",
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}},
    },
    "default": {
        "description": "The reason why it is not possible, one sentence.",
        "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}},
    },
}


def schema_of(operation: Operation) -> dict[str, Any]:
    """Give the JSON schema of an operation's values."""
    fields = fields_of(operation)
    return {
        "type": "object",
        "properties": {field.name: {**_type(field), "description": field.help} for field in fields},
        "required": [field.name for field in fields if field.is_needed],
        "additionalProperties": False,
    }


def _type(field: Field) -> dict[str, Any]:
    one: dict[str, Any] = {"type": "integer" if field.kind == "number" else "string"}
    if field.kind == "switch" or tuple(field.choices) == ON_OFF:
        one = {"type": "boolean"}
    elif field.choices:
        one["enum"] = list(field.choices)
    return {"type": "array", "items": one} if field.is_list else one


def values_of(given: Mapping[str, Any]) -> Values:
    """Give the members of a JSON object as words. Raises WrongOptions for an object in it."""
    return {
        name: [_word(name, it) for it in (value if isinstance(value, list) else [value])]
        for name, value in given.items()
    }


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return ON if value else OFF
    if isinstance(value, str | int | float):
        return str(value)
    raise WrongOptions(f"{name} is a text, a number, true, false, or a list of these")


def openapi(base: str) -> dict[str, Any]:
    """Give the OpenAPI description of the API of a cluster below an address."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Firearrow console", "version": __version__},
        "servers": [{"url": base}],
        "paths": {f"/{it.name}": _path(it) for it in OPERATIONS.values() if not it.takes_file},
    }


def _path(operation: Operation) -> dict[str, Any]:
    about = {"operationId": operation.name, "summary": summary_of(operation), "responses": _ANSWERS}
    if not operation.changes:
        return {"get": {**about, "parameters": [_parameter(field) for field in fields_of(operation)]}}
    apply = {
        "name": "apply",
        "in": "query",
        "schema": {"type": "boolean"},
        "description": "carry it out; otherwise preview",
    }
    body = {"content": {"application/json": {"schema": schema_of(operation)}}}
    return {"post": {**about, "parameters": [apply], "requestBody": body}}


def _parameter(field: Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "in": "query",
        "required": field.is_needed,
        "description": field.help,
        "schema": _type(field),
    }
