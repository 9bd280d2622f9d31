"""Addresses as RocketMQ writes them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from firearrow.errors import MAY_PASS, ConfigError, MessageError, ProtocolError
from firearrow.logs import Log


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port``; ConfigError for any other form."""
    host, _, port = address.strip().rpartition(":")
    if "/" in address:
        raise ConfigError(f"{address!r} is not an address of the form host:port: write it without a scheme or path")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"{address!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)


def endpoint(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def ipv4_of(host: str) -> list[str]:
    """Look up the IPv4 addresses of a host name, each once; OSError for an unknown name."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(to[0]) for *_, to in found))


async def ip_of(key: str, host: str) -> str:
    """Return the address that a configuration key names, or the first IPv4 address of the host that it names.

    ConfigError for an unknown name.
    """
    from ipaddress import ip_address  # a client looks nothing up

    try:
        return str(ip_address(host))
    except ValueError:  # a name
        return await _first_of(key, host)


async def _first_of(key: str, host: str) -> str:
    try:
        return (await ipv4_of(host))[0]
    except (OSError, UnicodeError) as error:  # the latter for an impossible name
        raise ConfigError(f"{key}={host} has no IPv4 address: {error}") from error


def addresses_of(text: str) -> list[str]:
    """Split a list of addresses at ``;`` or ``,``; ConfigError names a bad one."""
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise ConfigError(f"{text!r} names no address of the form host:port")
    for address in addresses:
        host_and_port(address)
    return addresses


def remote_of(name: object) -> tuple[str, bytes]:
    """Return the other end of a connection by the name of its socket: as ``ip:port``, and in the form that a message
    stores. Unknown if the socket has no name.
    """
    if not isinstance(name, tuple):
        return "unknown", bytes(8)
    host, port = str(name[0]).partition("%")[0], int(name[1])
    if host.startswith("::ffff:") and "." in host:
        host = host.removeprefix("::ffff:")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return f"{host}:{port}", socket.inet_pton(family, host) + port.to_bytes(4, "big")


def unanswered(addresses: list[str], seconds: float) -> dict[str, str]:
    """Return why no server of these can be connected to, by its address; nothing if one can."""
    reasons: dict[str, str] = {}
    for address in addresses:
        try:
            socket.create_connection(host_and_port(address), seconds).close()
        except OSError as error:
            reasons[address] = str(error.strerror or error)
        else:
            return {}
    return reasons


# --- Failover ---


log: Final = Log(__name__)

T = TypeVar("T")

_PASSED_OVER: Final = (*MAY_PASS, MessageError, ProtocolError)


async def first_answer(
    addresses: list[str], ask: Callable[[str], Awaitable[T]], *, wanted: str = "name server answers"
) -> T:
    """Ask one server after another until one answers.

    A server that can't be reached, or whose answer can't be read, moves to the end of the list.

    Raises ConnectionError with every server's failure when none answers. A refusal that all servers would give is
    raised at once.
    """
    failures: list[str] = []
    for address in tuple(addresses):
        try:
            return await ask(address)
        except _PASSED_OVER as error:
            failures.append(str(error))
            if address in addresses:  # it may have been replaced meanwhile
                addresses.remove(address)
                addresses.append(address)
            log.debug("server is passed over", extra={"address": address, "error": error})
    raise ConnectionError(f"no {wanted}: {'; '.join(failures)}")
