"""Workers that Spark no longer wants end without a word."""

from __future__ import annotations

import socket
import sys

import pytest
from pyspark.sql import SparkSession

from pyspark_firearrow import daemon


def test_a_socket_that_is_closed_is_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert daemon.worker(ours, True) == 1
    assert capfd.readouterr() == ("", "")


def test_a_task_is_left_to_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_work", lambda sock, _: sock.recv(9)[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"\x07 and more")
        assert daemon.worker(ours, True) == 7


def test_a_reader_that_has_enough_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def flush(sock: socket.socket, authenticated: bool) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(daemon, "_work", flush)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"\x07")
        assert daemon.worker(ours, True) == 1
    assert capfd.readouterr() == ("", "")


def test_workers_of_a_configured_session_are_its(spark: SparkSession) -> None:
    def started_as(_: int) -> str:
        return str(sys.modules["__main__"].__spec__.name)  # type: ignore[union-attr]

    assert spark.sparkContext.parallelize([0], 1).map(started_as).collect() == [daemon.__name__]
