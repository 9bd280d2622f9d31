"""The API: each operation below ``/api``, with the rows that its command prints with ``--json``.

An operation that reads is a GET with its fields in the address. A change is a POST with a JSON object, and only a
preview without ``apply=true``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import JSONResponse

from firearrow.cli.failures import NothingFound, sentence
from firearrow.cli.parameters import WrongOptions
from firearrow.console.applying import apply
from firearrow.console.changes import DONE
from firearrow.console.forms import body_of, check_origin, grouped
from firearrow.console.operations import OPERATIONS, Operation, Ran, run, summary_of
from firearrow.console.page import Declared, View, status_of
from firearrow.console.schemas import openapi, values_of
from firearrow.errors import FirearrowError

JSON: Final = "application/json"


def _operation(view: View, *, changes: bool) -> Operation:
    name = view.part("operation")
    operation = OPERATIONS.get(name)
    if operation is None or operation.takes_file or operation.changes != changes:
        method = "POST" if changes else "GET"
        raise NothingFound(f"There is no operation {name!r} for {method}.")
    return operation


async def operations(view: View) -> JSONResponse:
    """List the operations."""
    return JSONResponse(
        [
            {"operation": it.name, "summary": summary_of(it), "changes": it.changes, "href": view.href("api", it.name)}
            for it in OPERATIONS.values()
            if not it.takes_file
        ]
    )


async def description(view: View) -> JSONResponse:
    """Give the OpenAPI description."""
    return JSONResponse(openapi(view.href("api")))


async def read(view: View) -> JSONResponse:
    """Run an operation that reads."""
    try:
        operation = _operation(view, changes=False)
        values = grouped(view.request.query_params.multi_items())
        return _rows(await run(operation, values, view.cluster.options))
    except (WrongOptions, FirearrowError, OSError) as error:
        return _refused(error)


async def change(view: View) -> JSONResponse:
    """Preview a change, or carry it out."""
    try:
        operation = _operation(view, changes=True)
        check_origin(view.request)
        values = values_of(await _object(view))
        if view.query.get("apply") != "true":
            return _rows(await run(operation, values, view.cluster.options))
        done = await apply(view.changes, view.user, view.cluster, operation, values)
    except (WrongOptions, FirearrowError, OSError) as error:
        return _refused(error)
    if done.ran is None:
        return JSONResponse({"error": done.trouble}, 409)
    return _rows(done.ran, 200 if done.log.state == DONE else 409)


async def _object(view: View) -> dict[str, Any]:
    """Read the body. A form of another site cannot have its content type."""
    if view.request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise WrongOptions(f"the content type is {JSON}")
    try:
        found = json.loads(await body_of(view.request) or b"{}")
    except (ValueError, RecursionError) as error:
        raise WrongOptions(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise WrongOptions("the body is a JSON object")
    return found


def _rows(ran: Ran, status: int = 200) -> JSONResponse:
    return JSONResponse([row for table in ran.tables for row in table.objects()], status)


def _refused(error: Exception) -> JSONResponse:
    return JSONResponse({"error": sentence(error)}, status_of(error))


PAGES: Final = (
    Declared("/api", operations),
    Declared("/api/openapi.json", description),
    Declared("/api/{operation}", read),
    Declared("/api/{operation}", change, ("POST",)),
)
