"""The console in Chromium in front of a cluster with access control: users, what they may do, and who was refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from firearrow.cli.cluster.options import ACCESS_KEY, SECRET_KEY, ClusterOptions
from firearrow.client.blocking import Producer
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from tests.console.conftest import served
from tests.interop.servers import AUTHORIZED, ROOT, Server, serve
from tests.interop.visitors import Visitor, command, rows, started_chromium, visiting
from tests.net.background import in_thread

SECRET = "the secret of nina"
AS_ROOT = {ACCESS_KEY: ROOT.access_key, SECRET_KEY: ROOT.secret_key}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium for all tests."""
    with started_chromium() as started:
        yield started


@pytest.fixture(scope="module", params=["firearrow", "real"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Cluster with one user, and a message in each of the topics ``orders`` and ``letters``."""
    root = tmp_path_factory.mktemp(request.param)
    with serve(request.param, root / "store", root / "logs", settings=AUTHORIZED) as server:
        for topic in ("orders", "letters"):
            command("topic", "create", topic, "--queues", "1", "-n", server.namesrv, environment=AS_ROOT)
            with Producer(server.namesrv, group="shop", credentials=ROOT) as producer:
                producer.send(topic, f"one of the {topic}")
        yield server


@pytest.fixture
def visitor(chromium: Browser, guarded: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """Visitor of a console that needs a sign-in."""
    clock, state = SystemClock(), tmp_path_factory.mktemp("state")
    clusters = Clusters(ClusterOptions(name_server=guarded.namesrv), clock, needs_users=True)
    pages = Console(clusters, ChangeLog(state, clock), "key", clock)
    with in_thread(lambda: served(pages)) as address, visiting(chromium, address) as person:
        yield person


def sign_in(page: Page, user: str, password: str) -> None:
    """Fill in the form of the sign-in."""
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.locator("main").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name=f"{user} · sign out")).to_be_visible()


def allow(visitor: Visitor, resource: str, *verbs: str) -> None:
    """Give nina rights, from her row in the table of users."""
    page = visitor.goes("Access")
    page.get_by_role("row").filter(has_text="nina").first.get_by_role("link", name="Allow").click()
    page.locator("main [name=resource]").fill(resource)
    for verb in verbs:
        page.get_by_role("checkbox", name=verb, exact=True).check()
    visitor.applies(f"Allow {', '.join(verb.capitalize() for verb in verbs)} on {resource}")


def answer(visitor: Visitor, user: str, topic: str) -> str:
    """Ask on the page if a user may read a topic."""
    page = visitor.goes("Access")
    question = page.get_by_role("form", name="May this user do that?")
    question.get_by_label("User").fill(user)
    question.get_by_label("wants to").select_option("subscribe to")
    question.get_by_label("named").fill(topic)
    question.get_by_role("button", name="Ask").click()
    return page.locator("p.answer").inner_text()


def test_19_and_20_a_user_with_rights(visitor: Visitor, guarded: Server) -> None:
    page = visitor.goes()
    sign_in(page, ROOT.access_key, ROOT.secret_key)
    page = visitor.goes("Access", "New user")
    page.locator("main [name=name]").fill("nina")
    page.locator("main [name=password]").first.fill(SECRET)
    expect(page.locator("#outcome")).to_contain_text("user is created")
    page.get_by_label("Password, once more").fill(SECRET)
    visitor.applies("user is created")
    of_nina = [it for it in rows("user", "list", "-n", guarded.namesrv, environment=AS_ROOT) if it["user"] == "nina"]
    assert [(it["isSuper"], it["isEnabled"]) for it in of_nina] == [(False, True)]
    assert "nina may not subscribe to Topic:orders" in answer(visitor, "nina", "orders")
    allow(visitor, "Topic:orders", "sub", "get")
    allow(visitor, "Group:TOOLS_CONSUMER", "sub")
    assert "nina may subscribe to Topic:orders" in answer(visitor, "nina", "orders")
    assert "nina may not subscribe to Topic:letters" in answer(visitor, "nina", "letters")
    page.get_by_role("button", name=f"{ROOT.access_key} · sign out").click()

    sign_in(page, "nina", SECRET)
    page.get_by_label("Topic, group, message id or key").fill("orders")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Messages", exact=True).click()
    expect(page.get_by_text("one of the orders")).to_be_visible()
    visitor.check()
    with page.context.new_page() as other:
        other.goto(f"{visitor.address}/cluster/topics/letters/messages")
        expect(other.locator("main")).to_contain_text("Your user may not see or do this.")
    page.get_by_role("link", name="Send", exact=True).last.click()
    page.locator("main [name=body]").fill("one that is forged")
    page.get_by_role("button", name="Show what would be sent").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("nina has no permission")
    visitor.check()

    page = visitor.goes("Changes")
    for shown in (
        ("nina", "message send", "failed", "no permission"),
        ("nina", "sign in", "done"),
        (ROOT.access_key, "user create", "password=(hidden)", "done"),
        (ROOT.access_key, "acl allow", "resource=Topic:orders", "done"),
    ):
        row = page.get_by_role("row")
        for text in shown:
            row = row.filter(has_text=text)
        expect(row).to_have_count(1)
    expect(page.locator("main")).not_to_contain_text(SECRET)
