"""Servers that hang, restart or are away: pages show what the others have, and say what is missing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.client.admin import Admin
from firearrow.client.blocking import Producer
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.testing import BlockingCluster, EmbeddedCluster
from firearrow.wire.bodies import TopicConfig
from tests.client.diagnosis.sending import send
from tests.console.conftest import CONFIG, browsing, token
from tests.console.hanging import hanging
from tests.console.test_tail import events

STREAM = {"accept": "text/event-stream"}
SILENT = "has not answered for"
SECONDS = 4.0
"""Bound of an answer: less than one time limit of a request, and far more than a page takes."""


@pytest.fixture(scope="module")
def two() -> Iterator[BlockingCluster]:
    """Cluster of two brokers: topic ``orders`` is on both, ``healthy`` on the first."""
    with EmbeddedCluster(2, config=CONFIG) as running:
        running.create_topic("orders")
        running.create_group("billing")
        send(running.name_server, "orders", 6)
        asyncio.run(_create(running, "healthy"))
        yield running


async def _create(cluster: BlockingCluster, topic: str) -> None:
    async with Admin.of([cluster.name_server]) as admin:
        await admin.topics.create(cluster.brokers[0].address, TopicConfig(topic_name=topic))
        while topic not in await admin.topics.names():  # noqa: ASYNC110 - name servers tell no news
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def page(two: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Client of a console of both brokers."""
    with console_of(two, tmp_path_factory.mktemp("state")) as client:
        yield client


@contextmanager
def console_of(cluster: BlockingCluster, directory: Path) -> Iterator[httpx.Client]:
    clock = SystemClock()
    clusters = Clusters(ClusterOptions(name_server=cluster.name_server), clock)
    with browsing(Console(clusters, ChangeLog(directory, clock), "key", clock)) as client:
        yield client


def wait_for(page: httpx.Client, path: str, is_there: Callable[[str], bool]) -> str:
    """Read the stream of a page until it shows something."""
    with page.stream("GET", f"/cluster{path}", headers=STREAM) as answer:
        return next(text for text in events(answer) if is_there(text))


def quick(page: httpx.Client, path: str) -> httpx.Response:
    """Get a page that does not wait for a broker that hangs."""
    began = time.monotonic()
    answer = page.get(f"/cluster{path}")
    assert time.monotonic() - began < SECONDS, path
    return answer


@pytest.fixture(scope="module")
def with_silent(two: BlockingCluster, page: httpx.Client) -> Iterator[httpx.Client]:
    """The same client, while the second broker hangs."""
    wait_for(page, "/", lambda text: "broker-b" in text and SILENT not in text)
    with hanging(two.brokers[1]):
        wait_for(page, "/", lambda text: SILENT in text)
        yield page
    wait_for(page, "/", lambda text: SILENT not in text)


PAGES = (
    "/", "/topics", "/topics/orders", "/topics/healthy", "/topics/orders/messages", "/topics/healthy/messages",
    "/topics/orders/tail", "/groups", "/groups/billing", "/find?q=key-1", "/send", "/dead-letters", "/pending",
    "/transactions", "/lite", "/brokers", "/brokers/broker-a", "/brokers/broker-a/config", "/replicas", "/disk",
    "/name-servers", "/name-servers/config", "/access", "/alerts", "/changes", "/sql", "/search?q=orders",
    "/do/topic-list", "/do/topic-create?topic=more", "/do/lag",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_no_page_waits_for_a_broker_that_hangs(with_silent: httpx.Client, path: str) -> None:
    assert quick(with_silent, path).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/brokers", "/disk", "/access", "/lite",
     "/pending", "/transactions", "/replicas", "/do/topic-list", "/groups/billing"],
)  # fmt: skip
def test_a_page_says_what_is_missing(with_silent: httpx.Client, path: str) -> None:
    assert SILENT in quick(with_silent, path).text


def test_figures_of_the_other_broker_move(two: BlockingCluster, with_silent: httpx.Client) -> None:
    with Producer(two.name_server, group="p") as producer:
        for number in range(5):
            producer.send("healthy", b"%d" % number)

    def has_all(text: str) -> bool:
        row = next((row for row in text.split("<tr") if '/topics/healthy"' in row), "")
        return re.search(r">\s*5\s*<", row) is not None

    wait_for(with_silent, "/topics", has_all)


def test_the_row_of_the_broker_that_hangs_is_grey(with_silent: httpx.Client) -> None:
    row = next(row for row in quick(with_silent, "/").text.split("<tr")[1:] if SILENT in row)
    assert "broker-b" in row
    assert "silent" in row.partition(">")[0], row


def test_the_tail_of_the_other_broker_goes_on(two: BlockingCluster, with_silent: httpx.Client) -> None:
    with with_silent.stream("GET", "/cluster/topics/orders/tail", headers=STREAM) as answer:
        text = next(events(answer))
    assert SILENT in text
    assert "No message has arrived yet." in text


def test_the_interface_for_programs_says_so(with_silent: httpx.Client) -> None:
    answer = quick(with_silent, "/api/topic-list")
    assert answer.status_code == 502
    assert SILENT in answer.json()["error"]


def test_a_change_of_both_is_not_begun(with_silent: httpx.Client) -> None:
    values = {"topic": "half", "step": "apply", "csrf": token(with_silent)}
    answer = with_silent.post("/cluster/do/topic-create", data=values)
    assert SILENT in answer.text
    assert "half" not in with_silent.get("/cluster/topics").text


def test_a_broker_restarts(two: BlockingCluster, page: httpx.Client) -> None:
    two.stop_broker(1)
    assert page.get("/cluster/").status_code == 200
    for path in ("/topics", "/topics/orders", "/brokers", "/groups/billing"):
        assert page.get(f"/cluster{path}").status_code in (200, 502), path
    wait_for(page, "/", lambda text: "broker-b" not in text or "does not answer" in text)
    two.restart_broker(1)
    text = wait_for(page, "/", lambda text: "broker-b" in text and "does not answer" not in text)
    assert SILENT not in text
    assert page.get("/cluster/topics/orders").status_code == 200


def test_name_servers_are_away_and_come_back(two: BlockingCluster, page: httpx.Client) -> None:
    two.stop_name_server()
    text = wait_for(page, "/", lambda text: "no name server answers" in text)
    assert "broker-a" in text, "its figures go on"
    failed = page.get("/cluster/topics")
    assert failed.status_code == 502
    assert two.name_server in failed.text
    two.restart_name_server()
    wait_for(page, "/", lambda text: "no name server answers" not in text)
    wait_for(page, "/topics", lambda text: "orders" in text)
