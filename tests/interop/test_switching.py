"""Brokers of both kinds under one controller: each is master in turn, and the other follows.

What was acknowledged by any master must be in the log of the next one, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.cli.main import main
from firearrow.store import told_progress
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from tests.broker.serving import pull_fields, send_fields
from tests.interop.controllers import (
    Controllers,
    OriginalBroker,
    OurBroker,
    ask,
    controllers,
    epochs_of,
    log_of,
    name_server,
    wait_for_same_log,
    wait_for_state,
)
from tests.interop.servers import AUTHORIZED, BROKER_NAME, CLUSTER_NAME
from tests.interop.waiting import wait_until, wait_until_healthy

pytestmark = pytest.mark.slow

WITHIN_S = 60
NAMED = ("first", "second")
SAFE = {"allAckInSyncStateSet": "true", "defaultTopicQueueNums": "1"}


def send(broker: OriginalBroker, *words: str, topic: str = "T", **changed: Any) -> None:
    """Send messages to a broker that must take them, in the end."""
    for word in words:

        def taken(word: str = word) -> bool:
            try:
                answer = ask(broker.address, 310, send_fields(topic, **changed), word.encode())
            except OSError:
                return False
            return bool(answer.code == 0)

        wait_until(taken, WITHIN_S, f"{broker.kind} takes a message")


def elect(group: Controllers, broker: OriginalBroker, state: dict[str, Any]) -> None:
    """Have a broker be master."""
    known = state["inSyncReplicas"] + state["notInSyncReplicas"]
    [number] = [it["brokerId"] for it in known if it["brokerAddress"] == broker.address]
    fields = {
        "clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME, "brokerId": number,
        "designateElect": True, "invokeTime": 1,
    }  # fmt: skip
    answer = ask(group.all_addresses, Code.CONTROLLER_ELECT_MASTER, fields)
    assert answer.code == 0, answer.remark


def led_by(broker: OriginalBroker, in_sync: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a broker is master, with so many in sync."""

    def holds(state: dict[str, Any]) -> bool:
        return state.get("masterAddress") == broker.address and len(state["inSyncReplicas"]) == in_sync

    return holds


def test_a_broker_of_each_kind_is_master_in_turn(tmp_path: Path) -> None:
    with controllers("firearrow", tmp_path, 1) as group, name_server(tmp_path) as namesrv:
        ours = OurBroker(tmp_path / "ours", namesrv, group.all_addresses, **SAFE)
        theirs = OriginalBroker(tmp_path / "theirs", namesrv, group.all_addresses, **SAFE)
        try:
            ours.start()
            wait_for_state(group, led_by(ours, 1))
            theirs.start()
            send(ours, "one", "two")
            wait_for_state(group, led_by(ours, 2))
            send(ours, "three")
            ours.kill()
            wait_for_state(group, led_by(theirs, 1))
            send(theirs, "four", "five")
            ours.start()
            state = wait_for_state(group, led_by(theirs, 2))
            send(theirs, "six")
            elect(group, ours, state)
            wait_for_state(group, led_by(ours, 2))
            send(ours, "seven")
            wait_until_healthy(namesrv)
            log = wait_for_same_log([ours, theirs])
            words = ("one", "two", "three", "four", "five", "six", "seven")
            places = [log.index(word.encode()) for word in words]
            assert places == sorted(places)
            assert [it.epoch for it in epochs_of(ours).epoch_list] == [1, 2, 3]
        finally:
            ours.close()
            theirs.close()


def test_what_is_beside_the_log_is_at_whoever_is_master_next(tmp_path: Path) -> None:
    """All that RocketMQ's SlaveSynchronize asks for, from masters and slaves of either kind, which
    sign what they ask; but RocketMQ's proves nothing where it copies the log."""
    timers = {"timerWheelEnable": "true", "timerPrecisionMs": "100"}
    with controllers("firearrow", tmp_path, 1) as group, name_server(tmp_path) as namesrv:
        keys = {**AUTHORIZED, **SAFE, **timers, "haAllowUnauthenticated": "true"}
        ours = OurBroker(tmp_path / "ours", namesrv, group.all_addresses, **keys)
        theirs = OriginalBroker(tmp_path / "theirs", namesrv, group.all_addresses, **keys)
        try:
            ours.start()
            wait_for_state(group, led_by(ours, 1))
            theirs.start()
            wait_for_state(group, led_by(ours, 2))
            change(ours, "first")
            expected = wait_for_same_state(theirs, ours)
            ours.kill()
            wait_for_state(group, led_by(theirs, 1))
            assert beside_the_log(theirs)["topics"] == expected["topics"]
            send(theirs, "one")
            change(theirs, "second")
            ours.start()
            state = wait_for_state(group, led_by(theirs, 2))
            expected = wait_for_same_state(ours, theirs)
            elect(group, ours, state)
            wait_for_state(group, led_by(ours, 2))
            found = beside_the_log(ours)
            assert {"first", "second"} <= found["topics"].keys()
            for name in ("topics", "groups", "modes", "offsets"):
                assert found[name] == expected[name]
            send(ours, "two")
        finally:
            ours.close()
            theirs.close()


