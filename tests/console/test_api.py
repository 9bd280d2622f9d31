"""The API: rows as commands print them, previews, changes, and its description."""

from __future__ import annotations

import json

import httpx
import pytest

from firearrow.cli.main import main
from firearrow.console.operations import OPERATIONS
from firearrow.testing import BlockingCluster


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["topic", "stats", "orders"],
        ["group", "list"],
        ["message", "cat", "orders"],
        ["cluster", "list"],
    ],
)
def test_rows_are_those_of_the_command(
    browser: httpx.Client, cluster: BlockingCluster, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json", "-n", cluster.name_server]) == 0
    printed = capsys.readouterr().out
    expected = [json.loads(line) for line in printed.splitlines()] if words[1] == "cat" else json.loads(printed)
    given = {"topic": words[2]} if len(words) > 2 else {}
    assert _steady(browser.get(f"/cluster/api/{'-'.join(words[:2])}", params=given).json()) == _steady(expected)


def _steady(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if not name.endswith("Rate")} for row in rows]


def test_a_change_is_a_preview_without_apply(browser: httpx.Client) -> None:
    given = {"topic": "by-api", "queues": 2, "ordered": True}
    [row] = browser.post("/cluster/api/topic-create", json=given).json()
    assert (row["state"], row["isOrdered"]) == ("would be made", True)
    assert browser.get("/cluster/api/topic-show", params={"topic": "by-api"}).status_code == 404
    assert browser.post("/cluster/api/topic-create", params={"apply": "true"}, json=given).status_code == 200
    [row] = browser.get("/cluster/api/topic-show", params={"topic": "by-api"}).json()
    assert (row["readQueues"], row["isOrdered"]) == (2, True)


@pytest.mark.parametrize(
    ("operation", "body", "headers", "status", "reason"),
    [
        ("topic-create", "{}", {}, 400, "required"),
        ("topic-create", '{"topic": {}}', {}, 400, "topic is a text"),
        ("topic-create", "[]", {}, 400, "the body is a JSON object"),
        ("topic-create", "[" * 100_000, {}, 400, "the body is no JSON"),
        ("topic-create", '{"topic": "t"}', {"content-type": "text/plain"}, 400, "the content type is application/json"),
        ("topic-create", '{"topic": "t"}', {"origin": "http://elsewhere.test"}, 403, "another site"),
        ("topic-list", "{}", {}, 404, "no operation 'topic-list' for POST"),
        ("topic-undo", "{}", {}, 404, "no operation"),
        ("message-send", '{"topic": "orders", "file": "/etc/passwd"}', {}, 400, "no field 'file'"),
    ],
)
def test_a_refusal_is_one_sentence(
    browser: httpx.Client, operation: str, body: str, headers: dict[str, str], status: int, reason: str
) -> None:
    headers = {"content-type": "application/json", **headers}
    answer = browser.post(f"/cluster/api/{operation}", content=body, headers=headers)
    assert answer.status_code == status
    assert reason in answer.json()["error"]


def test_the_description_has_every_operation(browser: httpx.Client) -> None:
    paths = browser.get("/cluster/api/openapi.json").json()["paths"]
    wanted = {f"/{it.name}": "post" if it.changes else "get" for it in OPERATIONS.values() if not it.takes_file}
    assert {path: next(iter(methods)) for path, methods in paths.items()} == wanted
    listed = browser.get("/cluster/api").json()
    assert [it["operation"] for it in listed] == [path[1:] for path in paths]
    create = paths["/topic-create"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert create["required"] == ["topic"]
    assert create["properties"]["perm"]["enum"] == ["rw", "r", "w"]
    assert create["properties"]["ordered"]["type"] == "boolean"
    assert "apply" not in create["properties"]


def test_an_operation_that_asks_no_server(browser: httpx.Client) -> None:
    assert browser.get("/cluster/api/errors").status_code == 200
