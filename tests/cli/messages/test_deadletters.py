"""`firearrow dlq`: what is dead, where it comes from, and sending the chosen ones again."""

from __future__ import annotations

import pytest

from firearrow.client.blocking import Producer, PushConsumer
from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.message import Message
from tests.cli.shell import Shell


@pytest.fixture
def dead(shell: Shell) -> Shell:
    """The group fails with two messages that it may not try again."""
    shell.cluster.create_topic("%DLQ%billing", queues=1)
    consumer = PushConsumer(shell.cluster.name_server, group="billing", start=StartFrom.FIRST, max_reconsume_times=0)

    @consumer.on("orders", tags="open")
    def bill(_: Message) -> None:
        raise ValueError("no such customer")

    with consumer:
        shell.lines("message", "tail", "%DLQ%billing", "--last", "2", "--limit", "2")
    return shell


def test_dead_letters_are_listed_and_tell_where_they_come_from(dead: Shell) -> None:
    [row] = dead.rows("dlq", "list")
    assert (row["group"], row["letters"]) == ("billing", 2)
    assert dead.rows("dlq", "list", "x*") == []
    letters = dead.rows("dlq", "inspect", "billing")
    assert [(it["originTopic"], it["tag"]) for it in letters] == [("orders", "open")] * 2
    assert sorted(it["body"] for it in letters) == ["order 0", "order 3"]
    assert len(dead.rows("dlq", "inspect", "billing", "--limit", "1")) == 1


def test_only_what_is_chosen_is_sent_and_only_if_it_is_said(dead: Shell) -> None:
    words = ["dlq", "resend", "billing", "--key", "o-3"]
    [preview] = dead.rows(*words)
    assert (preview["toTopic"], preview["state"]) == ("orders", "would be sent")
    assert len(dead.rows("message", "get", "--topic", "orders", "--key", "o-3")) == 1
    [sent] = dead.rows(*words, "--apply")
    assert sent["state"] == "sent"
    [copy] = dead.rows("message", "get", sent["newMessageId"], "--topic", "orders")
    assert (copy["body"], copy["tag"], copy["keys"]) == ("order 3", "open", "o-3")
    properties = copy["properties"]
    assert properties["FIREARROW_RESENT"].startswith("broker-a/%DLQ%billing/0/")
    assert "DLQ_ORIGIN_TOPIC" not in properties
    assert dead.rows("dlq", "list")[0]["letters"] == 2


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ("--all", {"order 0", "order 3"}),
        ("--containing 3", {"order 3"}),
        ("--tag open --key o-0", {"order 0"}),
        ("--all --to again", {"order 0", "order 3"}),
    ],
)
def test_letters_are_chosen_by_what_they_have(options: str, bodies: set[str], dead: Shell) -> None:
    chosen = dead.rows("dlq", "resend", "billing", *options.split())
    assert {row["body"] for row in chosen} == bodies
    assert {row["toTopic"] for row in chosen} == {"again" if "--to" in options else "orders"}


def test_what_can_not_be_is_said(dead: Shell) -> None:
    assert dead.fails("dlq", "resend", "billing")[0] == 2
    assert dead.fails("dlq", "resend", "billing", "--key", "gone") == (
        3,
        "firearrow: no dead letter of group 'billing' matches\n",
    )
    assert dead.fails("dlq", "inspect", "gone") == (3, "firearrow: group 'gone' has no dead letters\n")


def test_letters_that_were_sent_again_are_marked(dead: Shell) -> None:
    before = dead.rows("dlq", "inspect", "billing", "--resent")
    assert [letter["resentAt"] for letter in before] == [None, None]
    dead.rows("dlq", "resend", "billing", "--key", "o-3", "--apply")
    after = {letter["keys"]: letter["resentAt"] for letter in dead.rows("dlq", "inspect", "billing", "--resent")}
    assert (after["o-0"], after["o-3"] is not None) == (None, True)
    assert "Searched for copies in topic 'orders': " in dead.text("dlq", "inspect", "billing", "--resent")


def test_letters_tell_their_error_and_those_of_the_last_hour_are_counted(dead: Shell) -> None:
    with Producer(dead.cluster.name_server, group="shop") as producer:
        producer.send("%DLQ%billing", "x", properties={"exceptionMessage": "card declined"})
    assert dead.rows("dlq", "inspect", "billing")[-1]["error"] == "card declined"
    [row] = dead.rows("dlq", "list")
    assert (row["letters"], row["lastHour"]) == (3, 3)


def test_a_limit_keeps_the_newest_letters(dead: Shell) -> None:
    letters = dead.rows("dlq", "inspect", "billing")
    assert dead.rows("dlq", "inspect", "billing", "--limit", "1") == letters[-1:]
