"""gRPC at the port of a server, with grpcio as its client and by frames."""

from __future__ import annotations

import asyncio
import queue
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest

from firearrow.config.tls import TlsKeys
from firearrow.net.grpc import GrpcLimits
from firearrow.net.server import Server
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import ACK, DATA, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, ErrorCode
from tests.broker.serving import until
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.grpcservice import CALL_SECONDS_MAX, ECHO, Client, Service, grpc_client, grpc_serving
from tests.net.http2talker import Http2Talker, path, speaking
from tests.net.talker import encrypted, question, talking
from tests.wire import http2frames as h2
from tests.wire.http2frames import HELLO

MiB = 1024 * 1024


def use(run: Run, client: Callable[[Client], None], service: Service | None = None, **options: Any) -> None:
    """Run a client that blocks against a server."""

    async def main() -> None:
        async with grpc_serving(service, **options) as (server, port):

            def work() -> None:
                with grpc_client(port) as opened:
                    client(opened)

            await asyncio.to_thread(work)
            await until(lambda: not server.grpc_peers)

    run(main())


def status_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Return how a call fails."""
    with pytest.raises(grpc.RpcError) as failed:
        call()
    error: Any = failed.value
    return error.code(), error.details()


# --- calls of all kinds ---


def test_calls_with_one_answer(run: Run) -> None:
    def client(opened: Client) -> None:
        assert opened.call("echo", b"a message") == b"a message"
        assert opened.call("echo") == b""
        assert opened.call("late", b"later") == b"later"

    use(run, client)


def test_many_calls_at_once(run: Run) -> None:
    def client(opened: Client) -> None:
        calls = [opened.begin(name, b"%d" % number) for number in range(500) for name in ("echo", "late")]
        answers = [call.result(CALL_SECONDS_MAX) for call in calls]
        assert answers == [b"%d" % number for number in range(500) for _ in range(2)]

    use(run, client)


def test_a_stream_of_answers(run: Run) -> None:
    def client(opened: Client) -> None:
        assert list(opened.answers("many", b"100")) == [b"%d" % number for number in range(100)]
        assert list(opened.answers("many", b"0")) == []
        assert [len(it) for it in opened.answers("many", b"5 1000000")] == [1_000_001] * 5

    use(run, client)


def test_streams_in_both_directions(run: Run) -> None:
    def client(opened: Client) -> None:
        said: queue.Queue[bytes | None] = queue.Queue()
        answers = opened.talk("chat", iter(said.get, None))
        for word in (b"a", b"b", bytes(MiB), b"c"):
            said.put(word)
            assert next(answers) == b"re: " + word
        said.put(None)
        assert list(answers) == []
        assert answers.code() is grpc.StatusCode.OK

    use(run, client)


def test_the_server_may_end_a_stream_first(run: Run) -> None:
    def client(opened: Client) -> None:
        for last, code in ((b"bye", grpc.StatusCode.OK), (b"fail", grpc.StatusCode.INVALID_ARGUMENT)):
            said: queue.Queue[bytes | None] = queue.Queue()
            answers = opened.talk("chat", iter(said.get, None))
            said.put(b"a")
            assert next(answers) == b"re: a"
            said.put(last)
            assert answers.code() is code
            said.put(None)
        assert opened.call("echo", b"x") == b"x"

    use(run, client)


def test_a_stream_of_requests(run: Run) -> None:
    def client(opened: Client) -> None:
        assert next(opened.talk("total", iter([bytes(MiB)] * 20 + [b"x"]))) == b"%d" % (20 * MiB + 1)

    use(run, client)


# --- failures ---


def test_statuses(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def client(opened: Client) -> None:
        message = "nicht du: 100 % 键\n"
        assert status_of(lambda: opened.call("fail", message.encode())) == (grpc.StatusCode.PERMISSION_DENIED, message)
        code, details = status_of(lambda: opened.call("bug"))
        assert (code, details) == (grpc.StatusCode.INTERNAL, "the server failed at the call")
        code, details = status_of(lambda: opened.call("none"))
        assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, "there is no method /test.Service/none")
        assert opened.call("echo", b"x") == b"x"

    use(run, client)
    [line] = told(caplog)
    assert (line["event"], line["method"]) == ("call failed", "bug")


def test_several_requests_for_one_answer_are_refused(run: Run) -> None:
    def client(opened: Client) -> None:
        assert status_of(lambda: next(opened.talk("echo", iter([b"a", b"b"]))))[0] is grpc.StatusCode.INTERNAL
        assert status_of(lambda: next(opened.talk("echo", iter([]))))[0] is grpc.StatusCode.INTERNAL
        assert next(opened.talk("echo", iter([b"a"]))) == b"a"

    use(run, client)


def test_a_deadline_cancels_the_call(run: Run) -> None:
    service = Service()

    def client(opened: Client) -> None:
        code, _ = status_of(lambda: opened.call("hold", timeout=0.2))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert opened.call("echo") == b""

    use(run, client, service)
    [call] = service.held
    assert 0 < (call.timeout_ms or 0) <= 210  # grpcio rounds up
    assert service.cancelled == [call]


def test_a_cancelled_call_is_noticed(run: Run) -> None:
    service = Service()

    def client(opened: Client) -> None:
        calls = [opened.begin("hold") for _ in range(3)]
        assert opened.call("echo") == b""
        for call in calls:
            call.cancel()
        assert opened.call("echo") == b""

    use(run, client, service)
    assert set(service.cancelled) == set(service.held)
    assert len(service.held) == 3
    for call in service.held:  # an answer that comes too late is nobody's
        call.answer(b"late")
        call.send(b"late")
        call.fail(grpc.StatusCode.INTERNAL.value[0], "late")
        call.end()


def test_calls_end_with_their_connection(run: Run) -> None:
    service = Service()

    async def main() -> None:
        async with grpc_serving(service) as (server, port):

            def work() -> None:
                with grpc_client(port) as opened:
                    call = opened.begin("hold")
                    begun.wait(CALL_SECONDS_MAX)
                    assert not call.done()

            begun = threading.Event()
            working = asyncio.create_task(asyncio.to_thread(work))
            await until(lambda: bool(service.held))
            begun.set()
            await working
            await until(lambda: bool(service.cancelled))
            assert service.cancelled == service.held
            await until(lambda: not server.grpc_peers)

    run(main())


# --- size ---


@pytest.mark.parametrize("size", [0, 1, 16_378, 16_379, 16_380, 65_535, 65_536, MiB, 20 * MiB])
def test_messages_of_any_size(run: Run, size: int) -> None:
    def client(opened: Client) -> None:
        message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert opened.call("echo", message) == message

    use(run, client)


def test_a_message_up_to_the_limit(run: Run) -> None:
    def client(opened: Client) -> None:
        assert len(opened.call("echo", bytes(2 * MiB))) == 2 * MiB
        code, details = status_of(lambda: opened.call("echo", bytes(2 * MiB + 1)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "above the limit" in details
        assert opened.call("echo") == b""

    use(run, client, limits=GrpcLimits(message_bytes_max=2 * MiB))


@pytest.mark.parametrize("size", [10, MiB])
def test_compressed_messages(run: Run, size: int) -> None:
    def client(opened: Client) -> None:
        message = b"x" * size
        assert opened.call("echo", message, compression=grpc.Compression.Gzip) == message
        packed = [message] * 3
        assert next(opened.talk("total", iter(packed), compression=grpc.Compression.Gzip)) == b"%d" % (3 * size)
        if size > 10:  # short ones are not compressed
            code, _ = status_of(lambda: opened.call("echo", message, compression=grpc.Compression.Deflate))
            assert code is grpc.StatusCode.UNIMPLEMENTED

    use(run, client)


# --- beside remoting, and encrypted ---


def test_remoting_and_grpc_at_one_port(run: Run) -> None:
    async def main() -> None:
        async with grpc_serving() as (server, port), talking(port) as talker:

            def work() -> None:
                with grpc_client(port) as opened:
                    assert opened.call("echo", b"x") == b"x"

            for number in range(3):
                talker.ask(question(ECHO, number))
                await asyncio.to_thread(work)
                assert (await talker.answer()).opaque == number
            await until(lambda: not server.grpc_peers)
            assert len(server.peers) == 1

    run(main())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_encrypted_with_alpn_at_the_same_port(
    run: Run, certificate: Path, mode: Literal["permissive", "enforcing"]
) -> None:
    async def main() -> None:
        keys = TlsKeys(tls_server_mode=mode, tls_server_cert_path=str(certificate))
        async with grpc_serving(tls=keys) as (_, port):
            trust = grpc.ssl_channel_credentials(certificate.with_suffix(".crt").read_bytes())
            context = ssl.create_default_context(cafile=certificate)

            def work() -> None:
                with grpc_client(port, trust) as opened:
                    for size in (3, 3 * MiB):
                        assert opened.call("echo", bytes(size)) == bytes(size)
                    assert len(list(opened.answers("many", b"10 100000"))) == 10

            async with encrypted(port, context) as talker:
                talker.ask(question(ECHO))
                await asyncio.to_thread(work)
                assert (await talker.answer()).opaque == 1
            if mode == "enforcing":

                def plain() -> None:
                    with grpc_client(port) as opened:
                        assert status_of(lambda: opened.call("echo"))[0] is grpc.StatusCode.UNAVAILABLE

                await asyncio.to_thread(plain)
            else:
                use_plain = asyncio.to_thread(lambda: _echo_once(port))
                assert await use_plain == b"x"

    run(main())


def _echo_once(port: int) -> bytes:
    with grpc_client(port) as opened:
        return opened.call("echo", b"x")


def test_without_methods_http2_is_a_frame_that_is_too_long(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with grpc_serving() as (server, port), talking(port) as talker:
            server.grpc_methods = {}
            talker.write(HELLO)
            assert await talker.end() == b""

    run(main())
    assert "above the limit" in str(told(caplog)[0]["reason"])


def test_remoting_ends_where_grpc_begins(run: Run) -> None:
    """A connection may turn to gRPC at any frame: what remoting keeps of it is forgotten."""

    async def main() -> None:
        async with grpc_serving() as (server, port), talking(port) as talker:
            talker.ask(question(ECHO))
            await talker.answer()
            [peer] = server.peers
            peer.keep(1000)
            talker.write(HELLO)
            await until(lambda: bool(server.grpc_peers))
            assert server.peers == set()
            assert not peer.is_open
            [grpc_peer] = server.grpc_peers
            assert grpc_peer.kept_bytes == 0
            assert len(server._all) == 1

    run(main())


# --- by frames ---


def test_a_request_in_pieces_is_answered_like_a_whole_one(run: Run) -> None:
    """The reader of messages is the general way; data of one whole message goes past it."""
    message = framed(b"in pieces")
    pieces = [
        [h2.data(1, message, ends=True)],
        [h2.data(1, message), h2.data(1, b"", ends=True)],
        [h2.data(1, message[:3]), h2.data(1, message[3:], ends=True)],
        [*(h2.data(1, message[at : at + 1]) for at in range(len(message))), h2.data(1, b"", ends=True)],
        [h2.data(1, message), h2.headers(1, b"", ends=True)],
        [h2.frame(DATA, 1, b"\x03" + message + bytes(3), END_STREAM | 8)],
    ]

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        for number, frames in enumerate(pieces):
            stream_id = 1 + 2 * number
            renamed = [it._replace(stream_id=stream_id).encode() for it in h2.frames_of(b"".join(frames))]
            talker.write(h2.headers(stream_id, path("echo")), *renamed)
            assert await talker.answer(stream_id) == [b"in pieces"]
            [peer] = server.grpc_peers
            assert (peer.unfinished_bytes, peer.kept_bytes, peer.partial_bytes) == (0, 0, 0)

    speaking(run, main)


@pytest.mark.parametrize(
    "frames",
    [
        [h2.data(1, b"", ends=True)],
        [h2.data(1, framed(b"x")[:-1], ends=True)],
        [h2.data(1, framed(b"x") + b"\0", ends=True)],
        [h2.data(1, framed(b"x") * 2, ends=True)],
        [h2.data(1, framed(b"x")), h2.data(1, b"y", ends=True)],
        [h2.data(1, framed(b"x")), h2.data(1, framed(b"y"), ends=True)],
        [h2.headers(1, b"", ends=True)],
    ],
)
def test_a_request_that_is_not_one_message_fails(run: Run, frames: list[bytes]) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("echo")), *frames)
        frame = await talker.frame(HEADERS)
        assert b"grpc-status\x0213" in frame.payload
        [peer] = server.grpc_peers
        assert (peer.unfinished_bytes, peer.kept_bytes) == (0, 0)
        talker.write(h2.headers(3, path("echo")), h2.data(3, framed(b"x"), ends=True))
        assert await talker.answer(3) == [b"x"]

    speaking(run, main)


def test_a_stream_of_requests_that_ends_within_one_fails(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("total")), h2.data(1, framed(b"x") + b"\0\0", ends=True))
        assert b"grpc-status\x0213" in (await talker.frame(HEADERS)).payload

    speaking(run, main)


def test_a_call_that_is_cancelled_in_its_read_is_not_begun(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(
            *(h2.headers(1, path("echo")), h2.data(1, framed(b"x"), ends=True), h2.reset(1)),
            *(h2.headers(3, path("echo")), h2.data(3, framed(b"y"), ends=True)),
        )
        assert await talker.answer(3) == [b"y"]
        assert service.count == 1

    speaking(run, main)
    assert told(caplog) == []


def test_a_call_may_be_ended_without_an_answer(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True))
        await until(lambda: bool(service.held))
        [call] = service.held
        [peer] = server.grpc_peers
        assert (call.peer, call.unread_bytes, call.fields[b":path"]) == (peer, 0, b"/test.Service/hold")
        call.reset()
        call.reset()
        frame = await talker.frame(RST_STREAM)
        assert (frame.stream_id, frame.error) == (1, ErrorCode.CANCEL)
        assert service.cancelled == []

    speaking(run, main)


def test_a_failing_listener_of_a_cancel_hinders_no_other(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    cancelled: list[int] = []

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        for number in (1, 3):
            talker.write(h2.headers(number, path("hold")), h2.data(number, framed(b""), ends=True))
        await until(lambda: len(service.held) == 2)
        first, second = service.held

        def fails() -> None:
            raise KeyError("a bug")

        first.cancelled = fails
        second.cancelled = lambda: cancelled.append(3)
        talker.write(h2.reset(1), h2.reset(3))
        await until(lambda: bool(cancelled))

    speaking(run, main)
    assert [line["event"] for line in told(caplog)] == ["call failed"]


def test_another_kind_of_request_is_answered_once(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        block = h2.block_of([*h2.CALL[:3], (b"content-type", b"application/json")])
        talker.write(h2.headers(1, block), h2.data(1, b"{"), h2.data(1, b"}"), h2.data(1, b"", ends=True))
        assert b":status\x03415" in (await talker.frame(HEADERS)).payload
        talker.write(h2.window(1, 1000))
        assert (await talker.frame(DATA)).payload == b"only gRPC is served here\n"
        last = await talker.frame()
        assert (last.kind, last.flags & END_STREAM, last.stream_id) == (HEADERS, END_STREAM, 1)
        talker.write(h2.ping())
        assert (await talker.frame(PING, HEADERS, DATA)).kind == PING

    speaking(run, main, PREFACE + h2.settings(initial_window_size=0))


def test_a_violation_closes_the_connection_with_a_reason(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True), h2.data(1, b"more"))
        frames = await talker.end()
        assert (frames[-1].kind, frames[-1].error) == (GOAWAY, ErrorCode.STREAM_CLOSED)
        assert service.cancelled == service.held
        assert len(service.held) == 1

    speaking(run, main)
    assert "STREAM_CLOSED: data behind the end of a call" in str(told(caplog)[0]["reason"])


def test_a_client_that_closes_its_side_gets_the_answers_of_the_turn(run: Run) -> None:
    async def main() -> None:
        async with grpc_serving() as (_, port), talking(port) as talker:
            talker.write(HELLO + h2.headers(1, path("echo")) + h2.data(1, framed(b"x"), ends=True))
            talker.write_end()
            frames = h2.frames_of(await talker.end())
            assert [it.payload for it in frames if it.kind == DATA] == [framed(b"x")]

    run(main())


def test_a_silent_connection_is_closed(run: Run) -> None:
    async def main() -> None:
        async with grpc_serving(idle_seconds_max=0.05) as (_, port), talking(port) as talker:
            talker.write(HELLO)
            frames = h2.frames_of(await talker.end())
            assert (frames[-1].kind, frames[-1].error) == (GOAWAY, ErrorCode.NO_ERROR)
            assert PING not in [it.kind for it in frames]

    run(main())


def test_a_silent_client_with_a_call_is_asked_for_a_sign_of_life(run: Run) -> None:
    """While it answers, its call waits; when it does not, the connection is closed."""

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True))
        probe = await talker.frame(PING)
        assert not probe.flags & ACK
        talker.write(h2.ping(probe.payload, ACK))
        assert service.cancelled == []
        frames = await talker.end()
        assert [it.kind for it in frames] == [PING, GOAWAY]
        assert service.cancelled == service.held

    speaking(run, main, idle_seconds_max=0.3)


def test_a_silent_connection_that_reads_nothing_is_cut(run: Run) -> None:
    async def main() -> None:
        async with grpc_serving(idle_seconds_max=0.05) as (server, port), talking(port) as talker:
            talker._writer.transport.pause_reading()  # type: ignore[attr-defined]
            blocks = PREFACE + h2.settings(initial_window_size=2**31 - 1) + h2.window(0, 2**31 - 1 - 65_535)
            talker.write(blocks + h2.headers(1, path("big")) + h2.data(1, framed(b"%d" % (64 * MiB)), ends=True))
            await until(lambda: bool(server.grpc_peers))
            await until(lambda: not server.grpc_peers)

    run(main())


# --- the end ---


def test_a_stop_tells_clients_and_their_calls(run: Run) -> None:
    service = Service()

    async def main() -> None:
        async with grpc_serving(service) as (server, port):
            outcome: list[tuple[grpc.StatusCode, str]] = []
            begun = threading.Event()

            def work() -> None:
                with grpc_client(port) as opened:
                    call = opened.begin("hold", timeout=CALL_SECONDS_MAX)
                    answers = opened.talk("chat", _said(begun))
                    next(answers)
                    outcome.append(status_of(call.result))
                    outcome.append(status_of(lambda: next(answers)))
                    begun.set()

            working = asyncio.create_task(asyncio.to_thread(work))
            await until(lambda: len(service.held) == 1 and len(service.calls) == 2)
            await asyncio.sleep(0)
            await server.stop()
            await working
            assert outcome == [(grpc.StatusCode.UNAVAILABLE, "the server stops")] * 2

    run(main())
    assert len(service.cancelled) == 2


def _said(end: threading.Event) -> Iterator[bytes]:
    yield b"a"
    end.wait(CALL_SECONDS_MAX)


def test_a_stop_lets_pending_answers_leave(run: Run) -> None:
    async def main() -> None:
        async with grpc_serving() as (server, port), talking(port) as talker:
            heard = Http2Talker(talker)
            heard.write(HELLO, h2.headers(1, path("big")), h2.data(1, framed(b"%d" % MiB), ends=True))
            await heard.frame(DATA)
            stopping = asyncio.create_task(server.stop())
            last = await heard.frame(GOAWAY)
            assert (last.error, int.from_bytes(last.payload[:4])) == (ErrorCode.NO_ERROR, 1)
            heard.write(h2.headers(3, path("echo")), h2.data(3, framed(b"x"), ends=True))
            refused = await heard.frame(RST_STREAM)
            assert (refused.stream_id, refused.error) == (3, ErrorCode.REFUSED_STREAM)
            heard.write(h2.window(0, 2 * MiB), h2.window(1, 2 * MiB))
            while not (await heard.frame(DATA, HEADERS)).flags & END_STREAM:
                pass
            assert await heard.end() == []
            await stopping

    run(main())


def test_a_stop_closes_when_the_ends_of_streams_are_read(run: Run) -> None:
    """No reset follows the end of a stream: some clients would take the reset for another end, again and again."""

    async def main() -> None:
        async with grpc_serving() as (server, port), talking(port) as talker:
            heard = Http2Talker(talker)
            heard.write(HELLO, h2.headers(1, path("chat")), h2.data(1, framed(b"x")))
            await heard.frame(DATA)
            stopping = asyncio.create_task(server.stop())
            await heard.frame(GOAWAY)
            end, probe = await heard.frame(), await heard.frame()
            assert (end.kind, end.stream_id, end.flags & END_STREAM) == (HEADERS, 1, END_STREAM)
            assert (probe.kind, probe.flags & ACK) == (PING, 0)
            heard.write(h2.data(1, framed(b"late")), h2.data(1, b"", ends=True))
            assert not stopping.done()
            heard.write(h2.ping(probe.payload, ACK))
            assert await heard.end() == []
            await stopping

    run(main())


def test_a_stop_waits_for_no_client_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.net.server.CLOSE_SECONDS_MAX", 0.05)

    async def main() -> None:
        async with grpc_serving() as (server, port), talking(port) as talker:
            talker.write(HELLO + h2.headers(1, path("big")) + h2.data(1, framed(b"%d" % MiB), ends=True))
            talker.write(h2.headers(3, path("echo")))  # its request is not whole
            await Http2Talker(talker).frame(DATA)
            await server.stop()
            assert server.grpc_peers == set()

    run(main())
