"""Users with rights on one topic: brokers refuse them the rest, and no page has it from somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from firearrow.cli.cluster.options import ACCESS_KEY, SECRET_KEY
from firearrow.client.admin import Admin
from firearrow.client.blocking import Producer
from firearrow.testing import BlockingCluster, EmbeddedCluster
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.signature import Credentials
from tests.console.conftest import browsing, sign_in
from tests.console.test_agents import agent, call
from tests.console.test_signin import ROOT, SECRET, USERS, console

POOR, WORD = "visitor", "another of twelve"
BODY = "what only root may read"


@pytest.fixture(scope="module")
def guarded() -> Iterator[BlockingCluster]:
    """Cluster with the topics ``mine`` and ``secrets``."""
    with EmbeddedCluster(config=USERS) as running:
        asyncio.run(_fill(running))
        with Producer(running.name_server, group="p", credentials=Credentials(ROOT, SECRET)) as producer:
            producer.send("mine", "for all")
            producer.send("secrets", BODY, key="k")
        yield running


async def _fill(running: BlockingCluster) -> None:
    async with Admin.of([running.name_server], Credentials(ROOT, SECRET)) as admin:
        for topic in ("mine", "secrets"):
            await admin.topics.create(running.brokers[0].address, TopicConfig(topic_name=topic))


@pytest.fixture(scope="module")
def root(guarded: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Browser of the user with all rights, who gives the other user rights on one topic."""
    site = console(tmp_path_factory.mktemp("state"), guarded.name_server, needs_users=True)
    with browsing(site) as client:
        assert sign_in(client, ROOT, SECRET).status_code == 200
        for operation, values in (
            ("user-create", {"name": POOR, "password": WORD}),
            ("acl-allow", {"user": POOR, "resource": "Topic:mine", "action": ["all"]}),
        ):
            answer = client.post(f"/cluster/api/{operation}", params={"apply": "true"}, json=values)
            assert answer.status_code == 200, answer.text
        for path in ("/", "/topics", "/topics/secrets", "/topics/secrets/messages"):
            assert client.get(f"/cluster{path}").status_code == 200
        yield client


@pytest.fixture(scope="module")
def poor(root: httpx.Client) -> Iterator[httpx.Client]:
    """Browser of that user at the same console."""
    with httpx.Client(base_url=root.base_url, follow_redirects=True, timeout=30) as client:
        answer = sign_in(client, POOR, WORD)
        assert answer.status_code == 200, answer.text
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/", "/topics", "/groups", "/brokers", "/sql?query=SELECT+body+FROM+secrets", "/find?q=k", "/find?q=secrets",
        "/brokers/broker-a/config", "/topics/secrets", "/topics/secrets/messages", "/topics/secrets/messages?key=k",
        "/do/message-list?topic=secrets", "/dead-letters", "/pending", "/alerts", "/access",
    ],
)  # fmt: skip
def test_nothing_of_others_is_shown(poor: httpx.Client, path: str) -> None:
    answer = poor.get(f"/cluster{path}")
    assert answer.status_code < 500, answer.text[-800:]
    assert BODY not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/topics/secrets", "/topics/secrets/messages", "/brokers/broker-a/config", "/api/message-list?topic=secrets",
        "/api/topic-stats?topic=secrets", "/api/config-get?broker=broker-a", "/do/message-list?topic=secrets",
    ],
)  # fmt: skip
def test_brokers_refuse(poor: httpx.Client, path: str) -> None:
    assert poor.get(f"/cluster{path}").status_code == 403


def test_a_query_reads_no_topic_of_others(root: httpx.Client, poor: httpx.Client) -> None:
    query = {"query": "SELECT body FROM secrets"}
    assert BODY in root.get("/cluster/api/sql", params=query).text
    refused = poor.get("/cluster/api/sql", params=query)
    assert refused.status_code == 403
    assert BODY not in refused.text
    mine = poor.get("/cluster/api/sql", params={"query": "SELECT body FROM mine"})
    assert mine.status_code == 403  # to read messages, a user needs the group of tools, too
    assert "Group:TOOLS_CONSUMER" in mine.json()["error"]


def test_a_change_is_refused(poor: httpx.Client) -> None:
    for operation, values in (
        ("topic-delete", {"topic": "secrets"}),
        ("message-send", {"topic": "secrets", "body": "x"}),
        ("user-create", {"name": "mallory", "password": "mallory of twelve"}),
    ):
        answer = poor.post(f"/cluster/api/{operation}", params={"apply": "true"}, json=values)
        assert answer.status_code in (403, 409), (operation, answer.text)
        assert "permission" in answer.text.lower() or "user" in answer.text.lower(), answer.text
    assert poor.get("/cluster/topics/mine").status_code == 200


@pytest.mark.parametrize("path", ["/topics/secrets", "/topics/secrets/tail", "/topics", "/"])
def test_no_stream_of_another_user_is_shared(root: httpx.Client, poor: httpx.Client, path: str) -> None:
    stream = {"accept": "text/event-stream"}
    with root.stream("GET", f"/cluster{path}", headers=stream) as first:
        lines = first.iter_lines()
        next(lines)
        with poor.stream("GET", f"/cluster{path}", headers=stream) as second:
            text = ""
            for line in second.iter_lines():
                if not line:
                    break
                text += line
    assert BODY not in text
    assert "/topics/secrets" not in text or path.startswith("/topics/secrets")


def test_message_files_are_refused(root: httpx.Client, poor: httpx.Client) -> None:
    rows = root.get("/cluster/api/message-list", params={"topic": "secrets"}).json()
    ids = next(row["offsetMessageId"] for row in rows if "offsetMessageId" in row)
    for path in (f"/topics/secrets/messages/{ids}", f"/messages/{ids}", f"/topics/mine/messages/{ids}"):
        for kind in ("", "/body", "/record"):
            answer = poor.get(f"/cluster{path}{kind}")
            assert BODY not in answer.text, (path, kind)
            assert answer.status_code in (403, 404), (path, kind, answer.status_code)


def test_an_agent_may_do_no_more_than_its_user(
    root: httpx.Client, guarded: BlockingCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ACCESS_KEY, POOR)
    monkeypatch.setenv(SECRET_KEY, WORD)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("topic_stats", {"topic": "secrets"}),
        ("message_list", {"topic": "secrets"}),
        ("message_list", {"topic": "secrets", "key": "k"}),
        ("sql", {"query": "SELECT body FROM secrets"}),
        ("config_get", {"broker": "broker-a"}),
        ("topic_delete", {"topic": "secrets", "apply": True}),
        ("message_send", {"topic": "secrets", "body": "x", "apply": True}),
        ("acl_allow", {"user": POOR, "resource": "Topic:secrets", "action": ["all"], "apply": True}),
    ]

    async def main() -> None:
        async with agent(guarded, tmp_path, "--allow-changes") as session:
            for name, values in refused:
                ok, why = await call(session, name, **values)
                assert not ok, (name, why)
                assert "permission" in why or "No acl config" in why, (name, why)
            _, found = await call(session, "user_list")
            assert found["rows"] == []
            assert "no permission" in found["notes"][0]
            ok, found = await call(session, "topic_stats", topic="mine")
            assert ok, found

    asyncio.run(main())
    log = (tmp_path / "changes.jsonl").read_text()
    assert log.count('"state":"failed"') == 3
    assert WORD not in log
