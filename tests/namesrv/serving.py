"""A name server on a free port, for as long as a test needs it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from firearrow.clock import Clock, SystemClock
from firearrow.namesrv.app import NameServer
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.client import Client
from firearrow.wire.codes import RequestCode
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import RegisterBroker
from firearrow.wire.registerbody import RegisterBody, body_crc32


class Asker:
    """A client of one name server."""

    def __init__(self, server: NameServer, port: int) -> None:
        self.server = server
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.client = Client()

    async def ask(self, code: int, body: bytes = b"", /, **fields: str | int | bool) -> AnyCommand:
        """Ask and get the answer; BrokerError when it is a refusal."""
        return await self.client.call(self.address, code, fields, body)

    async def register(self, header: RegisterBroker, body: RegisterBody, *, compressed: bool = False) -> AnyCommand:
        """Register a broker as brokers do."""
        data = body.encode(compressed)
        fields = {name: value for name, value in msgspec.to_builtins(header).items() if value}
        fields |= {"brokerId": header.broker_id, "compressed": compressed}
        fields["bodyCrc32"] = body_crc32(data)
        return await self.ask(RequestCode.REGISTER_BROKER, data, **fields)


@asynccontextmanager
async def name_server(directory: Path, *, clock: Clock | None = None, **config: Any) -> AsyncIterator[Asker]:
    """A running name server whose files are in a directory."""
    settings = NamesrvConfig(
        kv_config_path=str(directory / "kvConfig.json"),
        config_store_path=str(directory / "namesrv.properties"),
        **config,
    )
    server = NameServer(settings, clock or SystemClock())
    asker = Asker(server, await server.start("127.0.0.1", 0))
    try:
        yield asker
    finally:
        await asker.client.close()
        await server.stop()


def asking(directory: Path, main: Callable[[Asker], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test against a name server."""

    async def run() -> None:
        async with asyncio.timeout(30), name_server(directory, **options) as asker:
            await main(asker)

    asyncio.run(run())
