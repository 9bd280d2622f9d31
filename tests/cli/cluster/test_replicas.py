"""`firearrow replica`: lag of slaves, replicas in sync, controllers, and the election of a master."""

from __future__ import annotations

from typing import Any

import pytest

from firearrow.cli.cluster.replicas import _Answer, _replicas
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.wire.admin_bodies import HaClient, HaConnection, HaStatus
from firearrow.wire.controller_bodies import ReplicaIdentity, ReplicasInfo
from tests.cli.shell import Shell

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
