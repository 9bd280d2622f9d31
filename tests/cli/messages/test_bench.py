"""`firearrow bench`, as it is typed."""

import json
from collections.abc import Iterator

import pytest

from firearrow.cli.main import main
from firearrow.cli.messages.bench import COLUMNS, TOPIC, table_of
from firearrow.cli.output.screen import as_list
from firearrow.client.loads.pacing import LoadResult
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.client.diagnosis.sending import send

ROW = """\
load     messages  failed   took  messages per second  bytes per second  latency p50  latency p90
produce     2,000       1  2.0 s              1,000/s       125.0 KiB/s      0.50 ms      0.90 ms
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as running:
        running.create_topic(TOPIC)
        send(running.name_server, TOPIC, 40)
        yield running


@pytest.mark.parametrize(
    ("load", "messages"),
    [
        ("produce --count 20", 20),
        ("produce --count 20 --batch 5 --rate 1000 --size 10", 100),
        ("transaction --count 20", 20),
        ("round-trip --count 20", 20),
        ("consume --count 20", 20),
        ("pop --count 1 --in-flight 1", None),
    ],
)
def test_each_load(
    load: str, messages: int | None, cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *load.split(), "--json", "-n", cluster.name_server]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert tuple(row) == COLUMNS
    assert row["failed"] == 0
    assert row["messages"] == messages if messages else row["messages"] > 0
    assert 0 <= row["latencyP50Ms"] <= row["latencyP99Ms"] <= row["latencyMaxMs"]


def test_a_row() -> None:
    measured = LoadResult(2.0, 2000, 256_000, 1)
    for value in range(1, 1001):
        measured.took.add(value)
    assert as_list(table_of("produce", measured), 100).startswith(ROW)


def test_a_cluster_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "produce", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("firearrow: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--in-flight 0", "0 in flight: allowed is 1 to 4096"),
        ("--size 0", "bodies of 0 bytes: allowed is 1 to 4194304"),
        ("--batch 0", "batches of 0: allowed is 1 to 1024"),
    ],
)
def test_what_cannot_be_is_told(
    options: str, says: str, cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "produce", *options.split(), "-n", cluster.name_server]) == 1
    assert capsys.readouterr().err == f"firearrow: {says}\n"
