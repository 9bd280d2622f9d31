"""Alerts: limits, silences, announcements, and their deliveries to a webhook."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.client import BadStatusLine
from pathlib import Path
from typing import Any

import httpx
import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.client.diagnosis.checks import Thresholds
from firearrow.client.diagnosis.findings import Finding, Level, Threshold
from firearrow.clock import SystemClock
from firearrow.console.alerts import Alerts, Announcement, FindingKey, Silence
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.webhook import RefusedByWebhook, Webhook
from firearrow.errors import ConfigError
from firearrow.testing import BlockingCluster
from tests.console.conftest import browsing, token
from tests.console.webhooks import Hook, webhook

FULL = Finding("disk", Level.WARNING, "a", "80 % of the disk are used")
FULLER = Finding("disk", Level.CRITICAL, "a", "90 % of the disk are used")
LATE = Finding("lag", Level.WARNING, "g", "late")
UNKNOWN = Finding("asked", Level.UNKNOWN, "cluster", "no answer")


def changes(news: list[Announcement]) -> list[tuple[str, str]]:
    return [(it.change, it.finding.subject) for it in news]


# --- What is announced ---


def test_each_change_is_announced_once() -> None:
    alerts = Alerts()
    assert changes(alerts.look([FULL], 1)) == [("began", "a")]
    assert changes(alerts.look([FULL._replace(evidence="81 %")], 2)) == []
    [changed] = alerts.look([FULLER], 3)
    assert (changed.change, changed.before) == ("changed", Level.WARNING)
    [ended] = alerts.look([], 4)
    assert (ended.change, ended.before, ended.finding.level) == ("ended", Level.CRITICAL, Level.OK)
    assert alerts.look([], 5) == []


def test_what_can_not_be_seen_is_not_over() -> None:
    alerts = Alerts()
    alerts.look([FULL], 1)
    assert changes(alerts.look([UNKNOWN], 2)) == [("began", "cluster")]
    assert changes(alerts.look([FULL], 3)) == [("ended", "cluster")]


def test_a_silenced_finding_is_announced_when_the_silence_is_over() -> None:
    alerts = Alerts()
    alerts.silence(Silence("disk", "a", 10, "a new disk comes"))
    assert changes(alerts.look([FULL, LATE], 1)) == [("began", "g")]
    assert changes(alerts.look([FULL, LATE], 10)) == [("began", "a")]
    assert alerts.silences == {}
    alerts.silence(Silence("disk", "a", 20, "again"))
    alerts.end_silence(FindingKey("disk", "a"))
    assert changes(alerts.look([FULLER, LATE], 11)) == [("changed", "a")]
    assert alerts.since_ms(FULLER) == 1


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"
    alerts = Alerts(path)
    alerts.set_limit("disk_percent", "50:60")
    alerts.set_limit("brokers", "3")
    alerts.silence(Silence("lag", "g", 100, "known"))
    assert changes(alerts.look([FULL, LATE], 1)) == [("began", "a")]
    again = Alerts(path)
    assert again.limits == Thresholds(disk_percent=Threshold(50, 60), brokers=3)
    assert again.look([FULL, LATE], 2) == []
    assert changes(again.look([], 3)) == [("ended", "a")]
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"alerts\.json has no alerts"):
        Alerts(path)


@pytest.mark.parametrize(
    ("name", "text"), [("gone", "1:2"), ("disk_percent", "x"), ("disk_percent", "9:5"), ("brokers", "-1")]
)
def test_wrong_limits_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError):
        Alerts().set_limit(name, text)


def test_a_silence_needs_a_reason() -> None:
    with pytest.raises(ConfigError, match="reason"):
        Alerts().silence(Silence("disk", "a", 10, " "))


# --- Deliveries ---

NEWS = Announcement("began", FULL, None)


def delivered(send: Any, pauses: tuple[float, ...] = (0, 0)) -> Webhook:
    webhook = Webhook("https://alerts.example/secret", SystemClock(), pauses, send)
    asyncio.run(webhook.deliver("cluster", NEWS))
    return webhook


def test_a_delivery_is_tried_again_and_then_given_up() -> None:
    bodies: list[bytes] = []

    def fails(_: str, body: bytes) -> None:
        bodies.append(body)
        raise ConnectionError("https://alerts.example/secret: no answer")

    [delivery] = delivered(fails).deliveries
    assert (delivery.state, delivery.tries, len(bodies)) == ("failed", 3, 3)
    assert delivery.reason == "alerts.example: no answer", "the address may have a secret"
    [alert] = json.loads(bodies[0])["alerts"]
    assert (alert["change"], alert["rule"], alert["level"], alert["before"]) == ("began", "disk", "warning", None)


def test_a_refusal_is_final() -> None:
    def refuses(_: str, __: bytes) -> None:
        raise RefusedByWebhook("answered 404")

    [delivery] = delivered(refuses).deliveries
    assert (delivery.state, delivery.tries, delivery.reason) == ("failed", 1, "answered 404")


def test_an_answer_that_is_no_http_is_a_failure() -> None:
    def garbage(_: str, __: bytes) -> None:
        raise BadStatusLine("garbage")

    [delivery] = delivered(garbage).deliveries
    assert (delivery.state, delivery.tries, delivery.reason) == ("failed", 3, "garbage")


def test_too_many_news_are_given_up() -> None:
    webhook = Webhook("https://alerts.example/", SystemClock())
    webhook.announce("cluster", [NEWS] * 1001)
    [delivery] = webhook.deliveries
    assert (delivery.state, delivery.tries) == ("failed", 0)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "alerts.example", "http://", "ftp://a/b", "http://a:b@c/"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--webhook"):
        Webhook(url, SystemClock())


# --- The page ---


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A webhook, and what is posted to it."""
    with webhook() as running:
        yield running


