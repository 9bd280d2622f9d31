"""The console in Chromium: tasks of an operator, from the first page on, with links and forms alone.

After each task no script has failed, nothing was requested from elsewhere, and the rules of accessibility (axe-core)
find nothing serious.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from firearrow.cli.cluster.contexts import Context, Contexts, save_contexts
from firearrow.cli.cluster.options import ClusterOptions
from firearrow.client import Decision, Message, StartFrom
from firearrow.client.blocking import Producer, PushConsumer, SimpleConsumer
from firearrow.client.pop.popcalls import handle_of
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.openid import Provider, Role, Settings
from firearrow.console.webhook import Webhook
from firearrow.message.names import TIMER_TOPIC
from firearrow.message.properties import TIMER_DELETE_UNIQUE_KEY
from firearrow.testing import EmbeddedCluster
from tests.console.conftest import served
from tests.console.provider import CLIENT, provider
from tests.console.webhooks import Hook, webhook
from tests.interop.servers import SMALL_FILES, Server, serve
from tests.interop.visitors import LOCALE, Visitor, command, rows, started_chromium, visiting
from tests.net.background import in_thread

KEYS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": "1000",  # a transaction is parked after one check
    "transactionTimeOut": "1000",
    "transactionCheckMax": "1",
}
ALL_PATHS = (
    "/", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/groups/mailer", "/do/topic-create",
    "/sql", "/sign-in", "/brokers", "/name-servers", "/disk", "/replicas", "/lite", "/pending", "/transactions",
    "/dead-letters", "/groups/mailer/dead-letters", "/find", "/send?topic=orders", "/access", "/alerts", "/changes",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium for all tests."""
    with started_chromium() as started:
        yield started


@pytest.fixture(scope="module", params=["firearrow", "real"])
def served_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Cluster of Firearrow or RocketMQ: topic ``orders`` with messages, group ``billing``."""
    root = tmp_path_factory.mktemp(request.param)
    keys = {**SMALL_FILES, **KEYS}
    with serve(request.param, root / "store", root / "logs", settings=keys) as server:
        for words in (["topic", "create", "orders", "--queues", "2"], ["group", "create", "billing"]):
            command(*words, "-n", server.namesrv)
        with Producer(server.namesrv, group="shop") as producer:
            for number in range(5):
                producer.send("orders", f'{{"order": {number}}}', tag="paid", key=f"k{number}")
        command("offset", "reset", "billing", "orders", "--to", "earliest", "--apply", "-n", server.namesrv, cwd=root)
        with mailer(server.namesrv):
            yield server


def eventually(page: Page, button: str, row: Locator) -> None:
    """Ask a page for its rows again until one is there."""
    for _ in range(100):
        page.get_by_role("button", name=button, exact=True).click()
        if row.count():
            return
        page.wait_for_timeout(300)
    expect(row).to_have_count(1)


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
def hook() -> Iterator[Hook]:
    """A webhook, and what is posted to it."""
    with webhook() as running:
        yield running


@pytest.fixture(scope="module")
def console_address(served_cluster: Server, hook: Hook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a console of the cluster."""
    clock, state = SystemClock(), tmp_path_factory.mktemp("state")
    options = ClusterOptions(name_server=served_cluster.namesrv)
    clusters = Clusters(options, clock, webhook=Webhook(hook.address, clock), state=state)
    pages = Console(clusters, ChangeLog(state, clock), "key", clock)
    with in_thread(lambda: served(pages)) as address:
        yield address


@pytest.fixture
def visitor(chromium: Browser, console_address: str) -> Iterator[Visitor]:
    """Visitor who has done nothing wrong at the end."""
    with visiting(chromium, console_address) as person:
        yield person


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


def test_17_a_topic_is_made_and_deleted(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Topics", "New topic")
    page.locator("main [name=topic]").fill("brand-new")
    page.locator("main [name=queues]").fill("3")
    expect(page.get_by_text("would be made")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    assert visitor.clicks == 3
    page.get_by_role("link", name="Undo").click()
    expect(page.locator("#outcome")).to_contain_text("would be deleted")
    page.get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    known = rows("topic", "list", "-n", served_cluster.namesrv)
    assert "brand-new" not in {it["topic"] for it in known}
    command("topic", "create", "brand-new", "-n", served_cluster.namesrv)
    page = visitor.goes("Topics", "brand-new", "Delete")
    expect(page.get_by_text("Messages can't be brought back")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("link", name="Undo")).to_be_visible()


def test_23_sql(visitor: Visitor) -> None:
    page = visitor.goes("SQL")
    page.locator("main [name=query]").fill("SELECT sum((body->>'$.order')::int) AS total FROM orders")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("cell", name="10")).to_be_visible()


def test_23_values_are_as_the_query_made_them(visitor: Visitor) -> None:
    page = visitor.goes("SQL")
    page.locator("main [name=query]").fill("""SELECT 0.0625::double AS share, 1 AS a, 2 AS a, 'x' AS "clientId" """)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("tbody td")).to_have_text(["0.0625", "1", "2", "x"])


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


