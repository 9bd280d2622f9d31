"""Controllers as brokers and tools see them, in virtual time: elections, lost masters, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.controller.agreement import PEER_MESSAGES
from firearrow.errors import StoreLocked
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from tests.controller.serving import NAME, FakeBroker, Stage, staged


def epochs(state: dict[str, Any]) -> tuple[int | None, int, int]:
    return state.get("masterBrokerId"), state["masterEpoch"], state["syncStateSetEpoch"]


async def until_master(stage: Stage, broker_id: int | None) -> dict[str, Any]:
    while True:
        state = await stage.group.state()
        if state.get("masterBrokerId") == broker_id:
            return state
        await asyncio.sleep(0.1)


async def notice(broker: FakeBroker) -> dict[str, str]:
    command = await broker.heard.get()
    assert command.is_oneway
    return dict(command.ext)


@pytest.mark.parametrize("size", [1, 3])
def test_a_lost_master_is_followed_by_its_slave(tmp_path: Path, size: int) -> None:
    async def main(stage: Stage) -> None:
        master, slave = await stage.pair()
        assert epochs(await stage.group.state()) == (1, 1, 2)
        await master.die()
        assert await notice(slave) == {
            "masterBrokerId": "2", "masterAddress": slave.address, "masterEpoch": "2",
            "syncStateSetEpoch": "3",
        }  # fmt: skip
        state = await stage.group.state()
        assert epochs(state) == (2, 2, 3)
        assert [one["brokerId"] for one in state["inSyncReplicas"]] == [2]
        assert [one["alive"] for one in state["notInSyncReplicas"]] == [False]
        again = await stage.broker(1)
        assert (await again.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST

    staged(tmp_path, size, main)


def test_a_silent_master_is_lost_too(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        master, _ = await stage.pair()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await master.fall_silent()
        await until_master(stage, 2)
        assert 10 <= loop.time() - began <= 16  # its own time limit, and a scan

    staged(tmp_path, 1, main)


def test_nobody_follows_who_lacks_messages(tmp_path: Path) -> None:
    """Each try costs an epoch, as upstream. Who was in sync is elected when it comes back."""

    async def main(stage: Stage) -> None:
        master, outsider = await stage.pair()
        await master.say_in_sync(1)
        await master.die()
        assert epochs(await until_master(stage, None)) == (None, 4, 3)
        answer = await outsider.elect()
        assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        again = await stage.broker(1)
        assert (await again.elect()).ext["masterEpoch"] == "5"

    staged(tmp_path, 1, main)


def test_a_broker_that_lacks_messages_may_follow_where_that_is_allowed(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        master, outsider = await stage.pair()
        await master.say_in_sync(1)
        await master.die()
        assert (await notice(outsider))["masterBrokerId"] == "2"

    staged(tmp_path, 1, main, enable_elect_unclean_master=True)


def test_an_operator_chooses_the_master(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        master, slave = await stage.pair()
        answer = await slave.ask(Code.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect=True)
        assert (answer.code, answer.ext["masterBrokerId"]) == (0, "2")
        assert fastjson.loads(answer.body) == {
            "brokerMemberGroup": {
                "brokerAddrs": {"1": master.address, "2": slave.address},
                "brokerName": NAME,
                "cluster": "C",
            },
            "syncStateSet": [2],
        }
        for broker in (master, slave):
            assert (await notice(broker))["masterEpoch"] == "2"

    staged(tmp_path, 1, main)


def test_brokers_are_not_told_where_that_is_off(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        master, slave = await stage.pair()
        await master.die()
        await until_master(stage, 2)
        await asyncio.sleep(5)
        assert slave.heard.empty()

    staged(tmp_path, 1, main, notify_broker_role_changed=False)


def test_one_of_three_may_be_lost(tmp_path: Path) -> None:
    """What was agreed on is known to the next leader, and brokers go on there."""

    async def main(stage: Stage) -> None:
        group = stage.group
        master, _ = await stage.pair()
        first = await group.leader()
        for name in group.addresses.keys() - {first}:
            answer = await group.ask(name, Code.CONTROLLER_GET_REPLICA_INFO, brokerName=NAME)
            assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
            answer = await group.ask(name, Code.CONTROLLER_GET_METADATA_INFO)
            assert answer.ext["controllerLeaderAddress"] == group.addresses[first]
        await group.stop(first)
        second = await group.leader()
        assert second != first
        assert epochs(await group.state()) == (1, 1, 2)
        await master.die()
        assert epochs(await until_master(stage, 2)) == (2, 2, 3)
        await group.start(first)  # it catches up, and may lead when the second is lost
        await asyncio.sleep(2)
        await group.stop(second)
        await group.leader()
        assert epochs(await group.state()) == (2, 2, 3)

    staged(tmp_path, 3, main)


def test_two_of_three_are_too_many(tmp_path: Path) -> None:
    """Who is alone answers nothing that others may not know of, and soon says so."""

    async def main(stage: Stage) -> None:
        group = stage.group
        await stage.pair()
        leader = await group.leader()
        await group.stop(*(group.addresses.keys() - {leader}))
        answer = await group.ask(
            leader, Code.CONTROLLER_APPLY_BROKER_ID, clusterName="C", brokerName="other",
            appliedBrokerId=1, registerCheckCode="1.1.1.1:1;1",
        )  # fmt: skip
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        answer = await group.ask(leader, Code.CONTROLLER_GET_REPLICA_INFO, brokerName=NAME)
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER

    staged(tmp_path, 3, main)


@pytest.mark.parametrize("size", [1, 3])
def test_all_comes_back_after_a_restart(tmp_path: Path, size: int) -> None:
    async def main(stage: Stage) -> None:
        await stage.pair()
        before = await stage.group.state()
        await stage.group.stop()
        await stage.group.start()
        await asyncio.sleep(3)  # brokers are heard again
        assert await stage.group.state() == before

    staged(tmp_path, size, main)


def test_the_state_takes_the_place_of_a_long_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was away for all of it gets the state, too."""
    monkeypatch.setattr("firearrow.controller.agreement.LOG_BYTES_MAX", 2000)

    async def main(stage: Stage) -> None:
        group = stage.group
        await stage.pair()
        leader = await group.leader()
        away = next(name for name in group.addresses if name != leader)
        await group.stop(away)
        for number in range(100):
            answer = await group.ask_leader(
                Code.CONTROLLER_APPLY_BROKER_ID, clusterName="C", brokerName=f"other-{number}",
                appliedBrokerId=1, registerCheckCode="1.1.1.1:1;1",
            )  # fmt: skip
            assert answer.code == 0
        sizes = [(tmp_path / name / "raft.log").stat().st_size for name in group.addresses]
        assert max(sizes) < 20_000
        await group.start(away)
        await asyncio.sleep(2)
        for name in group.addresses.keys() - {away, leader}:
            await group.stop(name)  # so the other two have to agree
        assert (await group.state("other-99"))["masterEpoch"] == 0
        await group.stop(await group.leader())
        await group.start(*(group.addresses.keys() - group.running.keys()))
        assert (await group.state("other-99"))["masterEpoch"] == 0

    staged(tmp_path, 3, main)


