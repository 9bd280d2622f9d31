"""`firearrow replica`: lag of slaves, replicas in sync, controllers, and the election of a master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firearrow.cli.cluster.replicas import _Answer, _replicas
from firearrow.cli.main import main
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.clock import SystemClock
from firearrow.controller.app import Controller
from firearrow.controller.config import ControllerConfig
from firearrow.wire.admin_bodies import HaClient, HaConnection, HaStatus
from firearrow.wire.controller_bodies import ReplicaIdentity, ReplicasInfo
from tests.cli.shell import Shell
from tests.controllerscript import ADDRESSES, ALTER, BEAT, DATA, NAMES, Talk, alter, beat, in_sync, prepare
from tests.interop.servers import BROKER_NAME, free_port
from tests.net.background import in_thread

MASTER = RegisteredBroker("C", "a", 0, "10.0.0.1:10911")
SLAVE = RegisteredBroker("C", "a", 2, "10.0.0.2:10911")
COUNTED = {"putTps": "10 9 8", "putMessageAverageSize": "100"}


def rows(*answers: _Answer, known: ReplicasInfo | None = None) -> list[dict[str, Any]]:
    names = ("broker", "number", "role", "address", "state", "end", "behind", "seconds", "isInSync", "speed", "heard")
    return [dict(zip((*names, "note"), row, strict=True)) for row in _replicas(answers, known)]


def master(*connections: HaConnection) -> _Answer:
    return _Answer(MASTER, HaStatus(True, 5000, sum(it.in_sync for it in connections), list(connections)), COUNTED)


def slave(end: int) -> _Answer:
    return _Answer(SLAVE, HaStatus(ha_client_runtime_info=HaClient("10.0.0.1:10912", 7, end, 1000)))


def test_a_slave_is_behind_in_bytes_and_in_time() -> None:
    first, second = rows(master(HaConnection("10.0.0.2:5555", in_sync=True)), slave(3000))
    assert (first["role"], first["behind"], first["note"]) == ("master", 0, "connected slaves: 1, in sync: 1")
    assert (second["behind"], second["seconds"], second["isInSync"], second["state"]) == (2000, 2.0, True, "ok")
    assert second["note"] == "copies from 10.0.0.1:10912"


def test_the_controllers_know_best_what_is_in_sync() -> None:
    known = ReplicasInfo(
        3, 4, [ReplicaIdentity("a", 1, MASTER.address, True)], [ReplicaIdentity("a", 2, SLAVE.address, False)]
    )
    _, second = rows(master(HaConnection("10.0.0.2:5555", in_sync=True)), slave(5000), known=known)
    assert (second["isInSync"], second["state"], second["seconds"]) == (False, "different", 0.0)


def test_connections_of_one_host_are_not_told_apart() -> None:
    both = HaConnection("10.0.0.2:5555", in_sync=True), HaConnection("10.0.0.2:5556", in_sync=False)
    assert rows(master(*both), slave(5000))[1]["isInSync"] is None


def test_what_does_not_answer_has_a_reason_and_no_zero() -> None:
    first, second = rows(_Answer(MASTER, reason="gone"), slave(3000))
    assert (first["state"], first["end"], first["note"]) == ("failed", None, "gone")
    assert (second["behind"], second["note"]) == (None, "its master does not answer")
    [alone] = rows(slave(3000))
    assert (alone["state"], alone["note"]) == ("unknown", "its master is not registered")


def test_a_cluster_without_controllers_says_so(shell: Shell) -> None:
    [row] = shell.rows("replica", "list")
    assert (row["role"], row["state"], row["isInSync"], row["note"]) == ("master", "ok", None, "no slave is connected")
    assert shell.rows("replica", "sets") == shell.rows("replica", "controllers") == []
    assert "replaced by nobody" in shell.text("replica", "controllers")
    code, said = shell.fails("replica", "elect", "10.0.0.2:10911")
    assert (code, "--controller" in said) == (2, True)


@pytest.mark.parametrize("word", ["sets", "controllers"])
def test_a_controller_that_is_gone_is_no_failure(word: str, shell: Shell) -> None:
    found = shell.rows("replica", word, "--controller", "127.0.0.1:1")
    assert [row["state"] for row in found] == (["failed"] if word == "controllers" else [])


@asynccontextmanager
async def controlled(directory: Path) -> AsyncIterator[Talk]:
    """A controller of two replicas in sync, of which 1 is the master, and of one that is gone."""
    address = f"127.0.0.1:{free_port(0)}"
    config = ControllerConfig(
        controller_d_leger_group="group",
        controller_d_leger_peers=f"n0-{address}",
        controller_d_leger_self_id="n0",
        controller_store_path=str(directory / "controller"),
        config_store_path=str(directory / "controller.properties"),
    )
    controller = Controller(config, SystemClock())
    await controller.start()
    asking = Talk(address)
    while True:
        if (await asking.ask(DATA, {}, NAMES)).code == 0:  # it leads
            break
        await asyncio.sleep(0.05)
    talk = await prepare(address)
    yield talk
    await asking.close()
    await talk.close()
    await controller.stop()


async def synchronise(address: str, *, master: int, epoch: int) -> None:
    """Tell the controller, as the master does, that 1 and 2 are in sync."""
    talk = Talk(address)
    answer = await talk.ask(DATA, {}, NAMES)
    known = json.loads(answer.body)["replicasInfoTable"][BROKER_NAME]["syncStateSetEpoch"]
    assert (await talk.ask(ALTER, alter(master=master, epoch=epoch), in_sync(1, 2, epoch=known))).code == 0
    await talk.close()


async def lose_first(address: str) -> None:
    """Have broker 1 beat once more, and lose its connection."""
    talk = Talk(address)
    await talk.ask(BEAT, beat(1))
    await talk.clients.pop(1).close()
    while True:
        answer = await talk.ask(DATA, {}, NAMES)
        replicas = json.loads(answer.body)["replicasInfoTable"][BROKER_NAME]["inSyncReplicas"]
        if not all(it["alive"] for it in replicas):
            break
        await asyncio.sleep(0.05)
    await talk.close()


def test_an_election_is_undone_once_the_former_master_is_in_sync(shell: Shell, tmp_path: Path) -> None:
    with in_thread(lambda: controlled(tmp_path)) as talk:
        first, second, third = ADDRESSES.values()

        def state(*words: str, ends: int = 0) -> tuple[str, str, str]:
            assert main([*words, "--json"]) == ends
            [row] = json.loads(shell.said())
            return row["before"], row["after"], row["state"]

        elect = ("replica", "elect", second, "--controller", talk.address)
        assert state(*elect) == (first, second, "would be elected")
        code, _ = shell.fails("replica", "elect", third, *elect[3:], "--apply", "--undo-file", "refused.json")
        assert (code, Path("refused.json").exists()) == (1, False)
        assert state(*elect, "--apply", "--undo-file", "undo.json") == (first, second, "elected")
        undo = ("replica", "undo", "undo.json")
        assert state(*undo, "--apply", ends=1) == (second, first, "not in sync")
        asyncio.run(synchronise(talk.address, master=2, epoch=2))
        assert state(*undo) == (second, first, "would be elected")
        assert state(*undo, "--apply", "--undo-file", "again.json") == (second, first, "elected")
        assert state(*undo) == (first, first, "the same")
        asyncio.run(synchronise(talk.address, master=1, epoch=3))
        assert state("replica", "undo", "again.json", "--apply") == (first, second, "elected")
        asyncio.run(synchronise(talk.address, master=2, epoch=4))
        asyncio.run(lose_first(talk.address))
        assert state(*undo, "--apply", ends=1) == (second, first, "not alive")
