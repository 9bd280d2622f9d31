"""Addresses, one and several."""

import asyncio

import pytest

from firearrow.errors import BrokerBusy, ConfigError, MessageError, RemoteProtocolError, TopicNotFound
from firearrow.net.address import addresses_of, first_answer, host_and_port, remote_of


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
