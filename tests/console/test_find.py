"""Messages found by id, key and time, and the form that sends one."""

from __future__ import annotations

import re

import httpx
import pytest

from firearrow.client.blocking import Producer
from firearrow.testing import BlockingCluster


@pytest.fixture(scope="module")
def sent(cluster: BlockingCluster) -> str:
    """Id of a message with all that a sender can set."""
    with Producer(cluster.name_server, group="shop") as producer:
        return producer.send(
            "orders", "\n<two>\nlines", tag="paid", key=["one", "two"], properties={"region": "eu"}, sharding_key="s"
        ).message_id


def test_an_id_and_a_time_lead_to_their_pages(browser: httpx.Client, sent: str) -> None:
    by_id = browser.get("/cluster/find", params={"topic": "orders", "id": f" {sent} "})
    assert by_id.url.path == f"/cluster/topics/orders/messages/{sent}"
    offset_id = re.search(r"Id by offset</dt><dd>([0-9A-F]+)<", by_id.text)
    assert offset_id
    assert browser.get("/cluster/find", params={"id": offset_id[1]}).url.path.endswith(offset_id[1])
    by_time = browser.get("/cluster/find", params={"topic": "orders", "since": "2020-01-01"})
    assert by_time.url.path == "/cluster/topics/orders/messages"
    assert by_time.url.params["since"] == "2020-01-01"


def test_a_key_lists_its_messages(browser: httpx.Client, sent: str) -> None:
    answer = browser.get("/cluster/find", params={"topic": "orders", "key": "two"})
    assert answer.text.count(f">{sent}</a>") == 1
    assert "The index names 1 message with this key, 1 shown." in answer.text


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        ({"key": "one"}, 400, "give its name"),
        ({"id": "nonsense"}, 400, "is no id by offset"),
        ({"topic": "orders", "key": "no"}, 404, "no message with key"),
        ({"topic": "nothing", "id": "x"}, 404, "nothing"),
    ],
)
def test_what_is_not_found_is_a_sentence(
    browser: httpx.Client, given: dict[str, str], status: int, reason: str
) -> None:
    answer = browser.get("/cluster/find", params=given)
    assert answer.status_code == status
    [note] = re.findall(r'role="alert">(.*?)</p>', answer.text)
    assert reason in note


def test_the_form_has_the_values_of_its_address(browser: httpx.Client) -> None:
    text = browser.get("/cluster/send?topic=orders&body=<b>&key=a&key=b&properties=x=y&delay=15m").text
    assert '<textarea name="body" spellcheck="false">\n&lt;b&gt;</textarea>' in text
    assert re.findall(r'name="key" value="([^"]*)"', text) == ["a", "b", "", ""]
    assert re.findall(r'name="properties" value="([^"]*)"', text) == ["x=y", "", ""]
    assert "<details open>" in text
    assert 'action="/cluster/do/message-send"' in text


def test_the_form_is_filled_in_like_a_message(browser: httpx.Client, cluster: BlockingCluster, sent: str) -> None:
    text = browser.get("/cluster/send", params={"like": sent, "topic": "orders"}).text
    assert ">\n\n&lt;two&gt;\nlines</textarea>" in text
    assert re.findall(r'name="(?:tag|sharding_key)" value="([^"]*)"', text) == ["paid", "s"]
    assert re.findall(r'name="key" value="([^"]+)"', text) == ["one", "two"]
    assert re.findall(r'name="properties" value="([^"]+)"', text) == ["region=eu"]
    with Producer(cluster.name_server, group="shop") as producer:
        binary = producer.send("orders", b"\xff\x00").message_id
    assert "is not text" in browser.get("/cluster/send", params={"like": binary, "topic": "orders"}).text
