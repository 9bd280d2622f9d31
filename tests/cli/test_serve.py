"""Whole servers in a process of their own: they say when they serve, and stop when told to."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from firearrow import __version__

READY = re.compile(r"ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+)\n")
STOP_SECONDS_MAX = 30


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command; it must have ended by itself when the block ends."""
    command = [sys.executable, "-m", "firearrow", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_plain_environment()
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def serving(store: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    return running("serve", "--store", str(store), *ports, *arguments)


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    return line


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """Stop the process as an operator does; give what else it wrote to standard error."""
    process.send_signal(number)
    _, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_leaves_a_clean_store(
    tmp_path: Path, number: signal.Signals
) -> None:
    with serving(tmp_path / "store") as process:
        ready = READY.fullmatch(read_line(process))
        assert ready
        for port in ready.groups():
            socket.create_connection(("127.0.0.1", int(port)), timeout=5).close()
        assert (tmp_path / "store" / "abort").exists()
        banner = stop(process, number)
    assert not (tmp_path / "store" / "abort").exists()
    assert f"firearrow {__version__}" in banner
    for fact in [f"pid {process.pid}", str(tmp_path / "store"), *ready.groups()]:
        assert fact in banner


def test_the_log_can_be_json(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--log-format", "json", "--set", "brokrName=x") as process:
        read_line(process)
        lines = stop(process).splitlines()
    assert lines
    assert [line for line in lines if not (line.startswith("{") and line.endswith("}"))] == []
    assert any("did you mean brokerName?" in line for line in lines)


def test_a_second_broker_on_the_store_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as first:
        read_line(first)
        with serving(tmp_path / "store") as second:
            out, err = second.communicate(timeout=STOP_SECONDS_MAX)
        assert (second.returncode, out) == (1, "")
        assert str(first.pid) in last_line(err)
        stop(first)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(
            "serve", "--store", str(tmp_path), "--namesrv-port", "0", "--broker-port", str(port)
        ) as process:
            out, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert (process.returncode, out) == (1, "")
    assert f"127.0.0.1:{port}: Address already in use" in last_line(err)
    assert not (tmp_path / "abort").exists()


def last_line(err: str) -> str:
    """Give the sentence that explains the end."""
    assert "Traceback" not in err
    line = err.splitlines()[-1]
    assert line.startswith("firearrow: ")
    return line


def test_servers_run_apart(tmp_path: Path) -> None:
    with running("namesrv", "--host", "127.0.0.1", "--port", "0") as namesrv:
        ready = re.fullmatch(r"ready namesrv=(127\.0\.0\.1:\d+)\n", read_line(namesrv))
        assert ready
        options = ["--host", "127.0.0.1", "--broker-port", "0", "--store", str(tmp_path)]
        with running("broker", "-n", ready[1], *options) as broker:
            assert re.fullmatch(r"ready broker=127\.0\.0\.1:\d+\n", read_line(broker))
            stop(broker)
        stop(namesrv)