def test_its_configuration_is_changed_by_clients(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        ask = stage.group.ask
        text = (await ask("n0", Code.GET_CONTROLLER_CONFIG)).body.decode()
        assert "enableElectUncleanMaster=false\n" in text
        change = b"enableElectUncleanMaster=true"
        assert (await ask("n0", Code.UPDATE_CONTROLLER_CONFIG, change)).code == 0
        text = (await ask("n0", Code.GET_CONTROLLER_CONFIG)).body.decode()
        assert "enableElectUncleanMaster=true\n" in text
        assert (tmp_path / "n0.properties").read_text() == text
        for body, code in (
            (b"configStorePath=x", ResponseCode.NO_PERMISSION),
            (b"rocketmqHome=x", ResponseCode.NO_PERMISSION),
            (b"controllerDLegerGroup=x", ResponseCode.INVALID_PARAMETER),
            (b"scanNotActiveBrokerInterval=x", ResponseCode.INVALID_PARAMETER),
            (b"\xff", ResponseCode.SYSTEM_ERROR),
            (b"", 0),
        ):
            assert (await ask("n0", Code.UPDATE_CONTROLLER_CONFIG, body)).code == code, body
        assert (await ask("n0", Code.GET_CONTROLLER_CONFIG)).body.decode() == text

    staged(tmp_path, 1, main)


@pytest.mark.parametrize("is_agreed_on", [False, True])
def test_what_only_asks_is_agreed_on_where_that_is_configured(
    tmp_path: Path, is_agreed_on: bool
) -> None:
    async def main(stage: Stage) -> None:
        log = tmp_path / "n0" / "raft.log"
        await stage.pair()
        size_bytes = log.stat().st_size
        answer = await stage.group.ask("n0", Code.CONTROLLER_GET_REPLICA_INFO, brokerName=NAME)
        assert answer.ext["masterBrokerId"] == "1"
        assert (log.stat().st_size > size_bytes) is is_agreed_on

    staged(tmp_path, 1, main, process_read_event=is_agreed_on)


def test_strangers_are_refused(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        ask = stage.group.ask
        await stage.group.leader()
        for code, body, fields in (
            (PEER_MESSAGES, b"", {}),
            (PEER_MESSAGES, b"", {"group": "another", "members": "n0"}),
            (PEER_MESSAGES, b"", {"group": "group", "members": "n0,n1"}),
            (PEER_MESSAGES, b"garbage", {"group": "group", "members": "n0"}),
            (Code.CONTROLLER_GET_SYNC_STATE_DATA, b"", {}),
            (Code.CONTROLLER_GET_SYNC_STATE_DATA, b"[]", {}),
            (Code.CONTROLLER_ALTER_SYNC_STATE_SET, b"", {"brokerName": NAME}),
        ):
            assert (await ask("n0", code, body, **fields)).code == ResponseCode.SYSTEM_ERROR
        silent: dict[str, Any] = {"clusterName": "C", "brokerName": NAME, "brokerAddr": "1.1.1.1:1"}
        answer = await ask("n0", Code.BROKER_HEARTBEAT, **silent)
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        for code in (Code.GET_BROKER_EPOCH_CACHE, Code.NOTIFY_BROKER_ROLE_CHANGED):
            answer = await ask("n0", code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    staged(tmp_path, 1, main)


def test_a_store_is_for_one_controller(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        with pytest.raises(StoreLocked):
            await stage.group.start("n0")

    staged(tmp_path, 1, main)


def test_who_has_just_begun_to_lead_looks_for_lost_masters_later(tmp_path: Path) -> None:
    """A slave may be heard first by a controller that was started again."""

    async def main(stage: Stage) -> None:
        master, _ = await stage.pair()
        await master.fall_silent()
        await stage.group.stop()
        await asyncio.sleep(0.5)
        await stage.group.start()
        await asyncio.sleep(4)
        assert epochs(await stage.group.state()) == (1, 1, 2)
        await asyncio.sleep(7)
        assert epochs(await stage.group.state()) == (2, 2, 3)

    staged(tmp_path, 1, main)


def test_any_request_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fields and bodies that are wrong in every way leave a controller at work."""
    chance = Random(5)
    names = [
        "clusterName", "brokerName", "brokerId", "brokerAddress", "brokerAddr", "masterBrokerId",
        "masterEpoch", "appliedBrokerId", "registerCheckCode", "designateElect", "epoch",
        "brokerControllerIdsToClean", "isCleanLivingBroker", "heartbeatTimeoutMills", "maxOffset",
    ]  # fmt: skip
    values = ["", "C", NAME, "1", "-1", "9" * 18, "9" * 40, "1;2", ";", "true", "x:y;1", "\x00é"]
    bodies = [
        b"", b"[]", b'["broker-a"]', b"{}", b"null", b"\xff", b'{"syncStateSet":[1]}',
        b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}', b'{"syncStateSet":"x"}', b"[" * 500,
        b"enableElectUncleanMaster=maybe", b"a=b",
    ]  # fmt: skip
    codes = [code for code in Code if 1001 <= code <= 1013 or code == Code.BROKER_HEARTBEAT]

    async def main(stage: Stage) -> None:
        await stage.pair()
        for _ in range(1500):
            fields = {name: chance.choice(values) for name in chance.sample(names, 9)}
            answer = await stage.group.ask(
                "n0", chance.choice(codes), chance.choice(bodies), **fields
            )
            assert answer.code in {*ResponseCode}
        await stage.group.leader()
        again: dict[str, Any] = {"clusterName": "C", "brokerName": "another"}
        assert (await stage.group.ask("n0", Code.CONTROLLER_GET_NEXT_BROKER_ID, **again)).code == 0

    staged(tmp_path, 1, main)
    assert [record for record in caplog.records if record.exc_info] == []
