"""The page about lite topics and pops."""

from __future__ import annotations

import httpx


def test_a_cluster_without_lite_topics_says_what_would_be_here(browser: httpx.Client) -> None:
    text = browser.get("/cluster/lite").text
    assert "No topic has lite topics." in text
    assert "20,000" in text
    assert "nor until when" in text


def test_what_is_asked_for_is_a_part_of_the_page(browser: httpx.Client) -> None:
    answer = browser.get("/cluster/lite", params={"group": "billing", "pops": "billing"})
    assert answer.status_code == 200
    assert "Lag of billing in lite topics" in answer.text
    assert "is not a LITE group" in answer.text
    assert "Pops of billing" in answer.text
    assert "<script>" not in browser.get("/cluster/lite", params={"pops": "<script>"}).text
    client = {"topic": "orders", "group": "billing", "client": "nobody"}
    assert "Lite topics of nobody" in browser.get("/cluster/lite", params=client).text
