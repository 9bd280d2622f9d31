"""Each command of docs/monitoring.md works on a running cluster."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.messages.bench import TOPIC
from firearrow.client.loads import loads
from firearrow.testing import EmbeddedCluster
from tests.client.diagnosis.sending import send

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
EXIT_CODES = {"doctor": 1}  # nobody consumes


def commands() -> list[str]:
    return re.findall(r"^    firearrow (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def name_server() -> Iterator[str]:
    """Of a cluster of its own for each command: what loads send is not there for `check`."""
    with EmbeddedCluster() as running:
        running.create_topic("orders")
        running.create_group("billing")
        running.create_topic(TOPIC)
        send(running.name_server, "orders", 3)
        send(running.name_server, TOPIC, 100)
        yield running.name_server


def test_there_is_an_example_of_each_command() -> None:
    assert {line.split()[0] for line in commands()} == {"check", "doctor", "top", "bench"}


@pytest.mark.parametrize("line", commands())
def test_a_command_works(
    line: str, name_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_server)
    monkeypatch.setattr(loads, "IDLE_SECONDS", 0.5)  # nobody sends more
    monkeypatch.setattr(loads, "POP_WAIT_SECONDS", 0.1)
    name, *rest = shlex.split(line)
    expected = 0 if line == "doctor" or "sends" in rest else EXIT_CODES.get(name, 0)
    assert main([name, *rest]) == expected
    out, err = capsys.readouterr()
    assert out
    assert err == ""