def change(broker: OriginalBroker, topic: str) -> None:
    """Make something of each kind at a master."""

    def done(code: int, fields: dict[str, Any], body: Any = None) -> None:
        text = b"" if body is None else fastjson.dumps(body)
        answer = ask(broker.address, code, fields, text)
        assert answer.code == 0, (code, answer.remark)

    group = f"{topic}-group"
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": True,
    }  # fmt: skip
    done(17, fields)
    done(200, {}, {"groupName": group, "retryMaxTimes": 7})
    send(broker, f"{topic} plain", topic=topic)
    offset = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1}
    done(15, offset)
    done(401, {}, {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 1})
    send(broker, f"{topic} delayed", topic=topic, i="DELAY\x011\x02UNIQ_KEY\x01U1\x02")
    due = int(time.time() * 1000) + 3_600_000
    send(broker, f"{topic} timed", topic=topic, i=f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01U2\x02")


def wait_for_same_state(slave: OriginalBroker, master: OriginalBroker) -> dict[str, Any]:
    """Wait until a slave has what its master has beside the log; give it."""
    differ: dict[str, Any] = {}

    def same() -> bool:
        here, there = beside_the_log(slave), beside_the_log(master)
        differ.clear()
        differ.update({name: (here[name], there[name]) for name in here if here[name] != there[name]})
        return not differ

    try:
        wait_until(same, WITHIN_S, f"what the {master.kind} master knows")
    except TimeoutError as error:
        raise AssertionError(f"{error}: {differ}") from None
    return beside_the_log(master)


def beside_the_log(broker: OriginalBroker) -> dict[str, Any]:
    """What a broker tells its slaves, but for what changes by itself."""

    def told(code: int) -> Any:
        return fastjson.loads(ask(broker.address, code, {}).body or b"{}")

    def entries(code: int, table: str) -> dict[str, Any]:
        return {name: it for name, it in told(code)[table].items() if name.startswith(NAMED)}

    check = told_progress(ask(broker.address, 60, {}).body or b"")
    return {
        "topics": entries(21, "topicConfigTable"),
        "groups": entries(201, "subscriptionGroupTable"),
        "offsets": {key: {int(number): it for number, it in queues.items()}
                    for key, queues in entries(43, "offsetTable").items()},
        "delays": {int(level): it for level, it in told(45)["offsetTable"].items()},
        "modes": entries(402, "messageRequestModeMap"),
        "timers": {name: it["count"] for name, it in entries(61, "timingCount").items()},
        "timer queue": check.queue_offset if check else None,
    }  # fmt: skip


def test_what_is_damaged_comes_back_from_a_broker_of_the_other_kind(tmp_path: Path) -> None:
    """To a slave of ours from its master, to our master from a slave that it is told of."""
    with controllers("firearrow", tmp_path, 1) as group, name_server(tmp_path) as namesrv:
        theirs = OriginalBroker(tmp_path / "theirs", namesrv, group.all_addresses, **SAFE)
        reads = {"slaveReadEnable": "true", "checkCRCOnRead": "true"}
        heals = {"healFrom": theirs.ha_address, **reads}
        ours = OurBroker(tmp_path / "ours", namesrv, group.all_addresses, **SAFE, **reads)
        told = OurBroker(tmp_path / "told", namesrv, group.all_addresses, **SAFE, **heals)
        try:
            theirs.start()
            wait_for_state(group, led_by(theirs, 1))
            ours.start()
            told.start()
            state = wait_for_state(group, led_by(theirs, 3))
            send(theirs, "one", "two", "three")
            log = wait_for_same_log([theirs, ours, told])
            assert healed(ours, log, "two")
            elect(group, told, state)
            wait_for_state(group, led_by(told, 3))
            send(told, "four", "five")
            log = wait_for_same_log([theirs, ours, told])
            for word in ("one", "four"):
                assert healed(told, log, word)
            told.kill()
            damage(told, log, "five")
            source = ["--from", theirs.ha_address, "--apply"]
            assert main(["store", "repair", str(told.directory / "store"), *source]) == 0
            assert log_of(told, len(log)) == log
        finally:
            for broker in (theirs, ours, told):
                broker.close()


def damage(broker: OriginalBroker, log: bytes, word: str) -> None:
    """Change a byte of a message's body in a broker's log."""
    with (broker.directory / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(log.index(word.encode()))
        file.write(b"X")


def healed(broker: OriginalBroker, log: bytes, word: str) -> bool:
    """Damage a message, have it read, and wait until it is as it was."""
    damage(broker, log, word)
    assert log_of(broker, len(log)) != log
    number = ("one", "two", "three", "four", "five").index(word)

    def is_whole() -> bool:
        answer = ask(broker.address, Code.PULL_MESSAGE, pull_fields(number))
        return word.encode() in answer.body and log_of(broker, len(log)) == log

    return bool(wait_until(is_whole, WITHIN_S, f"{word} is as it was"))


def test_our_brokers_follow_an_original_controller(tmp_path: Path) -> None:
    with controllers("real", tmp_path, 1) as group, name_server(tmp_path) as namesrv:
        brokers = [OurBroker(tmp_path / name, namesrv, group.all_addresses, **SAFE) for name in "ab"]
        first, second = brokers
        try:
            for broker in brokers:
                broker.start()
            state = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
            if state["masterAddress"] != first.address:
                first, second = second, first
            send(first, "one", "two")
            first.kill()
            wait_for_state(group, led_by(second, 1))
            send(second, "three")
            first.start()
            wait_for_state(group, led_by(second, 2))
            log = wait_for_same_log([first, second])
            assert log.index(b"one") < log.index(b"two") < log.index(b"three")
        finally:
            for broker in brokers:
                broker.close()
