"""Addresses, one and several."""

import pytest

from firearrow.errors import ConfigError
from firearrow.net.address import addresses_of, host_and_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("broker:10911", "broker", 10911),
        (" 10.0.0.1:9876 ", "10.0.0.1", 9876),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_address(text: str, host: str, port: int) -> None:
    assert host_and_port(text) == (host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an address of the form host:port"):
        host_and_port(text)


def test_several() -> None:
    assert addresses_of("a:1; b:2,c:3;") == ["a:1", "b:2", "c:3"]


@pytest.mark.parametrize(("text", "named"), [(" ; ", "' ; '"), ("a:1;b", "'b'")])
def test_what_is_no_list_of_addresses(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} "):
        addresses_of(text)
