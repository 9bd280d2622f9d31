"""`firearrow doctor`, as it is typed."""

import json
from collections.abc import Iterator

import pytest

from firearrow.cli.main import main
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.client.diagnosis.sending import send

OFFLINE = """\
CRITICAL offline billing
  no client is connected; 0 messages wait
  -> Start a consumer of this group, and check its name servers and namespace.

group billing: 0 clients, 0 topics, 0 queues, 0 messages not consumed, 0.0 consumed/s
"""
NO_GROUP = """\
CRITICAL unknown-group none
  not known to broker-a
  -> Check its name, or create it: `firearrow group create none`.

group none: 0 clients, 0 topics, 0 queues, 0 messages not consumed, 0.0 consumed/s
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders")
        running.create_group("billing")
        send(running.name_server, "orders", 1)
        yield running


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize(("group", "text"), [("billing", OFFLINE), ("none", NO_GROUP)])
def test_a_group_that_does_not_consume(
    group: str, text: str, cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", group, "-n", cluster.name_server]) == 1
    assert capsys.readouterr().out == text


def test_findings_as_objects(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "billing", "none", "-n", cluster.name_server, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found] == ["offline", "no-topic"]
    assert set(found[0]) == {"level", "check", "subject", "evidence", "cure"}


def test_sends(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sends", "orders", "-n", cluster.name_server]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sends: 1 brokers, ")
    assert "a small request takes " in out
    assert main(["doctor", "sends", "none", "-n", cluster.name_server]) == 1
    assert capsys.readouterr().out.startswith("CRITICAL no-route none\n")


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "billing", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("firearrow: ")
