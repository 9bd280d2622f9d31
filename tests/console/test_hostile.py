"""What strangers send: names, bodies and requests that try to break pages, other users' browsers or the console."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from firearrow.client.blocking import Producer
from firearrow.console import app, forms
from firearrow.message.compress import Compression
from firearrow.testing import BlockingCluster
from tests.console.conftest import token
from tests.message.bombs import send_bombs

NAME = "%|_-Az09"
"""Characters that brokers allow in names."""
SCRIPT = "<script>alert(1)</script>"
TEXT = f"{SCRIPT}\"'`${{7*7}}{{{{7*7}}}}\u202e\u2066\x1b[31m\x07"
KEY = "javascript:alert(1)//<img/src=x>\"'\u202e"
TAG = "<b>tag</b>"
BODIES: tuple[str | bytes, ...] = (
    TEXT,
    "\x00" + TEXT,
    '{"a":' * 100_000,
    "x" * 3_900_000,
    b"\xdd\xff\xff\xff\xff",
    b"\x0a\xff\xff\xff\xff\x0f",
)
VIEWS = ("", *(f"?view={name}" for name in ("json", "messagepack", "protobuf", "text", "hex", "schema")))
FORBIDDEN = ("<script>alert", "\u202e", "\u2066", "\x1b", "\x00", "\x07", 'href="javascript:', "<img/src")


@pytest.fixture(scope="module")
def hostile(cluster: BlockingCluster, browser: httpx.Client) -> Iterator[httpx.Client]:
    """The browser, with messages, names and clients that try everything."""
    cluster.create_topic(NAME, queues=1)
    cluster.create_group(NAME)
    with Producer(cluster.name_server, group="p") as producer:
        for body in BODIES:
            producer.send(NAME, body, tag=TAG, key=KEY, properties={"<i>": TEXT, "long": "y" * 20_000})
        yield browser


def checked(answer: httpx.Response) -> str:
    """Give the text of a page in which nothing of a stranger acts."""
    text = re.sub(r'value="[^"<>]*"|<textarea[^>]*>[^<>]*</textarea>', "", answer.text)
    for it in FORBIDDEN:
        assert it not in text, (answer.url, it, text[max(0, text.find(it) - 200) : text.find(it) + 100])
    assert "49" not in re.findall(r"\$\{?\s*49", text)
    return text


@pytest.mark.parametrize(
    "path",
    [
        "/topics", f"/topics/{quote(NAME)}", f"/topics/{quote(NAME)}/messages", "/groups", f"/groups/{quote(NAME)}",
        f"/topics/{quote(NAME)}/messages?containing={quote(TEXT)}", f"/topics/{quote(NAME)}/messages?key={quote(KEY)}",
        f"/find?q={quote(TEXT)}", f"/search?q={quote(KEY)}", "/producers", f"/do/message-list?topic={quote(NAME)}",
        f"/do/topic-create?topic={quote(TEXT)}", f"/topics?q={quote(TEXT)}&sort={quote(TEXT)}&page={'9' * 400}",
        f"/topics/{quote(TEXT)}", f"/groups/{quote(TEXT)}", f"/groups/x/clients/{quote(TEXT)}",
        f"/brokers/{quote(TEXT)}",
        f"/sign-in?next={quote('javascript:alert(1)')}", f"/sql?query={quote(TEXT)}",
        f"/undo/{quote('../../x', safe='')}",
        f"/{quote(TEXT)}", f"/topics/{quote(NAME)}/tail?tags={quote(TEXT)}",
        "/topics/x/queues/b/99999999999999999999/1",
        "/topics/orders/messages?above=a:1:1,%00", "/topics/orders/messages?queue=99999999999999999999",
        "/topics/orders/messages?limit=99999999999999999999", "/topics/orders/messages?since=%00",
    ],
)  # fmt: skip
def test_nothing_of_a_stranger_acts_in_a_page(hostile: httpx.Client, path: str) -> None:
    answer = hostile.get(f"/cluster{path}")
    assert answer.status_code < 500, answer.text[-2000:]
    checked(answer)


def test_each_message_is_shown_in_each_view(hostile: httpx.Client) -> None:
    listed = hostile.get(f"/cluster/topics/{quote(NAME)}/messages").text
    links = sorted({*re.findall(r'href="(/cluster/topics/[^"]*/messages/[^"]+)"', listed)})
    assert len(links) == 6
    for link in links:
        for view in VIEWS:
            answer = hostile.get(link + view)
            assert answer.status_code == 200, (view, answer.text[-500:])
            checked(answer)
        for kind in ("body", "record"):
            file = hostile.get(f"{link}/{kind}")
            assert file.status_code == 200
            assert re.fullmatch(r'attachment; filename="\w+\.\w+"', file.headers["content-disposition"])
            assert file.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("kind", list(Compression))
def test_bodies_that_unpack_to_much_are_shown_as_stored(
    cluster: BlockingCluster, browser: httpx.Client, kind: Compression
) -> None:
    topic = f"bombs-{kind.name}"
    cluster.create_topic(topic, queues=1)
    send_bombs(cluster.name_server, topic, kind, 20)
    listed = browser.get(f"/cluster/topics/{topic}/messages")
    assert listed.status_code == 200
    link = re.search(r'href="(/cluster/topics/[^"]*/messages/[^"]+)"', listed.text)
    assert link is not None
    assert "The body is shown as stored" in browser.get(link[1]).text
    assert browser.get(f"/cluster/topics/{topic}/messages?containing=x").status_code == 200
    assert browser.get("/cluster/api/message-list", params={"topic": topic}).status_code == 200


def test_long_and_repeated_values_of_an_address(browser: httpx.Client) -> None:
    assert browser.get("/cluster/topics?q=" + "a+" * 300).status_code == 400
    many = "&".join(f"a{number}=" for number in range(5_000))
    assert browser.get(f"/cluster/topics?{many}").status_code == 200
    assert browser.get("/cluster/topics?sort=x&sort=-topic&page=-1&page=99999999").status_code == 200
    twice = browser.get("/cluster/api/topic-show?topic=orders&topic=orders")
    assert twice.status_code == 400, twice.text


@pytest.mark.parametrize("name", ["..%2fpage.py", "%2e%2e%2f%2e%2e%2fapp.py", "%2fetc%2fpasswd", "a%00.css", "x.css"])
def test_no_file_but_those_of_pages(browser: httpx.Client, name: str) -> None:
    assert browser.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize(
    "wanted", ["//elsewhere.test/", "/cluster\\@elsewhere.test", "https://elsewhere.test", "/cluster/\r\nx: y"]
)
def test_no_header_and_no_way_out(browser: httpx.Client, wanted: str) -> None:
    given = {"user": "a", "password": "b", "next": wanted, "csrf": token(browser)}
    answer = browser.post("/cluster/sign-in", data=given, follow_redirects=False)
    assert "x" not in answer.headers
    assert urlsplit(answer.headers.get("location", "")).netloc == ""


def test_more_streams_than_the_console_follows(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STREAMS_MAX", 1)
    stream = {"accept": "text/event-stream"}
    with browser.stream("GET", "/cluster/topics", headers=stream) as first:
        assert first.status_code == 200
        lines = first.iter_lines()
        next(lines)
        refused = browser.get("/cluster/topics", headers=stream)
        assert refused.status_code == 503
        assert "followed already" in refused.text


def test_a_request_that_does_not_arrive_is_given_up(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "BODY_SECONDS", 0.1)
    base = urlsplit(str(browser.base_url))
    with socket.create_connection((str(base.hostname), base.port or 80), 30) as slow:
        slow.sendall(
            b"POST /cluster/do/topic-create HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntopic="
        )
        said = b""
        while b"did not arrive" not in said:
            more = slow.recv(65536)
            assert more, said
            said += more


def test_a_body_without_an_end_is_refused(browser: httpx.Client) -> None:
    answer = browser.post("/cluster/do/topic-create", content=(b"a" * 65536 for _ in range(200)))
    assert answer.status_code in (400, 403)
    assert "MiB" in answer.text


def test_a_schema_of_a_topic_reads_no_file(cluster: BlockingCluster, browser: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of this machine")
    cluster.create_topic("schemas", queues=1, **{"table.bodies": "avro", "table.schema": str(secret)})
    with Producer(cluster.name_server, group="p") as producer:
        producer.send("schemas", b"\x00\x01")
    listed = browser.get("/cluster/topics/schemas/messages").text
    link = re.search(r'href="(/cluster/topics/[^"]*/messages/[^"]+)"', listed)
    assert link is not None
    assert "a secret" not in browser.get(link[1]).text
