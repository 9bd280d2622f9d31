"""First programs: those that newcomers copy from the README and from Getting started run on either broker."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.servers import Server
from tests.interop.toolchain import java_command
from tests.pages import DOCS, README, hello, printed_by
from tests.patience import patient_environment


def test_java_example_sends_and_receives(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(hello(DOCS / "start.md", "java", server.namesrv), encoding="utf-8")
    printed = printed_by(java_command(str(source)))
    assert any("sendStatus=SEND_OK" in line for line in printed)
    assert printed[-1] == "received hello"


def test_python_example_sends_and_receives(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "hello.py"
    source.write_text(hello(README, "python", server.namesrv), encoding="utf-8")
    printed = printed_by([sys.executable, "-u", source], env=patient_environment(tmp_path))
    assert printed == ["SEND_OK", "received hello"]
