"""What the README tells a newcomer to type works as it stands there, on either broker."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.servers import Server
from tests.interop.toolchain import java_command
from tests.pages import hello, printed_by


def test_java_example_sends_and_receives(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(hello("java", server.namesrv), encoding="utf-8")
    printed = printed_by(java_command(str(source)))
    assert any("sendStatus=SEND_OK" in line for line in printed)
    assert printed[-1] == "received hello"


def test_python_example_sends_and_receives(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "hello.py"
    source.write_text(hello("python", server.namesrv), encoding="utf-8")
    printed = printed_by([sys.executable, "-u", source])
    assert printed[0].startswith("Receipt(")
    assert printed[-1] == "received hello"
