"""`firearrow message` on a cluster: send, read, find, trace, resend."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from firearrow.cli.messages import browsing
from firearrow.client.blocking import Producer, PullConsumer
from tests.cli.shell import Shell, shop


def test_what_is_sent_is_found_by_id_and_by_key(shell: Shell) -> None:
    [sent] = shell.rows(
        "message", "send", "orders", "füü", "--tag", "paid", "--key", "a", "--key", "b",
        "--property", "x=y", "--broker", "broker-a", "--queue", "1",
    )  # fmt: skip
    assert (sent["broker"], sent["queueId"], sent["queueOffset"]) == ("broker-a", 1, 3)
    [by_id] = shell.rows("message", "get", sent["messageId"], "--topic", "orders")
    assert (by_id["body"], by_id["tag"], by_id["keys"]) == ("füü", "paid", "a b")
    assert by_id["properties"]["x"] == "y"
    printed = [row for row in shell.lines("message", "cat", "orders") if row["messageId"] == sent["messageId"]]
    assert printed == [by_id]
    assert shell.rows("message", "get", by_id["offsetMessageId"]) == [by_id]
    assert shell.rows("message", "get", "--topic", "orders", "--key", "b") == [by_id]
    screen = shell.text("message", "get", by_id["offsetMessageId"])
    assert "\nproperty x           y\n" in screen
    assert screen.endswith("\nbody                 füü\n")


def test_a_body_comes_from_a_file_or_standard_input(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00")
    [sent] = shell.rows("message", "send", "orders", "--file", str(file))
    [found] = shell.rows("message", "get", sent["messageId"], "--topic", "orders")
    assert (found["body"], found["bodyIsBase64"], found["bodyBytes"]) == ("/wA=", True, 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    [sent] = shell.rows("message", "send", "orders")
    [found] = shell.rows("message", "get", sent["messageId"], "--topic", "orders")
    assert found["body"] == "piped"
    for words in (["-"], ["--file", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped again")))
        [sent] = shell.rows("send", "orders", *words)
        [found] = shell.rows("message", "get", sent["messageId"], "--topic", "orders")
        assert found["body"] == "piped again"


def test_a_topic_is_printed_queue_after_queue(shell: Shell) -> None:
    found = shell.lines("message", "cat", "orders")
    assert [row["body"] for row in found] == [f"order {n}" for n in (0, 2, 4, 1, 3, 5)]
    paid = shell.lines("message", "cat", "orders", "--tag", "paid", "--queue", "1")
    assert [row["body"] for row in paid] == ["order 1", "order 5"]
    assert len(shell.lines("message", "cat", "orders", "--limit", "4")) == 4
    assert shell.lines("message", "cat", "orders", "--since", "2100-01-01") == []
    assert shell.lines("message", "cat", "orders", "--until", "2020-01-01") == []
    assert shell.text("cat", "orders", "--since", "1h", "--format", "{key}={body}", "--limit", "2") == (
        "o-0=order 0\no-2=order 2\n"
    )
    first = shell.text("message", "cat", "orders", "--limit", "1")
    assert first.endswith("Z  broker-a/0/0  open  o-0  order 0\n")


def test_a_command_gives_up_in_time(shell: Shell) -> None:
    code, said = shell.fails("tail", "orders", "--timeout", "50ms")
    assert (code, said) == (1, "firearrow: gave up after 0.05 s, the --timeout\n")


def test_what_comes_is_printed_as_it_comes(shell: Shell) -> None:
    with Producer(shell.cluster.name_server, group="shop") as producer:
        producer.send("orders", "the next")
        tailed = shell.lines("message", "tail", "orders", "--last", "9", "--limit", "7")
    assert sorted(row["body"] for row in tailed) == [*(f"order {n}" for n in range(6)), "the next"]


def test_a_trace_tells_who_sent_and_who_consumed(shell: Shell) -> None:
    shell.cluster.create_topic("traced", queues=1)
    with Producer(shell.cluster.name_server, group="shop", trace="traces") as producer:
        shell.cluster.create_topic("traces", queues=1)
        sent = producer.send("traced", "x")
    [trace] = shell.rows("message", "trace", sent.message_id, "--trace-topic", "traces")
    assert (trace["kind"], trace["group"], trace["isSuccess"]) == ("sent", "shop", True)
    code, said = shell.fails("message", "trace", "0" * 32, "--trace-topic", "traces")
    assert (code, "has no message with key" in said) == (3, True)


def test_a_copy_has_what_the_sender_had_set(shell: Shell) -> None:
    [found] = shell.rows("message", "get", "--topic", "orders", "--key", "o-4")
    words = ["message", "resend", found["offsetMessageId"]]
    [preview] = shell.rows(*words)
    assert (preview["toTopic"], preview["state"]) == ("orders", "would be sent")
    assert len(shell.rows("message", "get", "--topic", "orders", "--key", "o-4")) == 1
    shell.cluster.create_topic("again", queues=1)
    [sent] = shell.rows(*words, "--to", "again", "--apply")
    assert sent["state"] == "sent"
    [copy] = shell.rows("message", "get", sent["newMessageId"], "--topic", "again")
    assert [copy[name] for name in ("tag", "keys", "body")] == ["paid", "o-4", "order 4"]
    assert copy["properties"]["number"] == "4"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("get", 2, "one of ID and --key is required"),
        ("get --key x", 2, "--key needs --topic"),
        ("get 0123", 2, "'0123' is no id by offset: a sender's id needs --topic"),
        ("get --key gone --topic orders", 3, "topic 'orders' has no message with key 'gone'"),
        ("send orders x --queue 1", 2, "--broker and --queue are only allowed together"),
        ("send orders x --file y", 2, "--file: not allowed with a body"),
        ("send orders --file /gone", 1, "/gone: No such file"),
        ("cat gone", 3, "topic 'gone' has no route"),
        ("cat orders --queue 7", 3, "topic 'orders' has no such queue"),
        ("cat orders --since noon", 2, "'noon' is not a time"),
        ("cat orders --since 2026-11-19 --until 2026-11-18", 2, "--until: it is not after --since"),
    ],
)
def test_what_can_not_be_is_said(words: str, code: int, reason: str, shell: Shell) -> None:
    ended, said = shell.fails("message", *words.split())
    assert (ended, reason in said) == (code, True), said


def test_reading_leaves_no_group_behind(shell: Shell) -> None:
    shell.lines("message", "cat", "orders")
    with PullConsumer(shell.cluster.name_server, group="other") as consumer:
        consumer.subscribe("orders")
        assert [row["group"] for row in shell.rows("group", "list")] == ["other"]


def test_a_part_of_a_topic_is_in_the_order_of_time(shell: Shell) -> None:
    shell.cluster.create_topic("parts", queues=2)
    with Producer(shell.cluster.name_server, group="shop") as producer:
        for number in range(6):
            producer.send("parts", f"part {number}", properties={"n": str(number)})

    def bodies(*words: str) -> list[str]:
        return [row["body"].removeprefix("part ") for row in shell.rows("message", "list", "parts", *words)]

    assert bodies() == ["5", "4", "3", "2", "1", "0"]
    assert bodies("--oldest", "--limit", "4") == ["0", "1", "2", "3"]
    assert bodies("--property", "n=2") == ["2"]
    screen = shell.text("message", "list", "parts", "--oldest", "--limit", "3", "--places")
    assert "6 messages examined, 3 shown." in screen
    code, said = shell.fails("message", "list", "parts", "--above", "x")
    assert (code, "is not BROKER:QUEUE:OFFSET" in said) == (2, True)


def test_a_part_of_large_messages_ends_at_its_bytes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.cluster.create_topic("large", queues=1)
    with Producer(shell.cluster.name_server, group="shop", compression=None) as producer:
        for number in range(5):
            producer.send("large", bytes([48 + number]) * 300_000)
    monkeypatch.setattr(browsing, "BYTES_MAX", 600_000)
    for order in ((), ("--oldest",)):
        screen = shell.text("message", "list", "large", *order)
        assert "shown. The search ended at its limit of" in screen
        assert screen.count("293.0 KiB") in (2, 3)


def test_messages_wait_until_one_is_recalled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(monkeypatch, config={"recallMessageEnable": True}) as cluster:
        check_waiting(Shell(cluster, capsys))


def check_waiting(shell: Shell) -> None:
    [sent] = shell.rows("message", "send", "orders", "later", "--delay", "1h", "--key", "l")
    [other] = shell.rows("message", "send", "orders", "tomorrow", "--delay", "1d")
    waiting = shell.rows("message", "pending")
    assert [(row["topic"], row["body"], row["recallHandle"]) for row in waiting] == [
        ("orders", "later", sent["recallHandle"]),
        ("orders", "tomorrow", other["recallHandle"]),
    ]
    assert shell.rows("message", "pending", "--limit", "1") == waiting[:1]
    assert shell.rows("message", "pending", "payments") == []
    while not (counts := shell.rows("message", "pending", "--by", "topic")):
        pass  # the timer takes a moment to read what was sent
    [count] = counts
    assert (count["topic"], count["kind"], count["waiting"]) == ("orders", "timer", 2)
    due = shell.rows("message", "pending", "--by", "time", "--every", "10m")
    assert [row["due"] for row in due if row["due"]] == [1]
    words = ["message", "recall", "orders", sent["recallHandle"]]
    assert shell.rows(*words)[0]["state"] == "would be recalled"
    assert len(shell.rows("message", "pending")) == 2
    assert shell.rows(*words, "--apply")[0]["state"] == "recalled"
    assert [row["body"] for row in shell.rows("message", "pending")] == ["tomorrow"]


def test_messages_wait_by_delay_levels_too(shell: Shell) -> None:
    with Producer(shell.cluster.name_server, group="shop") as producer:
        producer.send("orders", "at level 18", delay_level=18)
    [row] = shell.rows("message", "pending", "--by", "topic")
    assert (row["topic"], row["kind"], row["waiting"]) == (None, "delay level 18 (2 h)", 1)
    [waiting] = shell.rows("message", "pending", "orders")
    assert (waiting["body"], waiting["recallHandle"]) == ("at level 18", None)


def test_a_part_ends_at_its_limit_of_messages(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "EXAMINED_MAX", 3)
    monkeypatch.setattr(browsing, "WINDOW_MAX", 1)
    screen = shell.text("message", "list", "orders", "--containing", "nothing", "--limit", "1", "--queue", "0")
    assert "3 messages examined, 0 shown." in screen
    monkeypatch.setattr(browsing, "PULL_MAX", 1)
    screen = shell.text("message", "list", "orders", "--containing", "nothing", "--limit", "1", "--places")
    assert "The search ended at its limit of 3 messages: the next part goes on there." in screen
    [first, *_] = shell.rows("message", "list", "orders", "--tag", "paid", "--limit", "1")
    assert first["body"] == "order 5"
