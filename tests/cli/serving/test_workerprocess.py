"""A proxy in one process, and in several that share its port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.wire.codes import RequestCode
from tests.cli.serving.test_serve import STOP_SECONDS_MAX, read_line, running, stop
from tests.cli.serving.test_supervisor import lines_with
from tests.interop.servers import free_port
from tests.proxy.clusterproxy import asked
from tests.proxy.proxyclient import ProxyClient

TOPIC = "T"


@pytest.fixture
def name_server() -> Iterator[str]:
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster.name_server


def address_of(process: subprocess.Popen[str]) -> str:
    return addresses_of(process)["grpc"]


def addresses_of(process: subprocess.Popen[str]) -> dict[str, str]:
    return dict(word.split("=") for word in read_line(process).removeprefix("ready ").split())


def has_route(address: str) -> bool:
    return asked(lambda client: client.answer(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})).code == 0


def send(address: str) -> int:
    with ProxyClient(address, "c") as client:
        return client.send(TOPIC, b"body").status.code


def test_a_proxy_serves_until_a_signal(name_server: str) -> None:
    with running("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1") as process:
        address = address_of(process)
        assert send(address) == m.Code.OK
        assert f"grpc       {address}" in stop(process)


def test_remoting_clients_have_a_port(name_server: str) -> None:
    with running("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1") as process:
        address = addresses_of(process)["remoting"]
        assert has_route(address)
        assert f"remoting   {address}" in stop(process)


def test_workers_share_the_port_for_remoting(name_server: str) -> None:
    port = str(free_port())
    words = ("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1", "--workers", "2")
    with running(*words, "--remoting-port", port) as process:
        address = addresses_of(process)["remoting"]
        assert address == f"127.0.0.1:{port}"
        assert all(has_route(address) for _ in range(8))
        stop(process)


def test_a_port_for_remoting_must_be_free_only_if_somebody_wants_it(name_server: str) -> None:
    words = ("proxy", "-n", name_server, "--host", "127.0.0.1", "--grpc-port", str(free_port()))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another program has it already
            other.bind(("127.0.0.1", 8080))
            other.listen()
        with running(*words) as process:
            assert addresses_of(process).keys() == {"grpc"}
            assert "remoting clients are not served" in stop(process)
        with running(*words, "--remoting-port", "8080") as process:
            _, err = process.communicate(timeout=STOP_SECONDS_MAX)
            assert process.returncode == 1
            assert "the proxy cannot listen on 127.0.0.1:8080: Address already in use" in err


def test_workers_share_the_port_and_one_that_is_killed_comes_again(name_server: str) -> None:
    words = ("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1", "--workers", "2")
    with running(*words) as process:
        address = address_of(process)
        workers = children(process.pid)
        assert len(workers) == 2
        assert {send(address) for _ in range(8)} == {m.Code.OK}
        os.kill(workers[0], signal.SIGKILL)
        seen = lines_with(process, "server serves again")
        assert f'pid={workers[0]} end="ended by signal 9"' in seen  # of either worker
        assert {send(address) for _ in range(8)} == {m.Code.OK}
        now = children(process.pid)
        stop(process)
    assert [pid for pid in now if Path(f"/proc/{pid}").exists()] == []


def children(pid: int) -> list[int]:
    """Return the processes of the workers, the first worker first."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(map(int, found))


def test_workers_take_no_port_that_another_program_has(name_server: str) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = str(other.getsockname()[1])
        words = ("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1", "--workers", "2")
        for option in ("--grpc-port", "--remoting-port"):
            with running(*words, option, port) as process:
                _, err = process.communicate(timeout=STOP_SECONDS_MAX)
            assert process.returncode == 1
            assert f"the proxy cannot listen on 127.0.0.1:{port}: Address already in use" in err
