"""Host addresses as they are stored: 4 or 16 address bytes, then the port as i32.

============  ======  =====================================
offset        size    field
============  ======  =====================================
0             4, 16   address, IPv4 or IPv6, network order
4, 16         4       port, big-endian i32
============  ======  =====================================

``7f000001 00002a9f`` is 127.0.0.1:10911. The bytes themselves never say whether an address is IPv4 or IPv6: records
say it in their system flag, identifiers by their length.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from struct import Struct
from typing import NamedTuple

from firearrow.errors import MessageError

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20

_PORT = Struct(">i")


class Host(NamedTuple):
    """An address as text, ``127.0.0.1`` or ``2001:db8::1``, and a port."""

    ip: str
    port: int

    def __str__(self) -> str:
        """``127.0.0.1:10911`` or ``[2001:db8::1]:10911``."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@lru_cache(maxsize=4096)  # clients and brokers are few compared to messages
def pack_host(host: Host | tuple[str, int]) -> bytes:
    """Return the 8 (IPv4) or 20 (IPv6) bytes of a host; the text must be an address, not a name."""
    ip, port = host
    return pack_address(ip) + _PORT.pack(port)


@lru_cache(maxsize=4096)
def unpack_host(raw: bytes) -> Host:
    """Return the host that 8 or 20 bytes stand for."""
    if len(raw) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise MessageError(f"a host has 8 or 20 bytes, not {len(raw)}", "host")
    (port,) = _PORT.unpack_from(raw, len(raw) - 4)
    return Host(unpack_address(raw[:-4]), port)


def pack_address(ip: str) -> bytes:
    """Return the 4 or 16 bytes of an address; an IPv6 scope (``%eth0``) is left out."""
    try:
        return ip_address(ip).packed
    except ValueError as error:
        raise MessageError(f"{ip!r} is not an IPv4 or IPv6 address", "address") from error


def unpack_address(raw: bytes) -> str:
    """Return the text of an address of 4 or 16 bytes."""
    if len(raw) == 4:
        return "{}.{}.{}.{}".format(*raw)
    return str(IPv6Address(raw))
