"""The page about lite topics and pops."""

from __future__ import annotations

import httpx

from firearrow.client.blocking import SimpleConsumer
from firearrow.testing import BlockingCluster
from tests.interop.waiting import wait_until


def test_a_cluster_without_lite_topics_says_what_would_be_here(browser: httpx.Client) -> None:
    text = browser.get("/cluster/lite").text
    assert "No topic has lite topics." in text
    assert "20,000" in text
    assert "each with the time until it is invisible" in text


def test_what_is_asked_for_is_a_part_of_the_page(browser: httpx.Client) -> None:
    answer = browser.get("/cluster/lite", params={"group": "billing", "pops": "billing"})
    assert answer.status_code == 200
    assert "Lag of billing in lite topics" in answer.text
    assert "is not a LITE group" in answer.text
    assert "Pops of billing" in answer.text
    assert "<script>" not in browser.get("/cluster/lite", params={"pops": "<script>"}).text
    client = {"topic": "orders", "group": "billing", "client": "nobody"}
    assert "Lite topics of nobody" in browser.get("/cluster/lite", params=client).text


def test_a_group_has_its_invisible_messages(cluster: BlockingCluster, browser: httpx.Client) -> None:
    def part() -> str:
        text = browser.get("/cluster/lite", params={"pops": "cashiers"}).text
        return text.partition("Invisible messages of cashiers")[2].partition("</section>")[0]

    assert "No record says that cashiers has an invisible message." in part()
    with SimpleConsumer(cluster.name_server, group="cashiers", topics=["orders"]) as consumer:
        assert wait_until(lambda: consumer.receive(1, invisible=600), 60, "a message")
        shown = wait_until(lambda: text if "broker-a" in (text := part()) else None, 60, "its record")
        [row] = browser.get("/cluster/api/pop-invisible", params={"group": "cashiers"}).json()
        for name in ("poppedAt", "invisibleUntil"):
            assert row[name][:19].replace("T", " ") in shown
