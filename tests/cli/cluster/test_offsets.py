"""`firearrow offset`: a preview changes nothing, `--apply` does what it showed, undo goes back."""

from __future__ import annotations

import json
from pathlib import Path
from queue import Queue

import pytest

from firearrow.client.blocking import PullConsumer, PushConsumer
from firearrow.client.message import Message
from tests.cli.shell import Shell


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def billing(shell: Shell) -> Shell:
    """The group has consumed one message of one queue and two of the other."""
    shell.cluster.create_group("billing")
    shell.commit("billing", 1, 2)
    return shell


def offsets(shell: Shell, group: str = "billing") -> list[int]:
    rows = shell.rows("offset", "get", group, "--topic", "orders")
    return [row["offset"] for row in rows]


def moved(rows: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    return [(row["beforeOffset"], row["afterOffset"], row["state"]) for row in rows]


def test_a_preview_changes_nothing_and_undo_goes_back(billing: Shell, directory: Path) -> None:
    words = ["offset", "reset", "billing", "orders", "--to", "latest"]
    preview = billing.rows(*words)
    assert moved(preview) == [(1, 3, "would be moved"), (2, 3, "would be moved")]
    assert (offsets(billing), [*directory.iterdir()]) == ([1, 2], [])
    done = billing.rows(*words, "--apply", "--undo-file", "undo.json")
    assert moved(done) == [(1, 3, "moved"), (2, 3, "moved")]
    assert offsets(billing) == [3, 3]
    kept = json.loads((directory / "undo.json").read_text())
    assert (kept["group"], kept["offsets"][0]["before"]) == ("billing", 1)
    assert moved(billing.rows("offset", "undo", "undo.json")) == [(3, 1, "would be moved"), (3, 2, "would be moved")]
    billing.rows("offset", "undo", "undo.json", "--apply")
    assert offsets(billing) == [1, 2]
    assert [path.name[:22] for path in directory.glob("firearrow-undo-*")] == ["firearrow-undo-billing"]


def test_a_file_that_is_there_is_not_overwritten(billing: Shell, directory: Path) -> None:
    (directory / "undo.json").write_text("mine")
    code, said = billing.fails(
        "offset", "reset", "billing", "orders", "--to", "earliest", "--apply", "--undo-file", "undo.json"
    )
    assert (code, said) == (1, "firearrow: undo.json: File exists\n")
    assert offsets(billing) == [1, 2]


def test_one_queue_goes_to_an_offset_that_it_has(billing: Shell) -> None:
    words = ["offset", "seek", "billing", "orders", "2", "--broker", "broker-a", "--queue", "0"]
    assert moved(billing.rows(*words, "--apply")) == [(1, 2, "moved")]
    assert offsets(billing) == [2, 2]
    [beyond] = billing.rows("offset", "seek", "billing", "orders", "99", "--queue", "1")
    assert beyond["afterOffset"] == 3


def test_a_time_is_the_first_message_from_then_on(billing: Shell) -> None:
    words = ["offset", "reset", "billing", "orders", "--to"]
    assert moved(billing.rows(*words, "2020-01-01")) == [(1, 0, "would be moved"), (2, 0, "would be moved")]
    assert [row["afterOffset"] for row in billing.rows(*words, "2100-01-01T00:00:00Z")] == [3, 3]


def test_a_group_gets_what_another_has(billing: Shell) -> None:
    billing.cluster.create_group("archive")
    words = ["offset", "clone", "billing", "archive"]
    assert moved(billing.rows(*words)) == [(None, 1, "would be moved"), (None, 2, "would be moved")]
    assert moved(billing.rows(*words, "--apply")) == [(None, 1, "moved"), (None, 2, "moved")]
    assert offsets(billing, "archive") == [1, 2]


def starts(shell: Shell, group: str) -> list[int | None]:
    """Where a consumer of a group would begin."""
    with PullConsumer(shell.cluster.name_server, group=group) as consumer:
        return [consumer.committed(queue) for queue in consumer.queues("orders")]


def test_an_undo_removes_offsets_that_were_not_there(billing: Shell) -> None:
    billing.cluster.create_group("archive")
    billing.rows("offset", "reset", "archive", "orders", "--to", "latest", "--apply", "--undo-file", "undo.json")
    assert offsets(billing, "archive") == [3, 3]
    undo = ["offset", "undo", "undo.json"]
    assert moved(billing.rows(*undo)) == [(3, None, "would be removed")] * 2
    assert moved(billing.rows(*undo, "--apply", "--undo-file", "again.json")) == [(3, None, "removed")] * 2
    assert starts(billing, "archive") == starts(billing, "another-new-one") == [0, 0]
    billing.rows("offset", "undo", "again.json", "--apply")
    assert offsets(billing, "archive") == [3, 3]


def test_consumers_that_are_online_go_on_there(billing: Shell) -> None:
    bodies: Queue[bytes] = Queue()
    consumer = PushConsumer(billing.cluster.name_server, group="billing")

    @consumer.on("orders")
    def bill(message: Message) -> None:
        bodies.put(message.body)

    with consumer:
        assert sorted(bodies.get(timeout=30) for _ in range(3)) == [b"order 2", b"order 4", b"order 5"]
        done = billing.rows("offset", "reset", "billing", "orders", "--to", "earliest", "--apply")
        assert {row["afterOffset"] for row in done} == {0}
        again = sorted(bodies.get(timeout=30) for _ in range(6))
    assert again == [b"order %d" % number for number in range(6)]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("get gone", 3, "gone"),
        ("reset billing gone --to latest", 3, "gone"),
        ("reset billing orders --to soon", 2, "'soon' is not a time"),
        ("reset billing orders", 2, "the following arguments are required: --to"),
        ("reset bilng orders --to latest", 3, "unknown to broker-a; did you mean billing?"),
        ("reset zzz orders --to latest", 3, "to broker-a: `firearrow group create zzz` makes it"),
        ("seek billing orders -1", 2, "-1"),
        ("seek billing orders 1 --queue 9", 3, "topic 'orders' has no such queue"),
        ("clone gone billing", 3, "group 'gone' has no offsets"),
        ("undo gone.json", 3, "gone.json: there is no such file"),
        ("undo bad.json", 1, "bad.json is no undo file"),
    ],
)
def test_what_can_not_be_is_said(words: str, code: int, reason: str, billing: Shell, directory: Path) -> None:
    (directory / "bad.json").write_text('{"group": 3}')
    ended, said = billing.fails("offset", *words.split())
    assert (ended, reason in said) == (code, True), said
