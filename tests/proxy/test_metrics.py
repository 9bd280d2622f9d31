"""Metrics of the proxy in a broker's scrape."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping

import pytest

from firearrow.proxy import messages as m
from firearrow.proxy.metrics import ROWS
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests import scrapes
from tests.proxy.clusterproxy import cluster_proxy
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

REFUSED = "message_property_conflict_with_type"
CALLS = "rocketmq_proxy_rpc_latency_milliseconds"


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True, metricsExporterType="PROM", metricsPromExporterPort=0) as found:
        found.create_topic("counted")
        yield found


@pytest.fixture
def rpcs(cluster: BlockingCluster) -> Iterator[Rpcs]:
    with Rpcs(cluster.brokers[0].grpc) as found:
        yield found


def scraped(cluster: BlockingCluster) -> Mapping[str, scrapes.Scraped]:
    port = cluster.brokers[0].server.operations.port
    return scrapes.parse(asyncio.run(scrapes.get(port))[1])


def calls(cluster: BlockingCluster, method: str, code: str, *, waited: bool = False) -> float:
    """Count of calls with an outcome."""
    labels = {"method": method, "response_code": code, "is_long_polling": str(waited).lower(), "le": "+Inf"}
    families = scraped(cluster)
    return families[CALLS].value(**labels) if CALLS in families and _has(families[CALLS], labels) else 0


def _has(family: scrapes.Scraped, labels: Mapping[str, str]) -> bool:
    return any(labels.items() <= own for _, own in family.values)


def test_a_call_counts_by_the_code_in_its_answer(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    before = [calls(cluster, "SendMessage", code) for code in ("ok", REFUSED)]
    for topic in ("counted", "counted", "nowhere"):
        rpcs.SendMessage(send_request(topic, b"x"))
    after = [calls(cluster, "SendMessage", code) for code in ("ok", REFUSED)]
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 1]


def test_a_call_without_a_client_counts(cluster: BlockingCluster) -> None:
    with Rpcs(cluster.brokers[0].grpc, metadata={"x-mq-client-id": " "}) as nobody:
        nobody.Heartbeat(m.HeartbeatRequest())
    assert calls(cluster, "Heartbeat", "client_id_required") == 1


def test_a_receive_that_waits_is_told_from_one_that_does_not(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("waited")
    rpcs.begin(settings_of_consumer("g-waited", "waited"))
    before = [calls(cluster, "ReceiveMessage", "ok", waited=waited) for waited in (True, False)]
    pending = rpcs.streamed("ReceiveMessage", receive_request("g-waited", "waited"))
    name = "rocketmq_proxy_pending_receives"
    deadline = time.monotonic() + 20
    while name not in (found := scraped(cluster)) or not found[name].value(method="ReceiveMessage"):
        assert time.monotonic() < deadline
    rpcs.SendMessage(send_request("waited", b"x"))
    assert len(list(pending)) == 3
    assert scraped(cluster)[name].value(method="ReceiveMessage") == 0
    assert calls(cluster, "ReceiveMessage", "ok", waited=True) == before[0] + 1
    rpcs.SendMessage(send_request("waited", b"x"))
    while len(cluster.messages("waited")) < 2:
        assert time.monotonic() < deadline
    time.sleep(0.5)  # until it is in its queue
    assert len(rpcs.received(receive_request("g-waited", "waited"))) == 1
    assert calls(cluster, "ReceiveMessage", "ok") == before[1] + 1


def test_gauges_follow_the_clients(cluster: BlockingCluster) -> None:
    families = scraped(cluster)
    assert families["rocketmq_proxy_up"].value(proxy_mode="local") == 1
    connections = families["rocketmq_proxy_connections"].value()
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        rpcs.begin(settings_of_consumer("g-gauges", "counted", kind=m.ClientType.PUSH_CONSUMER))
        assert calls(cluster, "Telemetry", "ok") >= 1
        rpcs.SendMessage(send_request("counted", b"x"))
        assert rpcs.received(receive_request("g-gauges", "counted", auto_renew=True))
        families = scraped(cluster)
        assert families["rocketmq_proxy_connections"].value() == connections + 1
        assert families["rocketmq_proxy_telemetry_streams"].value() >= 1
        assert families["rocketmq_proxy_clients"].value(client_type="push_consumer") == 1
        assert families["rocketmq_proxy_renewed_messages"].value() >= 1
        rpcs.NotifyClientTermination(m.NotifyClientTerminationRequest(group=m.Resource(name="g-gauges")))
    families = scraped(cluster)
    clients = families.get("rocketmq_proxy_clients")  # none without any client
    assert clients is None or not _has(clients, {"client_type": "push_consumer"})
    assert families["rocketmq_proxy_renewed_messages"].value() == 0


def test_each_sample_has_the_labels_of_the_table(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    rpcs.begin(settings_of_consumer("g-table", "counted"))
    families = scraped(cluster)
    for row in ROWS:
        name, kind, _, labels = row.family
        if name in families:
            assert (families[name].kind, families[name].labels - {"le"}) == (kind, set(labels)), name
    assert {row.family.name for row in ROWS} - families.keys() <= {"rocketmq_proxy_pending_receives"}


def test_a_broker_without_metrics_measures_no_calls() -> None:
    with EmbeddedCluster(grpc=True) as cluster:
        assert cluster.brokers[0].proxy.service.meter is None


def test_a_proxy_that_stands_alone_has_metrics_of_its_own() -> None:
    keys = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0, "proxyName": "p", "proxyClusterName": "C"}
    with EmbeddedCluster() as cluster:
        cluster.create_topic("counted")
        with cluster_proxy(cluster.name_server, **keys) as proxy:
            with Rpcs(f"127.0.0.1:{proxy.port}") as rpcs:
                rpcs.SendMessage(send_request("counted", b"x"))
                port = proxy.operations.port
                text = asyncio.run(scrapes.get(port))[1]
                facts = json.loads(asyncio.run(scrapes.get(port, "/varz"))[1])
            assert asyncio.run(scrapes.get(port, "/readyz")) == (200, "ok\n")
    families = scrapes.parse(text)
    assert families["rocketmq_proxy_up"].value(proxy_mode="cluster") == 1
    assert families[CALLS].value(method="SendMessage", response_code="ok", le="+Inf") == 1
    assert 'rocketmq_proxy_up{cluster="C",node_id="p",node_type="proxy",otel_scope_name="broker-meter",' in text
    assert (facts["proxyName"], facts["grpcConnections"]) == ("p", 1)
