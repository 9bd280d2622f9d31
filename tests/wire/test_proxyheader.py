"""Headers of the PROXY protocol: text, binary, in pieces, and malformed ones."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import RemoteProtocolError
from firearrow.wire.frame import FRAME_BYTES_MAX, PROXY_HEADERS
from firearrow.wire.proxyheader import BINARY, BINARY_BYTES_MAX, TEXT, TEXT_BYTES_MAX, ProxyHeader, read_header

EXAMPLE = bytes.fromhex("0d0a0d0a000d0a515549540a2111000ccb007107c00002019c411f91")
PORTS = st.integers(0, 65_535)
Ip = IPv4Address | IPv6Address


def text(client: Ip, port: int) -> bytes:
    other = "192.0.2.1" if client.version == 4 else "2001:db8::1"
    return f"PROXY TCP{client.version} {client} {other} {port} 8081\r\n".encode()


def binary(client: Ip, port: int, more: bytes = b"", command: int = 0x21) -> bytes:
    family = 0x11 if client.version == 4 else 0x21
    body = client.packed * 2 + port.to_bytes(2) + bytes(2) + more
    return BINARY + bytes((command, family)) + len(body).to_bytes(2) + body


def test_the_example() -> None:
    assert binary(IPv4Address("203.0.113.7"), 40_001)[:18] == EXAMPLE[:18]
    assert read_header(EXAMPLE) == ProxyHeader(len(EXAMPLE), ("203.0.113.7", 40_001))


def test_no_frame_begins_like_a_header() -> None:
    assert (TEXT[:4], BINARY[:4]) == PROXY_HEADERS
    assert all(int.from_bytes(begin) > FRAME_BYTES_MAX for begin in PROXY_HEADERS)


@given(st.ip_addresses(), PORTS, st.binary(max_size=100), st.booleans())
def test_a_header_names_its_client_once_it_is_whole(client: Ip, port: int, rest: bytes, is_text: bool) -> None:
    header = text(client, port) if is_text else binary(client, port, rest)
    assert all(read_header(header[:size]) is None for size in range(len(header)))
    found = read_header(header + rest)
    assert found is not None
    assert found.client is not None
    assert (ip_address(found.client[0]), found.client[1], found.size) == (client, port, len(header))


@given(st.binary(max_size=BINARY_BYTES_MAX + 100), st.sampled_from((b"", b"PROXY ", b"PROXY TCP4 ", BINARY)))
def test_any_bytes_are_a_header_or_its_begin_or_refused(data: bytes, begin: bytes) -> None:
    try:
        found = read_header(begin + data)
    except RemoteProtocolError:
        return
    if found is None:
        assert len(begin + data) < BINARY_BYTES_MAX
    else:
        assert 0 < found.size <= len(begin + data)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        binary(IPv4Address("192.0.2.1"), 7, command=0x20),  # LOCAL
        BINARY + b"\x21\x00\x00\x00",  # no family
        BINARY + b"\x21\x00\x00\x03abc",
        BINARY + b"\x21\x31\x00\xd8" + bytes(216),  # of a Unix socket
        BINARY + b"\x21\x12\x00\x0c" + bytes(12),  # UDP
    ],
)
def test_a_header_without_an_address_of_tcp_names_no_client(header: bytes) -> None:
    assert read_header(header + b"PRI ") == ProxyHeader(len(header), None)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXX",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        b"PROXY TCP4 192.0.2.1  192.0.2.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n",
        b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 fe80::2 1 2\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY \xff\r\n",
        b"PROXY UNKNOWN " + b"x" * TEXT_BYTES_MAX,
        BINARY + b"\x11\x11\x00\x0c" + bytes(12),  # version 1
        BINARY + b"\x22\x11\x00\x0c" + bytes(12),  # no known command
        BINARY + b"\x21\x41\x00\x0c" + bytes(12),  # no known family
        BINARY + b"\x21\x13\x00\x0c" + bytes(12),
        BINARY + b"\x21\x11\x00\x0b" + bytes(11),
        BINARY + b"\x21\x21\x00\x0c" + bytes(12),
        BINARY + b"\x21\x11\xff\xff" + bytes(12),
    ],
)
def test_a_malformed_header_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_header(header)
