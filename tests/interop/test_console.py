"""The console in Chromium: tasks of an operator, from the first page on, with links and forms alone.

After each task no script has failed, nothing was requested from elsewhere, and the rules of accessibility (axe-core)
find nothing serious.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.client import Message, StartFrom
from firearrow.client.blocking import Producer, PushConsumer, SimpleConsumer
from firearrow.client.pop.popcalls import handle_of
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.openid import Provider, Role, Settings
from tests.console.conftest import served
from tests.console.provider import CLIENT, provider
from tests.interop.servers import SMALL_FILES, Server, serve
from tests.interop.toolchain import browser as browser_files
from tests.net.background import in_thread

OPTIONS = ("--no-sandbox", "--no-zygote", "--headless=shell", "--disable-gpu")
SERIOUS = ("serious", "critical")
expect.set_options(timeout=30_000)
LOCALE = "en-GB"
ALL_PATHS = (
    "/", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/groups/mailer", "/do/topic-create",
    "/sql", "/sign-in", "/brokers", "/name-servers", "/disk", "/replicas", "/lite", "/pending", "/transactions",
    "/dead-letters", "/groups/mailer/dead-letters", "/find", "/send?topic=orders", "/access", "/alerts", "/changes",
)  # fmt: skip
AXE = """async () => (await axe.run({resultTypes: ["violations"]})).violations
    .map(it => [it.impact, it.id, it.nodes[0].html])"""


def command(*words: str, cwd: Path | None = None) -> None:
    """Run a command in a process of its own: Playwright's loop runs in this thread."""
    subprocess.run([sys.executable, "-m", "firearrow", *words], check=True, capture_output=True, cwd=cwd)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium for all tests."""
    files = browser_files()
    libraries = f"{files / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=files / "chromium", args=list(OPTIONS), env={**os.environ, "LD_LIBRARY_PATH": libraries}
        )
        yield started
        started.close()


class Visitor:
    """A person with a browser in front of a console."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        page.on("request", self._requested)
        self.clicks = 0
        page.expose_function("clicked", self._clicked)
        page.add_init_script("addEventListener('click', () => clicked(), true)")

    def _clicked(self) -> None:
        self.clicks += 1

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.faults.append(f"requested from elsewhere: {request.url}")

    def goes(self, *links: str) -> Page:
        """Begin at the first page, and follow links."""
        self.page.goto(self.address)
        self.clicks = 0
        for link in links:
            self.page.get_by_role("link", name=link, exact=True).first.click()
        return self.page

    def check(self) -> None:
        """Assert that the page has no fault."""
        self.page.evaluate((browser_files() / "axe.min.js").read_text())
        found = self.page.evaluate(AXE)
        assert [it for it in found if it[0] in SERIOUS] == []
        assert self.faults == []


@pytest.fixture(scope="module", params=["firearrow", "real"])
def served_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Cluster of Firearrow or RocketMQ: topic ``orders`` with messages, group ``billing``."""
    root = tmp_path_factory.mktemp(request.param)
    keys = {**SMALL_FILES, "enablePropertyFilter": "true"}
    with serve(request.param, root / "store", root / "logs", settings=keys) as server:
        for words in (["topic", "create", "orders", "--queues", "2"], ["group", "create", "billing"]):
            command(*words, "-n", server.namesrv)
        with Producer(server.namesrv, group="shop") as producer:
            for number in range(5):
                producer.send("orders", f'{{"order": {number}}}', tag="paid", key=f"k{number}")
        command("offset", "reset", "billing", "orders", "--to", "earliest", "--apply", "-n", server.namesrv, cwd=root)
        with mailer(server.namesrv):
            yield server


@contextmanager
def mailer(name_server: str) -> Iterator[None]:
    """Consume ``letters`` as a connected client, whose one message fails and is a dead letter at once."""
    for words in (["topic", "create", "letters", "--queues", "1"], ["group", "create", "mailer", "--retries", "0"]):
        command(*words, "-n", name_server)

    def refuse(_: Message) -> None:
        raise ValueError("no such address")

    consumer = PushConsumer(name_server, group="mailer", start=StartFrom.FIRST, max_reconsume_times=0)
    consumer.on("letters")(refuse)
    with consumer:
        with Producer(name_server, group="post", trace=True) as producer:
            producer.send("letters", "to nobody", key="letter-1", properties={"city": "Oslo"})
            producer.send("letters", "later", delay=timedelta(hours=1))
        yield


@pytest.fixture(scope="module")
def console_address(served_cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a console of the cluster."""
    clock = SystemClock()
    clusters = Clusters(ClusterOptions(name_server=served_cluster.namesrv), clock)
    pages = Console(clusters, ChangeLog(tmp_path_factory.mktemp("state"), clock), "key", clock)
    with in_thread(lambda: served(pages)) as address:
        yield address


