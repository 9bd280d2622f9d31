"""Controllers of ours do for RocketMQ's brokers and tools what RocketMQ's own do.

The same requests and commands go to a controller of each kind, and get the same. Then two original
brokers follow three controllers of ours: the master is killed, a controller is, and the master
comes back.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand
from tests import scrapes
from tests.interop.controllers import Controllers, OriginalBroker, controllers, name_server
from tests.interop.driver import Driver
from tests.interop.servers import BROKER_NAME, CLUSTER_NAME, Kind
from tests.interop.waiting import wait_until
from tests.scrapes import Scraped

WITHIN_S = 60
NAMED = {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}
ADDRESSES = {1: "127.0.0.1:1001", 2: "127.0.0.1:1002", 3: "127.0.0.1:1003"}

Ask = Callable[..., Awaitable[AnyCommand]]


def apply(broker_id: int, code: str = "") -> dict[str, Any]:
    return {
        **NAMED,
        "appliedBrokerId": broker_id,
        "registerCheckCode": code or f"127.0.0.1:100{broker_id};7",
    }


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
DATA, CLEAN, BEAT = (
    Code.CONTROLLER_GET_SYNC_STATE_DATA,
    Code.CLEAN_BROKER_DATA,
    Code.BROKER_HEARTBEAT,
)

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
    """What is compared of an answer; of the body what it says, not how."""
    body = json.loads(fastjson.with_quoted_keys(answer.body)) if answer.body else None
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
        return [
            (code, fields, shown(await self.ask(code, fields, body)))
            for code, fields, body in steps
        ]

    async def lose(self, broker_id: int, master: int | None) -> Any:
        """Have a broker lost, and wait until there is another master; give what is known then."""
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


async def leads(address: str) -> bool:
    """Whether a controller answers as the leader. The original says ``isLeader`` before it does."""
    client = Client()
    try:
        return (await client.answer(address, DATA, {}, NAMES)).code == ResponseCode.SUCCESS
    except OSError:
        return False
    finally:
        await client.close()


def wait_for_leader(group: Controllers) -> str:
    """Wait until a controller leads; give its name."""

    def leading() -> str | None:
        names = [name for name in group.processes if asyncio.run(leads(group.addresses[name]))]
        return names[0] if names else None

    return wait_until(leading, WITHIN_S, "a controller that leads")


class Followed(NamedTuple):
    """Controllers of ours and the original brokers that follow them, of one name server."""

    group: Controllers
    namesrv: str
    brokers: list[OriginalBroker]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """Three controllers and two brokers, which begin to start."""
    directory = tmp_path_factory.mktemp("followed")
    with controllers("firearrow", directory, 3) as group, name_server(directory) as namesrv:
        brokers = [OriginalBroker(directory / name, namesrv, group.all_addresses) for name in "ab"]
        try:
            for broker in brokers:
                broker.start()
            yield Followed(group, namesrv, brokers)
        finally:
            for broker in brokers:
                broker.close()


@pytest.fixture(scope="module")
def twins(
    tmp_path_factory: pytest.TempPathFactory, followed: Followed
) -> Iterator[dict[Kind, Controllers]]:
    """One controller of each kind; what takes longer to start has begun before."""
    with (
        controllers("firearrow", tmp_path_factory.mktemp("ours"), 1) as ours,
        controllers("real", tmp_path_factory.mktemp("theirs"), 1) as theirs,
    ):
        wait_for_leader(theirs)
        wait_for_leader(ours)
        yield {"firearrow": ours, "real": theirs}


def test_brokers_get_the_same_answers(twins: dict[Kind, Controllers]) -> None:
    async def both() -> list[Any]:
        addresses = [group.all_addresses for group in twins.values()]
        return list(await asyncio.gather(*map(tell_all, addresses)))

    ours, theirs = asyncio.run(both())
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    our_metrics, their_metrics = (scraped(twins[kind]) for kind in twins)
    only_of_one = our_metrics.keys() ^ their_metrics.keys()
    assert only_of_one <= {"active_broker_num"}  # the original leaves it out when nobody lives
    for name, family in their_metrics.items():
        if name in only_of_one:
            continue
        own = our_metrics[name]
        assert (own.kind, own.labels) == (family.kind, family.labels)
        assert [*map(float, own.bounds)] == [*map(float, family.bounds)]
    counts = [requests_in(it) for it in (our_metrics, their_metrics)]
    assert counts[0] == counts[1]


def scraped(group: Controllers) -> Mapping[str, Scraped]:
    """What a controller tells monitoring."""
    status, text = asyncio.run(scrapes.get(group.metrics_ports["n0"]))
    assert status == 200
    return scrapes.parse(text, scrapes.COMMON_OF_CONTROLLER)


def requests_in(families: Mapping[str, Scraped]) -> dict[str, float]:
    """How many requests were answered well, but for those that are sent until there is a leader."""
    found: dict[str, float] = {}
    for (_, pairs), value in families["request_total"].values.items():
        labels = dict(pairs)
        if labels["request_handle_status"] == "success":
            found[labels["request_type"]] = value
    return {name: it for name, it in found.items() if not name.endswith("SYNC_STATE_DATA")}


async def prepare(address: str) -> Talk:
    """Have two brokers in sync, of which 1 is master, and one that is gone."""
    talk = Talk(address)
    steps = [step for step in FIRST if step[0] in (APPLY, REGISTER, BEAT)]
    steps += [(ELECT, elect(1), b""), (ALTER, alter(), in_sync(1, 2, epoch=1))]
    await talk.run(steps)
    await talk.clients.pop(3).close()
    return talk


def test_tools_print_the_same(twins: dict[Kind, Controllers], driver: Driver) -> None:
    ours, theirs = (printed_by_tools(twins[kind], driver) for kind in twins)
    assert "#ControllerLeaderId\tn0" in ours["getControllerMetaData"]
    assert "#SyncStateSetNums\t2" in ours["getSyncStateSet"]
    # The original elects, but its tool can't read its answer.
    assert "#BrokerMasterAddr\t127.0.0.1:1002\n#MasterEpoch\t2\n" in ours.pop("electMaster")
    assert theirs.pop("electMaster") == ""
    assert ours == theirs


def mqadmin(driver: Driver, namesrv: str, *commands: list[str]) -> list[str]:
    """Run commands at once, as each takes a second; give what each prints."""
    words = [[*command, "-n", namesrv] for command in commands]
    printed: list[str] = driver.call("mqadmin.all", list[str], commands=words)
    return printed


def printed_by_tools(group: Controllers, driver: Driver) -> dict[str, str]:
    address = group.all_addresses
    broker = ["-bn", BROKER_NAME, "-c", CLUSTER_NAME]

    def run(*commands: list[str]) -> list[str]:
        texts = mqadmin(
            driver, address, *([name, "-a", address, *rest] for name, *rest in commands)
        )
        return [text.replace(address, "CONTROLLER") for text in texts]

    def printed() -> dict[str, str]:
        meta, state = run(["getControllerMetaData"], ["getSyncStateSet", "-b", BROKER_NAME])
        (elected,) = run(["electMaster", "-b", "2", *broker])
        changed, cleaned = run(
            ["updateControllerConfig", "-k", "electMasterMaxRetryCount", "-v", "2"],
            ["cleanBrokerMetadata", "-b", "3", *broker],
        )
        config, after = run(["getControllerConfig"], ["getSyncStateSet", "-b", BROKER_NAME])
        return {
            "getControllerMetaData": meta,
            "getSyncStateSet": state,
            "electMaster": elected,
            "updateControllerConfig": changed,
            "cleanBrokerMetadata": cleaned,
            "getControllerConfig": "".join(re.findall(r"(?m)^electMasterMax.*\n", config)),
            "getSyncStateSet then": after,
        }

    async def prepared() -> dict[str, str]:
        talk = await prepare(address)
        try:
            return await asyncio.to_thread(printed)
        finally:
            await talk.close()

    return asyncio.run(prepared())


def test_original_brokers_follow_our_controllers(followed: Followed, driver: Driver) -> None:
    """The master is killed, and a controller; nobody else is asked to do anything."""
    group, namesrv, brokers = followed
    state = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
    assert (state["masterEpoch"], state["syncStateSetEpoch"]) == (1, 2)
    by_address = {broker.address: broker for broker in brokers}
    first = by_address.pop(state["masterAddress"])
    (second,) = by_address.values()

    first.kill()
    state = wait_for_state(group, lambda state: state.get("masterAddress") == second.address)
    assert (state["masterEpoch"], state["syncStateSetEpoch"]) == (2, 3)
    assert [one["alive"] for one in state["notInSyncReplicas"]] == [False]

    first.start()
    group.kill(wait_for_leader(group))
    leader = group.addresses[wait_for_leader(group)]
    state = wait_for_state(group, lambda state: len(state["inSyncReplicas"]) == 2)
    assert (state["masterAddress"], state["masterEpoch"]) == (second.address, 2)
    assert (state["syncStateSetEpoch"], state["notInSyncReplicas"]) == (4, [])

    of_name, at = ["-b", BROKER_NAME], ["-a", leader]
    in_sync, epochs = mqadmin(
        driver, namesrv, ["getSyncStateSet", *at, *of_name], ["getBrokerEpoch", *of_name]
    )
    assert f"#MasterAddr\t{second.address}\n#MasterEpoch\t2\n#SyncStateSetEpoch\t4\n" in in_sync
    assert f"#brokerAddr\t{second.address}\n#brokerId\t0\n" in epochs
    ids = {one["brokerAddress"]: str(one["brokerId"]) for one in state["inSyncReplicas"]}
    assert f"#brokerAddr\t{first.address}\n#brokerId\t{ids[first.address]}\n" in epochs

    wanted = ["-b", ids[first.address], "-bn", BROKER_NAME, "-c", CLUSTER_NAME]
    (elected,) = mqadmin(driver, namesrv, ["electMaster", *at, *wanted])
    assert (
        f"#BrokerMasterAddr\t{first.address}\n#MasterEpoch\t3\n#SyncStateSetEpoch\t5\n" in elected
    )
    wait_for_state(group, lambda state: state.get("masterAddress") == first.address)


def wait_for_state(
    group: Controllers, is_wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until what the leader knows of the brokers is as wanted; give it."""

    async def asked() -> dict[str, Any] | None:
        client = Client()
        try:
            for name in group.processes:
                try:
                    answer = await client.answer(group.addresses[name], DATA, {}, NAMES)
                except OSError:  # it does not listen yet
                    continue
                if answer.code == 0:
                    table = fastjson.loads(answer.body)["replicasInfoTable"]
                    state: dict[str, Any] | None = table.get(BROKER_NAME)
                    return state if state and is_wanted(state) else None
            return None
        finally:
            await client.close()

    return wait_until(lambda: asyncio.run(asked()), WITHIN_S, "brokers that follow")
