"""The programs for RocketMQ 5's clients that newcomers copy from the page about them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.interop.grpcservers import SETTINGS
from tests.interop.toolchain import GRPC_GO_SOURCES, grpc_go_program, grpc_java_command, grpc_node_command
from tests.pages import DOCS, blocks, printed_by
from tests.patience import SECONDS

PAGE = DOCS / "grpc.md"
POLL_KEY: Final = "grpcClientConsumerMaxLongPollingTimeoutMillis"


@pytest.fixture
def cluster() -> Iterator[BlockingCluster]:
    """Cluster for one program: tests come in any order, and a reader would get the messages of programs before it."""
    with EmbeddedCluster(config={POLL_KEY: SETTINGS[POLL_KEY]}, grpc=True) as found:
        found.create_topic("greetings")
        yield found


def _program(language: str, cluster: BlockingCluster) -> str:
    [block] = blocks(PAGE, language)
    assert block.code.count("127.0.0.1:8081") == 1
    return block.code.replace("127.0.0.1:8081", cluster.brokers[0].grpc)


def test_the_python_program_sends_and_receives(cluster: BlockingCluster, tmp_path: Path) -> None:
    source = tmp_path / "hello.py"
    # The client sends again what has no receipt after three seconds.
    patient = _program("python", cluster).replace("Credentials())", f"Credentials(), request_timeout={SECONDS:g})")
    source.write_text(patient, encoding="utf-8")
    assert printed_by([sys.executable, "-u", source]) == ["hello"]


def test_the_java_program_sends_and_receives(cluster: BlockingCluster, tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(_program("java", cluster), encoding="utf-8")
    *java, _ = grpc_java_command(tmp_path)
    assert "hello" in printed_by([*java, source])


def test_the_node_program_sends_and_receives(cluster: BlockingCluster, tmp_path: Path) -> None:
    node, program = grpc_node_command()
    (tmp_path / "node_modules").symlink_to(Path(program).parent / "node_modules")
    source = tmp_path / "hello.js"
    source.write_text(_program("js", cluster), encoding="utf-8")
    assert "hello" in printed_by([node, source])


def test_the_go_program_sends(cluster: BlockingCluster, tmp_path: Path) -> None:
    grpc_go_program()  # compiles the same modules, which takes minutes, once for all tests
    for name in ("go.mod", "go.sum"):
        shutil.copy(GRPC_GO_SOURCES / name, tmp_path)
    (tmp_path / "main.go").write_text(_program("go", cluster), encoding="utf-8")
    subprocess.run(["go", "run", "."], cwd=tmp_path, check=True)
    assert {message.body for message in cluster.messages("greetings")} == {b"hello"}
