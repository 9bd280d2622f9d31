"""An installation without extras: the client and the command line of a cluster, without numpy."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path

import pytest

from firearrow.testing import BlockingCluster
from tests.test_tidy import ROOT

MB_MAX = 8
ALONE = """
import sys
sys.modules.update(dict.fromkeys({hidden!r}))
{code}
"""
HIDDEN = ("numpy", "uvloop", "zlib_ng")
COMMAND = "from firearrow.cli.main import main; sys.exit(main(sys.argv[1:]))"
ROUND_TRIP = """
from firearrow.client.blocking import Producer, SimpleConsumer
with Producer(sys.argv[1], group="alone") as producer:
    producer.send("orders", "from afar")
with SimpleConsumer(sys.argv[1], group="alone", topics=["orders"]) as consumer:
    [message] = consumer.receive(1)
    consumer.ack(message)
    print(message.body.decode())
"""


def alone(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has none of the servers' packages."""
    script = ALONE.format(hidden=HIDDEN, code=code)
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_the_client_sends_and_receives(rocketmq_cluster: BlockingCluster) -> None:
    rocketmq_cluster.create_topic("orders")
    done = alone(ROUND_TRIP, rocketmq_cluster.name_server)
    assert (done.returncode, done.stdout) == (0, "from afar\n"), done.stderr


def test_commands_reach_a_cluster(rocketmq_cluster: BlockingCluster) -> None:
    rocketmq_cluster.create_topic("orders")
    for words in (["topic", "list"], ["message", "send", "orders", "hello"], ["lag"], ["check"], ["--help"]):
        server = [] if words == ["--help"] else ["-n", rocketmq_cluster.name_server]
        done = alone(COMMAND, *words, *server)
        assert done.returncode in (0, 1), (words, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["serve"], ["broker"], ["store", "verify", "."]], ids=" ".join)
def test_what_needs_more_says_what_to_install(words: list[str]) -> None:
    done = alone(COMMAND, *words)
    assert done.returncode != 0
    assert done.stderr == "firearrow: servers and their stores need numpy: pip install 'firearrow[server]'\n"


def test_a_test_with_a_cluster_says_what_to_install() -> None:
    done = alone("from firearrow.testing import EmbeddedCluster")
    assert "pip install 'firearrow[server]'" in done.stderr.splitlines()[-1]


def test_it_is_small() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    packages = [one.partition(">")[0] for one in required]
    places = [Path(str(one.locate())) for name in packages for one in files(name) or ()]
    source = [path for path in (ROOT / "src/firearrow").rglob("*") if path.is_file()]
    sizes = [path.stat().st_size for path in places + source if path.exists() and path.suffix != ".pyc"]
    assert packages == ["argcomplete", "msgspec"]
    assert sum(sizes) < MB_MAX * 1_000_000