@pytest.fixture
def visitor(chromium: Browser, console_address: str) -> Iterator[Visitor]:
    """Visitor who has done nothing wrong at the end."""
    with chromium.new_context(locale=LOCALE) as context:
        person = Visitor(context.new_page(), console_address)
        yield person
        person.check()


def test_1_how_the_cluster_is(visitor: Visitor) -> None:
    page = visitor.goes()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("Health")
    expect(page.get_by_role("row").filter(has_text="127.0.0.1:").first).to_be_visible(timeout=90_000)


def test_2_topics_with_rate_and_lag(visitor: Visitor) -> None:
    page = visitor.goes("Topics")
    row = page.get_by_role("row").filter(has_text="orders")
    expect(row).to_contain_text("5", timeout=90_000)


def test_3_a_topic_with_its_queues(visitor: Visitor) -> None:
    page = visitor.goes("Topics", "orders")
    expect(page.get_by_role("heading", name="orders", exact=True)).to_be_visible()
    expect(page.locator("#live")).to_contain_text("Queues")


def test_4_messages_by_filters(visitor: Visitor) -> None:
    page = visitor.goes("Topics")
    page.get_by_role("row").filter(has_text="orders").get_by_role("link").nth(1).click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(5)
    assert visitor.clicks == 2
    page.locator("main [name=containing]").fill('"order": 3')
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    page.locator("main [name=containing]").fill("")
    page.locator("main [name=key]").fill("k2")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("k2")


