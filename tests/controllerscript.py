"""A script of requests by brokers and tools to a controller of either kind, and the expected responses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.frame import AnyCommand
from firearrow.wire.jsondialect import with_quoted_keys
from tests.interop.servers import BROKER_NAME, CLUSTER_NAME
from tests.mqadminscript import Runner, words_of

WITHIN_S: Final = 120
NAMED = {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}
ADDRESSES = {1: "127.0.0.1:1001", 2: "127.0.0.1:1002", 3: "127.0.0.1:1003"}


def apply(broker_id: int, code: str = "") -> dict[str, Any]:
    return {**NAMED, "appliedBrokerId": broker_id, "registerCheckCode": code or f"127.0.0.1:100{broker_id};7"}


def register(broker_id: int, address: str = "") -> dict[str, Any]:
    where = address or ADDRESSES.get(broker_id, "127.0.0.1:9")
    return {**NAMED, "brokerId": broker_id, "brokerAddress": where, "invokeTime": 1}


def beat(broker_id: int, **fields: Any) -> dict[str, Any]:
    return {
        **NAMED, "brokerId": broker_id, "brokerAddr": ADDRESSES[broker_id], "epoch": 1,
        "maxOffset": 100, "confirmOffset": 100, "heartbeatTimeoutMills": 600_000,
        "electionPriority": 7, **fields,
    }  # fmt: skip


def alter(*, master: int = 1, epoch: int = 1, name: str = BROKER_NAME) -> dict[str, Any]:
    return {"brokerName": name, "masterBrokerId": master, "masterEpoch": epoch, "invokeTime": 1}


def in_sync(*ids: int, epoch: int) -> bytes:
    return fastjson.dumps({"syncStateSet": ids, "syncStateSetEpoch": epoch})


def elect(broker_id: int, *, designate: bool = False) -> dict[str, Any]:
    return {**NAMED, "brokerId": broker_id, "designateElect": designate, "invokeTime": 1}


def clean(ids: str | None, name: str = BROKER_NAME, *, living: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = {"clusterName": CLUSTER_NAME, "brokerName": name}
    if ids is not None:
        fields["brokerControllerIdsToClean"] = ids
    return {**fields, "isCleanLivingBroker": living, "invokeTime": 1}


NAMES = fastjson.dumps([BROKER_NAME, "unknown"])
ALTER, ELECT = Code.CONTROLLER_ALTER_SYNC_STATE_SET, Code.CONTROLLER_ELECT_MASTER
REGISTER, APPLY = Code.CONTROLLER_REGISTER_BROKER, Code.CONTROLLER_APPLY_BROKER_ID
NEXT, INFO = Code.CONTROLLER_GET_NEXT_BROKER_ID, Code.CONTROLLER_GET_REPLICA_INFO
DATA, CLEAN, BEAT = (Code.CONTROLLER_GET_SYNC_STATE_DATA, Code.CLEAN_BROKER_DATA, Code.BROKER_HEARTBEAT)

# Brokers 1 and 2 are in sync in the end, 3 is not.
FIRST: list[tuple[int, dict[str, Any], bytes]] = [
    (NEXT, NAMED, b""),
    (INFO, {"brokerName": BROKER_NAME}, b""),
    (DATA, {}, NAMES),
    (ELECT, elect(1), b""),
    (ALTER, alter(), in_sync(1, epoch=0)),
    (REGISTER, register(1), b""),
    (CLEAN, clean(None), b""),
    (APPLY, apply(2), b""),
    (APPLY, apply(1), b""),
    (APPLY, apply(1), b""),
    (APPLY, apply(1, "127.0.0.1:9;9"), b""),
    (NEXT, NAMED, b""),
    (REGISTER, register(1), b""),
    (REGISTER, register(2), b""),
    (INFO, {"brokerName": BROKER_NAME}, b""),
    (BEAT, beat(1), b""),
    (ELECT, elect(1), b""),
    (ELECT, elect(1), b""),
    (REGISTER, register(1), b""),
    (APPLY, apply(2), b""),
    (APPLY, apply(3), b""),
    (REGISTER, register(2, "127.0.0.1:9"), b""),
    (REGISTER, register(2), b""),
    (REGISTER, register(3), b""),
    (ALTER, alter(name="unknown"), in_sync(1, epoch=1)),
    (ALTER, alter(), in_sync(1, epoch=1)),
    (ALTER, alter(master=2), in_sync(1, 2, epoch=1)),
    (ALTER, alter(epoch=7), in_sync(1, 2, epoch=1)),
    (ALTER, alter(), in_sync(1, 2, epoch=7)),
    (ALTER, alter(), in_sync(1, 9, epoch=1)),
    (ALTER, alter(), in_sync(1, 2, epoch=1)),
    (BEAT, beat(2), b""),
    (BEAT, beat(3), b""),
    (ALTER, alter(), in_sync(2, epoch=1)),
    (ALTER, alter(), in_sync(1, 2, epoch=1)),
    (INFO, {"brokerName": BROKER_NAME}, b""),
    (DATA, {}, NAMES),
    (ELECT, elect(3, designate=True), b""),
    (ELECT, elect(9, designate=True), b""),
    (ELECT, elect(2), b""),
    (CLEAN, clean("1"), b""),
    (CLEAN, clean(None), b""),
    (CLEAN, clean("3"), b""),
    (CLEAN, clean(None, "unknown"), b""),
    (BEAT, {key: value for key, value in beat(1).items() if key != "brokerId"}, b""),
    (Code.GET_BROKER_EPOCH_CACHE, {}, b""),
    (Code.NOTIFY_BROKER_ROLE_CHANGED, {}, b""),
]  # fmt: skip


# Broker 1 is lost, and then 2: nobody in sync lives.
LATER: list[tuple[int, dict[str, Any], bytes]] = [
    (ELECT, elect(3), b""),
    (ELECT, elect(3, designate=True), b""),
    (REGISTER, register(3), b""),
    (DATA, {}, NAMES),
    (CLEAN, clean("1"), b""),
    (NEXT, NAMED, b""),
    (DATA, {}, NAMES),
    (BEAT, beat(2), b""),
    (ELECT, elect(2), b""),
    (DATA, {}, NAMES),
    (CLEAN, clean("3", living=True), b""),
    (DATA, {}, NAMES),
    (NEXT, NAMED, b""),
]


def shown(answer: AnyCommand) -> tuple[int, str | None, dict[str, str], Any]:
    """Return the parts of a response that a test compares; the body as values, not as text."""
    body = json.loads(with_quoted_keys(answer.body)) if answer.body else None
    return answer.code, answer.remark, dict(answer.ext or {}), body


class Talk:
    """Requests to one controller; each broker has a connection of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.clients: dict[int, Client] = {}

    async def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> AnyCommand:
        broker_id = fields.get("brokerId", 0) if code == BEAT else 0
        client = self.clients.setdefault(broker_id, Client())
        return await client.answer(self.address, code, fields, body, timeout_seconds=10)

    async def run(self, steps: list[tuple[int, dict[str, Any], bytes]]) -> list[Any]:
        return [(code, fields, shown(await self.ask(code, fields, body))) for code, fields, body in steps]

    async def lose(self, broker_id: int, master: int | None) -> Any:
        """Disconnect a broker and wait until there is another master; return the metadata of that moment."""
        await self.clients.pop(broker_id).close()
        while True:
            answer = shown(await self.ask(DATA, {}, NAMES))
            found = answer[3]["replicasInfoTable"][BROKER_NAME]
            if found.get("masterBrokerId") == master and (master or found["masterEpoch"] == 5):
                return answer
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


