"""Header of the PROXY protocol, which names the client behind a load balancer; versions 1 and 2.

Version 1 is one line of text, of 107 bytes at most::

    PROXY TCP4 203.0.113.7 192.0.2.1 40001 8081\\r\\n
    PROXY TCP6 2001:db8::7 2001:db8::1 40001 8081\\r\\n
    PROXY UNKNOWN ...\\r\\n

with the addresses and the ports of client and server. Version 2, big-endian:

====== ==== ======================================================================
offset size field
====== ==== ======================================================================
0      12   ``\\r\\n\\r\\n\\0\\r\\nQUIT\\n``
12     1    version 2 << 4 | command: 0 LOCAL (the balancer's own connection), 1 PROXY
13     1    family << 4 | transport: 0x11 is TCP over IPv4, 0x21 TCP over IPv6
14     2    length of all that follows
16     n    client's and server's address (4 or 16 bytes each), client's and server's port (u16 each)
16+n   m    further data (TLV), which counts for nothing
====== ==== ======================================================================

Worked example, a client at 203.0.113.7:40001 of a server at 192.0.2.1:8081:
``0d0a0d0a000d0a515549540a 21 11 000c cb007107 c0000201 9c41 1f91``.

A header without an address of TCP leaves the connection its own: LOCAL, UNKNOWN, another family.

Source: HAProxy's ``proxy-protocol.txt``.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from firearrow.errors import RemoteProtocolError

TEXT, BINARY = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
TEXT_BYTES_MAX: Final = 107
BINARY_BYTES_MAX: Final = 4096  # certificates of clients are the longest known data of a header
_HEAD_BYTES: Final = 16
_LOCAL, _PROXY = 0, 1
_TCP4, _TCP6 = 0x11, 0x21
_FAMILY_MAX, _TRANSPORT_MAX = 3, 2


class ProxyHeader(NamedTuple):
    """A header of ``size`` bytes, and the client that it names, if any."""

    size: int
    client: tuple[str, int] | None


def read_header(data: bytes) -> ProxyHeader | None:
    """Read the header at the beginning of a connection; None if it is not whole yet.

    Raises RemoteProtocolError for any other bytes.
    """
    if data.startswith(TEXT[: len(data)]):
        return _read_text(data)
    if data.startswith(BINARY[: len(data)]):
        return _read_binary(data)
    raise RemoteProtocolError("it is of no known version")


def _read_text(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, TEXT_BYTES_MAX)
    if end < 0:
        if len(data) >= TEXT_BYTES_MAX:
            raise RemoteProtocolError(f"its line is longer than {TEXT_BYTES_MAX} bytes")
        return None
    size = end + 2
    assert size <= TEXT_BYTES_MAX, "the line is looked for within its limit"
    try:
        words = data[len(TEXT) : end].decode("ascii").split(" ")
        if words[0] == "UNKNOWN":
            return ProxyHeader(size, None)
        kind, client, server, client_port, server_port = words
        _address(kind, server)
        _port(server_port)
        return ProxyHeader(size, (_address(kind, client), _port(client_port)))
    except ValueError:
        raise RemoteProtocolError(f"its line can't be read: {data[:end]!r}") from None


def _address(kind: str, text: str) -> str:
    if kind == "TCP4":
        return str(IPv4Address(text))
    if kind == "TCP6" and "%" not in text:
        return str(IPv6Address(text))
    raise ValueError(kind)


def _port(text: str) -> int:
    if not (text.isdecimal() and text.isascii()) or str(int(text)) != text or int(text) >= 1 << 16:
        raise ValueError(text)
    return int(text)


def _read_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEAD_BYTES:
        return None
    version, command = divmod(data[12], 16)
    family = data[13]
    length = int.from_bytes(data[14:_HEAD_BYTES])
    size = _HEAD_BYTES + length
    if version != 2 or command > _PROXY:
        raise RemoteProtocolError(f"its version and command are 0x{data[12]:02x}")
    if family >> 4 > _FAMILY_MAX or family & 15 > _TRANSPORT_MAX:
        raise RemoteProtocolError(f"its family and transport are 0x{family:02x}")
    if size > BINARY_BYTES_MAX:
        raise RemoteProtocolError(f"its {size} bytes are above the limit of {BINARY_BYTES_MAX}")
    width = {_TCP4: 4, _TCP6: 16}.get(family, 0)
    if command == _LOCAL or not width:
        return ProxyHeader(size, None) if len(data) >= size else None
    if length < 2 * width + 4:
        raise RemoteProtocolError(f"its {length} bytes have no room for its addresses")
    if len(data) < size:
        return None
    packed = data[_HEAD_BYTES : _HEAD_BYTES + width]
    ports = _HEAD_BYTES + 2 * width
    assert ports + 4 <= size, "addresses and ports are within the header"
    client = IPv4Address(packed) if width == 4 else IPv6Address(packed)
    return ProxyHeader(size, (str(client), int.from_bytes(data[ports : ports + 2])))
