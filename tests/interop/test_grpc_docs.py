"""The programs for RocketMQ 5's clients that newcomers copy from the page about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.pages import DOCS, blocks, printed_by

PAGE = DOCS / "grpc.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True) as found:
        found.create_topic("greetings")
        yield found


def _program(language: str, cluster: BlockingCluster) -> str:
    [block] = blocks(PAGE, language)
    assert block.code.count("127.0.0.1:8081") == 1
    return block.code.replace("127.0.0.1:8081", cluster.brokers[0].grpc)


def test_the_python_program_sends_and_receives(cluster: BlockingCluster, tmp_path: Path) -> None:
    source = tmp_path / "hello.py"
    source.write_text(_program("python", cluster), encoding="utf-8")
    assert printed_by([sys.executable, "-u", source]) == ["hello"]
