"""Clients behind a load balancer: it names each by a header of the PROXY protocol in front of the connection.

A header begins like no frame within the size limit does, so the frame reader finds it where it refuses a frame, as it
finds TLS. Connections without a header pay nothing. A `HeaderReading` takes the place of the peer until the header is
whole. TLS, gRPC or remoting follow.

Permissions may rest on a client's address. So only balancers in trusted networks may name clients. A header from
elsewhere is read and not believed: the connection keeps its own address.

Source: RocketMQ's ``ProxyAndTlsProtocolNegotiator``, which believes everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, Protocol

from firearrow.errors import ConfigError, RemoteProtocolError
from firearrow.logs import Log
from firearrow.wire.proxyheader import read_header

log: Final = Log(__name__)

SAY_SECONDS: Final = 60.0  # between two log lines about headers that are not believed

Network = IPv4Network | IPv6Network


def networks_of(text: str) -> tuple[Network, ...]:
    """Read addresses and networks, separated by ``,`` or ``;``: ``10.0.0.0/8, 192.0.2.7``. ConfigError for others."""
    words = [word.strip() for word in text.replace(";", ",").split(",")]
    try:
        return tuple(ip_network(word, strict=False) for word in words if word)
    except ValueError as error:
        raise ConfigError(f"{text!r} names no networks: {error}") from None


class Named(Protocol):
    """A peer as this module sees it."""

    address: str
    ip: str

    def begin_as(self, client: tuple[str, int] | None) -> None:
        """Begin the connection again behind the header, as that of a client, or (None) with its own address."""
        ...

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        ...

    def close(self, reason: str) -> None:
        """Close."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        ...


class ProxyHeaders:
    """The headers in front of a server's connections; balancers in ``trusted`` networks may name clients."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.trusted: Sequence[Network] = ()
        self._loop = loop
        self._say_again_at = 0.0

    def believes(self, peer: Named) -> bool:
        """Tell whether the other end of a connection may name a client; log the reason if not, once a minute."""
        address = ip_address(peer.ip)
        if any(address in network for network in self.trusted):
            return True
        now = self._loop().time()
        if now >= self._say_again_at:
            self._say_again_at = now + SAY_SECONDS
            log.warning(
                "PROXY header is not believed: its sender is in no network of proxyProtocolTrustedNetworks",
                extra={"address": peer.address},
            )
        return False


class HeaderReading(asyncio.Protocol):
    """Reads the header of a connection in place of its peer."""

    def __init__(self, headers: ProxyHeaders, peer: Named, transport: asyncio.Transport) -> None:
        self._headers = headers
        self._peer = peer
        self._transport = transport
        self._data = b""

    def begin(self, hello: bytes) -> None:
        """Take the place of the peer, with the bytes that came."""
        self._transport.set_protocol(self)
        self.data_received(hello)

    def data_received(self, data: bytes) -> None:
        """Read on, and hand over to the peer behind the header (called by asyncio)."""
        if self._transport.is_closing():
            return
        self._data += data
        try:
            header = read_header(self._data)
        except RemoteProtocolError as error:
            self._peer.close(f"its PROXY header is wrong: {error}")
            return
        if header is None:
            return
        peer, client = self._peer, header.client
        self._transport.set_protocol(peer)  # type: ignore[arg-type]
        peer.begin_as(client if client is not None and self._headers.believes(peer) else None)
        if len(self._data) > header.size:
            peer.data_received(self._data[header.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection (called by asyncio)."""
        self._peer.connection_lost(exc)
