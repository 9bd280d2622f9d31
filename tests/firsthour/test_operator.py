"""Tasks of an operator in the first hour, each as one types it, beside the way of the best peer.

The comment above a test is the peer's way; none: no peer has it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shop

pytestmark = pytest.mark.usefixtures("patience")


def undo_file() -> str:
    """Return the undo file that the last change has written."""
    [file] = sorted(Path().glob("firearrow-undo-*.json"))[-1:]
    return str(file)


# rpk cluster info
def test_1_the_cluster_at_a_glance(shell: Shell) -> None:
    assert "broker-a" in shell.text("broker", "list")
    [row] = shell.rows("cluster", "list")
    assert (row["masters"], row["slaves"]) == (1, 0)


# nats stream ls
def test_2_topics(shell: Shell) -> None:
    assert "orders" in shell.text("topics")


# rpk topic create orders -p 4
def test_3_a_topic_is_previewed_and_created(shell: Shell) -> None:
    assert "would be made" in shell.text("topic", "create", "letters", "--queues", "4", "--preview")
    assert "letters" not in shell.text("topics")
    shell.text("topic", "create", "letters", "--queues", "4")
    assert "letters" in shell.text("topics")


# none
def test_4_a_change_is_undone(shell: Shell) -> None:
    shell.text("topic", "create", "orders", "--queues", "8")
    assert shell.rows("topic", "show", "orders")[0]["writeQueues"] == 8
    shell.text("topic", "undo", undo_file(), "--apply")
    assert shell.rows("topic", "show", "orders")[0]["writeQueues"] == 2


# kaf topic describe orders
def test_5_one_topic(shell: Shell) -> None:
    assert len(shell.rows("topic", "stats", "orders")) == 2
    assert shell.text("topic", "health", "orders") != ""


# kcat -P -t orders -k o-9
def test_6_a_message_is_sent(shell: Shell) -> None:
    assert "broker-a" in shell.text("send", "orders", '{"id": 9}', "--key", "o-9")


# kcat -C -t orders -o beginning -e
def test_7_messages_are_read(shell: Shell) -> None:
    assert shell.text("cat", "orders").count("order ") == 6
    assert sorted(shell.text("cat", "orders", "--format", "{key} {body}").split("\n"))[1] == "o-0 order 0"


# nats stream view --json | jq
def test_8_messages_for_a_program(shell: Shell) -> None:
    lines = shell.text("cat", "orders", "-o", "jsonl").splitlines()
    assert {json.loads(line)["properties"]["number"] for line in lines} == set("012345")


# none
def test_9_a_message_by_its_key(shell: Shell) -> None:
    assert "order 3" in shell.text("message", "get", "--key", "o-3", "--topic", "orders")


# none
def test_10_the_way_of_a_message(shell: Shell) -> None:
    [found] = shell.rows("message", "get", "--key", "o-3", "--topic", "orders")
    assert "stored" in shell.text("message", "way", found["messageId"], "--topic", "orders")


# rpk group list; rpk group describe billing
def test_11_groups_with_their_lag(shell: Shell) -> None:
    shell.text("group", "create", "billing")
    shell.commit("billing", 1, 1)
    assert "billing" in shell.text("groups")
    assert sum(row["lag"] for row in shell.rows("lag", "billing")) == 4


# none
def test_12_why_a_group_does_not_consume(shell: Shell) -> None:
    shell.text("group", "create", "billing")
    shell.commit("billing", 1, 1)
    code, _ = shell.fails("doctor", "billing")
    assert code == 1
    shell.fails("doctor")
    assert shell.said() == ""


# kafka-consumer-groups --reset-offsets --to-latest --dry-run, then --execute
def test_13_offsets_are_moved_and_moved_back(shell: Shell) -> None:
    shell.text("group", "create", "billing")
    shell.commit("billing", 1, 1)
    assert "would be moved" in shell.text("offset", "reset", "billing", "orders", "--to", "latest")
    shell.text("offset", "reset", "billing", "orders", "--to", "latest", "--apply")
    assert sum(row["lag"] for row in shell.rows("lag", "billing")) == 0
    shell.text("offset", "undo", undo_file(), "--apply")
    assert sum(row["lag"] for row in shell.rows("lag", "billing")) == 4


# rabbitmqctl list_queues name messages | grep dead
def test_14_dead_letters(shell: Shell) -> None:
    assert shell.rows("dlq", "list") == []


# rabbitmq-diagnostics check_running
def test_15_health_for_monitoring(shell: Shell) -> None:
    assert {row["level"] for row in shell.rows("check")} == {"ok"}
    assert len(shell.text("check").splitlines()) > 5


# rpk cluster config set log_retention_ms 172800000
def test_16_a_key_is_changed_and_changed_back(shell: Shell) -> None:
    shell.text("config", "set", "fileReservedTime=48", "--all-brokers", "--apply")
    assert "48" in shell.text("config", "get", "fileReservedTime")
    shell.text("config", "undo", undo_file(), "--apply")
    assert "72" in shell.text("config", "get", "fileReservedTime")


# rpk cluster config get KEY, and the documentation
def test_17_what_a_key_means(shell: Shell) -> None:
    [row] = shell.rows("config", "explain", "fileReservedTime")
    assert (row["default"], row["changes"]) == ("72", "at once")


# rpk cluster logdirs describe
def test_18_disks(shell: Shell) -> None:
    assert "broker-a" in shell.text("broker", "disk")


# none
def test_19_why_a_file_is_still_there(shell: Shell) -> None:
    assert "broker-a" in shell.text("broker", "retention")


# rpk cluster maintenance enable 0; disable 0
def test_20_a_broker_is_drained_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with shop(monkeypatch, brokers=2) as cluster:
        shell = Shell(cluster, capsys)
        shell.text("cluster", "drain", "broker-a", "--route-seconds", "0")
        assert "broker-b" in shell.text("send", "orders", "to the other")
        shell.text("cluster", "undrain", "broker-a")


# rpk profile create local; rpk profile use local
def test_21_a_cluster_gets_a_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.text("context", "add", "local", "--name-server", shell.cluster.name_server, "--use")
    monkeypatch.delenv("NAMESRV_ADDR")
    assert "orders" in shell.text("topics")
    assert "orders" in shell.text("--context", "local", "topics")


# none: a search of the web
def test_22_what_a_code_means(shell: Shell) -> None:
    assert "SYSTEM_BUSY" in shell.text("errors", "2")


# nats bench js pub sync orders
def test_23_a_load_test(shell: Shell) -> None:
    [row] = shell.rows("bench", "produce", "--topic", "orders", "--count", "200")
    assert row["messages"] == 200


# sh mqadmin topicList -n HOST, which starts a JVM
def test_24_mqadmin_without_a_jvm(shell: Shell) -> None:
    assert "orders" in shell.text("mqadmin", "topicList")
    assert shell.fails("mqadmin", "topicRoute", "-t", "nowhere")[0] == 1


# none
def test_25_a_query_over_what_is_stored(shell: Shell) -> None:
    [row] = shell.rows("sql", "SELECT count(*) AS n FROM orders WHERE tag = 'paid'")
    assert row["n"] == 4


# none: kafka-dump-log prints one file
def test_26_a_store_is_verified_without_a_broker(shell: Shell) -> None:
    assert shell.text("store", "verify", str(shell.cluster.brokers[0].store)) != ""
