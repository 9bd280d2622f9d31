"""Metrics by HTTP, of the original broker and of Firearrow after the same traffic."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import metricstraffic, scrapes
from tests.interop.servers import Kind, serve
from tests.scrapes import Labels, Scraped

RECORDS = bool(os.environ.get("FIREARROW_RECORD"))
"""Whether the scrape of the original is to be kept (``tests/data/metrics``)."""


def scraped(kind: Kind, root: Path) -> Mapping[str, Scraped]:
    """What a broker tells of the traffic."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": str(port),
        "metricsPromExporterHost": "127.0.0.1",
    }
    with serve(kind, root / "store", root / "logs", settings=settings) as server:

        async def run() -> str:
            async with metricstraffic.running(server.namesrv, server.broker):
                status, text = await scrapes.get(port)
                assert status == 200
                return text

        text = asyncio.run(run())
    if kind == "real" and RECORDS:
        scrapes.GOLDEN.write_text(text, encoding="utf-8")
    return scrapes.parse(text)


def shape(families: Mapping[str, Scraped]) -> dict[str, object]:
    return {name: (family.kind, sorted(family.labels), family.bounds) for name, family in families.items()}


# What is counted alike by both, whatever the machine is busy with.
COUNTERS = (
    "rocketmq_messages_in_total",
    "rocketmq_messages_out_total",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_half_messages",
    "rocketmq_pop_revive_retry_messages_total",
    "rocketmq_producer_connections",
    "rocketmq_consumer_connections",
    "rocketmq_topic_number",
    "rocketmq_consumer_group_number",
)
REVIVING = ("consumer_group", "CID_RMQ_SYS_REVIVE_GROUP")  # what the broker reads itself


def counted(families: Mapping[str, Scraped]) -> dict[tuple[str, Labels], float]:
    """The values; RocketMQ says only of pops that they are none of what is retried."""
    return {
        (name, labels - {("is_retry", "false")}): value
        for family in COUNTERS
        for (name, labels), value in families[family].values.items()
        if REVIVING not in labels
    }


@pytest.mark.parametrize("kind", ["real", "firearrow"])
def test_a_scrape_is_like_the_golden_one(kind: Kind, tmp_path: Path) -> None:
    families = scraped(kind, tmp_path)
    golden = scrapes.golden()
    of_broker = {name: family for name, family in families.items() if not name.startswith("rocketmq_proxy_")}
    found, expected = shape(of_broker), shape(golden)
    if kind == "firearrow":
        del expected["rocketmq_pop_buffer_scan_time_consume_milliseconds"]  # nothing is scanned
    assert found == expected
    values = counted(families)
    differing = {key: value for key, value in counted(golden).items() if values.get(key) != value}
    assert differing == {}
