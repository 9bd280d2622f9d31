"""`firearrow lite` on a broker with lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.client.admin import Admin
from firearrow.testing import EmbeddedCluster
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from tests.cli.shell import Shell
from tests.litesubscriber import subscribed


@pytest.fixture
def lite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Topic ``chat`` with lite topics a (three messages) and b (one), of which client ``c1`` has got some."""
    monkeypatch.chdir(tmp_path)
    with EmbeddedCluster(enableLmq=True, enableMultiDispatch=True) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        broker = cluster.brokers[0].address
        asyncio.run(_prepare(cluster.name_server, broker))
        with subscribed(broker, "chat", "chats", "c1"):
            yield Shell(cluster, capsys)


async def _prepare(name_server: str, broker: str) -> None:
    async with Admin.of([name_server]) as admin:
        await admin.topics.create(broker, TopicConfig("chat", 1, 1, attributes={"+message.type": "LITE"}))
        group = SubscriptionGroupConfig("chats", attributes={"+lite.bind.topic": "chat"})
        await admin.groups.create(broker, group)


def test_lite_topics_are_counted_with_their_quota(lite: Shell) -> None:
    [parent] = lite.rows("lite", "list")
    assert (parent["topic"], parent["liteTopics"], parent["groups"]) == ("chat", 2, "chats")
    [quota] = lite.rows("lite", "quotas")
    assert (quota["liteTopics"], quota["limit"], quota["subscriptions"], quota["state"]) == (2, 20_000, 2, "ok")


def test_a_lite_topic_has_subscribers_and_lag(lite: Shell) -> None:
    [row] = lite.rows("lite", "show", "chat", "a")
    assert (row["messages"], row["group"], row["clientId"]) == (3, "chats", "c1")
    assert {row["liteTopic"] for row in lite.rows("lite", "client", "chat", "chats", "c1")} == {"a", "b"}
    rows = lite.rows("lite", "lag", "chats")
    text = lite.text("lite", "lag", "chats")
    assert f"The whole lag is {sum(row['lag'] for row in rows):,} messages." in text


@pytest.mark.parametrize("words", [["lite", "show", "orders", "a"], ["lite", "lag", "billing"]])
def test_what_has_no_lite_topics_is_refused(words: list[str], shell: Shell) -> None:
    code, said = shell.fails(*words)
    assert code != 0
    assert said.count("127.0.0.1") == 1, "the reason of the broker, once"