def test_9_a_client(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Groups", "mailer")
    for shown in ("PYTHON", "letters"):
        expect(page.locator("main")).to_contain_text(shown)
    assert visitor.clicks == 2
    page.locator("main a[href*='/clients/']").first.click()
    expect(page.locator("main")).to_contain_text("PYTHON")
    expect(page.locator("main")).to_contain_text("letters")
    page.get_by_role("link", name="Stacks of its threads").click()
    expect(page.locator("pre")).to_contain_text("MainThread")
    visitor.check()
    [letter] = rows("message", "list", "letters", "--key", "letter-1", "-n", served_cluster.namesrv)
    page.get_by_label("Message for this client").fill(letter["messageId"])
    page.get_by_role("button", name="Consume it").click()
    expect(page.locator("#outcome")).to_contain_text("would be consumed")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#outcome")).to_contain_text("no such address")


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
        (["Transactions"], "No transaction is open."),
        (["Lite topics"], "Quotas"),
        (["Replicas"], "A master that fails is replaced by nobody"),
        (["Access"], "This cluster has no access control."),
    ],
    ids=["13", "14", "21", "19"],
)
def test_a_page_is_reached_by_links(visitor: Visitor, links: list[str], shown: str) -> None:
    expect(visitor.goes(*links).locator("main")).to_contain_text(shown)


def test_4_a_message_is_found_by_its_key(visitor: Visitor) -> None:
    page = visitor.goes("Find")
    page.locator("main [name=topic]").fill("orders")
    page.locator("main [name=key]").fill("k3")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("row").filter(has_text="k3").get_by_role("link").first.click()
    expect(page.locator("pre").first).to_contain_text('"order": 3')


def test_12_a_timed_message_is_recalled(visitor: Visitor, served_cluster: Server) -> None:
    with Producer(served_cluster.namesrv, group="post") as producer:
        sent = producer.send("letters", "in haste", delay=timedelta(hours=2))
    page = visitor.goes("Pending")
    row = page.get_by_role("row").filter(has_text="in haste")
    row.get_by_role("link", name="Recall").click()
    visitor.applies("would be recalled")
    expect(page.get_by_role("cell", name="recalled", exact=True)).to_be_visible()
    assert visitor.clicks == 3
    page = visitor.goes("Pending")
    expect(page.get_by_role("row").filter(has_text="later")).to_have_count(1)
    expect(row).to_have_count(0)
    kept = rows("message", "cat", TIMER_TOPIC, "-n", served_cluster.namesrv)
    recalled = [it["properties"].get(TIMER_DELETE_UNIQUE_KEY) for it in kept]
    assert [*filter(None, recalled)] == [sent.message_id]


def test_13_a_parked_transaction_is_checked_again(visitor: Visitor, served_cluster: Server) -> None:
    is_decided = Event()
    command("topic", "create", "payments", "--queues", "1", "-n", served_cluster.namesrv)

    def check(_: Message) -> Decision:
        return Decision.COMMIT if is_decided.is_set() else Decision.UNKNOWN

    with Producer(served_cluster.namesrv, group="till", check=check) as producer:
        with producer.transaction("payments", "ten euros") as transaction:
            transaction.leave_open()
        page = visitor.goes("Transactions")
        parked = page.get_by_role("row").filter(has_text="ten euros").filter(has_text="parked")
        eventually(page, "Show", parked)
        is_decided.set()
        parked.get_by_role("checkbox").check()
        page.get_by_role("button", name="Check the chosen ones again").click()
        visitor.applies("would be checked")
        expect(page.get_by_role("cell", name="checked again")).to_be_visible()
        page = visitor.goes("Topics", "payments", "Messages")
        eventually(page, "Show", page.get_by_role("row").filter(has_text="ten euros"))


def test_16_producers_of_a_topic(visitor: Visitor, served_cluster: Server) -> None:
    with Producer(served_cluster.namesrv, group="editors") as producer:
        producer.send("letters", "from an editor")
        page = visitor.goes("Topics", "letters")
        row = page.get_by_role("row").filter(has_text="editors")
        expect(row).to_contain_text("PYTHON", timeout=90_000)
        assert visitor.clicks == 2
        page.get_by_role("link", name="All producers").click()
        expect(row).to_contain_text("PYTHON")


