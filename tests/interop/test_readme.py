"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.interop.servers import Server
from tests.interop.toolchain import java_command

README = Path(__file__).parents[2] / "README.md"
NAMESRV = "127.0.0.1:9876"


def test_java_example_sends_and_receives(server: Server, tmp_path: Path) -> None:
    (program,) = re.findall(r"```java\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert program.count(NAMESRV) == 2
    source = tmp_path / "Hello.java"
    source.write_text(program.replace(NAMESRV, server.namesrv), encoding="utf-8")
    command = java_command(str(source))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            printed = []
            for line in running.stdout:
                printed.append(line.rstrip())
                if line.startswith("received"):
                    break
        finally:
            running.kill()
    assert any("sendStatus=SEND_OK" in line for line in printed)
    assert printed[-1] == "received hello"
