"""`firearrow doctor`, as it is typed."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.cli.cluster.test_access import KEYS, SECRET
from tests.cli.shell import Shell, Terminal
from tests.client.diagnosis.sending import send

OFFLINE = """\
CRITICAL offline billing
  no client is connected; 0 messages wait
  -> Start a consumer of this group, and check its name servers and namespace.

group billing: 0 clients, 0 topics, 0 queues, 0 messages not consumed, 0.0 consumed/s
Thresholds: a client is idle after 60 s"""
NO_GROUP = """\
CRITICAL unknown-group none
  not known to broker-a
  -> Check its name, or create it: `firearrow group create none`.

group none: 0 clients, 0 topics, 0 queues, 0 messages not consumed, 0.0 consumed/s
Thresholds: a client is idle after 60 s"""


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
    assert capsys.readouterr().out.startswith(text)


def test_severities_have_colours_on_a_terminal(cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert main(["doctor", "billing", "-n", cluster.name_server]) == 1
    assert terminal.getvalue().startswith(OFFLINE.replace("CRITICAL", "\x1b[31mCRITICAL\x1b[0m"))


def test_findings_as_objects(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "billing", "none", "-n", cluster.name_server, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found] == ["offline", "no-topic"]
    assert set(found[0]) == {"level", "check", "subject", "evidence", "cure"}


def test_sends(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sends", "orders", "-n", cluster.name_server]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sends: 1 broker, ")
    assert "Thresholds: 20 ms for an answer without work" in out
    assert "a small request takes " in out
    assert main(["doctor", "sends", "none", "-n", cluster.name_server]) == 1
    assert capsys.readouterr().out.startswith("CRITICAL no-route none\n")


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "billing", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("firearrow: ")


def test_all_groups(shell: Shell) -> None:
    for group in ("billing", "resting"):
        shell.text("group", "create", group)
    assert shell.text("doctor").startswith("2 groups: 0 with a reason, 2 offline while no message waits\nThresholds: ")
    shell.commit("billing", 0, 0)
    assert main(["doctor"]) == 1
    said = shell.said()
    assert said.startswith("group billing: 0 clients, 1 topic, 2 queues, 6 messages not consumed")
    assert "CRITICAL offline billing\n  no client is connected; 6 messages wait\n" in said
    assert "\n2 groups: 1 with a reason, 1 offline while no message waits\n" in said
    assert main(["doctor", "--json"]) == 1
    [found] = json.loads(shell.said())
    assert (found["group"], found["check"], found["subject"]) == ("billing", "offline", "billing")


def test_a_missing_permission_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedCluster(config=KEYS) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        monkeypatch.setenv("FIREARROW_ACCESS_KEY", "root")
        monkeypatch.setenv("FIREARROW_SECRET_KEY", "the secret of root")
        root = Shell(cluster, capsys)
        root.rows("user", "create", "nina", "--password", SECRET, "--apply")
        assert main(["doctor", "billing"]) == 1
        said = root.said()  # its consumer could not make it known
        assert said.startswith(
            "WARNING access billing\n  brokers have access control, and only super users may consume"
        )
        assert "-> Allow the consumer's user: `firearrow acl allow USER Group:billing --action sub`" in said
        assert "create" not in said
        root.rows("acl", "allow", "nina", "Group:bill*", "--action", "sub", "--apply")
        assert main(["doctor", "billing"]) == 1
        assert root.said().startswith("CRITICAL unknown-group billing\n")
        monkeypatch.setenv("FIREARROW_ACCESS_KEY", "nina")
        monkeypatch.setenv("FIREARROW_SECRET_KEY", SECRET)
        assert main(["doctor", "billing"]) == 1
        said = root.said()
        assert "WARNING access billing\n  no permission: broker-a: User:nina has no permission to access" in said
        assert "unknown-group" not in said
        assert main(["check"]) == 3
        assert "UNKNOWN brokers broker-a: no permission: " in root.said()
