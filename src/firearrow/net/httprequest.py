"""One request by HTTP. It has a connection of its own, which ends with the answer.

By HTTP/1.0 an answer comes in one piece, as long as the connection lasts. One that was cut off
looks like a whole one, so what it says has to tell: JSON without its end can't be read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

READ_BYTES: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}


class HttpAnswer(NamedTuple):
    """The first line of an answer, and what it has behind its headers."""

    status: str
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Tell whether it is what was asked for."""
        return self.status.split()[1:2] == ["200"]


async def ask(
    url: str,
    *,
    bytes_max: int,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """GET an address, or POST a body to it, and give the answer, whatever its status.

    Raises OSError where there is none, or one of more than ``bytes_max``. Nothing limits the time.
    """
    place = urlsplit(url)
    target = place.path + (f"?{place.query}" if place.query else "")
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.0", f"Host: {place.netloc}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    port = place.port or _PORTS[place.scheme]
    reader, writer = await asyncio.open_connection(place.hostname, port, ssl=context)
    try:
        writer.write("\r\n".join((*lines, "", "")).encode() + (body or b""))
        head, _, found = (await _all_of(reader, bytes_max)).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()  # to close takes as long as a silent peer likes, with TLS
    return HttpAnswer(head.partition(b"\r\n")[0].decode(errors="replace"), found)


async def _all_of(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await reader.read(READ_BYTES):
        size += len(piece)
        if size > bytes_max:
            raise ConnectionError(f"the answer has more than {bytes_max} bytes")
        pieces.append(piece)
    return b"".join(pieces)
