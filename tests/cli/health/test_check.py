"""`firearrow check`, as it is typed: lines, objects, exit codes."""

import json
import re
from collections.abc import Iterator

import pytest

from firearrow.cli.main import main
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.client.diagnosis.sending import send

BROKERS = "1 brokers, 1 topics, 0 groups"


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
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"OK - {BROKERS} | disk=")
    assert line.endswith("% lag=0 lag_seconds=0s dead_letters=0")


@pytest.mark.parametrize(("limit", "code"), [("1:", 1), (":1", 2), ("4:5", 0)])
def test_a_threshold_decides(
    limit: str, code: int, cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(cluster, "--unconsumed", limit) == code
    first, *rest = capsys.readouterr().out.splitlines()
    level = ("OK", "WARNING", "CRITICAL")[code]
    assert first.startswith(f"{level} - ")
    told = f"{level} unconsumed orders: 3 messages on broker-a that no group consumes"
    assert rest == ([told] if code else [])


def test_findings_as_objects(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(cluster, "--brokers", "2", "--unconsumed", "1:", "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert [(one["level"], one["check"]) for one in found] == [("critical", "brokers"), ("warning", "unconsumed")]
    assert checked(cluster, "--unconsumed", "1:", "--only", "lag", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


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
