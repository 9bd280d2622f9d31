"""Several clusters, by the contexts of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from firearrow.cli.cluster.contexts import Context, Contexts, save_contexts
from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.errors import ConfigError
from firearrow.testing import BlockingCluster
from tests.console.conftest import browsing


@pytest.fixture
def contexts(cluster: BlockingCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three contexts: two of the same cluster, one of them with a user, and one of a cluster that is gone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SECRET", "of twelve characters")
    plain = Context(name_servers=cluster.name_server)
    guarded = Context(name_servers=cluster.name_server, access_key="nina", secret_env="SECRET")
    save_contexts(Contexts("plain", {"plain": plain, "guarded": guarded, "gone": Context(name_servers="127.0.0.1:1")}))


@pytest.fixture
def browser(contexts: None, tmp_path: Path) -> Iterator[httpx.Client]:
    clock = SystemClock()
    with browsing(Console(Clusters(ClusterOptions(), clock), ChangeLog(tmp_path, clock), "key", clock)) as client:
        yield client


def test_each_context_is_a_cluster(browser: httpx.Client) -> None:
    first = browser.get("/")
    assert first.url.path == "/plain/"
    for name in ("plain", "guarded", "gone"):
        assert f'<a href="/{name}/"' in first.text
    assert "orders" in browser.get("/plain/topics").text


def test_a_context_with_a_user_acts_for_nobody_without_the_password(browser: httpx.Client) -> None:
    assert browser.get("/guarded/topics").url.path == "/guarded/sign-in"
    assert browser.get("/guarded/api/topic-list").status_code == 401


def test_a_cluster_that_is_gone_is_a_sentence(browser: httpx.Client) -> None:
    answer = browser.get("/gone/topics")
    assert answer.status_code == 502
    assert "127.0.0.1:1" in answer.text
    assert browser.get("/gone/").status_code == 200
    assert browser.get("/plain/topics").status_code == 200


@pytest.mark.usefixtures("contexts")
def test_an_unknown_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no context 'nowhere'"):
        Clusters(ClusterOptions(context="nowhere"), SystemClock())
