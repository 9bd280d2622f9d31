"""`firearrow broker` and `firearrow cluster`, on brokers that run and one that does not."""

from __future__ import annotations

import asyncio

import pytest

from firearrow.cli.cluster.brokers import brokers_table, runtime_or_none
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import RegisteredBroker
from tests.cli.shell import Shell, shop


def test_brokers_and_clusters_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with shop(monkeypatch, brokers=2) as cluster:
        shell = Shell(cluster, capsys)
        assert shell.rows("cluster", "list")[0] | {"topics": 0} == {
            "cluster": "DefaultCluster",
            "brokers": 2,
            "masters": 2,
            "slaves": 0,
            "topics": 0,
            "putRate": 0.0,
            "getRate": 0.0,
        }
        listed = shell.rows("broker", "list")
        assert [(row["broker"], row["brokerNumber"], row["state"]) for row in listed] == [
            ("broker-a", 0, "ok"),
            ("broker-b", 0, "ok"),
        ]
        assert listed[0]["address"] == cluster.brokers[0].address
        cluster.kill_broker(1)
        assert [row["broker"] for row in shell.rows("broker", "list")] == ["broker-a"]


def test_a_broker_that_does_not_answer_is_seen() -> None:
    server = RegisteredBroker("DefaultCluster", "gone", 0, "127.0.0.1:1")

    async def ask() -> dict[str, str] | None:
        async with Admin.of(["127.0.0.1:1"]) as admin:
            return await runtime_or_none(admin, server)

    table = brokers_table([server], [asyncio.run(ask())])
    assert table.rows == [["DefaultCluster", "gone", 0, "127.0.0.1:1", None, "failed"]]


def test_what_a_broker_counts_is_shown(shell: Shell) -> None:
    [counted] = shell.rows("broker", "stats")
    assert (counted["puts"], counted["gets"], counted["putsToday"]) == (6, 0, 6)  # a look of a tool does not count
    assert counted["bytesInLog"] > 6 * 100
    assert 0 <= counted["diskShare"] <= 1
    facts = {row["name"]: row["value"] for row in shell.rows("broker", "show", "broker-a")}
    assert facts["msgPutTotalTodayNow"] == "6"
    address = shell.cluster.brokers[0].address
    assert {row["address"] for row in shell.rows("broker", "show", address)} == {address}
    code, said = shell.fails("broker", "show", "gone")
    assert (code, said) == (3, "firearrow: there is no broker 'gone'; the name servers know: broker-a\n")
