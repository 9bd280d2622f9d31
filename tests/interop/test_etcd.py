"""Controllers that agree by a real etcd: kills, pauses, and an etcd that is away.

What brokers say is RocketMQ's, once by its own broker and ours, else by a script.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from firearrow.wire.codes import ResponseCode
from tests.controllerscript import ALTER, DATA, ELECT, NAMES, WITHIN_S, Talk, alter, elect, in_sync, prepare, shown
from tests.interop.controllers import (
    Controllers,
    OriginalBroker,
    OurBroker,
    controllers,
    name_server,
    wait_for_leader,
    wait_for_state,
)
from tests.interop.etcd import Etcd
from tests.interop.servers import BROKER_NAME
from tests.interop.waiting import wait_until
from tests.net.certificates import make_certificate

STEP = ELECT, elect(2, designate=True), b""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd that is not started yet."""
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.close()


def leader_of(group: Controllers, *, but: str = "") -> str:
    """Wait until one leads, another one than a certain one; give its name."""
    others = {name: it for name, it in group.processes.items() if name != but}
    return wait_for_leader(Controllers(group.addresses, others, group.metrics_ports))


def complaint(log: Path) -> str | None:
    """What a controller says of etcd in its log."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in lines if "can't agree by etcd" in line), None)


async def state_at(talk: Talk) -> tuple[int, int, int]:
    """Which broker is master, and both epochs, as a leader knows them."""
    answer = shown(await talk.ask(DATA, {}, NAMES))
    assert answer[0] == 0, answer
    state = answer[3]["replicasInfoTable"][BROKER_NAME]
    return state["masterBrokerId"], state["masterEpoch"], state["syncStateSetEpoch"]


def test_the_controller_that_leads_is_killed_and_then_the_master(tmp_path: Path, etcd: Etcd) -> None:
    """Brokers are RocketMQ's and ours; etcd is there only when controllers and brokers wait."""
    with (
        controllers("firearrow", tmp_path, 3, **etcd.keys) as group,
        name_server(tmp_path) as namesrv,
        ExitStack() as stack,
    ):
        brokers = [
            OriginalBroker(tmp_path / "a", namesrv, group.all_addresses),
            OurBroker(tmp_path / "b", namesrv, group.all_addresses),
        ]
        for broker in brokers:
            stack.callback(broker.close)
            broker.start()
        for process in group.processes.values():
            said = wait_until(partial(complaint, process.log), WITHIN_S, "a sentence in the log")
            assert f"etcd is out of reach, or refuses: {etcd.url}: " in said
        etcd.start()
        before = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
        assert (before["masterEpoch"], before["syncStateSetEpoch"]) == (1, 2)
        group.kill(leader_of(group))
        after = wait_for_state(group, lambda state: all(it["alive"] for it in state["inSyncReplicas"]))
        assert after == before
        by_address = {broker.address: broker for broker in brokers}
        by_address.pop(before["masterAddress"]).kill()
        (other,) = by_address
        state = wait_for_state(group, lambda state: state.get("masterAddress") == other)
        assert (state["masterEpoch"], state["syncStateSetEpoch"]) == (2, 3)
        assert {it["brokerId"] for it in before["inSyncReplicas"]} == {1, 2}


def test_a_paused_controller_changes_nothing_when_it_goes_on(tmp_path: Path, etcd: Etcd) -> None:
    """What it was asked while it stood still, it answers when another leads, and refuses."""
    etcd.start()
    with controllers("firearrow", tmp_path, 2, **etcd.keys) as group:
        first = leader_of(group)
        address, paused = group.addresses[first], group.processes[first].popen.pid

        async def main() -> None:
            talk = await prepare(address)
            before = await state_at(talk)
            os.kill(paused, signal.SIGSTOP)
            steps = [STEP, (ALTER, alter(), in_sync(1, epoch=2))]
            waiting = [
                asyncio.create_task(talk.clients[0].answer(address, *step, timeout_seconds=60)) for step in steps
            ]
            second = await asyncio.to_thread(leader_of, group, but=first)
            os.kill(paused, signal.SIGCONT)
            for answer in await asyncio.gather(*waiting):
                assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
            other = Talk(group.addresses[second])
            assert await state_at(other) == before == (1, 1, 2)
            for it in (talk, other):
                await it.close()

        asyncio.run(main())
        leader_of(group)


def test_nothing_is_lost_with_an_etcd_that_is_killed(tmp_path: Path) -> None:
    """It asks for a user and encrypts; when it comes back, it has forgotten who has said who he is.
    Without it nobody leads, once the lease is over."""
    certificate = make_certificate(tmp_path, "etcd")
    etcd = Etcd(tmp_path, certificate)
    keys = {
        **etcd.keys,
        "controllerEtcdTrustCertPath": str(certificate.with_suffix(".crt")),
        "controllerEtcdUser": "root",
        "controllerEtcdPassword": "a secret of twelve",
    }
    try:
        etcd.start()
        etcd.post("auth/user/add", {"name": "root", "password": "a secret of twelve"})
        etcd.post("auth/user/grant", {"user": "root", "role": "root"})
        etcd.post("auth/enable", {})
        with controllers("firearrow", tmp_path, 2, **keys) as group:
            first = group.addresses[leader_of(group)]

            async def main() -> None:
                talk = await prepare(first)
                before = await state_at(talk)
                assert before == (1, 1, 2)
                etcd.kill()
                answer = await talk.ask(*STEP)  # when the lease is over
                assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
                await asyncio.to_thread(etcd.start)
                other = Talk(group.addresses[await asyncio.to_thread(leader_of, group)])
                assert await state_at(other) == before
                for it in (talk, other):
                    await it.close()

            asyncio.run(main())
    finally:
        etcd.close()
