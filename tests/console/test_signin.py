"""Sign-in: users of the brokers' access control, whose rights decide what pages show and allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.console.conftest import browsing, sign_in

ROOT, SECRET = "tester", "a secret of twelve"
USERS: dict[str, str | bool] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": f'{{"username":"{ROOT}","password":"{SECRET}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{ROOT}","secretKey":"{SECRET}"}}',
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[BlockingCluster]:
    """Cluster whose brokers know one user."""
    with EmbeddedCluster(config=USERS) as running:
        yield running


def console(directory: Path, name_server: str, *, needs_users: bool, read_only: bool = False) -> Console:
    clock = SystemClock()
    clusters = Clusters(ClusterOptions(name_server=name_server), clock, needs_users=needs_users)
    return Console(clusters, ChangeLog(directory, clock), "key", clock, read_only=read_only)


@pytest.fixture
def visitor(guarded: BlockingCluster, tmp_path: Path) -> Iterator[httpx.Client]:
    """Browser of a console on another address than this machine's own."""
    with browsing(console(tmp_path, guarded.name_server, needs_users=True)) as client:
        yield client


def test_nothing_is_shown_before_the_sign_in(visitor: httpx.Client) -> None:
    assert visitor.get("/cluster/brokers-of-others").url.path == "/cluster/brokers-of-others"
    assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"
    assert visitor.get("/cluster/topics?q=a&sort=lag").url.params["next"] == "/cluster/topics?q=a&sort=lag"
    stream = visitor.get("/cluster/topics", headers={"accept": "text/event-stream"})
    assert stream.url.path == "/cluster/sign-in"
    assert visitor.get("/cluster/api/topic-list").status_code == 401


def test_a_user_signs_in_and_out(visitor: httpx.Client, tmp_path: Path) -> None:
    before = sign_in(visitor, ROOT, "another secret")
    assert before.status_code == 403
    assert "do not know user" in before.text
    assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"
    done = sign_in(visitor, ROOT, SECRET, "/cluster/topics?q=a")
    assert (done.status_code, done.url.raw_path) == (200, b"/cluster/topics?q=a")
    assert f"{ROOT} · sign out" in done.text
    token = re.search(r'name="csrf" value="(\w+)"', done.text)
    assert token is not None
    created = visitor.post("/cluster/do/topic-create", data={"topic": "mine", "step": "apply", "csrf": token[1]})
    assert created.status_code == 200
    visitor.post("/cluster/sign-out", data={"csrf": token[1]})
    assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"
    log = (tmp_path / "changes.jsonl").read_text()
    assert f'"user":"{ROOT}","cluster":"cluster","operation":"topic create"' in log
    assert SECRET not in log
    assert "another secret" not in log


def test_the_page_after_a_sign_in_is_one_of_this_console(visitor: httpx.Client) -> None:
    assert sign_in(visitor, ROOT, SECRET, "//elsewhere.test/").url.path == "/cluster/"


def test_a_session_from_before_the_sign_in_is_not_that_of_the_user(visitor: httpx.Client) -> None:
    visitor.get("/cluster/sign-in")
    known = dict(visitor.cookies)
    sign_in(visitor, ROOT, SECRET)
    with httpx.Client(base_url=visitor.base_url, cookies=known, follow_redirects=True, timeout=30) as other:
        assert other.get("/cluster/topics").url.path == "/cluster/sign-in"


def test_brokers_refuse_whom_nobody_has_signed_in(guarded: BlockingCluster, tmp_path: Path) -> None:
    with browsing(console(tmp_path, guarded.name_server, needs_users=False)) as client:
        answer = client.get("/cluster/topics/mine")
        assert answer.status_code == 403


def test_without_access_control_no_password_can_be_checked(cluster: BlockingCluster, tmp_path: Path) -> None:
    with browsing(console(tmp_path, cluster.name_server, needs_users=True)) as client:
        answer = sign_in(client, "anybody", "anything")
        assert answer.status_code == 403
        assert "has no access control" in answer.text


def test_a_console_that_only_shows_changes_nothing(cluster: BlockingCluster, tmp_path: Path) -> None:
    with browsing(console(tmp_path, cluster.name_server, needs_users=False, read_only=True)) as client:
        page = client.get("/cluster/do/topic-create?topic=t")
        assert "would be made" not in page.text
        token = re.search(r'name="csrf" value="(\w+)"', page.text)
        assert token is not None
        given = {"topic": "never", "step": "apply", "csrf": token[1]}
        assert client.post("/cluster/do/topic-create", data=given).status_code == 403
        answer = client.post("/cluster/api/topic-create", params={"apply": "true"}, json={"topic": "never"})
        assert answer.status_code == 403
        assert "only shows" in answer.json()["error"]
        assert client.get("/cluster/topics/never").status_code == 404
