"""Dead letters: groups that have some, and the choice of letters that are sent again."""

from __future__ import annotations

import re

import httpx
import pytest

from firearrow.client.blocking import Producer
from firearrow.testing import BlockingCluster

PAGE = "/cluster/groups/mailer/dead-letters"


@pytest.fixture(scope="module", autouse=True)
def letters(cluster: BlockingCluster) -> None:
    """Four letters of group ``mailer``, of two causes, and a copy of the third."""
    cluster.create_topic("mails", queues=1)
    cluster.create_topic("%DLQ%mailer", queues=1)
    with Producer(cluster.name_server, group="shop") as producer:
        for number in range(4):
            producer.send(
                "%DLQ%mailer",
                f"letter <{number}>",
                tag="late" if number else "early",
                key=f"k-{number}",
                properties={"exceptionMessage": "no <such> address" if number else "box is full", "DLQ_ORIGIN": "x"},
            )


def bodies(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"letter &lt;(\d)&gt;", text)]


def test_groups_with_letters_are_listed(browser: httpx.Client) -> None:
    text = browser.get("/cluster/dead-letters").text
    assert (
        '<a href="/cluster/groups/mailer/dead-letters">mailer</a></td>\n<td class="n">4</td>\n<td class="n">4</td>'
        in text
    )


def test_letters_are_grouped_by_their_causes(browser: httpx.Client) -> None:
    text = browser.get(PAGE).text
    assert bodies(text) == [3, 2, 1, 0]
    causes = re.findall(r'<td class="n"><a href="([^"]+)">(\d)</a></td><td>-</td><td>(\w+)</td>', text)
    assert [(count, tag) for _, count, tag in causes] == [("3", "late"), ("1", "early")]
    assert bodies(browser.get(causes[0][0].replace("&amp;", "&")).text) == [3, 2, 1]
    assert "no &lt;such&gt; address" in text


def test_letters_are_searched_and_chosen(browser: httpx.Client) -> None:
    text = browser.get(PAGE, params={"q": "k-2"}).text
    assert bodies(text) == [2]
    assert '<form action="/cluster/do/dlq-resend">' in text
    assert re.findall(r'name="(group|ids)" value="([^"]+)"', text)[0] == ("group", "mailer")
    [chosen] = re.findall(r'name="ids" value="([0-9A-F]{32})"', text)
    [address] = re.findall(rf'<a href="([^"]+)">{chosen}</a>', text)
    assert "letter &lt;2&gt;" in browser.get(address).text
    assert bodies(browser.get(PAGE, params={"q": "nothing"}).text) == []
    assert bodies(browser.get(PAGE, params={"since": "2100-01-01"}).text) == []


def test_copies_that_were_sent_again_are_found(browser: httpx.Client, cluster: BlockingCluster) -> None:
    assert "resent at" not in browser.get(PAGE).text
    cluster.create_topic("%DLQ%biller", queues=1)
    with Producer(cluster.name_server, group="shop") as producer:
        producer.send("%DLQ%biller", "a bill")
    assert "resent at" in browser.get("/cluster/groups/biller/dead-letters", params={"resent": "yes"}).text


def test_a_group_without_letters_says_so(browser: httpx.Client) -> None:
    assert "There are no dead letters here." in browser.get("/cluster/groups/billing/dead-letters").text