async def tell_all(address: str) -> list[Any]:
    talk = Talk(address)
    try:
        async with asyncio.timeout(WITHIN_S):
            first = await talk.run(FIRST)
            lost = [await talk.lose(1, 2), await talk.lose(2, None)]
            return [*first, *lost, *await talk.run(LATER)]
    finally:
        await talk.close()


async def prepare(address: str) -> Talk:
    """Register two brokers in sync, of which 1 is master, and one that is gone."""
    talk = Talk(address)
    await talk.ask(CLEAN, clean(None, living=True))  # those of an earlier script
    steps = [step for step in FIRST if step[0] in (APPLY, REGISTER, BEAT)]
    steps += [(ELECT, elect(1), b""), (ALTER, alter(), in_sync(1, 2, epoch=1))]
    await talk.run(steps)
    await talk.clients.pop(3).close()
    return talk


COMMANDS: Final = (
    """
getControllerMetaData -a CONTROLLER
getSyncStateSet -a CONTROLLER -b broker-a
getSyncStateSet -a CONTROLLER -b none
electMaster -a CONTROLLER -b 9 -bn broker-a -c DefaultCluster
cleanBrokerMetadata -a CONTROLLER -b 3 -bn broker-a
""",
    "electMaster -a CONTROLLER -b 2 -bn broker-a -c DefaultCluster",
    """
updateControllerConfig -a CONTROLLER -k electMasterMaxRetryCount -v 2
cleanBrokerMetadata -a CONTROLLER -b 3 -bn broker-a -c DefaultCluster
""",
    """
getControllerConfig -a CONTROLLER
getSyncStateSet -a CONTROLLER -b broker-a
""",
)
"""Stages, as `tests.mqadminscript` has them, for a controller with the brokers of ``prepare``."""


def printed_by_tools(address: str, runner: Runner) -> dict[str, str]:
    """Return the output of each command, by its name."""

    def run() -> dict[str, str]:
        found: dict[str, str] = {}
        for stage in COMMANDS:
            lines = stage.strip().splitlines()
            commands = [words_of(line, {"CONTROLLER": address}, address) for line in lines]
            for line, text in zip(lines, runner(commands), strict=True):
                name, shown = line.split()[0], text.replace(address, "CONTROLLER")
                found[name] = found.get(name, "") + f"$ {line}\n{shown}\n"
        return found

    async def with_brokers() -> dict[str, str]:
        talk = await prepare(address)
        try:
            return await asyncio.to_thread(run)
        finally:
            await talk.close()

    return asyncio.run(with_brokers())


def with_common_keys(found: Mapping[str, str]) -> dict[str, str]:
    """Keep only the keys of a configuration that controllers of both kinds show."""
    config = "getControllerConfig"
    kept = re.findall(r"(?m)^(?:\$|=====|electMasterMax).*\n", found[config])
    return {**found, config: "".join(kept) + "\n"}