def test_20_the_log_of_changes(visitor: Visitor, served_cluster: Server) -> None:
    command("topic", "create", "logged", "--queues", "1", "-n", served_cluster.namesrv)
    page = visitor.goes("Topics", "New topic")
    page.locator("main [name=topic]").fill("logged")
    page.locator("main [name=queues]").fill("3")
    visitor.applies("would be changed")
    page = visitor.goes("Changes")
    made = page.get_by_role("row").filter(has_text="topic=logged")
    for shown in ("local", "topic create", "done"):
        expect(made).to_contain_text(shown)
    assert visitor.clicks == 1
    made.get_by_role("link").last.click()
    page.get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible()
    page = visitor.goes("Changes")
    expect(page.get_by_role("row").filter(has_text="topic undo").first).to_contain_text("done")
    assert [it["writeQueues"] for it in rows("topic", "show", "logged", "-n", served_cluster.namesrv)] == [1]


def test_22_use_of_the_disk(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Disk")
    of_broker = page.locator("section").filter(
        has=page.get_by_role("heading", name=f"broker-a, {served_cluster.broker}")
    )
    expect(of_broker).to_contain_text("the last one always stays")
    expect(page.locator("section").first.get_by_role("row").filter(has_text="broker-a")).to_contain_text("%")
    of_broker.get_by_role("link", name="time that messages are kept").click()
    expect(page.get_by_role("row").filter(has_text="fileReservedTime")).to_contain_text("hours")


def test_24_a_rule_is_made_and_silenced(visitor: Visitor, hook: Hook) -> None:
    page = visitor.goes("Alerts")

    def limit_brokers(count: str) -> None:
        page.get_by_role("row").filter(has=page.get_by_role("cell", name="brokers", exact=True)).get_by_role(
            "link", name="Change"
        ).click()
        page.get_by_label("Number of brokers").fill(count)
        page.get_by_role("button", name="Change it").click()

    limit_brokers("9")
    finding = page.get_by_role("row").filter(has_text="of 9 brokers, 1 is registered")
    expect(finding).to_contain_text("announced")
    posted = hook.next_of("brokers")
    assert (posted["change"], posted["level"]) == ("began", "critical")
    finding.get_by_role("link", name="Silence").click()
    page.get_by_label("For").select_option("8 hours")
    page.get_by_label("Reason").fill("<b>eight more come today</b>")
    page.get_by_role("button", name="Silence it").click()
    expect(finding).to_contain_text("silenced")
    expect(page.get_by_role("row").filter(has_text="<b>eight more come today</b>")).to_have_count(1)
    visitor.check()
    page.get_by_role("button", name="End the silence of brokers, cluster").click()
    expect(page.get_by_text("No finding is silenced.")).to_be_visible()
    limit_brokers("1")
    expect(finding).to_have_count(0)
    assert hook.next_of("brokers")["change"] == "ended"


def test_25_name_servers(visitor: Visitor, served_cluster: Server) -> None:
    page = visitor.goes("Name servers")
    expect(page.get_by_role("row").filter(has_text=served_cluster.namesrv).first).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=served_cluster.broker)).to_contain_text("broker-a")


def test_25_another_cluster_and_a_link_to_share(
    chromium: Browser, served_cluster: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    clock = SystemClock()
    with EmbeddedCluster() as other:
        other.create_topic("elsewhere-1")
        other.create_topic("elsewhere-2")
        names = {"here": served_cluster.namesrv, "there": other.name_server}
        save_contexts(Contexts("here", {name: Context(name_servers=server) for name, server in names.items()}))
        pages = Console(Clusters(ClusterOptions(), clock), ChangeLog(tmp_path, clock), "key", clock)
        with in_thread(lambda: served(pages)) as address:
            with visiting(chromium, address) as visitor:
                page = visitor.goes("there")
                expect(page).to_have_url(f"{address}/there/")
                assert visitor.clicks == 1
                page.get_by_role("link", name="Topics", exact=True).click()
                page.locator("main input[type=search]").fill("else 2")
                page.keyboard.press("Enter")
                expect(page.locator("tbody tr")).to_have_count(1)
                link = page.url
            with visiting(chromium, address) as friend:
                friend.page.goto(link)
                expect(friend.page.locator("tbody tr")).to_have_count(1)
                expect(friend.page.locator("tbody tr")).to_contain_text("elsewhere-2")


def test_14_a_popped_message_is_invisible_until_its_time(visitor: Visitor, served_cluster: Server) -> None:
    with SimpleConsumer(served_cluster.namesrv, group="cashiers", topics=["orders"], start=StartFrom.FIRST) as consumer:
        [popped] = consumer.receive(1, timedelta(hours=1), wait=10)
        until = datetime.fromtimestamp(handle_of(popped).visible_ms // 1000, UTC)
        page = visitor.goes("Lite topics")
        row = page.get_by_role("row").filter(has_text=f"{until:%Y-%m-%d %H:%M:%S}Z")
        page.get_by_label("Group that pops").fill("cashiers")
        eventually(page, "Show its pops", row)  # the original answers a pop before its record is in a queue
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
