"""Workers that Spark no longer wants end without a word."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from zipfile import ZipFile

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


@pytest.mark.parametrize("same", [True, False])
def test_an_installed_pyspark_that_is_the_same_comes_before_sparks_zip(tmp_path: Path, same: bool) -> None:
    installed, packed = tmp_path / "site", str(tmp_path / "pyspark.zip")
    (installed / "pyspark").mkdir(parents=True)
    with ZipFile(packed, "w") as file:
        for name in ("version", "worker"):
            (installed / f"pyspark/{name}.py").write_text(name)
            file.writestr(f"pyspark/{name}.py", name if same else "other")
    path = [packed, "/elsewhere", str(installed)]
    assert daemon.path_with_bytecode(path) == (["/elsewhere", str(installed), packed] if same else path)
    assert daemon.path_with_bytecode([packed, "/elsewhere"]) == [packed, "/elsewhere"]
    assert daemon.path_with_bytecode([str(tmp_path / "no/pyspark.zip"), str(installed)])[1] == str(installed)
