"""The client: answers reach their callers, and errors name their cause."""

import asyncio
import gc
import pickle
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import BrokerUnavailable, ConfigError, NotPermitted, NotSupported
from firearrow.net.access import Access
from firearrow.net.client import (
    LARGE_FRAME_BYTES,
    LEAVING_FRAMES_MAX,
    NO_ASKING,
    UNSENT_BYTES_MAX,
    Client,
    Handler,
    ServerRequest,
)
from firearrow.net.encryption import Tls
from firearrow.net.replies import Reply
from firearrow.net.server import Server
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, request
from firearrow.wire.frame import AnyCommand, Connection
from firearrow.wire.signature import Credentials, signature
from tests.broker.serving import until
from tests.net.background import answering, encrypting
from tests.net.conftest import Run
from tests.net.counterpart import (
    ASK_BACK,
    ECHO,
    GO_AWAY,
    HANG_UP,
    LAST_FIRST,
    LEAVE,
    REFUSE,
    SILENT,
    TALK_ROT,
    Counterpart,
)


@asynccontextmanager
async def connected(
    handlers: Mapping[int, Handler] = NO_ASKING, **options: Any
) -> AsyncIterator[tuple[Client, str, Counterpart]]:
    counterpart = Counterpart()
    server = Server(counterpart.handlers(), SystemClock())
    port = await server.start("127.0.0.1", 0)
    client = Client(handlers, **options)
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
    handlers: dict[int, Handler] = {
        39: lambda asked: Response(fields={"told": asked.command.ext["n"]}, body=asked.command.body[::-1])
    }

    async def main() -> None:
        async with connected(handlers) as (client, address, _):
            calls = [client.call(address, ASK_BACK, {"code": 39, "n": n}, b"abc") for n in range(10)]
            answers = await asyncio.gather(*calls)
            assert [(it.ext["told"], it.body) for it in answers] == [(str(n), b"cba") for n in range(10)]
            with pytest.raises(NotSupported, match=" request type 40 not supported"):
                await client.call(address, ASK_BACK, {"code": 40})

    run(main())


@pytest.mark.parametrize(("code", "reason"), [(HANG_UP, "closed|reset"), (TALK_ROT, "a frame of 4294967295 bytes")])
def test_a_lost_connection_fails_the_call_and_the_next_opens_another(run: Run, code: int, reason: str) -> None:
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
            assert [(c.is_oneway, c.ext["n"]) for c in counterpart.heard] == [(True, "1"), (False, "2")]

    run(main())


