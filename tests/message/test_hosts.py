"""Hosts as 8 or 20 bytes."""

import pytest
from hypothesis import given

from firearrow.errors import MessageError
from firearrow.message.hosts import Host, pack_address, pack_host, unpack_host
from tests.message.strategies import hosts, is_v6


@given(hosts)
def test_a_host_reads_as_it_was_written(host: Host) -> None:
    raw = pack_host(host)
    assert len(raw) == (20 if is_v6(host) else 8)
    assert unpack_host(raw) == host


def test_the_worked_example() -> None:
    assert pack_host(("127.0.0.1", 10911)).hex() == "7f00000100002a9f"
    assert unpack_host(bytes.fromhex("7f00000100002a9f")) == ("127.0.0.1", 10911)


@pytest.mark.parametrize(
    ("host", "text"), [(Host("127.0.0.1", 10911), "127.0.0.1:10911"), (Host("2001:db8::1", 7), "[2001:db8::1]:7")]
)
def test_a_host_as_text(host: Host, text: str) -> None:
    assert str(host) == text


def test_a_name_is_no_address() -> None:
    with pytest.raises(MessageError, match="'localhost' is not an IPv4 or IPv6 address"):
        pack_address("localhost")


@pytest.mark.parametrize("size", [0, 7, 9, 19, 21])
def test_other_sizes_are_no_host(size: int) -> None:
    with pytest.raises(MessageError, match=f"8 or 20 bytes, not {size}"):
        unpack_host(bytes(size))
