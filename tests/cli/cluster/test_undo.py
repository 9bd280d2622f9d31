"""What a change or a deletion leaves behind: a file, and a command that goes back by it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from firearrow.cli.main import main
from firearrow.client.admin import Admin
from firearrow.client.blocking import Producer, PullConsumer
from firearrow.testing import BlockingCluster
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import MessageQueue
from tests.cli.shell import Shell, shop
from tests.interop.waiting import wait_until

T = TypeVar("T")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with pytest.MonkeyPatch.context() as patched, shop(patched) as running:
        yield running


@pytest.fixture
def shell(
    cluster: BlockingCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
    return Shell(cluster, capsys)


def states(rows: Rows) -> list[str]:
    return [row["state"] for row in rows]


def refused(shell: Shell, *words: str) -> list[str]:
    """The states that an undo shows which ends with 1."""
    assert main([*words, "--json"]) == 1
    return states(json.loads(shell.said()))


def on_cluster(shell: Shell, do: Callable[[Admin, str], Awaitable[T]]) -> T:
    """Do something with the cluster and the address of its broker."""

    async def run() -> T:
        async with Admin.of([shell.cluster.name_server]) as admin:
            return await do(admin, shell.cluster.brokers[0].address)

    return asyncio.run(run())


def test_a_topic_is_made_again_without_its_messages(shell: Shell, tmp_path: Path) -> None:
    shell.text("topic", "create", "payments", "--queues", "3", "--perm", "r", "--type", "FIFO")
    on_cluster(shell, lambda admin, _: admin.put_order("payments", "broker-a:3", whole=True))
    before = shell.rows("topic", "show", "payments")
    assert "Messages can't be brought back" in shell.text("topic", "delete", "payments")
    assert [*tmp_path.iterdir()] == []
    told = shell.text("topic", "delete", "payments", "--apply", "--undo-file", "undo.json")
    assert told.endswith("`firearrow topic undo undo.json` makes it again, without its messages.\n")
    assert (tmp_path / "undo.json").stat().st_mode & 0o777 == 0o600

    undo = ("topic", "undo", "undo.json")
    [planned] = shell.rows(*undo)
    assert planned == {**before[0], "state": "would be made"}
    assert shell.fails("topic", "show", "payments")[0] == 3
    assert states(shell.rows(*undo, "--apply")) == ["made"]
    assert shell.rows("topic", "show", "payments") == before
    order = on_cluster(shell, lambda admin, _: admin.name_servers.value("ORDER_TOPIC_CONFIG", "payments"))
    assert order == "broker-a:3"
    assert states(shell.rows(*undo, "--apply")) == ["the same"]
    shell.text("topic", "create", "payments", "--queues", "5")
    assert states(shell.rows(*undo)) == ["would be changed"]
    assert states(shell.rows(*undo, "--apply")) == ["changed"]
    assert shell.rows("topic", "show", "payments") == before


def test_a_topic_that_was_made_is_deleted_while_it_is_unused(shell: Shell, tmp_path: Path) -> None:
    shell.text("topic", "create", "drafts", "--queues", "2", "--type", "FIFO")
    assert [*tmp_path.iterdir()] == []  # `topic delete` is its way back
    shell.rows("topic", "delete", "drafts", "--apply")
    made = ("topic", "create", "drafts", "--queues", "2", "--type", "FIFO", "--undo-file", "undo.json")
    assert shell.text(*made).endswith("`firearrow topic undo undo.json` sets what was before.\n")
    on_cluster(shell, lambda admin, _: admin.put_order("drafts", "broker-a:2", whole=True))
    undo = ("topic", "undo", "undo.json")
    assert states(shell.rows(*undo)) == ["would be deleted"]
    shell.text("topic", "create", "drafts", "--queues", "3")
    assert refused(shell, *undo, "--apply") == ["was changed since"]
    shell.text("topic", "create", "drafts", "--queues", "2")
    assert states(shell.rows(*undo, "--apply")) == ["deleted"]
    assert shell.fails("topic", "show", "drafts")[0] == 3
    assert shell.fails("topic", "routes", "drafts")[0] == 3
    assert on_cluster(shell, lambda admin, _: admin.name_servers.pairs("ORDER_TOPIC_CONFIG")).get("drafts") is None
    assert states(shell.rows(*undo, "--apply")) == ["the same"]


def test_a_topic_with_messages_stays(shell: Shell) -> None:
    shell.text("topic", "create", "letters", "--queues", "1", "--undo-file", "undo.json")
    with Producer(shell.cluster.name_server, group="p") as producer:
        producer.send("letters", "x")

    def has_messages() -> bool:
        return bool(shell.rows("topic", "stats", "letters")[0]["maxOffset"])

    wait_until(has_messages, 30, "the message in its queue")
    for words in ([], ["--apply"]):
        assert refused(shell, "topic", "undo", "undo.json", *words) == ["has messages"]
    assert shell.rows("topic", "stats", "letters")[0]["messages"] == 1


def test_a_change_and_a_creation_are_undone_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with shop(monkeypatch, brokers=2) as cluster:
        shell = Shell(cluster, capsys)
        on_cluster(shell, lambda admin, address: admin.topics.create(address, TopicConfig("parts", 2, 2)))
        shell.text("topic", "create", "parts", "--queues", "5")
        [undo] = [path.name for path in tmp_path.glob("firearrow-undo-parts-*.json")]
        planned = [(row["broker"], row["readQueues"], row["state"]) for row in shell.rows("topic", "undo", undo)]
        assert planned == [("broker-a", 2, "would be changed"), ("broker-b", 5, "would be deleted")]
        assert states(shell.rows("topic", "undo", undo, "--apply")) == ["changed", "deleted"]
        [kept] = shell.rows("topic", "show", "parts")
        [route] = shell.rows("topic", "routes", "parts")
        assert [(it["broker"], it["readQueues"]) for it in (kept, route)] == [("broker-a", 2)] * 2


def test_a_refused_creation_leaves_no_file(shell: Shell, tmp_path: Path) -> None:
    for noun in ("topic", "group"):
        assert shell.fails(noun, "create", "a b", "--undo-file", "undo.json")[0] == 1
    assert [*tmp_path.iterdir()] == []


def test_a_group_that_was_made_is_deleted_while_it_is_unused(shell: Shell) -> None:
    make, undo = ("group", "create", "couriers", "--retries", "3"), ("group", "undo", "undo.json")
    shell.text(*make, "--undo-file", "undo.json")
    assert states(shell.rows(*undo)) == ["would be deleted"]
    with PullConsumer(shell.cluster.name_server, group="couriers") as consumer:
        consumer.subscribe("orders")
        assert refused(shell, *undo, "--apply") == ["has clients"]
    shell.text("group", "create", "couriers", "--ordered")
    assert refused(shell, *undo, "--apply") == ["was changed since"]
    shell.text("group", "create", "couriers", "--no-ordered")
    shell.commit("couriers", 1)
    assert refused(shell, *undo, "--apply") == ["has offsets"]
    assert shell.rows("group", "show", "couriers")
    shell.text("group", "delete", "couriers", "--apply")
    shell.text(*make)
    assert states(shell.rows(*undo, "--apply")) == ["deleted"]
    assert shell.fails("group", "show", "couriers")[0] == 3
    assert states(shell.rows(*undo, "--apply")) == ["the same"]


def test_a_group_with_messages_to_retry_stays(shell: Shell) -> None:
    shell.text("group", "create", "clerks", "--undo-file", "undo.json")
    retries = TopicConfig("%RETRY%clerks", 1, 1)
    on_cluster(shell, lambda admin, address: admin.topics.create(address, retries))
    with Producer(shell.cluster.name_server, group="p") as producer:
        producer.send("%RETRY%clerks", "x")

    def stored(admin: Admin, address: str) -> Awaitable[int]:
        return admin.offsets.latest(address, MessageQueue("%RETRY%clerks", "broker-a", 0))

    wait_until(lambda: on_cluster(shell, stored), 30, "the message in its queue")
    assert refused(shell, "group", "undo", "undo.json", "--apply") == ["has messages"]
    assert shell.rows("group", "show", "clerks")


def test_what_is_not_given_of_a_topic_stays(shell: Shell, tmp_path: Path) -> None:
    made = ("--perm", "r", "--type", "FIFO", "--ordered", "--attribute", "cleanup.policy=DELETE")
    shell.text("topic", "create", "invoices", "--queues", "3", *made)
    [before] = shell.rows("topic", "show", "invoices")
    shell.text("topic", "create", "invoices", "--perm", "r")
    assert [*tmp_path.iterdir()] == []  # nothing has changed
    told = shell.text("topic", "create", "invoices", "--queues", "5", "--no-ordered")
    [undo] = [path.name for path in tmp_path.glob("firearrow-undo-invoices-*.json")]
    assert told.endswith(f"`firearrow topic undo {undo}` sets what was before.\n")
    after = {**before, "readQueues": 5, "writeQueues": 5, "isOrdered": False}
    assert shell.rows("topic", "show", "invoices") == [after]
    assert states(shell.rows("topic", "undo", undo, "--apply")) == ["changed"]
    assert shell.rows("topic", "show", "invoices") == [before]
    shell.text("topic", "create", "invoices", "--perm", "rw", "--undo-file", "perm.json")
    assert shell.rows("topic", "show", "invoices") == [{**before, "perm": "rw"}]
    change = ("--attribute", "cleanup.policy=COMPACTION", "--undo-file", "perm.json")
    assert shell.fails("topic", "create", "invoices", *change)[0] == 1
    assert shell.rows("topic", "show", "invoices") == [{**before, "perm": "rw"}]


def test_what_is_not_given_of_a_group_stays(shell: Shell, tmp_path: Path) -> None:
    shell.text("group", "create", "dunning", "--retries", "3", "--ordered", "--no-broadcast")

    async def change(admin: Admin, address: str) -> None:
        config = await admin.groups.config(address, "dunning")
        added = {"+lite.bind.topic": "orders"}
        longer = replace(config, consume_timeout_minute=30, retry_queue_nums=2, attributes=added)
        await admin.groups.create(address, longer)

    on_cluster(shell, change)
    [before] = shell.rows("group", "show", "dunning")
    assert (before["consumeTimeoutMinutes"], before["retryQueues"]) == (30, 2)
    shell.text("group", "create", "dunning")
    assert [*tmp_path.iterdir()] == []  # nothing has changed
    told = shell.text("group", "create", "dunning", "--disabled", "--undo-file", "off.json")
    assert told.endswith("`firearrow group undo off.json` sets what was before.\n")
    assert shell.rows("group", "show", "dunning") == [{**before, "isEnabled": False}]
    shell.text("group", "create", "dunning", "--enabled", "--broadcast", "--no-ordered")
    after = {**before, "mayBroadcast": True, "isOrdered": False}
    assert shell.rows("group", "show", "dunning") == [after]
    assert states(shell.rows("group", "undo", "off.json", "--apply")) == ["changed"]
    assert shell.rows("group", "show", "dunning") == [before]


def test_a_group_is_made_again_where_it_was(shell: Shell) -> None:
    shell.text("group", "create", "billing", "--retries", "3", "--ordered")
    shell.text("topic", "create", "refunds", "--queues", "1")
    shell.commit("billing", 1, 2)

    async def forbid(admin: Admin, address: str) -> None:
        await admin.groups.readable(address, "billing", "orders", False)
        await admin.offsets.commit(address, "billing", MessageQueue("refunds", "broker-a", 0), 0)

    on_cluster(shell, forbid)
    before = shell.rows("group", "show", "billing")
    told = shell.text("group", "delete", "billing", "--apply", "--undo-file", "undo.json")
    assert told.endswith("`firearrow group undo undo.json` makes it again, where it was.\n")
    shell.text("topic", "delete", "refunds", "--apply")

    undo = ("group", "undo", "undo.json")
    planned = shell.rows(*undo)
    assert [(row["topic"], row["afterOffset"], row["state"]) for row in planned] == [
        (None, None, "would be made"),
        ("orders", 1, "would be moved"),
        ("orders", 2, "would be moved"),
        ("refunds", None, "queue is gone"),
    ]
    assert shell.fails("group", "show", "billing")[0] == 3
    done = shell.rows(*undo, "--apply")
    assert states(done) == ["made", "moved", "moved", "queue is gone"]
    assert shell.rows("group", "show", "billing") == before
    assert [row["offset"] for row in shell.rows("offset", "get", "billing")] == [1, 2]
    assert not on_cluster(shell, lambda admin, address: admin.groups.readable(address, "billing", "orders"))


def test_offsets_that_are_kept_are_not_moved(shell: Shell, tmp_path: Path) -> None:
    shell.text("group", "create", "audit")
    shell.commit("audit", 1, 2)
    shell.text("group", "delete", "audit", "--keep-offsets", "--apply", "--undo-file", "kept.json")
    assert json.loads((tmp_path / "kept.json").read_text())["offsets"] == []
    assert states(shell.rows("group", "undo", "kept.json", "--apply")) == ["made"]
    assert [row["offset"] for row in shell.rows("offset", "get", "audit")] == [1, 2]


@pytest.mark.parametrize(
    ("where", "key"), [("--all-brokers", "fileReservedTime"), ("--name-servers", "scanNotActiveBrokerInterval")]
)
def test_keys_are_what_they_were(shell: Shell, where: str, key: str, tmp_path: Path) -> None:
    def value() -> str:
        servers = [where] if where == "--name-servers" else []
        return str(shell.rows("config", "get", key, *servers)[0]["value"])

    was = value()
    change = ("config", "set", f"{key}=47", where)
    assert states(shell.rows(*change)) == ["would be changed"]
    assert [*tmp_path.iterdir()] == []
    told = shell.text(*change, "--apply", "--undo-file", "undo.json")
    assert told.endswith("`firearrow config undo undo.json` sets what was before.\n")
    undo = ("config", "undo", "undo.json")
    [planned] = shell.rows(*undo)
    assert (planned["before"], planned["after"], value()) == ("47", was, "47")
    assert states(shell.rows(*undo, "--apply", "--undo-file", "again.json")) == ["changed"]
    assert value() == was
    assert states(shell.rows(*undo, "--apply")) == ["the same"]
    shell.rows("config", "undo", "again.json", "--apply")
    assert value() == "47"
    shell.rows(*undo, "--apply")
    assert len([*tmp_path.glob("firearrow-undo-config-*.json")]) == 2  # maybe of one second


def test_nothing_is_deleted_where_the_file_can_not_be_written(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    shell.text("group", "create", "ledger")
    for words in (
        ["topic", "delete", "orders"],
        ["group", "delete", "ledger"],
        ["config", "set", "fileReservedTime=9", "--all-brokers"],
    ):
        code, said = shell.fails(*words, "--apply", "--undo-file", "mine")
        assert (code, said) == (1, "firearrow: mine: File exists\n")
    assert shell.rows("topic", "show", "orders")
    assert shell.rows("group", "show", "ledger")
    assert shell.rows("config", "get", "fileReservedTime")[0]["value"] != "9"


@pytest.mark.parametrize("unsynced", ["undo.json", "."])
def test_nothing_is_changed_before_the_file_and_its_name_are_on_the_disk(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsynced: str
) -> None:
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), (tmp_path / unsynced).stat()):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        words = "topic", "delete", "orders", "--apply", "--undo-file", "undo.json"
        assert shell.fails(*words) == (1, f"firearrow: {unsynced}: Input/output error\n")
    assert shell.rows("topic", "show", "orders")


@pytest.mark.parametrize("noun", ["topic", "group", "config", "offset"])
def test_a_file_of_another_kind_is_refused(shell: Shell, noun: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"kind": "pizza"}')
    assert shell.fails(noun, "undo", "other.json") == (
        1,
        "firearrow: other.json undoes something else: `firearrow pizza undo` reads it\n",
    )
    (tmp_path / "bad.json").write_text("no")
    code, said = shell.fails(noun, "undo", "bad.json")
    assert (code, said.startswith("firearrow: bad.json is no undo file: ")) == (1, True)