def test_4_new_messages_appear(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Topics", "letters", "Messages", "Follow new ones")
    sent = page.get_by_role("row").filter(has_text="fresh-one")
    with Producer(served_cluster.namesrv, group="post") as producer:
        for _ in range(30):  # the tail begins with what comes after its start
            producer.send("letters", "hello", key="fresh-one")
            page.wait_for_timeout(300)
            if sent.count():
                break
    expect(sent.first).to_be_visible()


def test_5_and_15_a_message_and_its_way(visitor: Visitor) -> None:
    page = visitor.goes("Topics", "orders", "Messages")
    page.locator("tbody tr a").first.click()
    expect(page.locator("svg.way")).to_be_visible()
    expect(page.locator("pre").first).to_contain_text('"order"')
    page.get_by_role("link", name="Hex").click()
    expect(page.locator("pre").first).to_contain_text("7b 22 6f 72 64 65 72")
    answer = page.request.get(page.get_by_role("link", name="Download the body").evaluate("it => it.href"))
    assert answer.body().startswith(b'{"order"')
    assert answer.headers["content-disposition"].startswith("attachment")


def test_6_a_message_is_sent(visitor: Visitor) -> None:
    page = visitor.goes("Topics", "letters")
    page.locator("main").get_by_role("link", name="Send", exact=True).click()
    page.locator("main [name=body]").fill("<b>from a page</b>")
    page.get_by_role("button", name="Show what would be sent").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    page = visitor.goes("Topics", "letters", "Messages")
    expect(page.get_by_text("<b>from a page</b>").first).to_be_visible()


def test_7_groups_by_lag(visitor: Visitor) -> None:
    page = visitor.goes("Groups")
    row = page.get_by_role("row").filter(has_text="billing")
    expect(row).to_contain_text("5", timeout=90_000)
    page.get_by_role("link", name="lag", exact=True).click()
    expect(page).to_have_url(f"{visitor.address}/cluster/groups?sort=-lag")


def test_8_why_a_group_does_not_consume(visitor: Visitor) -> None:
    page = visitor.goes("Groups", "billing")
    expect(page.locator("#live")).to_contain_text("no client is connected")
    expect(page.locator("#live")).to_contain_text("Start a consumer of this group")


def test_10_offsets_are_moved_and_moved_back(visitor: Visitor) -> None:
    page = visitor.goes("Groups", "billing", "Reset offsets")
    page.locator("main [name=topic]").fill("orders")
    page.locator("main [name=to]").fill("latest")
    expect(page.get_by_text("would be moved").first).to_be_visible()
    visitor.check()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    assert visitor.clicks == 4
    page.get_by_role("link", name="Undo").click()
    page.get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    page.get_by_role("link", name="All changes").click()
    expect(page.get_by_role("row").filter(has_text="offset undo")).to_have_count(1)


def test_17_a_topic_is_made_and_deleted(visitor: Visitor) -> None:
    page = visitor.goes("Topics", "New topic")
    page.locator("main [name=topic]").fill("brand-new")
    page.locator("main [name=queues]").fill("3")
    expect(page.get_by_text("would be made")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    assert visitor.clicks == 3
    page = visitor.goes("Topics", "brand-new", "Delete")
    expect(page.get_by_text("Messages can't be brought back")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("link", name="Undo")).to_be_visible()


def test_23_sql(visitor: Visitor) -> None:
    page = visitor.goes("SQL")
    page.locator("main [name=query]").fill("SELECT sum((body->>'$.order')::int) AS total FROM orders")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("cell", name="10")).to_be_visible()


def test_figures_move_by_themselves(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Topics")
    row = page.get_by_role("row").filter(has_text="moving")
    command("topic", "create", "moving", "--queues", "1", "-n", served_cluster.namesrv)
    expect(row).to_have_count(1, timeout=90_000)


SHAPES: dict[str, tuple[int, Any]] = {"firearrow": (400, "dark"), "real": (2000, "light")}


def test_pages_fit(chromium: Browser, console_address: str, served_cluster: Server) -> None:
    """Pages have the same shape for both kinds of brokers: each kind has one size and one scheme."""
    width, scheme = SHAPES[served_cluster.kind]
    with chromium.new_context(locale=LOCALE, viewport={"width": width, "height": 800}, color_scheme=scheme) as context:
        person = Visitor(context.new_page(), console_address)
        for path in ALL_PATHS:
            person.page.goto(f"{console_address}/cluster{path}")
            person.check()
            assert person.page.evaluate("document.documentElement.scrollWidth") <= width


def test_9_a_client(visitor: Visitor) -> None:
    page = visitor.goes("Groups", "mailer")
    for shown in ("PYTHON", "letters"):
        expect(page.locator("main")).to_contain_text(shown)
    assert visitor.clicks == 2
    page.locator("main a[href*='/clients/']").first.click()
    expect(page.locator("main")).to_contain_text("PYTHON")
    expect(page.locator("main")).to_contain_text("letters")


def test_11_a_dead_letter_is_sent_again(visitor: Visitor) -> None:
    page = visitor.goes("Dead letters", "mailer")
    expect(page.locator("main")).to_contain_text("letters", timeout=90_000)
    page.locator("main tbody input[type=checkbox]").first.check()
    page.get_by_role("button", name="Resend the chosen ones").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("sent", exact=True).first).to_be_visible()
    assert visitor.clicks == 5


@pytest.mark.parametrize(
    ("links", "shown"),
    [
        (["Pending"], "Waiting"),
        (["Transactions"], "No transaction is open."),
        (["Lite topics"], "Quotas"),
        (["Topics", "letters"], "Producers"),
        (["Name servers"], "Registered brokers"),
        (["Replicas"], "Controllers"),
        (["Disk"], "Why a file is not deleted"),
        (["Access"], "This cluster has no access control."),
        (["Alerts"], "Rules"),
        (["Changes"], "Changes"),
        (["Find"], "Find"),
    ],
    ids=["12", "13", "14", "16", "25", "21", "22", "19", "24", "20", "4"],
)
def test_a_page_is_reached_by_links(visitor: Visitor, links: list[str], shown: str) -> None:
    expect(visitor.goes(*links).locator("main")).to_contain_text(shown)


def test_14_a_popped_message_is_invisible_until_its_time(visitor: Visitor, served_cluster: Server) -> None:
    with SimpleConsumer(served_cluster.namesrv, group="cashiers", topics=["orders"], start=StartFrom.FIRST) as consumer:
        [popped] = consumer.receive(1, timedelta(hours=1), wait=10)
        until = datetime.fromtimestamp(handle_of(popped).visible_ms // 1000, UTC)
        page = visitor.goes("Lite topics")
        row = page.get_by_role("row").filter(has_text=f"{until:%Y-%m-%d %H:%M:%S}Z")
        for _ in range(30):  # the original answers a pop before its record is in a queue
            page.get_by_label("Group that pops").fill("cashiers")
            page.get_by_role("button", name="Show its pops").click()
            if row.count():
                break
        expect(row).to_contain_text("orders")
        consumer.ack(popped)


def test_18_configuration_is_changed(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Brokers")
    page.locator("main tbody a").first.click()
    page.get_by_role("link", name="Configuration").click()
    page.locator("main input[type=search]").fill("fileReservedTime")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Change", exact=True).click()
    page.locator("main [name=pairs]").first.fill("fileReservedTime=48")
    expect(page.get_by_text("would be changed")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("cell", name="48").first).to_be_visible()
    assert visitor.clicks <= 6
    page.get_by_role("link", name="Undo").click()
    page.get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()


def test_keys_lead_to_pages(visitor: Visitor) -> None:
    page = visitor.goes()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page).to_have_url(f"{visitor.address}/cluster/topics")
    page.keyboard.press("/")
    page.keyboard.type("letters")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row").filter(has_text="letters")).to_have_count(1)


def test_a_provider_of_another_site_signs_people_in(chromium: Browser, served_cluster: Server, tmp_path: Path) -> None:
    """A session outlives the way over the provider's pages, and a link from there to a page."""
    clock = SystemClock()
    clusters = Clusters(ClusterOptions(name_server=served_cluster.namesrv), clock, needs_users=True)
    with provider(claims={"preferred_username": "nina", "groups": ["staff"]}, asks=True) as fake:
        settings = Settings(fake.issuer, CLIENT, roles=(Role("staff", read_only=True),))
        asked = Provider(settings, clusters.names)
        pages = Console(clusters, ChangeLog(tmp_path, clock), "key", clock, provider=asked)
        with in_thread(lambda: served(pages)) as address, chromium.new_context(locale=LOCALE) as context:
            page = context.new_page()
            page.goto(f"{address}/cluster/topics")
            page.get_by_role("link", name="Sign in with localhost").click()
            page.get_by_role("link", name="Go on").click()
            expect(page).to_have_url(f"{address}/cluster/topics")
            expect(page.get_by_role("button", name="nina · sign out")).to_be_visible()
            person = Visitor(page, address)
            person.check()
            page.goto(f"{fake.issuer}/link?{urlencode({'to': f'{address}/cluster/groups'})}")
            page.get_by_role("link", name="Go on").click()
            expect(page).to_have_url(f"{address}/cluster/groups")
