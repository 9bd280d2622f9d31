"""The network between real processes, which can be cut in each direction, slow, lossy and doubled.

A server ``--host 127.0.0.1`` says that it is at `OUTSIDE`, another address of this machine, where
the proxy takes its connections and passes them on to the server. Who connects is found by the
socket: it belongs to a process that the proxy knows. So no process knows of the proxy.

As with a real network, nobody is told of a cut. What is said then is heard when the way is open
again, also that a connection has ended; and a lost packet is one that comes late, with all that
comes after it, since TCP sends it again. Unlike there, a connection over a cut way comes to be: who
opened it gets no answer.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from socket import inet_aton
from typing import Final

from tests.net.listener import Listener
from tests.net.passing import End, Through, pass_on

INSIDE: Final = "127.0.0.1"
OUTSIDE: Final = "127.0.0.2"
AGAIN_SECONDS: Final = 0.2
"""After which Linux sends a packet again, at least."""
TESTER: Final = "tester"


class Wires:
    """All ways between some processes; ``names`` has who they are, by their ids.

    ``delay_seconds``, ``loss`` (the share of lost pieces) and ``doubled`` (whether connections that
    are new come twice, but for those of this process) are for all of them.
    """

    def __init__(self, chance: Random) -> None:
        self.names: dict[int, str] = {os.getpid(): TESTER}
        self.delay_seconds = 0.0
        self.loss = 0.0
        self.doubled = False
        self.passed: set[tuple[str, str]] = set()  # who has said something to whom
        self._chance = chance
        self._cut: set[tuple[str, str]] = set()
        self._healed = asyncio.Event()
        self._listener = Listener()

    async def serve(self, name: str, port: int) -> None:
        """Take the connections of one of a server's ports."""

        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source = self._owner(*map(writer.get_extra_info, ("peername", "sockname")))
            if source is not None:
                copies = 2 if self.doubled and source != TESTER else 1
                await self._pass_on(End(reader, writer), port, copies, self._way(source, name), self._way(name, source))
            writer.transport.abort()

        await self._listener.listen(join, port, OUTSIDE)

    async def _pass_on(self, here: End, port: int, copies: int, to: Through, back: Through) -> None:
        there: list[End] = []
        try:
            with suppress(OSError):  # the server is down
                while len(there) < copies:
                    there.append(End(*await asyncio.open_connection(INSIDE, port)))
            if there:
                await pass_on(here, there, to, back)
        finally:
            for end in there:
                end.writer.transport.abort()

    def _owner(self, *ends: tuple[str, int]) -> str | None:
        """Which process has the socket with this address, connected to that one (two sockets may
        have the first); None if it has ended meanwhile."""
        wanted = [f"{int.from_bytes(inet_aton(host), 'little'):08X}:{port:04X}" for host, port in ends]
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        inodes = {f"socket:[{row[9]}]" for row in rows if row[1:3] == wanted}
        for pid, name in self.names.items():
            with suppress(OSError):  # it has ended
                for entry in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):  # it was closed
                        if str(entry.readlink()) in inodes:
                            return name
        return None

    def _way(self, source: str, target: str) -> Through:
        async def through(data: bytes) -> bytes:
            late = self._chance.random() < self.loss
            await asyncio.sleep(self.delay_seconds + AGAIN_SECONDS * late)
            while (source, target) in self._cut:
                await self._healed.wait()
            self.passed.add((source, target))
            return data

        return through

    # --- what happens ---

    def cut(self, sources: set[str], targets: set[str]) -> None:
        """Have nothing come from any of the first to any of the others."""
        self._healed.clear()
        self._cut |= {(one, other) for one in sources for other in targets if one != other}

    def part(self, some: set[str], others: set[str]) -> None:
        """Cut both directions."""
        self.cut(some, others)
        self.cut(others, some)

    def reset(self) -> None:
        """End all connections; who opened them does so again."""
        self._listener.reset()

    def heal(self) -> None:
        """Have everything come, at once."""
        self._cut.clear()
        self._healed.set()
        self.delay_seconds = self.loss = 0.0
        if self.doubled:
            self.doubled = False
            self.reset()

    async def close(self) -> None:
        """Let nobody connect any more, and end all connections."""
        await self._listener.close()
