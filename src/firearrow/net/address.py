"""Addresses as RocketMQ writes them."""

from __future__ import annotations

import socket

from firearrow.errors import ConfigError


def host_and_port(address: str) -> tuple[str, int]:
    """Take ``host:port`` apart; ConfigError if it is something else."""
    host, _, port = address.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"{address!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)


def addresses_of(text: str) -> list[str]:
    """Take a list of addresses apart, separated by ``;`` or ``,``; ConfigError names a bad one."""
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise ConfigError(f"{text!r} names no address of the form host:port")
    for address in addresses:
        host_and_port(address)
    return addresses


def remote_of(name: object) -> tuple[str, bytes]:
    """Give the other end of a connection, from what its socket says of it: as ``ip:port`` and as
    it is stored in a message; unknown if it says nothing."""
    if not isinstance(name, tuple):
        return "unknown", bytes(8)
    host, port = str(name[0]).partition("%")[0], int(name[1])
    if host.startswith("::ffff:") and "." in host:
        host = host.removeprefix("::ffff:")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return f"{host}:{port}", socket.inet_pton(family, host) + port.to_bytes(4, "big")
