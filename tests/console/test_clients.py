"""Pages about clients: a member of a group, its stacks, and the producers."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from firearrow.client import StartFrom
from firearrow.client.blocking import Producer, PullConsumer
from firearrow.testing import BlockingCluster


def test_a_member_has_a_page(browser: httpx.Client, cluster: BlockingCluster) -> None:
    with PullConsumer(cluster.name_server, group="readers") as consumer:
        consumer.subscribe("orders", tags="paid")
        group = browser.get("/cluster/groups/readers").text
        [client] = [part.partition('"')[0] for part in group.split('href="/cluster/groups/readers/clients/')[1:]]
        assert "<td>remoting</td>" in group
        assert "<td>paid</td>" in group
        page = browser.get(f"/cluster/groups/readers/clients/{client}")
        assert page.status_code == 200
        assert ">PYTHON<" in page.text
        assert "<td>paid</td>" in page.text
        assert "MainThread" not in page.text
        assert 'action="/cluster/do/client-consume"' in page.text
        assert "MainThread" in browser.get(f"/cluster/groups/readers/clients/{client}?stacks=yes").text


def test_a_client_that_is_gone_is_a_sentence(browser: httpx.Client) -> None:
    answer = browser.get(f"/cluster/groups/billing/clients/{quote('a/<b>', safe='')}")
    assert answer.status_code == 404
    assert "has no client &#39;a/&lt;b&gt;&#39;" in answer.text


def test_the_backlog_of_a_group_has_its_parts(browser: httpx.Client, cluster: BlockingCluster) -> None:
    with PullConsumer(cluster.name_server, group="late", start=StartFrom.FIRST) as consumer:
        consumer.subscribe("orders")
        assert consumer.poll(30)
        consumer.commit()
    text = browser.get("/cluster/groups/late").text
    for part in ("Not consumed", "To redeliver", "In flight", "Dead letters"):
        assert f"<dt>{part} " in text
    assert "What the filters select" in browser.get("/cluster/groups/late?filtered=yes").text


def test_producers_are_on_the_page_of_a_topic(browser: httpx.Client, cluster: BlockingCluster) -> None:
    with Producer(cluster.name_server, group="till") as producer:
        producer.send("orders", "one more")
        assert ">till<" in browser.get("/cluster/producers").text
        assert ">till<" in browser.get("/cluster/topics/orders").text
    assert "not by topic" in browser.get("/cluster/topics/orders").text
