"""Tools for agents by MCP: the operations of the console, in pages of bounded size.

A tool that changes a cluster only previews, unless the command line allows changes and the agent asks for them with
``apply``. Each change is in the log with the agent's name.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from firearrow import __version__
from firearrow.cli.failures import NothingFound, sentence
from firearrow.cli.parameters import WrongOptions
from firearrow.console.applying import apply
from firearrow.console.changes import FAILED, ChangeLog
from firearrow.console.clusters import Cluster, Clusters
from firearrow.console.operations import OPERATIONS, Operation, Ran, run, summary_of
from firearrow.console.schemas import schema_of, values_of
from firearrow.errors import FirearrowError

BYTES_MAX: Final = 32 * 1024
"""Size of one answer: an agent pays for each byte of it."""
CLUSTER: Final = "cluster_name"
FIRST_ROW: Final = "first_row"
APPLY: Final = "apply"
INSTRUCTIONS: Final = """\
Tools of an Apache RocketMQ cluster: look at topics, consumer groups, messages, lags and servers, and find out why \
something does not work (`check`, `doctor`). An answer has `rows`, and `next_row` if there are more: ask again with \
`first_row`. A tool that changes something only shows what it would change, unless `apply` is true."""


class Agents:
    """MCP server of some clusters."""

    def __init__(self, clusters: Clusters, changes: ChangeLog, *, allow_changes: bool) -> None:
        self._clusters: Final = clusters
        self._changes: Final = changes
        self._allow_changes: Final = allow_changes
        self._operations: Final = {it.name.replace("-", "_"): it for it in OPERATIONS.values() if not it.takes_file}

    def server(self) -> Server[None]:
        """Give the server, which opens the first cluster while it runs."""
        return Server(
            "firearrow",
            version=__version__,
            instructions=INSTRUCTIONS,
            lifespan=self._lifespan,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Server[None]) -> AsyncIterator[None]:
        async with self._clusters.running():
            yield

    async def _list(
        self, _: ServerRequestContext[None], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[self._tool(name, it) for name, it in self._operations.items()])

    def _tool(self, name: str, operation: Operation) -> types.Tool:
        schema = schema_of(operation)
        own: dict[str, Any] = {
            FIRST_ROW: {"type": "integer", "minimum": 0, "description": "number of the first row of the answer"}
        }
        if len(self._clusters.names) > 1:
            own[CLUSTER] = {"type": "string", "enum": list(self._clusters.names)}
        text = summary_of(operation)
        if operation.changes:
            text += " Only shows what would change"
            text += f", unless {APPLY} is true." if self._allow_changes else "."
            if self._allow_changes:
                own[APPLY] = {"type": "boolean", "description": "carry it out"}
        hints = types.ToolAnnotations(
            read_only_hint=not (operation.changes and self._allow_changes), destructive_hint=operation.changes
        )
        properties = {**schema["properties"], **own}
        return types.Tool(
            name=name, description=text, input_schema={**schema, "properties": properties}, annotations=hints
        )

    async def _call(
        self, context: ServerRequestContext[None], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        given = dict(params.arguments or {})
        try:
            answer = await self._answer(params.name, given, _agent(context))
        except (WrongOptions, FirearrowError, OSError, KeyError) as error:
            said = f"there is no cluster or tool {error}" if isinstance(error, KeyError) else sentence(error)
            return types.CallToolResult(content=[types.TextContent(text=said)], is_error=True)
        text = json.dumps(answer, ensure_ascii=False)
        failed = answer.get("state") == FAILED
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=answer, is_error=failed)

    async def _answer(self, name: str, given: dict[str, Any], agent: str) -> dict[str, Any]:
        operation = self._operations[name]
        first, applies = given.pop(FIRST_ROW, 0), given.pop(APPLY, False)
        where = given.pop(CLUSTER, self._clusters.first)
        # whoever starts this command has the context's user; an agent has no sign-in
        cluster = await self._clusters.get(where, self._clusters.target(where).credentials)
        if not isinstance(first, int) or first < 0:
            raise WrongOptions(f"{FIRST_ROW} is a number of 0 or more")
        if applies and not self._allow_changes:
            raise WrongOptions("changes are not allowed: `firearrow mcp --allow-changes` allows them")
        if applies is True and operation.changes:
            return await self._applied(cluster, operation, given, agent)
        return page_of(await run(operation, values_of(given), cluster.options), first)

    async def _applied(
        self, cluster: Cluster, operation: Operation, given: Mapping[str, Any], agent: str
    ) -> dict[str, Any]:
        done = await apply(self._changes, agent, cluster, operation, values_of(given))
        if done.ran is None:
            raise NothingFound(done.trouble)
        return {"state": done.log.state, "change": done.log.id, **page_of(done.ran, 0)}


def _agent(context: ServerRequestContext[None]) -> str:
    params = context.session.client_params
    return f"agent {params.client_info.name}" if params is not None else "agent"


def page_of(ran: Ran, first: int) -> dict[str, Any]:
    """Give rows from a number on, as many as an answer may have; a single larger row is cut."""
    rows = [row for table in ran.tables for row in table.objects()]
    taken: list[Any] = []
    size = 0
    for row in rows[first:]:
        length = len(json.dumps(row, ensure_ascii=False).encode())
        if taken and size + length > BYTES_MAX:
            break
        taken.append(row if length <= BYTES_MAX else _cut(row))
        size += length
    found: dict[str, Any] = {"rows": taken, "total": len(rows)}
    if first + len(taken) < len(rows):
        found["next_row"] = first + len(taken)
    notes = [table.note for table in ran.tables if table.note]
    return {**found, "notes": notes} if notes else found


def _cut(row: Mapping[str, Any]) -> dict[str, Any]:
    """Cut the long texts of a row, each with a mark of its length."""
    share = BYTES_MAX // (8 * max(1, len(row)))
    long = {name for name, value in row.items() if isinstance(value, str) and len(value) > share}
    return {
        name: f"{value[:share]}… ({len(value):,} characters)" if name in long else value for name, value in row.items()
    }
