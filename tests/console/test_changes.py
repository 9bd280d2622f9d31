"""Changes from a browser: previewed, applied, undone, logged; and none that another site asks for."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import httpx
import pytest

from firearrow.console.changes import ChangeLog
from firearrow.console.operations import LASTING, OPERATIONS, parser_of
from firearrow.testing import BlockingCluster
from tests.broker.fakes import HandClock
from tests.client.diagnosis.sending import send
from tests.console.conftest import post, token, undo_of
from tests.interop.waiting import wait_until


def queues(browser: httpx.Client, topic: str) -> int | None:
    answer = browser.get(f"/cluster/topics/{topic}")
    found = re.search(r"<dt>Queues</dt><dd>(\d+)", answer.text)
    return int(found[1]) if answer.status_code == 200 and found else None


def test_a_topic_is_made_changed_and_restored(browser: httpx.Client) -> None:
    preview = post(browser, "/do/topic-create", "preview", topic="fresh", queues="3")
    assert "would be made" in preview.text
    assert queues(browser, "fresh") is None
    assert post(browser, "/do/topic-create", "apply", topic="fresh", queues="3").status_code == 200
    assert queues(browser, "fresh") == 3
    assert "would be changed" in post(browser, "/do/topic-create", "preview", topic="fresh", queues="5").text
    done = post(browser, "/do/topic-create", "apply", topic="fresh", queues="5")
    assert queues(browser, "fresh") == 5
    undo = undo_of(done)
    assert f'<a href="/cluster{undo}">Undo</a>' in browser.get("/cluster/changes").text
    assert "would be changed" in browser.get(f"/cluster{undo}").text
    assert queues(browser, "fresh") == 5
    post(browser, undo, "apply")
    assert queues(browser, "fresh") == 3
    log = browser.get("/cluster/changes").text
    assert log.count("topic create") == 2
    assert log.count("topic undo") == 1
    assert "local" in log


@pytest.mark.parametrize(("noun", "field"), [("topic", "topic"), ("group", "name")])
def test_what_was_made_is_deleted_by_its_undo(browser: httpx.Client, noun: str, field: str) -> None:
    shown = f"/cluster/api/{noun}-show?{field}=unused"
    undo = undo_of(post(browser, f"/do/{noun}-create", "apply", **{field: "unused"}))
    assert "would be deleted" in browser.get(f"/cluster{undo}").text
    assert browser.get(shown).status_code == 200
    assert "deleted" in post(browser, undo, "apply").text
    assert browser.get(shown).status_code == 404


def test_a_topic_that_is_in_use_is_not_deleted_by_an_undo(browser: httpx.Client, cluster: BlockingCluster) -> None:
    undo = undo_of(post(browser, "/do/topic-create", "apply", topic="in-use"))
    send(cluster.name_server, "in-use", 1)
    assert "has messages" in browser.get(f"/cluster{undo}").text
    assert "not all of it was done" in post(browser, undo, "apply").text
    assert queues(browser, "in-use") == 8
    assert "has messages" in browser.get("/cluster/changes").text


def test_each_change_has_an_undo_or_says_why_it_has_none() -> None:
    for operation in OPERATIONS.values():
        writes_file = any(action.dest == "undo_file" for action in parser_of(operation).arguments)
        assert operation.changes == (writes_file or operation.lasting != ""), operation.words
        assert not (writes_file and operation.lasting), operation.words
        if writes_file:
            assert operation.undo.takes_file, operation.words
    assert LASTING.keys() <= {operation.words for operation in OPERATIONS.values()}


def test_a_change_that_stays_says_so_before_and_after(browser: httpx.Client) -> None:
    reason = "A message that is sent stays: consumers may read it at once."
    given = {"topic": "orders", "body": "x"}
    preview = post(browser, "/do/message-send", "preview", **given)
    assert preview.text.count(reason) == 1
    done = post(browser, "/do/message-send", "apply", **given)
    assert done.text.count(reason) == 1
    assert "/undo/" not in done.text
    assert reason in browser.get("/cluster/changes").text


def test_offsets_are_moved_and_moved_back(browser: httpx.Client, cluster: BlockingCluster) -> None:
    given = {"group": "billing", "topic": "orders", "to": "latest"}
    assert "would be moved" in post(browser, "/do/offset-reset", "preview", **given).text
    done = post(browser, "/do/offset-reset", "apply", **given)
    assert "moved" in done.text
    assert browser.get("/cluster/do/lag?group=billing").text.count("orders") >= 1


@pytest.mark.parametrize(
    ("headers", "values", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, {}, 403),
        ({"origin": "http://elsewhere.test"}, {}, 403),
        ({}, {"csrf": "0" * 32}, 403),
        ({"host": "elsewhere.test"}, {}, 421),
    ],
)
def test_another_site_changes_nothing(
    browser: httpx.Client, headers: dict[str, str], values: dict[str, str], status: int
) -> None:
    given = {"topic": "foreign", "step": "apply", "csrf": token(browser), **values}
    assert browser.post("/cluster/do/topic-create", data=given, headers=headers).status_code == status
    assert queues(browser, "foreign") is None


@pytest.mark.parametrize(
    ("path", "values", "reason"),
    [
        ("/do/topic-create", {"topic": "t", "queues": "many"}, "invalid int value"),
        ("/do/topic-create", {"topic": ""}, "required"),
        ("/do/topic-create", {"topic": "t", "undo_file": "/tmp/x"}, "there is no field"),
        ("/do/message-send", {"topic": "orders", "body": "x", "file": "/etc/passwd"}, "there is no field"),
        ("/do/topic-create", {"topic": "--help"}, "--help"),
        ("/do/offset-reset", {"group": "nobody", "topic": "orders", "to": "latest"}, "nobody"),
    ],
)
def test_wrong_values_are_told_and_nothing_ends(
    browser: httpx.Client, path: str, values: dict[str, str], reason: str
) -> None:
    answer = post(browser, path, "preview", **values)
    assert reason in answer.text
    assert browser.get("/cluster/topics").status_code == 200


def test_an_address_with_all_values_shows_the_preview(browser: httpx.Client) -> None:
    answer = browser.get("/cluster/do/topic-create", params={"topic": "linked", "queues": "3"})
    assert "would be made" in answer.text
    assert queues(browser, "linked") is None
    wrong = browser.get("/cluster/do/topic-create", params={"topic": "linked", "queues": "many"})
    assert (wrong.status_code, "invalid int value" in wrong.text) == (200, True)


def test_a_form_tells_how_values_are_written(browser: httpx.Client) -> None:
    text = browser.get("/cluster/do/offset-reset").text
    assert 'name="to" id="to1" value="" placeholder="earliest|latest|TIME"' in text
    assert 'placeholder="GROUP"' not in text
    choices = re.findall(
        r'<input type="checkbox" name="action" value="(\w+)"( checked)?>',
        browser.get("/cluster/do/acl-allow", params={"action": ["sub", "get"]}).text,
    )
    assert [name for name, mark in choices if mark] == ["sub", "get"]
    assert len(choices) == 8


def test_what_is_still_typed_is_no_failure(browser: httpx.Client) -> None:
    """A browser tells each failed request in its console; a script would take a stream, but this is a page."""
    given = {"topic": "t", "queues": "ma", "csrf": token(browser)}
    headers = {"hx-request": "true", "accept": "text/html, text/event-stream"}
    answer = browser.post("/cluster/do/topic-create", data=given, headers=headers)
    assert (answer.status_code, "invalid int value" in answer.text) == (200, True)


def test_no_operation_runs_a_server_or_reads_a_file(browser: httpx.Client) -> None:
    for name in ("serve", "store-repair", "pipeline-replay", "topic-undo", "context-add"):
        assert browser.get(f"/cluster/do/{name}").status_code == 404


def test_a_log_survives_a_kill_in_its_last_line(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path, HandClock())
    first = log.begin("nina", "c", "topic delete", {"topic": ["t"], "password": ["p"]})
    log.done(first)
    log.begin("nina", "c", "topic create", {"topic": ["u"]})
    path = tmp_path / "changes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = ChangeLog(tmp_path, HandClock())
    again.begin("nina", "c", "group create", {"name": ["g"]})
    kept = list(ChangeLog(tmp_path, HandClock()).newest())
    assert [(it.operation, it.state) for it in kept] == [("group create", "begun"), ("topic delete", "done")]
    assert kept[-1].values == {"topic": ["t"], "password": ["(hidden)"]}
    assert 'p"' not in path.read_text().split("password")[1][:12]
    assert path.stat().st_mode & 0o077 == 0


def test_the_search_leads_to_what_a_word_names(browser: httpx.Client) -> None:
    def end(words: str) -> str:
        return str(browser.get("/cluster/search", params={"q": words}).url.path)

    assert end("orders") == "/cluster/topics/orders"
    [row] = browser.get("/cluster/api/message-cat", params={"topic": "orders", "limit": "1"}).json()
    assert end(row["offsetMessageId"]) == f"/cluster/messages/{row['offsetMessageId']}"
    link = f'href="/cluster/topics/orders/messages/{row["messageId"]}"'

    def found(word: str) -> httpx.Response | None:
        answer = browser.get("/cluster/search", params={"q": word})
        return answer if link in answer.text else None

    for word in (row["messageId"], row["keys"]):
        assert wait_until(partial(found, word), 60, "its entry in the index").url.path == "/cluster/find"
    assert "No message has it." in browser.get("/cluster/search", params={"q": "<nothing>"}).text
