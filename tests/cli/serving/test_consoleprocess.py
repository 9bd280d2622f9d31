"""The console of `firearrow serve`: it begins with the first connection, and ends with the servers."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.cli.serving.test_serve import STOP_SECONDS_MAX, read_line, running

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0")


@contextmanager
def serving(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve with a console; yield the process and the console's address."""
    with running("serve", "--ephemeral", "--console-port", "0", *arguments) as process:
        read_line(process)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"console +(http://\S+)", line):
                yield process, found[1]
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(word) for word in text.split()]


def test_it_begins_with_the_first_connection_and_again_after_its_end(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address):
        assert children(process.pid) == []
        with httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client:
            assert "Overview" in client.get("/").text
        [console] = children(process.pid)
        os.kill(console, signal.SIGKILL)
        with httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client:
            assert "Overview" in client.get("/").text
        [other] = children(process.pid)
        assert other != console
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS_MAX)
        assert not Path(f"/proc/{other}").exists()
        assert process.stderr is not None
        assert process.stderr.read().count("console has ended") == 1  # the one that was killed


def test_without_it_nothing_listens(tmp_path: Path) -> None:
    with running("serve", "--ephemeral") as process:
        read_line(process)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS_MAX)
        assert process.stderr is not None
        assert "http://" not in process.stderr.read()


def test_a_port_that_was_asked_for_must_be_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running("serve", "--ephemeral", "--console-port", port) as process:
            assert process.wait(STOP_SECONDS_MAX) == 1
            assert process.stderr is not None
            assert f"the console can't listen on 127.0.0.1:{port}: Address already in use" in process.stderr.read()


@pytest.fixture
def taken() -> Iterator[None]:
    """Port 8088 is taken, by this test or by somebody else: commands then say where they can't listen."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", 8088)))
        yield


@pytest.mark.usefixtures("taken")
def test_the_usual_address_is_one_of_this_machine_alone(tmp_path: Path) -> None:
    with running("serve", "--store", str(tmp_path / "store"), *FREE_PORTS) as process:
        read_line(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0, "without a console, servers serve"
        assert process.stderr is not None
        assert "127.0.0.1:8088" in process.stderr.read()
    with running("console", "-n", "127.0.0.1:1", "--state", str(tmp_path / "state")) as process:
        assert process.wait(STOP_SECONDS_MAX) == 1
        assert process.stderr is not None
        assert process.stderr.read() == (
            "firearrow: the console can't listen on 127.0.0.1:8088: Address already in use\n"
        )


def test_a_command_says_where_it_is(tmp_path: Path) -> None:
    with running("console", "-n", "127.0.0.1:1", "--port", "0", "--state", str(tmp_path)) as process:
        address = read_line(process).split()[1]
        with httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client:
            assert "127.0.0.1:1" in client.get("/").text
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS_MAX) == 0


def test_a_provider_of_sign_ins_is_named_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "openid.toml"
    words = ("console", "-n", "127.0.0.1:1", "--port", "0", "--state", str(tmp_path), "--openid", str(file))
    with running(*words) as process:
        assert process.wait(STOP_SECONDS_MAX) == 1
        assert process.stderr is not None
        assert f"{file}: No such file or directory" in process.stderr.read()
    file.write_text('issuer = "https://login.example.test"\nclient-id = "console"\nroles = [{value = "staff"}]\n')
    with running(*words) as process:
        address = read_line(process).split()[1]
        with httpx.Client(base_url=address, follow_redirects=True, timeout=60) as client:
            assert "Sign in with login.example.test" in client.get("/").text
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS_MAX) == 0
