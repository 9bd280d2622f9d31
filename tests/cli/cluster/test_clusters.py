"""Brokers are taken out of use and restarted, while clients send and consume."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.cli.cluster import clusters, draining
from firearrow.cli.cluster.clusters import COMES_BACK, NOT_RESTARTED
from firearrow.cli.main import main
from firearrow.cli.serving.brokerprocesses import read_control
from firearrow.client import Message
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.blocking import Producer, PushConsumer
from tests.cli.serving.test_serve import running, stop
from tests.cli.serving.test_supervisor import start, two
from tests.cli.shell import Shell, shop
from tests.cli.traffic import Traffic
from tests.interop.waiting import wait_until

SOON = ("--route-seconds", "0.2")


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "LOOK_SECONDS", 0.05)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """A cluster of two brokers."""
    with shop(monkeypatch, brokers=2) as cluster:
        yield Shell(cluster, capsys)


def perms(name_server: str, topic: str = "orders") -> dict[str, int]:
    async def ask() -> dict[str, int]:
        async with Admin.of([name_server]) as admin:
            route = await admin.topics.route(topic)
            return {queues.broker_name: queues.perm for queues in route.queue_datas}

    return asyncio.run(ask())


def test_nobody_sends_to_a_drained_broker_until_it_is_in_use_again(pair: Shell) -> None:
    name_server = pair.cluster.name_server
    [row] = pair.rows("cluster", "drain", "broker-a", *SOON)
    assert (row["broker"], row["state"], row["left"]) == ("broker-a", "drained", "")
    assert perms(name_server) == {"broker-a": 4, "broker-b": 6}
    with Producer(name_server, group="p") as producer:
        assert {producer.send("orders", "x").queue.broker for _ in range(4)} == {"broker-b"}
    [row] = pair.rows("cluster", "undrain", pair.cluster.brokers[0].address)
    assert row["state"] == "in use"
    assert perms(name_server) == {"broker-a": 6, "broker-b": 6}


def test_a_broker_that_was_given_back_is_taken_out_of_use_again(pair: Shell, tmp_path: Path) -> None:
    name_server, kept = pair.cluster.name_server, tmp_path / "undo.json"
    words = ("cluster", "undrain", "broker-a", "--undo-file", str(kept))
    pair.rows(*words)
    assert not kept.exists()  # it was in use
    pair.rows("cluster", "drain", "broker-a", *SOON)
    pair.rows(*words)
    undo = ("cluster", "undo", str(kept))
    assert pair.rows(*undo)[0]["state"] == "would be out of use"
    assert perms(name_server) == {"broker-a": 6, "broker-b": 6}
    assert pair.rows(*undo, "--apply")[0]["state"] == "out of use"
    assert perms(name_server) == {"broker-a": 4, "broker-b": 6}


def test_a_name_server_that_is_gone_keeps_a_broker_out_of_use_at_no_other(pair: Shell) -> None:
    name_server = pair.cluster.name_server
    pair.rows("cluster", "drain", "broker-a", *SOON)
    both = f"127.0.0.1:1;{name_server}"
    code, said = pair.fails("cluster", "undrain", "broker-a", "-n", both)
    assert code == 1
    assert "127.0.0.1:1 can't be reached" in said
    assert perms(name_server) == {"broker-a": 6, "broker-b": 6}


def test_what_a_group_that_is_online_has_to_read_is_waited_for(pair: Shell) -> None:
    let_go = threading.Event()
    pair.rows("group", "create", "readers")
    pair.commit("readers", 0, 0)
    drain = ("cluster", "drain", "broker-a", *SOON, "--deadline")
    [row] = pair.rows(*drain, "30")  # who is not online is not waited for
    assert row["state"] == "drained"
    consumer = PushConsumer(pair.cluster.name_server, group="readers")

    @consumer.on("orders")
    def read(message: Message) -> None:
        let_go.wait()

    with consumer:
        try:
            code, said = pair.fails(*drain, "0.5")
        finally:
            let_go.set()
        assert code == 1
        assert re.search("broker-a: readers has [1-9] to read\n", said)
        [row] = pair.rows(*drain, "30")
        assert (row["state"], row["left"]) == ("drained", "")


def test_the_only_master_stays_in_use(shell: Shell) -> None:
    code, said = shell.fails("cluster", "drain", "broker-a")
    assert code == 1
    assert "broker-a is the only master of DefaultCluster: without it nobody can send" in said
    assert perms(shell.cluster.name_server) == {"broker-a": 6}


def test_a_broker_that_nobody_would_start_again_is_not_restarted(pair: Shell) -> None:
    code, said = pair.fails("cluster", "restart", "broker-b")
    assert code == 1
    assert "is not run by `firearrow serve --brokers` on this machine" in said
    assert perms(pair.cluster.name_server) == {"broker-a": 6, "broker-b": 6}


def test_all_brokers_are_restarted_and_no_send_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    with running(*two(store)) as process:
        name_server, *_ = start(process)
        monkeypatch.setenv("NAMESRV_ADDR", name_server)
        before = read_control(store)
        assert main(["topic", "create", "orders", "--queues", "2"]) == 0
        with Traffic(name_server, "orders") as traffic:
            capsys.readouterr()
            words = ["--route-seconds", "1", "--deadline", "1", "--json"]
            assert main(["cluster", "restart", *words]) == 0
            rows = json.loads(capsys.readouterr().out)
            traffic.end()
            assert traffic.missing(set(traffic.sent)) == set()
        assert [(row["broker"], row["state"]) for row in rows] == [("broker-a", "restarted"), ("broker-b", "restarted")]
        assert traffic.sent
        assert traffic.failed == []
        after = read_control(store)
        assert before is not None
        assert after is not None
        assert [it for it in before.brokers if before.brokers[it].pid == after.brokers[it].pid] == []
        stop(process)


@pytest.mark.parametrize(
    ("moment", "a_state"),
    [("taken out of use", NOT_RESTARTED), ("is restarted", COMES_BACK)],
    ids=["while it is drained", "while it starts"],
)
def test_an_interrupted_restart_leaves_all_in_use_and_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: str, a_state: str
) -> None:
    """Ctrl-C comes twice: the second time while the broker is put in use again."""
    say, fill = clusters._say, draining.fill

    def say_and_interrupt(what: str) -> None:
        say(what)
        if moment in what:
            signal.raise_signal(signal.SIGINT)

    async def interrupt_and_fill(admin: Admin, broker: str) -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.05)  # the loop has heard of it then
        await fill(admin, broker)

    monkeypatch.setattr(clusters, "_say", say_and_interrupt)
    monkeypatch.setattr(draining, "fill", interrupt_and_fill)
    store = tmp_path / "store"
    with running(*two(store)) as process:
        name_server, *_ = start(process)
        monkeypatch.setenv("NAMESRV_ADDR", name_server)
        assert main(["topic", "create", "orders", "--queues", "2"]) == 0
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["cluster", "restart", "--route-seconds", "0.2"])
        assert end.value.code == 130
        said = capsys.readouterr().err.splitlines()
        assert re.fullmatch(rf"firearrow: broker-a \(\S+\): {re.escape(a_state)}", said[-3])
        assert re.fullmatch(rf"firearrow: broker-b \(\S+\): {NOT_RESTARTED}", said[-2])
        assert said[-1] == "firearrow: interrupted"
        wait_until(lambda: perms(name_server) == {"broker-a": 6, "broker-b": 6}, 30, "both in use again")
        stop(process)


def test_an_interrupted_drain_says_that_the_broker_is_out_of_use(
    pair: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lags = draining._lags

    async def interrupt_and_look(admin: Admin, master: RegisteredBroker) -> dict[str, int]:
        signal.raise_signal(signal.SIGINT)
        return await lags(admin, master)

    monkeypatch.setattr(draining, "_lags", interrupt_and_look)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["cluster", "drain", "broker-a", "-n", pair.cluster.name_server])
    assert end.value.code == 130
    assert re.search(
        r"broker-a \(\S+\): out of use, and perhaps not drained. "
        "`firearrow cluster undrain broker-a` has clients send to it again.\n"
        "firearrow: interrupted\n",
        capsys.readouterr().err,
    )
    assert perms(pair.cluster.name_server) == {"broker-a": 4, "broker-b": 6}
