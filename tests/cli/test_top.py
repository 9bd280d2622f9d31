"""`firearrow top --once` and `--json`, as they are typed."""

import json
import re
from collections.abc import Iterator

import pytest

from firearrow.cli.main import main
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.client.diagnosis.sending import send

ONCE = """\
Firearrow top
time: TIME  arriving: 0/s  consuming: 0/s  lag: 0

Brokers (share: how full the disk is)
  broker    address  arriving  consuming   share  bytes behind
  broker-a  ADDRESS       0/s        0/s  DISK %           0 B

Groups: none

Topics
  topic   arriving  messages
  orders       0/s         3
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders")
        send(running.name_server, "orders", 3)
        yield running


def test_one_screen(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.05", "-n", cluster.name_server]) == 0
    text = capsys.readouterr().out
    for pattern, name in (
        (r"\d\d:\d\d:\d\dZ", "TIME"),
        (r"address +arriving", "address  arriving"),
        (r"127.0.0.1:\d+ +", "ADDRESS       "),
        (r"\d+\.\d %", "DISK %"),
    ):
        text = re.sub(pattern, name, text)
    assert text == ONCE


def test_one_report_as_json(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json", "--interval", "0.05", "-n", cluster.name_server]) == 0
    report = json.loads(capsys.readouterr().out)
    brokers, groups, topics = report["tables"]
    assert brokers["rows"][0]["broker"] == "broker-a"
    assert groups["rows"] == []
    assert topics["rows"] == [{"topic": "orders", "arriving": 0.0, "messages": 3}]


def test_without_a_terminal_it_has_to_be_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["top"])
    assert "there is no terminal to draw on: use --once or --json" in capsys.readouterr().err


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("firearrow: ")
