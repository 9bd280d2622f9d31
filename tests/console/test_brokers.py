"""Pages about brokers: roles, counters with their meaning, and what is not known."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from firearrow.cli.cluster.counters import COUNTERS, NO_BREAK, UNKNOWN, counter, in_words
from firearrow.client.admin import Admin
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.client.diagnosis.traffic import BrokerRow
from firearrow.console.page import View
from firearrow.console.pages.brokers import _rows, took, up_seconds
from firearrow.console.sampler import Seen
from firearrow.testing import BlockingCluster


def test_brokers_are_listed_with_their_role(browser: httpx.Client, cluster: BlockingCluster) -> None:
    text = browser.get("/cluster/brokers").text
    assert 'href="/cluster/brokers/broker-a"' in text
    assert cluster.brokers[0].address in text
    assert "<td>master</td>" in text
    assert "matches “elsewhere”" in browser.get("/cluster/brokers?q=elsewhere").text


def test_a_broker_has_its_counters_by_subject(browser: httpx.Client) -> None:
    text = browser.get("/cluster/brokers/broker-a").text
    for subject in ("Messages", "Log and disk", "Dispatch", "Page cache", "Thread pools"):
        assert f"<h2>{subject}</h2>" in text
    assert "part of the log that the queues do not have yet" in text
    assert 'href="/cluster/do/cluster-undrain?broker=broker-a"' in text


def test_an_unknown_broker_is_not_found(browser: httpx.Client) -> None:
    answer = browser.get("/cluster/brokers/gone")
    assert answer.status_code == 404
    assert "Registered are: broker-a." in answer.text


def test_each_counter_of_a_broker_has_a_meaning(cluster: BlockingCluster) -> None:
    async def ask() -> dict[str, str]:
        async with Admin.of([cluster.name_server]) as admin:
            return await admin.brokers.runtime(cluster.brokers[0].address)

    counted = asyncio.run(ask())
    assert [name for name in counted if counter(name).subject == UNKNOWN] == []
    assert counter("newInRocketmq6").subject == UNKNOWN


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("putTps", "42.6 34.38 37.1", "42.6/s in 10 s, 34.4/s in 1 min, 37.1/s in 10 min"),
        ("putMessageSizeTotal", "2048", "2.0 KiB"),
        ("commitLogDiskRatio", "0.25", "25.0 %"),
        ("commitLogDiskRatio_/a\x1b", "0.25", "25.0 %"),
        ("bootTimestamp", "0", "-"),
        ("bootTimestamp", "9" * 30, "-"),
        ("timerReadBehind", "3", "3 seconds"),
        ("remainTransientStoreBufferNumbs", "2147483647", "no limit"),
        ("putTps", "none", "none"),
        ("writesRefused", "", "–"),
        ("newInRocketmq6", "a\x1b[2J", "a\\x1b[2J"),
    ],
)
def test_values_have_units(name: str, value: str, words: str) -> None:
    assert in_words(name, value).replace(NO_BREAK, " ") == words


def test_times_of_stored_messages_are_read() -> None:
    assert took("[<=0ms]:3 [0~10ms]:1 [10s~]:0") == [("<=0ms", 3, 75), ("0 to 10ms", 1, 25), ("10s or more", 0, 0)]
    assert took("nothing") == []
    assert len(COUNTERS) > 40


def test_a_broker_that_does_not_answer_is_a_row_with_a_reason() -> None:
    facts = BrokerFacts("C", "b", 0, "b:1", error="refused")
    row = BrokerRow("b", "b:1", None, None, None, None, "does not answer: refused")
    with_it = Seen(5, [row, BrokerRow("c (slave)", "c:1", None, None, None, None)], [facts])
    first, second = _rows(cast("View", SimpleNamespace(cluster=SimpleNamespace(sampler=SimpleNamespace(seen=with_it)))))
    assert (first[0], first[1], first[3], first[5], first[-1]) == ("b", "master", "failed", None, row.note)
    assert (second[0], second[1]) == ("c", "slave")


def test_numbers_that_are_none_are_unknown() -> None:
    facts = BrokerFacts("C", "b", 0, "b:1", {"a": "nan", "b": "inf 1 1", "c": "2 1 1", "bootTimestamp": "1e400"})
    assert [facts.number(name) for name in "abcd"] == [None, None, 2.0, None]
    assert up_seconds(facts, 5) is None


def test_a_drained_broker_says_so(browser: httpx.Client, cluster: BlockingCluster) -> None:
    async def change(*, drained: bool) -> None:
        async with Admin.of([cluster.name_server]) as admin:
            servers = admin.name_servers
            await (servers.wipe_write_perm if drained else servers.add_write_perm)(cluster.name_server, "broker-a")

    assert "It is out of use" not in browser.get("/cluster/brokers/broker-a").text
    asyncio.run(change(drained=True))
    try:
        assert "It is out of use" in browser.get("/cluster/brokers/broker-a").text
    finally:
        asyncio.run(change(drained=False))
