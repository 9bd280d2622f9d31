"""The page about users and rules, of a cluster with access control and of one without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.operations import OPERATIONS, fields_of
from firearrow.testing import EmbeddedCluster
from tests.cli.cluster.test_access import KEYS
from tests.console.conftest import browsing, sign_in


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[httpx.Client]:
    """Browser of a super user of a cluster with access control."""
    clock = SystemClock()
    with EmbeddedCluster(config=KEYS) as cluster:
        clusters = Clusters(ClusterOptions(name_server=cluster.name_server), clock)
        with browsing(Console(clusters, ChangeLog(tmp_path, clock), "key", clock)) as client:
            sign_in(client, "root", "the secret of root")
            yield client


def test_users_are_shown_without_their_secrets(guarded: httpx.Client) -> None:
    text = guarded.get("/cluster/access").text
    assert "<td>root</td>" in text
    assert "/cluster/do/acl-allow?user=root" in text
    assert "secret of" not in text


def test_a_question_is_answered_in_words(guarded: httpx.Client) -> None:
    asked = {"user": "root", "action": "pub", "kind": "Topic", "name": "orders", "from": "10.0.0.1"}
    text = guarded.get("/cluster/access", params=asked).text
    assert "root may publish to Topic:orders from 10.0.0.1: it is a super user" in " ".join(text.split())
    text = guarded.get("/cluster/access", params=asked | {"user": "<b>"}).text
    assert "may not publish to" in text
    assert "<b>" not in text
    text = guarded.get("/cluster/access", params=asked | {"name": "ord*"}).text
    assert "is not one resource" in text


def test_a_cluster_without_access_control_says_so(browser: httpx.Client) -> None:
    text = browser.get("/cluster/access").text
    assert "This cluster has no access control." in text
    assert "user-create" not in text


def test_a_secret_is_a_field_of_its_own_kind() -> None:
    fields = {field.name: field.kind for field in fields_of(OPERATIONS["user-create"])}
    assert fields["password"] == "password"
    assert "password_file" not in fields
