"""`firearrow console` and `firearrow mcp`: serve clusters to browsers and to agents."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.parameters import own_files, switch, valued
from firearrow.cli.parameters import port as read_port
from firearrow.cli.serving.consoleprocess import HOST, PORT, listen
from firearrow.cli.serving.standardinput import call_at_end
from firearrow.clock import SystemClock
from firearrow.console.changes import ChangeLog
from firearrow.errors import MissingPackage, naming
from firearrow.files import for_the_user_alone
from firearrow.net.address import endpoint

if TYPE_CHECKING:
    from firearrow.console.openid import Provider

State = Annotated[
    Path | None, valued("DIR", "directory of the log of changes and of undo files (default: below ~/.local/state)")
]
Lake = Annotated[str | None, valued("ROOT", "directory or URI of typed tables, for queries", own_files)]
STATE: Final = "XDG_STATE_HOME"


async def console(
    *,
    host: Annotated[str, valued("ADDRESS", f"address to listen on (default: {HOST})")] = HOST,
    port: Annotated[int, valued("PORT", f"port to listen on; 0 for a free one (default: {PORT})", read_port)] = PORT,
    name: Annotated[
        tuple[str, ...], valued("HOST", "also answer to this name of the host; may be repeated", name="--name")
    ] = (),
    read_only: Annotated[bool, switch("change nothing; other addresses than 127.0.0.1 then need no users")] = False,
    openid: Annotated[
        Path | None, valued("FILE", "TOML with a provider of OpenID Connect, and what its roles may do")
    ] = None,
    webhook: Annotated[str | None, valued("URL", "post alerts as JSON to this URL, each change of one once")] = None,
    prometheus: Annotated[
        str | None, valued("URL", "Prometheus that scrapes the brokers, for a history of more than an hour")
    ] = None,
    lake: Lake = None,
    state: State = None,
    inherited: Annotated[
        int | None, valued("FD", "of `firearrow serve`: a listening socket; ends with standard input", name="--socket")
    ] = None,
    cluster: ClusterOptions = ANY,
) -> None:
    """Serve the console: pages of a cluster for a browser."""
    try:
        from firearrow.console.app import Console
        from firearrow.console.clusters import Clusters
        from firearrow.console.prometheus import Prometheus
        from firearrow.console.serving import ConsoleServer
        from firearrow.console.signin import LOCAL_HOSTS
        from firearrow.console.webhook import Webhook
    except ModuleNotFoundError as error:
        raise MissingPackage("the console needs", str(error.name), "console") from None
    clock, directory = SystemClock(), state or directory_of_state()
    changes = ChangeLog(directory, clock)
    hosts = (*LOCAL_HOSTS, host, *name)
    clusters = Clusters(
        cluster,
        clock,
        needs_users=openid is not None or (host not in LOCAL_HOSTS and not read_only),
        lake=lake,
        webhook=None if webhook is None else Webhook(webhook, clock),
        state=directory,
        prometheus=None if prometheus is None else Prometheus(prometheus, clock),
    )
    provider = None if openid is None else _provider(openid, clusters.names)
    pages = Console(clusters, changes, key_in(directory), clock, hosts, read_only=read_only, provider=provider)
    with listen("the console", host, port) if inherited is None else socket.socket(fileno=inherited) as listening:
        server = ConsoleServer(pages.application(), pages.end_streams)
        if inherited is None:
            print(f"console http://{endpoint(host, listening.getsockname()[1])}/", flush=True)
        else:
            call_at_end(asyncio.get_running_loop(), server.end)
        await server.serve([listening])


async def mcp(
    *,
    allow_changes: Annotated[bool, switch("let agents change the cluster; each change is in the log")] = False,
    http: Annotated[
        int | None,
        valued("PORT", "serve streamable HTTP on this port of 127.0.0.1 (default: standard input)", read_port),
    ] = None,
    lake: Lake = None,
    state: State = None,
    cluster: ClusterOptions = ANY,
) -> None:
    """Serve tools of a cluster to an agent, by MCP: its reads, and previews of changes."""
    try:
        from mcp.server.stdio import stdio_server

        from firearrow.console.agents import Agents
        from firearrow.console.clusters import Clusters
        from firearrow.console.serving import ConsoleServer
    except ModuleNotFoundError as error:
        raise MissingPackage("tools for agents need", str(error.name), "mcp") from None
    clock = SystemClock()
    changes = ChangeLog(state or directory_of_state(), clock)
    server = Agents(Clusters(cluster, clock, watches=False, lake=lake), changes, allow_changes=allow_changes).server()
    if http is None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
        return
    with listen("the server of tools", HOST, http) as listening:
        print(f"mcp http://{endpoint(HOST, listening.getsockname()[1])}/mcp", flush=True)
        await ConsoleServer(server.streamable_http_app(host=HOST)).serve([listening])


def _provider(path: Path, clusters: Sequence[str]) -> Provider:
    try:
        from firearrow.console.openid import Provider, load
    except ModuleNotFoundError as error:
        raise MissingPackage("OpenID Connect needs", str(error.name), "openid") from None
    return Provider(load(path, clusters), clusters)


def directory_of_state() -> Path:
    """Give the directory of a user's console."""
    return Path(os.environ.get(STATE) or Path.home() / ".local/state") / "firearrow" / "console"


def key_in(directory: Path) -> str:
    """Give the key that signs cookies, which outlives a restart; make it if there is none."""
    path = directory / "key"
    with naming(path):
        if not path.exists():
            with open(path, "x", encoding="ascii", opener=for_the_user_alone) as file:
                file.write(token_hex(32))
        return path.read_text(encoding="ascii")
