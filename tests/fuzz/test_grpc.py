"""Whatever a client of gRPC sends, the connection answers or ends, and holds nothing afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firearrow.net.grpc import BACKLOG_BYTES_MAX, UNREAD_BYTES_HIGH
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import ACK, BLOCK_BYTES_MAX, DATA, FRAME_BYTES_MAX, GOAWAY, HEAD_BYTES, PING, PREFACE
from tests.broker.serving import until
from tests.fuzz.targets import Complaints
from tests.net.background import in_thread
from tests.net.fakeline import FakeHost
from tests.net.grpcservice import Service, grpc_serving
from tests.wire import http2frames as h2
from tests.wire.http2frames import CALL, HELLO, conversations
from tests.wire.strategies import split

SEQUENCES = int(os.environ.get("FIREARROW_GRPC_SEQUENCES", "2000"))
SEED = int(os.environ.get("FIREARROW_GRPC_SEED", "1"))
ANSWER_SECONDS_MAX = 20
PROBE_ID = 2**31 - 1
METHODS = ("echo", "hold", "many", "chat", "total", "fail", "big", "none")


def path(name: str) -> bytes:
    """Header fields of a call of a method."""
    return h2.block_of([*CALL[:2], (b":path", f"/test.Service/{name}".encode()), *CALL[3:]])


# --- a live server ---


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that lives through all tests here, and is sound at their end."""
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    try:
        with in_thread(grpc_serving) as (server, port):
            yield port
            serves(port)
            gone = until(lambda: not server._all)
            asyncio.run_coroutine_threadsafe(gone, server.loop).result(ANSWER_SECONDS_MAX)
            assert server.budget.room_bytes > 0
    finally:
        logging.getLogger().removeHandler(complaints)
    assert complaints.records == []


