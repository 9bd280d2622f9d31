"""Controllers as brokers and tools see them, in virtual time: elections, lost masters, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.controller.agreement import PEER_MESSAGES, STRANGER
from firearrow.errors import CorruptStore, StoreLocked
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.raft import Append, AskVote, Install, LogEntry, Message, StateSnapshot, encode_messages
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.signature import Credentials
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


def test_the_state_takes_the_place_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_only_asks_is_agreed_on_where_that_is_configured(tmp_path: Path, is_agreed_on: bool) -> None:
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
        assert (await ask("n0", PEER_MESSAGES)).remark == STRANGER  # that does not name the group
        silent: dict[str, Any] = {"clusterName": "C", "brokerName": NAME, "brokerAddr": "1.1.1.1:1"}
        answer = await ask("n0", Code.BROKER_HEARTBEAT, **silent)
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        for code in (Code.GET_BROKER_EPOCH_CACHE, Code.NOTIFY_BROKER_ROLE_CHANGED):
            answer = await ask("n0", code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    staged(tmp_path, 1, main)


def lies(name: str) -> list[Message]:
    """What another member could say to end a group for good."""
    sender = "n1" if name == "n0" else "n0"
    whole: dict[str, Any] = {"sender": sender, "to": name, "term": 90}
    ask: dict[str, Any] = {"sender": sender, "to": name, "last_index": 0, "last_term": 0}
    behind: dict[str, Any] = {"previous_index": 0, "previous_term": 0, "committed": 1}
    return [
        *(AskVote(**ask, term=term, is_trial=False) for term in (2**64 - 1, 2**63 - 1, 2**40)),
        Install(**whole, snapshot=StateSnapshot(90, 90, b"rubbish")),
        Install(**whole, snapshot=StateSnapshot(2**63 - 1, 90)),
        Append(**whole, **behind, entries=[LogEntry(1, 90, b"rubbish")]),
        Append(**whole, **behind, entries=[LogEntry(1, 90, b"\x91\x93\xa9AddressCh\xff")]),
    ]


def test_no_message_ends_a_group(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever knows the group's names can say anything: what can't be is refused and not kept."""

    async def main(stage: Stage) -> None:
        group = stage.group
        await stage.pair()
        fields = {"group": "group", "members": ",".join(group.addresses)}
        for name in group.addresses:
            for lie in lies(name):
                answer = await group.ask(name, PEER_MESSAGES, encode_messages([lie]), **fields)
                assert answer.code == ResponseCode.SYSTEM_ERROR, lie
                assert "that is no message: " in (answer.remark or "")
            body = encode_messages(lies(name)[:1]).replace(b"n0", b"\xff0").replace(b"n1", b"\xff1")
            answer = await group.ask(name, PEER_MESSAGES, body, **fields)
            assert "utf-8" in (answer.remark or "").lower()
        await group.stop()
        await group.start()
        assert epochs(await group.state()) == (1, 1, 2)

    staged(tmp_path, 3, main)
    assert "request failed" not in caplog.text


SECRET = {"inner_client_authentication_credentials": '{"accessKey":"inner","secretKey":"s"}'}


def test_controllers_with_credentials_take_no_message_of_others(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        group = stage.group
        await stage.pair()  # brokers need none
        fields = {"group": "group", "members": ",".join(group.addresses)}
        ours = Client(access=Access(Credentials("inner", "s")))
        theirs = Client(access=Access(Credentials("inner", "other")))
        nobodys = Client(access=Access(Credentials("root", "s")))
        for client, code in (
            (group.client, ResponseCode.NO_PERMISSION),
            (theirs, ResponseCode.NO_PERMISSION),
            (nobodys, ResponseCode.NO_PERMISSION),
            (ours, ResponseCode.SUCCESS),
        ):
            body = encode_messages([])
            answer = await client.answer(group.addresses["n0"], PEER_MESSAGES, fields, body)
            assert answer.code == code
        for client in (ours, theirs, nobodys):
            await client.close()

    staged(tmp_path, 3, main, **SECRET)


def test_all_have_to_sign_where_that_is_configured(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        group = stage.group
        ask = group.ask("n0", Code.CONTROLLER_GET_METADATA_INFO)
        assert (await ask).code == ResponseCode.NO_PERMISSION
        await group.client.close()
        group.client = Client(access=Access(Credentials("inner", "s")))
        assert await group.leader() in group.addresses

    staged(tmp_path, 3, main, authentication_enabled=True, **SECRET)


def test_what_is_kept_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.controller.decisions.BROKERS_MAX", 2)

    async def main(stage: Stage) -> None:
        await stage.pair()
        named: dict[str, Any] = {
            "clusterName": "C", "brokerName": NAME, "appliedBrokerId": 3,
            "registerCheckCode": "1.1.1.1:1;1",
        }  # fmt: skip
        for change, code in (
            ({}, ResponseCode.SYSTEM_BUSY),
            ({"brokerName": "n" * 256}, ResponseCode.CONTROLLER_INVALID_REQUEST),
            ({"registerCheckCode": "n" * 256}, ResponseCode.CONTROLLER_INVALID_REQUEST),
            ({"appliedBrokerId": 2**63 - 1}, ResponseCode.CONTROLLER_BROKER_ID_INVALID),
            ({"appliedBrokerId": -1}, ResponseCode.CONTROLLER_BROKER_ID_INVALID),
        ):
            answer = await stage.group.ask_leader(Code.CONTROLLER_APPLY_BROKER_ID, **{**named, **change})
            assert answer.code == code, change

    staged(tmp_path, 1, main)


def test_a_damaged_file_is_one_sentence_and_the_way_back(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        await stage.pair()
        await stage.group.stop("n0")
        path = tmp_path / "n0" / "raft.log"
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptStore) as refused:
            await stage.group.start("n0")
        assert str(refused.value).startswith(f"{path} is damaged at 8: ")
        assert str(refused.value).endswith(
            ". Stop all controllers, put a copy of the last leader's directory in place of this one, and start all"
        )

    staged(tmp_path, 3, main)


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
            answer = await stage.group.ask("n0", chance.choice(codes), chance.choice(bodies), **fields)
            assert answer.code in {*ResponseCode}
        await stage.group.leader()
        again: dict[str, Any] = {"clusterName": "C", "brokerName": "another"}
        assert (await stage.group.ask("n0", Code.CONTROLLER_GET_NEXT_BROKER_ID, **again)).code == 0

    staged(tmp_path, 1, main)
    assert [record for record in caplog.records if record.exc_info] == []
