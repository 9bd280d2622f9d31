"""`firearrow check`, as it is typed: lines, objects, exit codes."""

import json
import re
import sys
from collections.abc import Iterator

import pytest

from firearrow.cli.main import main
from firearrow.client.diagnosis.checks import CHECKS
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.cli.shell import Terminal
from tests.client.diagnosis.sending import send

BROKERS = "1 broker, 1 topic, 0 groups"


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders")
        send(running.name_server, "orders", 3)
        yield running


def checked(cluster: BlockingCluster, *options: str) -> int:
    return main(["check", "-n", cluster.name_server, *options])


def test_a_healthy_cluster(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(cluster) == 0
    line, *rest = capsys.readouterr().out.splitlines()
    assert line.startswith(f"OK - {BROKERS} | disk=")
    assert line.endswith("% lag=0 lag_seconds=0s dead_letters=0")
    assert [re.match(r"OK ([a-z-]+): ", it)[1] for it in rest] == [*CHECKS]  # type: ignore[index]
    assert rest[0] == "OK name-servers: 1 of 1 answer"
    lag = "at most 0 messages (warning from 10,000, critical from 1,000,000), the oldest 0 s old"
    assert f"OK lag: {lag} (warning from 300 s, critical from 3,600 s)" in rest
    assert checked(cluster, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [f"{it['level'].upper()} {it['check']}: {it['evidence']}" for it in found][:4] == rest[:4]


@pytest.mark.parametrize(("limit", "code"), [("1:", 1), (":1", 2), ("4:5", 0)])
def test_a_threshold_decides(
    limit: str, code: int, cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(cluster, "--unconsumed", limit) == code
    first, *rest = capsys.readouterr().out.splitlines()
    level = ("OK", "WARNING", "CRITICAL")[code]
    assert first.startswith(f"{level} - ")
    told = f"{level} unconsumed orders: 3 messages on broker-a that no group consumes"
    assert [it for it in rest if not it.startswith("OK ")] == ([told] if code else [])
    assert any(it.startswith("OK unconsumed: at most 3 in a topic") for it in rest) == (not code)


@pytest.mark.parametrize(
    ("no_color", "warning", "fine"), [("", "\x1b[33mWARNING\x1b[0m", "\x1b[32mOK\x1b[0m"), ("1", "WARNING", "OK")]
)
def test_severities_have_colours_on_a_terminal(
    no_color: str, warning: str, fine: str, cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert checked(cluster, "--unconsumed", "1:") == 1
    first, second, *_, last = terminal.getvalue().splitlines()
    assert first.startswith(f"{warning} - 1 warning, ")
    assert second.startswith(f"{warning} unconsumed orders: ")
    assert last == f"{fine} asked: all requests were answered"


def test_findings_as_objects(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(cluster, "--brokers", "2", "--unconsumed", "1:", "--json") == 2
    found = json.loads(capsys.readouterr().out)
    ill = [(one["level"], one["check"]) for one in found if one["level"] != "ok"]
    assert ill == [("critical", "brokers"), ("warning", "unconsumed")]
    assert checked(cluster, "--unconsumed", "1:", "--only", "lag", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["level"], one["check"]) for one in found] == [("ok", "brokers"), ("ok", "lag"), ("ok", "asked")]


def test_a_cluster_that_does_not_answer_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-n", "127.0.0.1:1"]) == 3
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("UNKNOWN - 1 unknown, 0 brokers")
    assert second.startswith("UNKNOWN name-servers 127.0.0.1:1: does not answer: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lag", "10"], r"'10' is not a limit: write WARNING:CRITICAL"),
        (["--disk", "90:80"], r"has the critical value before the warning"),
        (["--only", "dsk"], r"there is no check 'dsk', choose from name-servers, brokers, disk"),
    ],
)
def test_a_wrong_limit_is_told(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="3"):
        main(["check", *options])
    assert re.search(says, capsys.readouterr().err)
