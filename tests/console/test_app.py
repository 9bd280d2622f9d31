"""Pages as a browser gets them: each answers, is safe, and moves."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.vendored import VENDORED
from firearrow.testing import BlockingCluster
from tests.console.conftest import browsing


@pytest.mark.parametrize("path", ["/", "/topics", "/topics/orders", "/groups", "/groups/billing"])
def test_each_page_answers(browser: httpx.Client, path: str) -> None:
    answer = browser.get(f"/cluster{path}")
    assert answer.status_code == 200
    assert "<h1>" in answer.text


@pytest.mark.parametrize(
    ("path", "title"),
    [("/topics/orders", "Topics"), ("/groups/billing", "Groups"), ("/groups/billing/dead-letters", "Dead letters")],
)
def test_the_menu_marks_where_a_page_belongs(browser: httpx.Client, path: str, title: str) -> None:
    [marked] = re.findall(
        r'<a [^>]*aria-current="page">.*?</svg>([^<]+)</a>', browser.get(f"/cluster{path}").text, re.DOTALL
    )
    assert marked.strip() == title


def test_the_root_leads_to_the_first_cluster(browser: httpx.Client) -> None:
    assert str(browser.get("/").url).endswith("/cluster/")


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/cluster/topics/nothing", 404, "there is no topic &#39;nothing&#39;"),
        ("/cluster/nothing", 404, "There is no such page."),
        ("/elsewhere/topics", 404, "There is no cluster &#39;elsewhere&#39;."),
        ("/cluster/topics/%3Cscript%3E", 404, "&lt;script&gt;"),
    ],
)
def test_a_failure_is_a_page_with_a_sentence(browser: httpx.Client, path: str, status: int, reason: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == status
    assert reason in answer.text
    assert "<script>" not in answer.text


def test_a_browser_may_load_nothing_from_elsewhere(browser: httpx.Client) -> None:
    answer = browser.get("/cluster/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(r"https?://[^\"' ]+", answer.text) == []
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
        found = browser.get(address)
        assert found.status_code == 200
        assert "immutable" in found.headers["cache-control"]


def test_files_of_others_are_those_of_the_table() -> None:
    directory = files("firearrow.console").joinpath("static")
    assert {it.file: it.sha256 for it in VENDORED} == {
        it.file: sha256(directory.joinpath(it.file).read_bytes()).hexdigest() for it in VENDORED
    }


def test_a_stream_has_the_moving_part_of_the_page(browser: httpx.Client) -> None:
    with browser.stream("GET", "/cluster/topics", headers={"accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = ""
        for line in answer.iter_lines():
            if not line:
                break
            text += line.removeprefix("data: ")
    assert "orders" in text
    assert "<nav" not in text


def test_a_topic_says_what_is_wrong_with_its_route(browser: httpx.Client) -> None:
    text = browser.get("/cluster/topics/orders").text
    assert "the cluster has no other broker" in text
    assert "queues that producers send to" in text


def test_streams_end_with_the_server(cluster: BlockingCluster, tmp_path: Path) -> None:
    clock = SystemClock()
    clusters = Clusters(ClusterOptions(name_server=cluster.name_server), clock)
    console = Console(clusters, ChangeLog(tmp_path, clock), "key", clock)
    headers = {"accept": "text/event-stream"}
    with httpx.Client(timeout=30) as client:
        with browsing(console) as browser:
            request = client.build_request("GET", f"{browser.base_url}/cluster/topics", headers=headers)
            answer = client.send(request, stream=True)
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
        assert "" in list(lines)  # until the end, which is one in order
