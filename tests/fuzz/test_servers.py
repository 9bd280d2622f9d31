"""Whatever peers send, a server goes on answering, logs no error and keeps nothing of them."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firearrow.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE
from firearrow.wire.command import Command
from firearrow.wire.frame import AnyCommand, Connection, encode_request
from tests.fuzz.strategies import requests, streams
from tests.fuzz.targets import TARGETS, Stage, running

# A server that needs longer hangs.
ANSWER_SECONDS_MAX = 20


@pytest.fixture(scope="module", params=TARGETS, ids=lambda target: target.name)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server that lives through all tests here, and is sound at their end."""
    with running(request.param, tmp_path_factory.mktemp(request.param.name)) as stage:
        before = ping(stage)
        yield stage
        after = ping(stage)
        assert stage.open_peers() == 0
    assert stage.complaints.records == []
    assert after == before or not stage.target.forgets


def talk(stage: Stage, pieces: list[bytes]) -> list[AnyCommand]:
    """Send pieces on a connection of their own; return all that comes back."""
    answers = Connection(2**31)
    heard: list[AnyCommand] = []
    with socket.create_connection(("127.0.0.1", stage.port), ANSWER_SECONDS_MAX) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                line.sendall(piece)
            line.shutdown(socket.SHUT_WR)
            while data := line.recv(1 << 16):
                heard += answers.receive(data)
        except TimeoutError:
            raise
        except OSError:
            pass  # the server closed after a violation, with some of ours unread
    assert answers.violation is None
    assert all(answer.flag & FLAG_RESPONSE for answer in heard)
    return heard


def ping(stage: Stage) -> bytes:
    [answer] = talk(stage, [encode_request(Command(stage.target.ping, {}, opaque=77))])
    assert (answer.code, answer.opaque) == (0, 77)
    return answer.body


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_sound_request_is_answered_once(stage: Stage, data: st.DataObject) -> None:
    codes = tuple(code for code in stage.target.codes if code not in stage.target.held)
    sent = data.draw(st.lists(requests(codes), max_size=8))
    heard = talk(stage, [b"".join(map(encode_request, sent))])
    expected = [command.opaque for command in sent if not command.flag & FLAG_ONEWAY]
    assert sorted(answer.opaque for answer in heard) == sorted(expected)
    assert all(answer.remark or answer.code == 0 for answer in heard)
    assert stage.complaints.records == []


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_stream_of_bytes_harms_the_server(stage: Stage, data: st.DataObject) -> None:
    talk(stage, data.draw(streams(stage.target.codes)))
    ping(stage)
    assert stage.complaints.records == []


def test_a_peer_that_announces_much_and_sends_nothing_costs_nothing(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", stage.port), ANSWER_SECONDS_MAX) as line:
        line.sendall((2**31 - 1).to_bytes(4) + (100).to_bytes(4))
        assert line.recv(1) == b""
    ping(stage)


def test_a_peer_that_never_ends_its_frame_hinders_nobody(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", stage.port), ANSWER_SECONDS_MAX) as line:
        line.sendall((1000).to_bytes(4) + (100).to_bytes(4) + b'{"code":')
        ping(stage)
