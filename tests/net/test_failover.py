"""Servers of which any one will do are asked one after another."""

from __future__ import annotations

import asyncio

import pytest

from firearrow.errors import BrokerBusy, MessageError, RemoteProtocolError, TopicNotFound
from firearrow.net.failover import first_answer

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
