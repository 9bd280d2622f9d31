"""`firearrow console`: serve the pages of clusters."""

from __future__ import annotations

import socket
from typing import Annotated, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.parameters import port as read_port
from firearrow.cli.parameters import valued
from firearrow.clock import SystemClock
from firearrow.errors import CannotListen, ConfigError
from firearrow.net.address import endpoint

HOST: Final = "127.0.0.1"
PORT: Final = 8088


async def console(
    *,
    host: Annotated[str, valued("ADDRESS", f"address to listen on (default: {HOST})")] = HOST,
    port: Annotated[int, valued("PORT", f"port to listen on; 0 for a free one (default: {PORT})", read_port)] = PORT,
    webhook: Annotated[str | None, valued("URL", "post alerts as JSON to this URL, each change of one once")] = None,
    cluster: ClusterOptions = ANY,
) -> None:
    """Serve the console: pages of a cluster for a browser."""
    try:
        import uvicorn

        from firearrow.console.app import Console
        from firearrow.console.clusters import Clusters
        from firearrow.console.webhook import Webhook
    except ModuleNotFoundError as error:
        raise ConfigError(f"the console needs {error.name}: pip install 'firearrow[console]'") from None
    clock = SystemClock()
    hook = Webhook(webhook, clock) if webhook is not None else None
    application = Console(Clusters(cluster, clock, webhook=hook)).application()
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise CannotListen(f"the console can't listen on {host}:{port}: {error.strerror}") from None
    with listening:
        print(f"console http://{endpoint(host, listening.getsockname()[1])}/", flush=True)
        config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve([listening])
