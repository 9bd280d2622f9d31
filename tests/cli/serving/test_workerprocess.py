"""A proxy in one process, and in several that share its port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from tests.cli.serving.test_serve import read_line, running, stop
from tests.cli.serving.test_supervisor import lines_with
from tests.proxy.proxyclient import ProxyClient

TOPIC = "T"


@pytest.fixture
def name_server() -> Iterator[str]:
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster.name_server


def address_of(process: subprocess.Popen[str]) -> str:
    return read_line(process).removeprefix("ready grpc=").rstrip("\n")


def send(address: str) -> int:
    with ProxyClient(address, "c") as client:
        return client.send(TOPIC, b"body").status.code


def test_a_proxy_serves_until_a_signal(name_server: str) -> None:
    with running("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1") as process:
        address = address_of(process)
        assert send(address) == m.Code.OK
        assert f"grpc       {address}" in stop(process)


def test_workers_share_the_port_and_one_that_is_killed_comes_again(name_server: str) -> None:
    words = ("proxy", "-n", name_server, "--grpc-port", "0", "--host", "127.0.0.1", "--workers", "2")
    with running(*words) as process:
        address = address_of(process)
        workers = children(process.pid)
        assert len(workers) == 2
        assert {send(address) for _ in range(8)} == {m.Code.OK}
        os.kill(workers[0], signal.SIGKILL)
        seen = lines_with(process, "server serves again")
        assert f'worker=worker-1 pid={workers[0]} end="ended by signal 9"' in seen
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
        words = ("proxy", "-n", name_server, "--grpc-port", port, "--host", "127.0.0.1", "--workers", "2")
        with running(*words) as process:
            _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"the proxy cannot listen on 127.0.0.1:{port}: Address already in use" in err