def test_what_is_under_way_on_a_server_that_stops_is_still_answered(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            held = [asyncio.create_task(client.call(address, LAST_FIRST)) for _ in range(9)]
            await asyncio.sleep(0)
            assert (await client.call(address, LEAVE, {"n": 1})).ext == {"n": "1"}
            assert len(counterpart.held) == 9
            assert counterpart.leaves == 2
            for peer, request in counterpart.held:
                peer.reply(request, Response(fields={"late": True}))
            assert {(await task).ext["late"] for task in held} == {"true"}
            assert counterpart.peers.isdisjoint({peer for peer, _ in counterpart.held})

    run(main())


def test_a_server_is_answered_later(run: Run) -> None:
    answers: list[asyncio.Task[None]] = []

    async def answer(asked: ServerRequest) -> None:
        await asyncio.sleep(0.01)
        asked.answer(Response(fields={"from": asked.address}))

    def begin(asked: ServerRequest) -> None:
        answers.append(asyncio.create_task(answer(asked)))

    async def main() -> None:
        async with connected({39: begin}) as (client, address, _):
            calls = [client.call(address, ASK_BACK, {"code": 39}) for _ in range(5)]
            assert [it.ext for it in await asyncio.gather(*calls)] == [{"from": address}] * 5

    run(main())
    assert len(answers) == 5


def test_who_listens_hears_of_connections(run: Run) -> None:
    heard: list[tuple[str, str]] = []

    async def main() -> None:
        def hear(event: str) -> Callable[[str], None]:
            return lambda address: heard.append((event, address))

        listening = {"on_connected": hear("connected"), "on_lost": hear("lost")}
        async with connected(NO_ASKING, **listening) as (client, address, _):
            await client.call(address, ECHO)
            assert (client.addresses, client.is_connected(address)) == ((address,), True)
            with pytest.raises(ConnectionError):
                await client.call(address, HANG_UP)
            assert client.addresses == ()
            await client.call(address, ECHO)
            await client.drop(address)
            assert heard == [("connected", address), ("lost", address)] * 2

    run(main())


def test_all_requests_carry_what_is_extra_and_are_signed(run: Run) -> None:
    access = Access(Credentials("user", "secret"))

    async def main() -> None:
        async with connected(access=access, extra={"ns": "n"}) as (client, address, counterpart):
            answer = await client.call(address, ECHO, {"n": 1}, b"body")
            expected = {"n": "1", "ns": "n", "AccessKey": "user"}
            expected["Signature"] = signature(expected, b"body", "secret")
            assert answer.ext == expected
            await client.send(address, ECHO, {"n": 1}, b"body")
            await client.call(address, ECHO)
            assert counterpart.heard[1].ext == expected

    run(main())


def test_encrypted_calls(run: Run, certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def main() -> None:
        async with encrypting(Counterpart().handlers(), context) as address:
            client = Client(access=Access(tls=Tls(str(certificate))))
            body = bytes(3_000_000)
            calls = [client.call(address, ECHO, {"n": n}, body) for n in range(3)]
            assert [it.body for it in await asyncio.gather(*calls)] == [body] * 3
            await client.close()
            stranger = Client(access=Access(tls=Tls()))
            with pytest.raises(ConnectionError, match=f"^{address} can't be reached by TLS: "):
                await stranger.call(address, ECHO)

    run(main())


@pytest.mark.parametrize("verify", [True, False])
def test_a_server_that_asks_for_a_certificate(run: Run, certificate: Path, verify: bool) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    tls = Tls(str(certificate) if verify else None, str(certificate), verify=verify)

    async def main() -> None:
        async with encrypting(Counterpart().handlers(), context) as address:
            client = Client(access=pickle.loads(pickle.dumps(Access(tls=tls))))
            body = bytes(range(256)) * 8192
            pending = [await client.begin(address, ECHO, {"n": n}, body) for n in range(4)]
            answers = [await each for each in pending]
            assert [(it.ext["n"], it.body == body) for it in answers] == [(str(n), True) for n in range(4)]
            await client.close()

    run(main())


def test_a_server_without_tls(run: Run) -> None:
    async def main() -> None:
        async with connected(access=Access(tls=Tls(verify=False))) as (client, address, _):
            with pytest.raises(ConnectionError, match=f"^{address} can't be reached by TLS: "):
                await client.call(address, ECHO)

    run(main())


def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=f"^TLS authorities {missing}: "):
        Client(access=Access(tls=Tls(missing)))
    with pytest.raises(ConfigError, match=f"^TLS certificate {missing} with key "):
        Client(access=Access(tls=Tls(certificate_file=missing)))


# --- requests without a waiter yet ---


def test_pending_answers_out_of_order_reach_their_callers_on_one_connection(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            pending = [await client.begin(address, LAST_FIRST, {"n": n}) for n in range(10)]
            assert not any(each.done() for each in pending)
            assert [(await each).ext["n"] for each in pending] == list(map(str, range(10)))
            assert all(each.done() for each in pending)
            assert len({peer for peer, _ in counterpart.held}) == 1

    run(main())


def test_pending_requests_are_signed_each(run: Run) -> None:
    async def main() -> None:
        async with connected(access=Access(Credentials("user", "secret"))) as (client, address, _):
            pending = [await client.begin(address, ECHO, {"n": n}) for n in range(100)]
            answers = [(await each).ext for each in pending]
            assert [answer["n"] for answer in answers] == list(map(str, range(100)))
            assert len({answer["Signature"] for answer in answers}) == 100

    run(main())


def test_neither_side_stops_the_other_by_not_reading(run: Run) -> None:
    """Far more data is pending than sockets hold, both ways, before the first wait for an answer."""

    async def main() -> None:
        async with connected() as (client, address, _):
            body = bytes(1 << 20)
            count = 8 * UNSENT_BYTES_MAX // len(body)
            pending = [await client.begin(address, ECHO, {"n": n}, body) for n in range(count)]
            answers = [await each for each in pending]
            assert [int(answer.ext["n"]) for answer in answers] == list(range(count))
            assert all(answer.body == body for answer in answers)

    run(main())


def test_large_and_small_requests_keep_their_order(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            bodies = [bytes(LARGE_FRAME_BYTES * (n % 3 == 2)) for n in range(30)]
            pending = [await client.begin(address, ECHO, {"n": n}, body) for n, body in enumerate(bodies)]
            assert [(await each).body for each in pending] == bodies
            assert [int(it.ext["n"]) for it in counterpart.heard[1:]] == list(range(30))

    run(main())


def test_a_pending_refusal_is_an_answer(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, _):
            answer = await (await client.begin(address, REFUSE))
            assert (answer.code, answer.remark) == (16, "not you")

    run(main())


def test_an_overdue_pending_request_ends_the_connection_and_those_on_it(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            other = await client.begin(address, SILENT)
            overdue = await client.begin(address, SILENT, timeout_seconds=0.05)
            late = f"{address} did not answer in 0.05 s"
            with pytest.raises(TimeoutError, match=f"^{late}$"):
                await overdue
            with pytest.raises(ConnectionError, match=f"^the connection to {address} is lost: closed, because {late}$"):
                await other
            await client.call(address, ECHO)
            assert len(counterpart.peers) == 2

    run(main())


def test_a_server_that_says_in_a_pending_answer_that_it_stops_gets_no_more_on_that_connection(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            pending = [await client.begin(address, code) for code in (GO_AWAY, ECHO)]
            assert [(await each).code for each in pending] == [ResponseCode.GO_AWAY, 0]
            await client.call(address, ECHO)
            assert len(counterpart.peers) == 2

    run(main())


async def replied(client: Client, address: str, code: int, *, seconds: float = 5.0) -> tuple[Reply[AnyCommand], object]:
    """Begin a call with a waiter of its own; return the waiter, and what the client returned."""
    reply: Reply[AnyCommand] = Reply()
    command = request(code, {"n": 1}, b"body")
    began = client.begin_now(reply, address, command, seconds)
    if began is None:
        began = await client.begin_for(reply, address, command, seconds)
    return reply, began


def test_a_call_with_its_own_waiter_is_sent_at_once_by_an_open_connection(run: Run) -> None:
    async def main() -> None:
        async with connected(extra={"ns": "x"}) as (client, address, counterpart):
            reply: Reply[AnyCommand] = Reply()
            assert client.begin_now(reply, address, request(ECHO), 5.0) is None
            await client.call(address, ECHO)
            assert client.begin_now(reply, address, request(ECHO, {"n": 1}, b"body"), 5.0) is not None
            await until(reply.done)
            answer = await reply
            assert (answer.ext, answer.body) == ({"n": "1", "ns": "x"}, b"body")
            assert len(counterpart.peers) == 1

    run(main())


def test_a_call_with_its_own_waiter_opens_a_connection(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, _):
            reply, _ = await replied(client, address, ECHO)
            await until(reply.done)
            assert (await reply).body == b"body"

    run(main())


def test_the_owner_of_a_waiter_makes_the_client_leave_a_server_that_stops(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            reply, leave = await replied(client, address, LEAVE)
            await until(reply.done)
            assert (await reply).code == ResponseCode.GO_AWAY
            leave()  # type: ignore[operator]
            again, _ = await replied(client, address, LEAVE)
            await until(again.done)
            assert (await again).code == 0
            assert len(counterpart.peers) == 2

    run(main())


def test_an_overdue_answer_leaves_a_connection_open_whose_server_works(run: Run) -> None:
    async def main() -> None:
        async with connected(spares_working=True) as (client, address, counterpart):
            await client.call(address, ECHO)
            overdue, _ = await replied(client, address, SILENT, seconds=0.05)
            await until(overdue.done)
            with pytest.raises(TimeoutError, match=f"^{address} did not answer in 0.05 s$"):
                await overdue
            await client.call(address, ECHO)
            assert len(counterpart.peers) == 1

    run(main())


def test_an_overdue_answer_closes_the_connection_of_a_silent_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with connected(spares_working=True) as (client, address, counterpart):
            await client.call(address, ECHO)
            monkeypatch.setattr("firearrow.net.client.SILENT_SECONDS", 0.01)
            overdue, _ = await replied(client, address, SILENT, seconds=0.05)
            await until(overdue.done)
            await client.call(address, ECHO)
            assert len(counterpart.peers) == 2

    run(main())


def test_a_connection_that_was_closed_while_idle_is_opened_again(run: Run) -> None:
    async def main() -> None:
        counterpart, client = Counterpart(), Client()
        async with answering(counterpart.handlers()) as address:
            await client.call(address, ECHO)
        async with answering(counterpart.handlers(), int(address.rpartition(":")[2])):
            await (await client.begin(address, ECHO))
            assert len(counterpart.peers) == 2
            await client.close()

    run(main())


def test_closing_ends_what_is_pending_and_nobody_has_to_wait_for_it(run: Run) -> None:
    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with connected() as (client, address, _):
            pending = [await client.begin(address, SILENT) for _ in range(3)]
            await client.close()
            with pytest.raises(ConnectionError, match="this side closed it"):
                await pending[0]
            del pending
            gc.collect()
        assert told == []

    run(main())


def test_what_is_written_before_the_end_arrives(run: Run) -> None:
    async def main() -> None:
        async with connected() as (client, address, counterpart):
            await client.call(address, ECHO)
            for number in range(100):
                await client.send(address, ECHO, {"n": number}, bytes(20_000))
            await client.close()
            await until(lambda: len(counterpart.heard) == 101)
            assert [it.ext["n"] for it in counterpart.heard[1:]] == list(map(str, range(100)))

    run(main())


class Noting(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self._protocol = protocol
        protocol.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is room for everything."""

    def is_closing(self) -> bool:
        """Tell whether it was closed."""
        return False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self._protocol.connection_lost(None)


def test_what_is_asked_in_one_turn_leaves_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server works on the first requests while the others are written."""
    transports: list[Noting] = []

    async def connect(factory: Callable[[], Any], *_: Any, **__: Any) -> tuple[Noting, Any]:
        protocol = factory()
        transports.append(Noting(protocol))
        return transports[0], protocol

    async def main() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
        client = Client()
        await client.send("127.0.0.1:1", ECHO)
        await asyncio.sleep(0)
        [transport] = transports
        transport.writes.clear()
        count = 2 * LEAVING_FRAMES_MAX + 3
        calls = [asyncio.ensure_future(client.call("127.0.0.1:1", ECHO)) for _ in range(count)]
        await until(lambda: len(transport.writes) == 3)
        frames = [Connection().receive(written) for written in transport.writes]
        assert list(map(len, frames)) == [LEAVING_FRAMES_MAX, LEAVING_FRAMES_MAX, 3]
        opaques = [command.opaque for some in frames for command in some]
        assert opaques == sorted(opaques)
        await client.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, ConnectionError) for error in ended)

    asyncio.run(main())
