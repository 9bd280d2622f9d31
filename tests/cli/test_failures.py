"""Any exception of a command is one sentence that names the cause."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from firearrow.cli.failures import CANNOT, carried_out, sentence
from firearrow.cli.main import main
from firearrow.errors import CorruptStore


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CorruptStore("a\n  and b"), "a and b"),
        (CorruptStore("topic \x1b[31m"), "topic \\x1b[31m"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "TimeoutError"),
        (ConnectionError("no name server answers: a:1"), "no name server answers: a:1"),
        (MemoryError(), "not enough memory"),
        (KeyError("a"), "KeyError: 'a'"),
    ],
)
def test_an_exception_becomes_one_sentence(error: Exception, expected: str) -> None:
    assert sentence(error) == expected


def test_what_nobody_foresaw_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing: dict[str, str] = {}
    monkeypatch.setattr("firearrow.store.offline.verify", lambda *_, **__: nothing["a"])
    assert main(["store", "verify", "."]) == 2
    said = capsys.readouterr().err
    assert said.startswith("firearrow: KeyError: 'a' (at line ")
    assert said.endswith(" of firearrow/cli/store/repairs.py)\n")


def test_an_error_is_an_object_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spark = "store verify --spark local"
    for line in ("store stat", "store verify", spark, "pipeline backlog --path"):
        code = main([*line.split(), str(tmp_path / "é"), "--json"])
        out, err = capsys.readouterr()
        assert code == (1 if "backlog" in line else 2)
        assert err == f"firearrow: {json.loads(out)['error']}\n"
        assert list(json.loads(out)) == ["error"]


def test_a_pipe_that_ends_elsewhere_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def send() -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    assert carried_out(send, CANNOT) == 2
    assert capsys.readouterr().err == "firearrow: Broken pipe\n"
