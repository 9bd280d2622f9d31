"""Controllers that agree by etcd, in virtual time: who leads, and what becomes of a change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from tests.controller.fakeetcd import URL, FakeEtcd
from tests.controller.serving import NAME, Stage, staged
from tests.controller.test_app import epochs, until_master

LEASE_SECONDS = 5


def with_etcd(directory: Path, size: int, main: Callable[[Stage, FakeEtcd], Awaitable[None]]) -> None:
    """Run ``main`` with so many controllers, which were there before their etcd."""

    async def started(stage: Stage) -> None:
        etcd = FakeEtcd()
        await asyncio.sleep(3)
        await etcd.start()
        await main(stage, etcd)

    keys = {"controller_type": "etcd", "controller_etcd_endpoints": f"http://127.0.0.1:1;{URL}"}
    staged(directory, size, started, **keys)


async def leaders(stage: Stage) -> list[str]:
    """Who says that it leads."""
    answers = {name: await stage.group.ask(name, Code.CONTROLLER_GET_METADATA_INFO) for name in stage.group.running}
    return [name for name, answer in answers.items() if answer.ext["isLeader"] == "true"]


def test_who_stops_is_followed_at_once_and_all_is_known(tmp_path: Path) -> None:
    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        group = stage.group
        master, _ = await stage.pair()
        first = await group.leader()
        for name in group.addresses.keys() - {first}:
            answer = await group.ask(name, Code.CONTROLLER_GET_REPLICA_INFO, brokerName=NAME)
            assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
            answer = await group.ask(name, Code.CONTROLLER_GET_METADATA_INFO)
            assert answer.ext["controllerLeaderAddress"] == group.addresses[first]
        before = await group.state()
        assert epochs(before) == (1, 1, 2)
        await group.stop(first)
        began = asyncio.get_running_loop().time()
        assert await group.leader() != first
        assert asyncio.get_running_loop().time() - began < LEASE_SECONDS / 2
        assert await group.state() == before
        await master.die()
        assert epochs(await until_master(stage, 2)) == (2, 2, 3)
        await group.stop()
        await group.start()
        assert epochs(await group.state()) == (2, 2, 3)

    with_etcd(tmp_path, 3, main)


def test_brokers_are_forgotten_and_a_name_begins_anew(tmp_path: Path) -> None:
    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        broker = await stage.broker(1)
        assert etcd.find("/firearrow/controller/group/brokers/broker-a").version == 1
        cleaned = await broker.ask(Code.CLEAN_BROKER_DATA, isCleanLivingBroker=True)
        assert cleaned.code == ResponseCode.SUCCESS
        assert [key for key in etcd.keys if b"brokers" in key] == []
        answer = await broker.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID)
        assert answer.ext["nextBrokerId"] == "1"

    with_etcd(tmp_path, 1, main)


def test_a_change_that_was_not_answered_is_made_once(tmp_path: Path) -> None:
    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        master, _ = await stage.pair()
        before = etcd.find("broker-a").version
        etcd.faults.append("unanswered")
        answers = await asyncio.gather(
            master.say_in_sync(1), stage.group.ask_leader(Code.CONTROLLER_GET_REPLICA_INFO, brokerName=NAME)
        )
        assert [answer.code for answer in answers] == [0, 0]
        assert epochs(await stage.group.state()) == (1, 1, 3)
        assert etcd.find("broker-a").version == before + 1
        assert not etcd.faults

    with_etcd(tmp_path, 1, main)


def test_a_late_change_changes_nothing(tmp_path: Path) -> None:
    """It comes when what it was for was tried again, and more was agreed on since."""

    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        master, _ = await stage.pair()
        etcd.faults.append("late")
        assert (await master.say_in_sync(1)).code == 0
        assert (await master.say_in_sync(1, 2)).code == 0
        after = etcd.find("broker-a")
        await asyncio.sleep(30)
        assert etcd.late == [False]
        assert etcd.find("broker-a") == after
        assert epochs(await stage.group.state()) == (1, 1, 4)

    with_etcd(tmp_path, 1, main)


def test_who_is_cut_off_has_ceased_to_lead_before_another_does(tmp_path: Path) -> None:
    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        group = stage.group
        await stage.pair()
        first, before = await group.leader(), await group.state()
        etcd.cut_off = etcd.find("leader").lease
        waiting = asyncio.create_task(
            group.ask(first, Code.CONTROLLER_ELECT_MASTER, brokerName=NAME, clusterName="C",
                      brokerId=2, designateElect=True)
        )  # fmt: skip
        found: list[list[str]] = []
        while found[-1:] in ([], [[first]], [[]]):
            await asyncio.sleep(0.05)
            found.append(await leaders(stage))
        assert all(len(names) <= 1 for names in found)
        assert (found[0], found[-2]) == ([first], [])
        assert (await waiting).code == ResponseCode.CONTROLLER_NOT_LEADER
        etcd.cut_off = 0
        await asyncio.sleep(10)
        assert await group.state() == before
        assert await leaders(stage) == found[-1]

    with_etcd(tmp_path, 3, main)


def test_who_can_not_make_a_change_leads_no_longer_than_its_lease(tmp_path: Path) -> None:
    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        master, _ = await stage.pair()
        etcd.is_full = True
        began = asyncio.get_running_loop().time()
        answer = await master.say_in_sync(1)
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert asyncio.get_running_loop().time() - began <= LEASE_SECONDS
        etcd.is_full = False
        assert epochs(await stage.group.state()) == (1, 1, 2)
        assert (await master.say_in_sync(1)).code == ResponseCode.SUCCESS

    with_etcd(tmp_path, 1, main)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("leader", b"n7-10.0.0.1:1", "n7-10.0.0.1:1 leads by .*: controllerDLegerPeers does not"),
        ("brokers/a", b"[]", "/firearrow/controller/group/brokers/a has no brokers of a name: "),
        ("brokers/a", b'["\xff"]', "brokers/a has no brokers of a name: .*(?i:utf-8)"),
    ],
)
def test_what_others_wrote_keeps_it_from_leading(
    tmp_path: Path, key: str, value: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(stage: Stage, etcd: FakeEtcd) -> None:
        await stage.group.leader()
        await stage.group.stop()
        etcd.put(f"/firearrow/controller/group/{key}", value)
        await stage.group.start()
        caplog.clear()
        await asyncio.sleep(LEASE_SECONDS)
        assert await leaders(stage) == []
        record = next(it for it in caplog.records if "can't agree by etcd" in it.message)
        assert re.search(says, vars(record)["reason"])

    with_etcd(tmp_path, 2, main)