def talk(port: int, pieces: list[bytes]) -> bytes:
    """Send pieces on a separate connection; return all that comes back until the server closes it."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                line.sendall(piece)
            line.shutdown(socket.SHUT_WR)
            while data := line.recv(1 << 16):
                heard += data
        except TimeoutError:
            raise
        except OSError:
            pass  # the server closed after a violation, with some of the pieces unread
    return heard


def serves(port: int) -> None:
    """A call is answered."""
    call = h2.headers(1, path("echo")) + h2.data(1, framed(b"probe"), ends=True)
    frames = h2.frames_of(talk(port, [HELLO + call]))
    assert [it.payload for it in frames if it.kind == DATA] == [framed(b"probe")]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(conversation=conversations, data=st.data())
def test_no_conversation_harms_the_server(port: int, conversation: bytes, data: st.DataObject) -> None:
    talk(port, data.draw(split(conversation)))
    serves(port)


# --- many more, without sockets ---


def sound(chance: random.Random) -> list[bytes]:
    """Frames of a client that behaves: calls of all methods in turn, their cancels, windows and pings."""
    frames = [
        PREFACE,
        chance.choice([h2.settings(), h2.settings(initial_window_size=chance.choice([0, 1, 100, 2**20]))]),
    ]
    open_ids: list[int] = []
    next_id = 1
    for _ in range(chance.randrange(12)):
        kind = chance.randrange(8)
        if kind < 3 or not open_ids:
            block = path(chance.choice(METHODS))
            cut = chance.randrange(len(block)) if chance.random() < 0.1 else 0
            if cut:
                frames += [h2.headers(next_id, block[:cut], flags=0), h2.frame(9, next_id, block[cut:], 4)]
            else:
                frames.append(h2.headers(next_id, block))
            open_ids.append(next_id)
            next_id += 2
        elif kind < 6:
            message = framed(chance.choice([b"", b"3 5", b"70000", b"x" * 100]))
            at = chance.randrange(len(message)) if chance.random() < 0.2 else len(message)
            ends = chance.random() < 0.7
            frames.append(h2.data(open_ids[-1], message[:at], ends=ends and at == len(message)))
            if at < len(message):
                frames.append(h2.data(open_ids[-1], message[at:], ends=ends))
            if ends:
                open_ids.pop()
        elif kind == 6:
            frames.append(h2.window(chance.choice([0, *open_ids]), chance.choice([1, 1000, 2**20])))
        else:
            frames.append(chance.choice([h2.ping(), h2.reset(open_ids.pop()), h2.settings(initial_window_size=50)]))
    return frames


def mutated(frames: list[bytes], chance: random.Random) -> bytes:
    """Change frames, or some bytes of them."""
    frames = list(frames)
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(frames))
        other = chance.randrange(len(frames))
        kind = chance.randrange(4)
        if kind == 0:
            frames.insert(other, frames[at])
        elif kind == 1:
            del frames[at]
            frames = frames or [b""]
        elif kind == 2:
            frames[at], frames[other] = frames[other], frames[at]
        elif frames[at]:
            frame = bytearray(frames[at])
            where = chance.randrange(min(len(frame), 12) if chance.random() < 0.7 else len(frame))
            frame[where] = chance.choice([0, 1, 5, 127, 255, chance.randrange(256)])
            frames[at] = bytes(frame)
    data = b"".join(frames)
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data


def feed(host: FakeHost, data: bytes, chance: random.Random) -> None:
    """Deliver bytes in pieces, each when the connection reads; sometimes its client reads nothing for a while."""
    peer, line = host.peer, host.line
    while data and not line.is_closing():
        if chance.random() < 0.05:
            peer.pause_writing()
        size = chance.choice([1, 10, 1000, 1 << 20])
        piece, data = data[:size], data[size:]
        if not line.is_read:
            host.run()
            peer.resume_writing()
            host.run()
        if line.is_closing():
            return
        peer.data_received(piece)
        host.run()
        assert peer.unread_bytes < UNREAD_BYTES_HIGH + BACKLOG_BYTES_MAX
        assert peer.unfinished_bytes < FRAME_BYTES_MAX + HEAD_BYTES + BLOCK_BYTES_MAX + len(piece)
    peer.resume_writing()
    host.run()


def check(host: FakeHost) -> None:
    """The connection answers or has ended; then it holds nothing."""
    peer, line = host.peer, host.line
    if line.is_closing():
        assert peer.http2.violation is not None
        assert GOAWAY in [it.kind for it in h2.frames_of(bytes(line.sent))]
    elif not peer.http2.held_bytes and peer.http2._has_settings:
        assert line.is_read
        line.sent.clear()
        peer.data_received(h2.ping(b"a probe!"))
        host.run()
        assert (PING, ACK, 0, b"a probe!") in h2.frames_of(bytes(line.sent))
        probe = h2.headers(PROBE_ID, path("echo")) + h2.data(PROBE_ID, framed(b"probe"), ends=True)
        peer.data_received(h2.settings(initial_window_size=2**20) + h2.window(0, 2**20) + probe)
        host.run()
        frames = h2.frames_of(bytes(line.sent))
        assert [it.payload for it in frames if it.kind == DATA and it.stream_id == PROBE_ID] == [framed(b"probe")]
    http2 = peer.http2
    assert http2.streams_bytes == sum(it.held_bytes for it in http2.streams.values())
    assert http2.pending_bytes == sum(it.pending_bytes for it in http2.streams.values())
    peer.connection_lost(None)
    host.run()
    assert (peer.partial_bytes, peer._backlog_bytes, peer.unread_bytes, peer._own_bytes) == (0, 0, 0, 0)
    assert host.peers == set()


def test_no_sequence_of_frames_raises_or_is_held(caplog: pytest.LogCaptureFixture) -> None:
    """A failure names its seed: ``FIREARROW_GRPC_SEED`` begins with it."""
    caplog.set_level(logging.ERROR)
    for seed in range(SEED, SEED + SEQUENCES):
        chance = random.Random(seed)
        service = Service()
        host = FakeHost(service.methods())
        try:
            feed(host, mutated(sound(chance), chance), chance)
            for call in service.held[::2]:
                call.answer(b"late")
            host.run()
            check(host)
            assert not caplog.records
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
