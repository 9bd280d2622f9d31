"""Addresses, one and several."""

import asyncio
import socket

import pytest

from firearrow.errors import BrokerBusy, ConfigError, MessageError, RemoteProtocolError, TopicNotFound
from firearrow.net.address import addresses_of, first_answer, host_and_port, ip_of, ipv4_of, remote_of


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("broker:10911", "broker", 10911), (" 10.0.0.1:9876 ", "10.0.0.1", 9876), ("[::1]:65535", "::1", 65535)],
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


@pytest.mark.parametrize(
    ("name", "address", "stored"),
    [
        (("10.0.0.1", 4711), "10.0.0.1:4711", "0a000001 00001267"),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1:1", "0a000001 00000001"),
        (("fe80::1%eth0", 9, 0, 2), "fe80::1:9", "fe80000000000000 0000000000000001 00000009"),
        ("a pipe", "unknown", "0000000000000000"),
    ],
)
def test_the_other_end_of_a_connection(name: object, address: str, stored: str) -> None:
    assert remote_of(name) == (address, bytes.fromhex(stored))


def test_an_address_is_taken_as_it_is_and_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_up(host: str, port: None, family: int, *_: int) -> list[tuple[object, ...]]:
        if host != "broker":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(family, 0, 0, "", (ip, 0)) for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.1")]

    async def main() -> None:
        assert await ip_of("brokerIP1", "192.0.2.7") == "192.0.2.7"
        assert await ip_of("brokerIP1", "2001:db8::1") == "2001:db8::1"
        assert await ipv4_of("broker") == ["10.0.0.1", "10.0.0.2"]
        assert await ip_of("brokerIP1", "broker") == "10.0.0.1"
        with pytest.raises(ConfigError, match=r"^brokerIP1=none has no IPv4 address: .*unknown"):
            await ip_of("brokerIP1", "none")

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    asyncio.run(main())


# --- Failover between servers ---


TROUBLES = {
    "gone": ConnectionError("gone can't be reached"),
    "busy": BrokerBusy(2, "busy"),
    "odd": RemoteProtocolError("odd sent no frame"),
    "torn": MessageError("a value is missing", "JSON"),
}


async def ask(address: str) -> str:
    if address in TROUBLES:
        raise TROUBLES[address]
    return f"by {address}"


def test_who_answers_is_asked_first_from_then_on() -> None:
    addresses = [*TROUBLES, "sound", "other"]
    assert asyncio.run(first_answer(addresses, ask)) == "by sound"
    assert addresses == ["sound", "other", *TROUBLES]


def test_what_all_would_refuse_is_asked_once() -> None:
    asked: list[str] = []

    async def refuse(address: str) -> str:
        asked.append(address)
        raise TopicNotFound(17, "there is none")

    with pytest.raises(TopicNotFound):
        asyncio.run(first_answer(["a", "b"], refuse))
    assert asked == ["a"]


def test_where_none_answers_each_has_its_say() -> None:
    with pytest.raises(ConnectionError) as error:
        asyncio.run(first_answer(["gone", "odd"], ask, wanted="controller leads"))
    assert str(error.value) == "no controller leads: gone can't be reached; odd sent no frame"


def test_a_list_that_changes_meanwhile_stays_as_it_was_changed() -> None:
    addresses = ["gone", "b"]

    async def replaced(address: str) -> str:
        addresses[:] = ["c"]
        return await ask(address)

    assert asyncio.run(first_answer(addresses, replaced)) == "by b"
    assert addresses == ["c"]
