"""The sink on the original's broker, which delivers a half at each commit of it: rows are seen once nevertheless."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from firearrow.client.producer import ending
from firearrow.client.producer.ending import HalfEnds, HalfPlace, HalfRun
from firearrow.client.producer.transactions import Decision, end_fields
from firearrow.message import names
from firearrow.spark.access import Cluster
from firearrow.spark.exactlyonce import Decisions
from firearrow.spark.options import for_sink
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from tests.client.fakes import fake_cluster
from tests.interop.servers import SMALL_FILES, Server, serve
from tests.interop.waiting import wait_until
from tests.net.rawclient import RawClient
from tests.spark.brokers import create_topic, stored
from tests.spark.sinkdeaths import BETWEEN_COMMITS, DECIDED, POINTS, ROWS, has_died, kill_at, step

ARRIVAL_TIMEOUT_S = 60
GIVEN_UP_TIMEOUT_S = 90
OFTEN: Final = {"transactionTimeOut": "500", "transactionCheckInterval": "500", "transactionCheckMax": "2"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("exactlyonce")
    with serve("real", directory / "store", directory / "logs", settings=SMALL_FILES) as server:
        yield server


def bodies(server: Server, topic: str) -> list[str]:
    return [view.body.decode() for view in stored(server, topic)]


def die(server: Server, topic: str, checkpoint: Path, point: str) -> None:
    """Run a step in a process that is killed at a point."""
    kill_at(checkpoint, point)
    command = [sys.executable, "-m", "tests.spark.sinkdeaths", server.namesrv, topic, str(checkpoint), "first"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert has_died(checkpoint)


@pytest.mark.parametrize("point", POINTS)
def test_rows_are_seen_once_whenever_the_process_is_killed(real: Server, tmp_path: Path, point: str) -> None:
    topic, checkpoint = point.replace(" ", "-"), tmp_path / "checkpoint"
    create_topic(real, topic)
    die(real, topic, checkpoint, point)
    if point in DECIDED[2:]:
        wait_until(lambda: len(bodies(real, topic)) == ROWS, ARRIVAL_TIMEOUT_S, "all messages")
    elif point == BETWEEN_COMMITS:
        wait_until(lambda: 0 < len(bodies(real, topic)) < ROWS, ARRIVAL_TIMEOUT_S, "some messages")
    else:
        assert bodies(real, topic) == []
    step(real.namesrv, topic, checkpoint, "second")
    wait_until(lambda: len(bodies(real, topic)) >= ROWS, ARRIVAL_TIMEOUT_S, "all messages")
    counts = "first" if point in DECIDED else "second"
    assert Counter(bodies(real, topic)) == Counter(f"{row}/{counts}" for row in range(ROWS))


def test_the_original_delivers_a_half_again_when_it_is_committed_again(real: Server, tmp_path: Path) -> None:
    """This is why commits are looked for before they are repeated."""
    topic, checkpoint = "twice", tmp_path / "checkpoint"
    create_topic(real, topic)
    step(real.namesrv, topic, checkpoint, "only")
    decided = Decisions(str(checkpoint)).of(0)
    assert decided is not None
    place = HalfPlace(decided["halfOffset"][0].as_py(), decided["physicalOffset"][0].as_py())
    given = for_sink({"nameServer": real.namesrv})
    cluster = Cluster(given.place, given.access)
    masters = cluster.run(cluster.name_servers.masters())
    ends = HalfEnds(cluster.client, masters, given.sink.producer_group)
    cluster.run(ends.decide([HalfRun(topic, decided["broker"][0].as_py(), False, [place])], Decision.COMMIT))
    cluster.close()
    wait_until(lambda: len(bodies(real, topic)) == ROWS + 1, ARRIVAL_TIMEOUT_S, "the second copy")


def test_rows_are_seen_once_when_the_original_is_killed_between_two_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts again elsewhere, asks nobody about its halves, and gives them up. None is delivered by that."""
    with fake_cluster("broker-a", queues=4) as cluster, ExitStack() as stack:
        servers: list[Server] = []
        calls = 0

        def start() -> None:
            where = tmp_path / "store", tmp_path / f"logs-{len(servers)}"
            servers.append(stack.enter_context(serve("real", *where, settings={**SMALL_FILES, **OFTEN}, killed=True)))
            cluster.brokers["broker-a"].address = servers[-1].broker

        def killing(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == ending.IN_FLIGHT_MAX + 50:
                stack.close()
                start()
            return end_fields(*args, **named)

        start()
        create_topic(servers[0], "T")
        monkeypatch.setattr(ending, "end_fields", killing)
        step(cluster.name_server, "T", tmp_path / "checkpoint", "only")
        wait_until(lambda: halves_left(servers[1]) == 0, GIVEN_UP_TIMEOUT_S, "all halves to be given up")
        assert Counter(bodies(servers[1], "T")) == Counter(f"{row}/only" for row in range(ROWS))
    assert calls > ROWS


def halves_left(server: Server) -> int:
    """How many halves the broker has not done with."""
    client = RawClient()
    where: dict[str, FieldValue] = {"topic": names.TRANS_HALF_TOPIC, "queueId": 0}
    end = int(client.call(server.broker, RequestCode.GET_MAX_OFFSET, where).ext["offset"])
    group = {"consumerGroup": names.TRANS_GROUP}
    done = int(client.call(server.broker, RequestCode.QUERY_CONSUMER_OFFSET, where | group).ext["offset"])
    client.close()
    return end - done
