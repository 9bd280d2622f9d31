"""One message: its way, its body in each view, its properties in words, its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from firearrow.client.blocking import Producer
from firearrow.message.record import decode_record
from firearrow.testing import BlockingCluster
from tests.console.pagelinks import link_to

BODIES = {
    "json": json.dumps({"a": "<b>", "n": 1}).encode(),
    "messagepack": msgspec.msgpack.encode({"a": 1, "b": b"\x00"}),
    "text": b"plain \x1b[31m text",
    "hex": bytes(range(64)),
    "long": b"[" + b"1234567," * 500_000 + b"1]",
    "compressed": b"compress me " * 1000,
}


@pytest.fixture(scope="module")
def ids(cluster: BlockingCluster) -> Iterator[dict[str, str]]:
    """Ids of messages of topic ``bodies`` by the kinds of their bodies."""
    cluster.create_topic("bodies", queues=1)
    with Producer(cluster.name_server, group="shop") as producer:
        yield {
            kind: producer.send("bodies", body, key=f"key-{kind}", properties={"<i>": "\x1bvalue"}).message_id
            for kind, body in BODIES.items()
        }


def body_of(text: str) -> str:
    found = re.search(r'<pre class="body[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("kind", "view", "beginning"),
    [
        ("json", "json", "{\n  &#34;a&#34;: &#34;&lt;b&gt;&#34;"),
        ("messagepack", "messagepack", "{\n  &#34;a&#34;: 1"),
        ("text", "text", "plain \\x1b[31m text"),
        ("hex", "hex", "00000000  00 01 02 03"),
        ("long", "json", "[\n  1234567,"),
        ("compressed", "text", "compress me compress me"),
    ],
)
def test_a_body_is_shown_in_its_view(
    browser: httpx.Client, ids: dict[str, str], kind: str, view: str, beginning: str
) -> None:
    text = browser.get(f"/cluster/topics/bodies/messages/{ids[kind]}").text
    assert body_of(text).startswith(beginning)
    assert f'<a href="?view={view}" aria-current="true">' in text
    assert "\x1b" not in text
    assert len(text) < 200_000
    assert ("Only the beginning is shown; the download has all 3.8 MiB." in text) == (kind == "long")


def test_another_view_is_chosen_by_the_address(browser: httpx.Client, ids: dict[str, str]) -> None:
    page = f"/cluster/topics/bodies/messages/{ids['json']}"
    assert body_of(browser.get(page, params={"view": "hex"}).text).startswith("00000000  7b 22 61")
    wrong = browser.get(page, params={"view": "messagepack"}).text
    assert "The body is no MessagePack" in wrong
    assert body_of(wrong).startswith("00000000")


def test_files_have_all_bytes_and_a_safe_name(browser: httpx.Client, ids: dict[str, str]) -> None:
    for kind in ("long", "compressed"):
        page = f"/cluster/topics/bodies/messages/{ids[kind]}"
        answer = browser.get(f"{page}/body")
        assert answer.content == BODIES[kind]
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"] == f'attachment; filename="{ids[kind]}.body"'
        record = decode_record(browser.get(f"{page}/record").content)
        assert record.body_decompressed() == BODIES[kind]


def test_properties_have_their_meaning(browser: httpx.Client, ids: dict[str, str]) -> None:
    text = browser.get(f"/cluster/topics/bodies/messages/{ids['json']}").text
    assert "<td>&lt;i&gt;</td>\n<td>\\x1bvalue</td>\n<td>Set by the sender.</td>" in text
    assert "Words to find it by: brokers index them." in text


def test_the_way_is_a_picture_and_a_table(browser: httpx.Client, ids: dict[str, str]) -> None:
    text = browser.get(f"/cluster/topics/bodies/messages/{ids['json']}").text
    picture = text[text.index('<svg class="way"') : text.index("</section>")]
    assert picture.count("<circle") == 2
    assert ">stored</text>" in picture
    assert "Stored for its groups." in text
    assert "No group has consumed anything of its queue." in text


def test_neighbours_are_linked(browser: httpx.Client, ids: dict[str, str]) -> None:
    page = f"/cluster/topics/bodies/messages/{ids['json']}"
    after = browser.get(link_to(browser.get(page).text, "Next"))
    assert ids["messagepack"] in after.text
    assert ids["json"] in browser.get(link_to(after.text, "Previous")).text


@pytest.mark.usefixtures("ids")
def test_an_id_that_nothing_has_is_a_sentence(browser: httpx.Client) -> None:
    answer = browser.get(f"/cluster/topics/bodies/messages/{'0' * 32}")
    assert (answer.status_code, "has no message with key" in answer.text) == (404, True)
    assert browser.get("/cluster/messages/nonsense").status_code == 400


def test_the_schema_of_a_topic_gives_a_view(browser: httpx.Client, cluster: BlockingCluster) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    text = json.dumps(schema).replace(",", ";")
    cluster.create_topic("avro", table_format="delta", table_bodies="avro", table_schema=text)
    with Producer(cluster.name_server, group="shop") as producer:
        right, wrong = (producer.send("avro", body).message_id for body in (b"\x22", b"\xff\xff"))
    text = browser.get(f"/cluster/topics/avro/messages/{right}").text
    assert "&#34;id&#34;: 17" in body_of(text)
    assert '<a href="?view=schema" aria-current="true">Avro by the topic&#39;s schema</a>' in text
    assert "no datum of its Avro schema" in browser.get(f"/cluster/topics/avro/messages/{wrong}").text
