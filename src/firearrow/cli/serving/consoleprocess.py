"""Console of `firearrow serve`, in a process that begins with the first connection to its port.

Until somebody looks, it costs a listening socket. A console that ends begins again with the next connection. The
process is a child, so that pages take nothing from the broker's event loop, and it ends with its parent.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Final

from firearrow.errors import CannotListen, require_packages
from firearrow.logs import Log
from firearrow.net.address import endpoint
from firearrow.net.tasks import Tasks

log: Final = Log(__name__)

HOST: Final = "127.0.0.1"
PORT: Final = 8088
NEEDED: Final = ("itsdangerous", "jinja2", "starlette", "uvicorn")
AGAIN_SECONDS: Final = 1.0
"""Wait after the end of a console before a connection may begin the next one."""


def listen(what: str, host: str, port: int) -> socket.socket:
    """Listen for browsers or agents; CannotListen, which names the address, if that can't be."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise CannotListen(f"{what} can't listen on {endpoint(host, port)}: {reason}") from None


class ConsoleProcess:
    """Port of the console, and its process. `start` and `stop` once each, in one event loop."""

    def __init__(self, name_server: str) -> None:
        self._name_server: Final = name_server
        self._listening: socket.socket | None = None
        self._process: Process | None = None
        self._tasks = Tasks()

    def start(self, port: int) -> str:
        """Listen, and give the address of the console. Raises CannotListen, or ConfigError without its libraries."""
        require_packages("the console needs", "console", *NEEDED)
        self._listening = listen("the console", HOST, port)
        self._listening.setblocking(False)
        self._wait()
        return f"http://{endpoint(HOST, self._listening.getsockname()[1])}/"

    async def stop(self) -> None:
        """Close the port, and end the process."""
        if self._listening is None:
            return
        asyncio.get_running_loop().remove_reader(self._listening)
        await self._tasks.close()  # it would warn that the console has ended
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
        self._listening.close()

    def _wait(self) -> None:
        assert self._listening is not None, "it listens"
        asyncio.get_running_loop().add_reader(self._listening, self._begin)

    def _begin(self) -> None:
        assert self._listening is not None, "it listens"
        asyncio.get_running_loop().remove_reader(self._listening)
        self._tasks.start(self._run(self._listening.fileno()), "console")

    async def _run(self, listening: int) -> None:
        command = ["-m", "firearrow", "console", "-n", self._name_server, "--socket", str(listening)]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=PIPE, stdout=DEVNULL, pass_fds=(listening,)
        )
        log.info("console begins", extra={"pid": self._process.pid})
        code = await self._process.wait()
        log.warning("console has ended", extra={"exit_code": code})
        await asyncio.sleep(AGAIN_SECONDS)
        self._wait()
