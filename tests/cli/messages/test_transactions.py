"""`firearrow transaction`: open transactions, parked ones, and new checks of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from firearrow.client.blocking import Producer
from firearrow.client.message import Message
from firearrow.client.producer.transactions import Decision
from tests.cli.shell import Shell, shop


def leave_open(shell: Shell, *bodies: str) -> None:
    """Send messages in transactions that nobody decides, and one that is committed."""

    def check(_: Message) -> Decision:
        return Decision.UNKNOWN

    with Producer(shell.cluster.name_server, group="till", check=check) as producer:
        for body in bodies:
            with suppress(RuntimeError), producer.transaction("orders", body, key=body):
                raise RuntimeError
        with producer.transaction("orders", "decided"):
            pass


def open_ones(shell: Shell, *words: str) -> list[dict[str, Any]]:
    """Transactions once the broker has written its decisions."""
    while any(row["body"] == "decided" for row in shell.rows("transaction", "list")):
        pass
    return shell.rows("transaction", "list", *words)


def test_transactions_are_listed_until_they_are_decided(shell: Shell) -> None:
    leave_open(shell, "first", "second")
    found = open_ones(shell)
    assert [(row["body"], row["topic"], row["producerGroup"], row["state"]) for row in found] == [
        ("first", "orders", "till", "open"),
        ("second", "orders", "till", "open"),
    ]
    assert all(row["ageSeconds"] >= 0 for row in found)
    assert shell.rows("transaction", "list", "payments") == []
    assert shell.rows("transaction", "list", "--parked") == []
    assert "2 transactions are not decided." in shell.text("transaction", "list", "--limit", "1")


def test_a_parked_transaction_is_checked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"transactionCheckInterval": 50, "transactionTimeOut": 50, "transactionCheckMax": 1}
    with shop(monkeypatch, config=config) as cluster:
        shell = Shell(cluster, capsys)
        leave_open(shell, "first")
        while not (parked := shell.rows("transaction", "list", "--parked")):
            pass
        [row] = parked
        assert (row["body"], row["state"]) == ("first", "parked")
        words = ["transaction", "resume", row["offsetMessageId"]]
        [preview] = shell.rows(*words)
        assert (preview["was"], preview["state"]) == ("parked", "would be checked")
        assert len(shell.rows("transaction", "list", "--parked")) == 1
        assert shell.rows(*words, "--apply")[0]["state"] == "checked again"
        while len(shell.rows("transaction", "list", "--parked")) == 1:
            pass  # the broker has parked the new half, too


def test_only_transactions_are_checked(shell: Shell) -> None:
    [message] = shell.rows("message", "get", "--topic", "orders", "--key", "o-0")
    code, said = shell.fails("transaction", "resume", message["offsetMessageId"], "--apply")
    assert (code, "is no open transaction" in said) == (3, True)
    assert shell.fails("transaction", "resume")[0] == 2
