"""Open transactions, to choose those that are checked again."""

from __future__ import annotations

import re
from contextlib import suppress

import httpx

from firearrow.client.blocking import Producer
from firearrow.client.message import Message
from firearrow.client.producer.transactions import Decision
from firearrow.testing import BlockingCluster
from tests.console.pagelinks import link_to


def open_transaction(cluster: BlockingCluster) -> None:
    """Begin a transaction that nobody decides."""

    def check(_: Message) -> Decision:
        return Decision.UNKNOWN

    with (
        Producer(cluster.name_server, group="till", check=check) as producer,
        suppress(RuntimeError),
        producer.transaction("orders", "<undecided>", key="tx"),
    ):
        raise RuntimeError


def test_open_transactions_are_chosen(browser: httpx.Client, cluster: BlockingCluster) -> None:
    assert "No transaction is open." in browser.get("/cluster/transactions").text
    open_transaction(cluster)
    text = browser.get("/cluster/transactions").text
    assert "&lt;undecided&gt;" in text
    assert re.search(r"<dt>Open</dt><dd>1<", text)
    assert '<form action="/cluster/do/transaction-resume">' in text
    [chosen] = re.findall(r'name="ids" value="([0-9A-F]+)"', text)
    [name] = re.findall(r">([0-9A-F]{32})</a>", text)
    half = browser.get(link_to(text, name))
    assert link_to(half.text, "Check again") == f"/cluster/do/transaction-resume?ids={chosen}"
    assert "A message of a transaction" in half.text
    assert "Nothing matches" in browser.get("/cluster/transactions", params={"q": "other"}).text
    assert "No transaction is open." in browser.get("/cluster/transactions", params={"parked": "yes"}).text
