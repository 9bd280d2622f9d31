"""`firearrow topic` on a cluster."""

from __future__ import annotations

from firearrow.cli.main import main
from tests.cli.shell import Shell


def test_topics_are_listed_without_those_of_brokers(shell: Shell) -> None:
    assert shell.rows("topic", "list") == [
        {"topic": "orders", "type": "NORMAL", "brokers": 1, "readQueues": 2, "writeQueues": 2, "perm": "rw"}
    ]
    assert shell.rows("topic", "list", "x*") == []
    assert "SELF_TEST_TOPIC" in {row["topic"] for row in shell.rows("topic", "list", "--all")}


def test_a_topic_is_made_shown_and_deleted(shell: Shell) -> None:
    made = shell.rows("topic", "create", "payments", "--queues", "3", "--type", "FIFO")
    assert made == shell.rows("topic", "show", "payments")
    assert made == [
        {
            "topic": "payments",
            "broker": "broker-a",
            "readQueues": 3,
            "writeQueues": 3,
            "perm": "rw",
            "isOrdered": False,
            "attributes": "message.type=FIFO",
        }
    ]
    [preview] = shell.rows("topic", "delete", "orders")
    assert preview == {"topic": "orders", "broker": "broker-a", "messages": 6, "state": "would be deleted"}
    assert shell.rows("topic", "show", "orders")
    assert shell.rows("topic", "delete", "orders", "--apply")[0]["state"] == "deleted"
    assert shell.fails("topic", "show", "orders") == (3, "firearrow: there is no topic 'orders'\n")


def test_queues_and_routes_are_shown(shell: Shell) -> None:
    stats = shell.rows("topic", "stats", "orders")
    assert [(row["queueId"], row["minOffset"], row["maxOffset"]) for row in stats] == [(0, 0, 3), (1, 0, 3)]
    assert all(row["lastStoredAt"].startswith("20") for row in stats)
    assert shell.rows("topic", "routes", "orders") == [
        {
            "topic": "orders",
            "cluster": "DefaultCluster",
            "broker": "broker-a",
            "brokerNumber": 0,
            "address": shell.cluster.brokers[0].address,
            "readQueues": 2,
            "writeQueues": 2,
            "perm": "rw",
        }
    ]


def test_what_is_not_there_is_3_and_what_is_refused_is_1(shell: Shell) -> None:
    code, said = shell.fails("topic", "stats", "gone")
    assert (code, "topic 'gone' has no route" in said) == (3, True)
    code, said = shell.fails("topic", "list", "--cluster", "gone")
    assert (code, "cluster 'gone' has no master; the name servers know" in said) == (3, True)
    code, said = shell.fails("topic", "create", "a b")
    assert (code, "a b" in said) == (1, True)
    code, said = shell.fails("topic", "list", "-n", "127.0.0.1:1")
    assert (code, "127.0.0.1:1" in said) == (1, True)


def test_the_health_of_a_route_is_said(shell: Shell) -> None:
    [row] = shell.rows("topic", "health", "orders")
    assert (row["level"], row["rule"], row["subject"]) == ("ok", "single-broker", "broker-a")
    shell.rows("topic", "create", "orders", "--perm", "r")
    assert main(["topic", "health", "orders"]) == 1