@pytest.fixture
def watched(cluster: BlockingCluster, hook: Hook, tmp_path: Path) -> Iterator[httpx.Client]:
    """Client of a console with a webhook and a state directory."""
    clock = SystemClock()
    options = ClusterOptions(name_server=cluster.name_server)
    clusters = Clusters(options, clock, webhook=Webhook(hook.address, clock), state=tmp_path)
    with browsing(Console(clusters, ChangeLog(tmp_path, clock), "key", clock)) as client:
        yield client


def test_a_limit_is_changed_and_the_finding_is_delivered(watched: httpx.Client, hook: Hook, tmp_path: Path) -> None:
    answer = watched.post("/cluster/alerts", data={"limit": "brokers", "value": "9"} | {"csrf": token(watched)})
    assert "of 9 brokers, 1 is registered" in answer.text
    posted = hook.next_of("brokers")
    assert (posted["cluster"], posted["change"], posted["level"]) == ("cluster", "began", "critical")
    assert json.loads((tmp_path / "alerts-cluster.json").read_text())["limits"] == {"brokers": "9"}
    form = watched.get("/cluster/alerts", params={"rule": "brokers", "subject": "cluster"}).text
    assert "Silence brokers of cluster" in form
    silence = {"rule": "brokers", "subject": "cluster", "hours": "8", "reason": "<b>more come</b>"}
    text = watched.post("/cluster/alerts", data=silence | {"csrf": token(watched)}).text
    assert "&lt;b&gt;more come" in text
    assert "End the silence of brokers, cluster" in text
    end = {"end": "yes", "rule": "brokers", "subject": "cluster", "csrf": token(watched)}
    text = watched.post("/cluster/alerts", data=end).text
    assert "No finding is silenced" in text


def test_a_form_of_another_site_changes_nothing(browser: httpx.Client) -> None:
    data = {"limit": "brokers", "value": "7"}
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://elsewhere.example"}):
        assert browser.post("/cluster/alerts", data=data | {"csrf": token(browser)}, headers=headers).status_code == 403
    assert "of 7 brokers" not in browser.get("/cluster/alerts").text


def test_a_wrong_change_says_why(browser: httpx.Client) -> None:
    text = browser.post(
        "/cluster/alerts", data={"limit": "disk_percent", "warning": "9", "critical": "5"} | {"csrf": token(browser)}
    ).text
    assert "has the critical value before the warning" in text
    assert "There is no webhook." in text
    assert browser.post("/cluster/alerts", content=b"a" * 20_000).status_code == 403
    page = browser.get("/cluster/alerts", params={"limit": "disk_percent"}).text
    assert "Limit disk_percent" in page
