"""The client: answers to whom they belong, and errors that say what happened."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import BrokerUnavailable, ConfigError, NotPermitted, NotSupported
from firearrow.net.client import Client
from firearrow.net.server import Server
from firearrow.wire.calls import NO_HANDLERS, Answering
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response
from tests.net.conftest import Run
from tests.net.counterpart import (
    ASK_BACK,
    ECHO,
    GO_AWAY,
    HANG_UP,
    LAST_FIRST,
    REFUSE,
    SILENT,
    TALK_ROT,
    Counterpart,
)


@asynccontextmanager
async def connected(
    handlers: Mapping[int, Answering] = NO_HANDLERS,
) -> AsyncIterator[tuple[Client, str, Counterpart]]:
    counterpart = Counterpart()
    server = Server(counterpart.handlers(), SystemClock())
    port = await server.start("127.0.0.1", 0)
    client = Client(handlers)
    try:
        yield client, f"127.0.0.1:{port}", counterpart
    finally:
        await client.close()
        await server.stop()


def test_an_answer_brings_fields_and_body(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, _):
            answer = await client.call(address, ECHO, {"n": 1, "b": True}, b"body")
            assert (answer.ext, answer.body) == ({"n": "1", "b": "true"}, b"body")

    run(main())


def test_answers_out_of_order_reach_their_callers_on_one_connection(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            calls = [client.call(address, LAST_FIRST, {"n": n}) for n in range(10)]
            answers = await asyncio.gather(*calls)
            assert [answer.ext["n"] for answer in answers] == list(map(str, range(10)))
            assert len({peer for peer, _ in counterpart.held}) == 1

    run(main())


def test_a_refusal_is_the_error_of_its_code(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, _):
            with pytest.raises(NotPermitted) as caught:
                await client.call(address, REFUSE)
            assert caught.value.code == ResponseCode.NO_PERMISSION
            assert caught.value.remark == "not you"
            assert caught.value.address == address

    run(main())


def test_an_overdue_answer_ends_the_connection(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            with pytest.raises(TimeoutError, match=f"{address} did not answer in 0.05 s"):
                await client.call(address, SILENT, timeout_seconds=0.05)
            await client.call(address, ECHO)
            assert len(counterpart.peers) == 2

    run(main())


def test_others_learn_why_the_connection_ended(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, _):
            other = asyncio.ensure_future(client.call(address, SILENT))
            late = f"{address} did not answer in 0.05 s"
            with pytest.raises(TimeoutError, match=f"^{late}$"):
                await client.call(address, SILENT, timeout_seconds=0.05)
            lost = f"^the connection to {address} is lost: closed, because {late}$"
            with pytest.raises(ConnectionError, match=lost):
                await other

    run(main())


def test_a_caller_that_gives_up_disturbs_no_other(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await client.call(address, SILENT, timeout_seconds=0.01)
            for _ in range(3):
                await client.call(address, ECHO)
            assert len(counterpart.peers) == 1

    run(main())


def test_a_server_that_stops_is_asked_on_a_new_connection(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            with pytest.raises(BrokerUnavailable, match="bye"):
                await client.call(address, GO_AWAY)
            await client.call(address, ECHO)
            assert len(counterpart.peers) == 2

    run(main())


def test_a_server_asks_while_it_is_asked(run: Run) -> None:
    handlers: dict[int, Answering] = {
        39: lambda asked: Response(fields={"told": asked.ext["n"]}, body=asked.body[::-1])
    }

    async def main() -> None:
        async with connected(handlers) as (client, address, _):
            calls = [
                client.call(address, ASK_BACK, {"code": 39, "n": n}, b"abc") for n in range(10)
            ]
            answers = await asyncio.gather(*calls)
            assert [(it.ext["told"], it.body) for it in answers] == [
                (str(n), b"cba") for n in range(10)
            ]
            with pytest.raises(NotSupported, match=" request type 40 not supported"):
                await client.call(address, ASK_BACK, {"code": 40})

    run(main())


@pytest.mark.parametrize(
    ("code", "reason"), [(HANG_UP, "closed|reset"), (TALK_ROT, "a frame of 4294967295 bytes")]
)
def test_a_lost_connection_fails_the_call_and_the_next_opens_another(
    run: Run, code: int, reason: str
) -> None:
    async def main() -> None:
        async with connected() as (client, address, _):
            with pytest.raises(ConnectionError, match=reason):
                await client.call(address, code)
            assert (await client.call(address, ECHO, {"n": 2})).ext == {"n": "2"}

    run(main())


def test_a_server_that_is_not_there(run: Run) -> None:
    async def main() -> None:
        async with connected() as (_, address, _):
            pass
        with pytest.raises(ConnectionError, match=f"{address} can't be reached"):
            await Client().call(address, ECHO)

    run(main())


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:70000"])
def test_what_is_no_address(run: Run, address: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=f"{address!r} is not an address"):
            await Client().call(address, ECHO)

    run(main())


def test_one_way_requests(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.send(address, ECHO, {"n": 1})
            await client.call(address, ECHO, {"n": 2})
            assert [(c.is_oneway, c.ext["n"]) for c in counterpart.heard] == [
                (True, "1"),
                (False, "2"),
            ]

    run(main())
