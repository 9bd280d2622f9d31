"""Pending messages: when they are due, and the link that recalls one."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from firearrow.client.blocking import Producer
from firearrow.message.recall import RecallHandle
from firearrow.testing import BlockingCluster
from tests.console.pagelinks import link_to


@pytest.fixture(scope="module", autouse=True)
def delayed(cluster: BlockingCluster) -> dict[str, str]:
    """Handles of two messages of topic ``mails`` that wait: for half an hour, and for two days."""
    cluster.create_topic("mails", queues=1)
    with Producer(cluster.name_server, group="shop") as producer:
        handles = {
            name: producer.send("mails", f"<{name}>", key=name, delay=timedelta(minutes=minutes)).recall_handle
            for name, minutes in (("soon", 30), ("late", 2 * 24 * 60))
        }
    return {name: str(handle) for name, handle in handles.items()}


def test_waiting_messages_are_counted_by_time(browser: httpx.Client) -> None:
    hour = browser.get("/cluster/pending", params={"topic": "mails"}).text
    assert hour.count("<rect ") == 1
    assert "1 message is due later." in hour
    assert re.search(r"<dt>Waiting</dt><dd>2 ", hour)
    assert browser.get("/cluster/pending", params={"every": "10080"}).text.count("<rect ") == 2
    assert "Nothing is due in the next minute." in browser.get("/cluster/pending", params={"every": "1"}).text


def test_each_waiting_message_can_be_recalled(browser: httpx.Client, delayed: dict[str, str]) -> None:
    text = browser.get("/cluster/pending", params={"topic": "mails"}).text
    assert text.index("&lt;soon&gt;") < text.index("&lt;late&gt;")
    link = urlsplit(link_to(text, "Recall"))
    assert link.path == "/cluster/do/message-recall"
    assert parse_qs(link.query) == {"topic": ["mails"], "handle": [delayed["soon"]]}
    message_id = RecallHandle.decode(delayed["soon"]).unique_key
    there = browser.get(link_to(text, message_id))
    assert ">delayed until</text>" in there.text
    assert "Waits for this time." in there.text
    assert parse_qs(urlsplit(link_to(there.text, "Recall")).query) == parse_qs(link.query)


def test_without_waiting_messages_the_page_says_so(browser: httpx.Client) -> None:
    assert browser.get("/cluster/pending", params={"topic": "orders"}).text.count("No message waits for its time.") == 2
