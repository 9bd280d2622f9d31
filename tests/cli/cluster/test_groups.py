"""`firearrow group` on a cluster."""

from __future__ import annotations

from firearrow.client.blocking import PullConsumer
from tests.cli.shell import Shell


def test_a_group_is_made_listed_shown_and_deleted(shell: Shell) -> None:
    made = shell.rows("group", "create", "billing", "--retries", "3", "--ordered")
    assert made == shell.rows("group", "show", "billing")
    assert made == [
        {
            "group": "billing",
            "broker": "broker-a",
            "isEnabled": True,
            "mayBroadcast": True,
            "isOrdered": True,
            "retries": 3,
            "retryQueues": 1,
            "consumeTimeoutMinutes": 15,
            "attributes": "",
        }
    ]
    assert shell.rows("group", "list", "bill*") == [
        {"group": "billing", "brokers": 1, "clients": 0, "type": None, "model": None, "isEnabled": True, "retries": 3}
    ]
    assert shell.rows("group", "delete", "billing") == [
        {"group": "billing", "broker": "broker-a", "clients": 0, "state": "would be deleted"}
    ]
    assert shell.rows("group", "delete", "billing", "--apply")[0]["state"] == "deleted"
    assert shell.fails("group", "show", "billing")[0] == 3
    assert shell.rows("group", "list", "bill*") == []


def test_clients_are_listed_with_what_they_subscribe_to(shell: Shell) -> None:
    with PullConsumer(shell.cluster.name_server, group="billing") as consumer:
        consumer.subscribe("orders", tags="paid")
        [client] = shell.rows("group", "clients", "billing")
        assert client["language"] == "PYTHON"
        assert client["subscriptions"] == "orders (paid)"
        assert client["address"].startswith("127.0.0.1:")
        [listed] = shell.rows("group", "list", "billing")
        assert (listed["clients"], listed["type"], listed["model"]) == (1, "pull", "clustering")
    code, said = shell.fails("group", "clients", "billing")
    assert (code, said) == (3, "firearrow: group 'billing' has no client that is online\n")
