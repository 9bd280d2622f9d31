"""History from Prometheus: its queries, its gaps, and the page when it does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.prometheus import POINTS, NoHistory, Prometheus, query_of
from firearrow.errors import ConfigError
from firearrow.testing import BlockingCluster
from tests.broker.fakes import HandClock
from tests.console.conftest import browsing


def answering(values: Callable[[str, int], str]) -> tuple[list[str], Callable[[str], bytes]]:
    """Give a Prometheus that knows each third point of a query, and the queries that it gets."""
    asked: list[str] = []

    def read(url: str) -> bytes:
        given = {name: texts[0] for name, texts in parse_qs(urlsplit(url).query).items()}
        asked.append(given["query"])
        times = range(int(given["start"]), int(given["end"]) + 1, 3 * int(given["step"]))
        series = {"metric": {}, "values": [[at, values(given["query"], at)] for at in times]}
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()

    return asked, read


def test_each_series_has_its_values_at_common_times() -> None:
    asked, read = answering(lambda query, at: "NaN" if at % 5 == 0 else str(at if "in_total" in query else -at))
    history = Prometheus("http://prometheus.test:9090/", HandClock(), read)

    async def main() -> None:
        times, arriving, lag = await history.columns(["arriving", "lag"], "6h", ["DefaultCluster"])
        assert len(times) == len(arriving) == len(lag) == POINTS + 1
        known = [(at, value) for at, value in zip(times, arriving, strict=True) if value is not None]
        assert known
        assert all(value == at for at, value in known)
        assert [-value if value else value for value in lag] == arriving
        await history.columns(["arriving", "lag"], "6h", ["DefaultCluster"])
        assert len(asked) == 2  # the second time from memory

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("arriving", 'sum(rate(rocketmq_messages_in_total{cluster=~"C"}[288s]))'),
        ("consuming", 'sum(rate(rocketmq_messages_out_total{cluster=~"C"}[288s]))'),
        ("lag", 'sum(rocketmq_consumer_lag_messages{cluster=~"C"})'),
        ("topic a b", 'sum(rate(rocketmq_messages_in_total{topic="a b",cluster=~"C"}[288s]))'),
        ('group x"}', 'sum(rocketmq_consumer_lag_messages{consumer_group="x\\"}",cluster=~"C"})'),
    ],
)
def test_a_series_has_a_query(name: str, query: str) -> None:
    assert query_of(name, 72, ["C"]) == query


def test_names_of_clusters_are_no_patterns() -> None:
    assert query_of("lag", 72, ["a.b", "c[1]"]) == 'sum(rocketmq_consumer_lag_messages{cluster=~"a[.]b|c\\\\[1\\\\]"})'


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"<html>", "Prometheus has no history: JSON is malformed"),
        (b'{"status":"error","error":"bad query"}', "Prometheus has no history: bad query"),
        (b'{"status":"success","data":{"result":[{"values":[[1,"x"]]}]}}', "could not convert string"),
        (OSError("refused"), "Prometheus has no history: refused"),
    ],
)
def test_a_wrong_answer_is_a_sentence(answer: bytes | OSError, reason: str) -> None:
    def read(_: str) -> bytes:
        if isinstance(answer, OSError):
            raise answer
        return answer

    with pytest.raises(NoHistory, match=reason):
        asyncio.run(Prometheus("http://prometheus.test", HandClock(), read).columns(["lag"], "1d", []))


def test_pages_offer_spans(cluster: BlockingCluster, tmp_path: Path) -> None:
    asked, read = answering(lambda _, at: "7")
    clock = SystemClock()
    options = ClusterOptions(name_server=cluster.name_server)
    clusters = Clusters(options, clock, prometheus=Prometheus("http://prometheus.test", clock, read))
    with browsing(Console(clusters, ChangeLog(tmp_path, clock), "key", clock)) as browser:
        assert 'href="?span=7d"' in browser.get("/cluster/topics/orders").text
        assert asked == []
        assert "7.0" in browser.get("/cluster/topics/orders", params={"span": "7d"}).text
        assert 'topic="orders"' in asked[0]
        assert browser.get("/cluster/", params={"span": "never"}).status_code == 200


def test_an_address_must_be_one() -> None:
    with pytest.raises(ConfigError, match="--prometheus is no address"):
        Prometheus("prometheus:9090", HandClock())
